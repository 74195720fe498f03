import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.job.settings import TidetableOptions
from pipeline.private_apis.beam_flags import UnreadableFlag, checked_flags


def test_unknown_flags():
    """Flags of Beam's options classes are declared, the job's own if they are accepted."""
    argv = ["--runner=DirectRunner", "--window=1h", "--num_workers", "3", "--no_such=1", "word"]
    assert checked_flags(argv, TidetableOptions, accept_own=True).unknown == ["--no_such=1", "word"]
    assert checked_flags(argv, TidetableOptions, accept_own=False).unknown == ["--window=1h", "--no_such=1", "word"]


def test_declared_flags():
    """Every flag that Beam reads is among those that are declared."""
    declared = set(checked_flags([], TidetableOptions, accept_own=True).declared)
    assert {"--help", "--window", "--region", "--temp_location"} <= declared
    names = PipelineOptions([]).get_all_options(current_only=False)
    missing = {name for name in names if f"--{name}" not in declared}
    assert len(missing) < len(names) / 10, missing  # a flag may be stored under another name


def test_a_value_that_beam_refuses():
    """A value of the wrong type is an error, not the end of the process."""
    with pytest.raises(UnreadableFlag, match="argument --num_workers: invalid int value: 'many'"):
        checked_flags(["--num_workers=many"], TidetableOptions, accept_own=False)
