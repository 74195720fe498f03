import sys
from datetime import timedelta

import pytest
from apache_beam.options.pipeline_options import WorkerOptions

from pipeline.cloud.connection.names import TableName
from pipeline.core.panes.firing import CommitLimits
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import Window
from pipeline.job.flags import BadFlag
from pipeline.job.result_flags import ResultFlags
from pipeline.job.settings import MessageFlags, is_flex_launch, parse_flags, runs_here, settings_of
from tests.support.streams import flags

RESULTS = "projects/test-project/topics/results"


def parsed(**changes):
    return settings_of(parse_flags(flags(**changes)))


def refusal(arguments):
    with pytest.raises(BadFlag) as caught:
        settings_of(parse_flags(arguments))
    message = str(caught.value)
    assert "\n" not in message
    return message


def without(name):
    return [flag for flag in flags() if not flag.startswith(f"--{name}=")]


@pytest.mark.parametrize(("arguments", "size"), [((), 100), (("--max_cache_memory_usage_mb=0",), 0)])
def test_the_cache_of_state(arguments, size):
    """Workers cache state, unless the launch sets another size, be it none."""
    options = parse_flags([*flags(), *arguments])
    assert options.view_as(WorkerOptions).max_cache_memory_usage_mb == size


def test_defaults_of_the_contract():
    """Flags that are not set have the defaults of the contract."""
    arguments = [flag for flag in flags() if "firing" not in flag]
    settings = settings_of(parse_flags(arguments))
    assert settings.tables == (TableName("test-project", "instance", "table"),)
    assert settings.declared == DeclaredSchema()
    assert settings.early_firing == timedelta(minutes=5)
    assert settings.late_firing == timedelta(seconds=60)
    assert settings.allowed_lateness == timedelta(minutes=10)
    assert settings.max_future == timedelta(hours=1)
    assert settings.launch_checks
    assert settings.timestamp_attribute is settings.id_attribute is settings.input_topic is None


@pytest.mark.parametrize(("tiers", "spread_s"), [('{ 1h = "h" }', 60), ('{ 4m = "m", 1h = "h" }', 30)])
def test_the_groups_of_a_job_on_dataflow(tiers, spread_s):
    """They are spread over a minute at most, and limit what they commit; groups in one process do neither."""
    schema = parse_schema(f"tiers = {tiers}")
    firing = parsed().aggregation_of(schema, here=False).firing
    assert (firing.spread_us, firing.commit) == (spread_s * 1_000_000, CommitLimits(180_000_000))
    firing = parsed().aggregation_of(schema).firing
    assert (firing.spread_us, firing.commit) == (0, None)


def test_every_flag():
    """Every flag that is set arrives in the settings, with its type."""
    settings = parsed(
        bigtable_project="other-project",
        schema="default",
        window="15m",
        early_firing="0",
        late_firing="90s",
        allowed_lateness="5000d",
        max_future="0",
        raw_family="r",
        stats_family="s",
        meta_family="m",
        timestamp_attribute="event_time",
        launch_checks="off",
        app_profile="batch",
    )
    assert settings.tables == (TableName("other-project", "instance", "table", app_profile="batch"),)
    assert settings.declared == DeclaredSchema(default=True, raw="r", stats="s", meta="m", window=Window.parse("15m"))
    assert (settings.early_firing, settings.late_firing) == (timedelta(0), timedelta(seconds=90))
    assert settings.allowed_lateness == timedelta(days=5000)
    assert not settings.launch_checks


@pytest.mark.parametrize("tables", [["one,other,_3"], ["one", "other", "_3"], ["one,other", "_3"]])
def test_several_tables(tables):
    """Tables are given one by one or separated by commas, and keep their order."""
    arguments = [*without("bigtable_table"), *(f"--bigtable_table={value}" for value in tables)]
    settings = settings_of(parse_flags(arguments))
    assert settings.tables == tuple(TableName("test-project", "instance", name) for name in ("one", "other", "_3"))


def test_the_same_table_twice():
    """A table that is named twice is refused, in either form."""
    for arguments in ([*flags(), "--bigtable_table=table"], flags(bigtable_table="other,table,table")):
        assert refusal(arguments) == "--bigtable-table names table twice"


def test_dropping_dead_letters_is_explicit():
    """Without a topic the pipeline refuses to start, unless dead letters are dropped."""
    assert "--dead-letters=drop" in refusal(without("dead_letter_topic"))
    settings = settings_of(parse_flags([*without("dead_letter_topic"), "--dead_letters=drop"]))
    assert settings.dead_letter_topic is None


def test_a_job_that_would_read_its_own_dead_letters():
    """One topic for both is refused, whatever --launch-checks is, unless nothing is published."""
    topic = "projects/test-project/topics/events"
    arguments = [*without("input_subscription"), f"--input_topic={topic}", f"--dead_letter_topic={topic}"]
    for checks in ("on", "off"):
        assert "--dead-letter-topic is --input-topic" in refusal([*arguments, f"--launch_checks={checks}"])
    assert settings_of(parse_flags([*arguments, "--dead_letters=drop"])).input_topic == topic


def test_results():
    """Results are final ones in protobuf, by default none; a job does not read its own."""
    assert parsed().results is None
    assert parsed(results_topic=RESULTS).results == ResultFlags(RESULTS, early=False, encoding="protobuf")
    changes = {"results_topic": RESULTS, "results": "all", "results_encoding": "json"}
    assert parsed(**changes).results == ResultFlags(RESULTS, early=True, encoding="json")
    arguments = [*without("input_subscription"), f"--input_topic={RESULTS}", f"--results_topic={RESULTS}"]
    assert refusal(arguments) == "--results-topic is --input-topic: each result would be read and refused"


@pytest.mark.parametrize("name", ["project", "bigtable_instance", "bigtable_table", "input_subscription"])
def test_required_flags(name):
    """A missing required flag is named."""
    assert f"--{name.replace('_', '-')}" in refusal(without(name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_topic": "projects/test-project/topics/events"}, "exactly one of --input-subscription"),
        ({"input_subscription": "events"}, "write projects/PROJECT/subscriptions/SUBSCRIPTION"),
        ({"input_subscription": "projects/test-project/topics/events"}, "write projects/PROJECT/subscriptions/SUBSC"),
        ({"dead_letter_topic": "projects/test-project/topics/x"}, "--dead-letter-topic: 'x' is not a valid name"),
        (
            {"input_subscription": "projects/acme/subscriptions/events"},
            "--input-subscription: 'acme' is not a valid name on Google Cloud: a project id has 6 to 30 characters",
        ),
        ({"results_topic": "projects/Test-Project/topics/results"}, "'Test-Project' is not a valid name"),
        ({"runner": "FnApiRunner"}, "--runner is 'FnApiRunner'; it has to be DirectRunner or DataflowRunner"),
        ({"dead_letters": "keep"}, "has to be publish or drop"),
        ({"launch_checks": "maybe"}, "has to be on or off"),
        ({"window": "7h"}, "--window: a window of 7h does not divide a day"),
        (
            {"window": "1d@Europe/Berlin"},
            "--window: windows of 1d@Europe/Berlin are computed from shorter",
        ),
        ({"window": "hourly"}, "--window: 'hourly' is not a duration"),
        ({"early_firing": "-1s"}, "--early-firing: '-1s' is not a duration"),
        ({"late_firing": "fast"}, "--late-firing: 'fast' is not a duration"),
        ({"allowed_lateness": "1w"}, "--allowed-lateness: '1w' is not a duration"),
        ({"max_future": ""}, "--max-future: '' is not a duration"),
        ({"raw_family": "stats"}, "three different families"),
        ({"meta_family": "a b"}, "--meta-family: 'a b' is not a valid name"),
        ({"raw_family": "tidetable"}, "family tidetable is the table's own"),
        ({"schema": "custom"}, "--schema is 'custom'; it has to be default"),
        ({"bigtable_table": "a, b"}, "--bigtable-table: ' b' is not a valid name"),
        ({"bigtable_instance": "Instance"}, "'Instance' is not a valid name on Google Cloud: an instance id"),
        ({"project": "acme"}, "--project: 'acme' is not a valid name on Google Cloud: a project id has 6 to 30 char"),
        ({"bigtable_project": "acme"}, "--bigtable-project: 'acme' is not a valid name"),
        ({"id_attribute": "event_id"}, "works on Dataflow only"),
        ({"app_profile": "a b"}, "--app-profile: 'a b' is not a valid name on Google Cloud: the id of an"),
        ({"timestamp_attribute": "event time"}, "--timestamp-attribute is"),
        ({"results_topic": "results"}, "--results-topic: topic 'results' is not a full path; write projects/PROJECT"),
        ({"results_topic": RESULTS, "results": "early"}, "--results is 'early'; it has to be final or all"),
        ({"results_topic": RESULTS, "results_encoding": "avro"}, "has to be protobuf or json"),
        ({"results": "all"}, "--results=all needs --results-topic"),
        ({"results_encoding": "json"}, "--results-encoding=json needs --results-topic"),
        (
            {"results_topic": "projects/test-project/topics/dead-letters"},
            "--results-topic is --dead-letter-topic: results would be among the dead letters",
        ),
    ],
)
def test_refused(changes, message):
    """An invalid value is reported in one line that names the flag and what it accepts."""
    assert message in refusal(flags(**changes))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--windw=1h", "unknown argument --windw=1h; did you mean --window?"),
        ("--streaming=maybe", "--streaming"),
        ("leftover", "unknown argument leftover"),
        ("--win=1h", "unknown argument --win=1h"),
    ],
)
def test_unknown_flags(argument, message):
    """An unknown flag is refused with the nearest known one, not ignored; so are abbreviations."""
    assert message in refusal([*flags(), argument])


FLEX_LAUNCH = "--template_location=gs://bucket/staging/template_launches/2026-01-01_00_00_00-1/job_object"


class TestFlexLaunch:
    def test_unknown_flags_are_a_warning(self, capsys):
        """A Flex Template's launcher may pass flags that this release does not know."""
        settings = settings_of(parse_flags([FLEX_LAUNCH, *flags(), "--windows=15m", "--zzz", "word"]))
        assert settings == parsed()
        assert capsys.readouterr().err.splitlines() == [
            "tidetable: unknown argument --windows=15m; did you mean --window?; ignored",
            "tidetable: unknown argument --zzz; ignored",
            "tidetable: unknown argument word; ignored",
        ]

    def test_empty_optional_parameters_are_absent(self, capsys):
        """``--name=`` leaves a flag to its default, also a flag of Beam whose value is a number."""
        empty = ["--window=", "--timestamp_attribute=", "--id_attribute=", "--max_future=", "--num_workers="]
        assert settings_of(parse_flags([*flags(), *empty, FLEX_LAUNCH])) == parsed()
        assert capsys.readouterr().err == ""

    def test_empty_required_parameters_are_missing(self):
        """A required parameter cannot be empty."""
        assert "--bigtable-instance is needed" in refusal([FLEX_LAUNCH, *flags(bigtable_instance="")])

    @pytest.mark.parametrize("location", ["gs://bucket/templates/mine", "gs://bucket/template_launches", None])
    def test_a_classic_template_is_none(self, location):
        """Elsewhere, unknown flags and empty values are refused."""
        arguments = [*flags(), *([] if location is None else [f"--template_location={location}"])]
        assert not is_flex_launch(location)
        assert "unknown argument --zzz" in refusal([*arguments, "--zzz"])
        assert "--window" in refusal([*arguments, "--window="])

    def test_the_launched_file(self, monkeypatch, tmp_path):
        """The launcher is recognized by the file that it runs; the image sets its name for every process."""
        monkeypatch.setenv("FLEX_TEMPLATE_PYTHON_PY_FILE", str(tmp_path / "main.py"))
        assert not is_flex_launch("gs://bucket/templates/mine")
        monkeypatch.setattr(sys, "argv", [str(tmp_path / "main.py")])
        assert is_flex_launch("gs://bucket/templates/mine")


def test_beams_own_flags_pass_through():
    """Flags of Beam and Dataflow are accepted unchecked."""
    options = parse_flags([*flags(runner="DataflowRunner"), "--region=europe-west4", "--num_workers=3"])
    assert options.get_all_options()["region"] == "europe-west4"
    assert options.get_all_options()["num_workers"] == 3
    assert [table.table for table in settings_of(options).tables] == ["table"]


def test_id_attribute_on_dataflow():
    """On a runner that can deduplicate messages, --id-attribute is accepted."""
    assert parsed(runner="DataflowRunner", id_attribute="event_id").id_attribute == "event_id"


DIRECT = "apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"


@pytest.mark.parametrize("runner", ["DirectRunner", "directrunner", "direct", "bundlebaseddirectrunner", DIRECT, None])
def test_the_direct_runner_is_named(runner):
    """DirectRunner stands for the local runner that supports Pub/Sub; the job is always streaming."""
    arguments = without("runner") if runner is None else flags(runner=runner)
    options = parse_flags(arguments)
    assert runs_here(options)
    assert options.get_all_options()["streaming"]


def test_message_types():
    """Mappings and descriptors are given one by one or separated by commas; nothing is read yet."""
    arguments = [*flags(message_mapping="a.toml,gs://b/c"), "--message_mapping=d", "--message_descriptors=gs://e/f"]
    assert settings_of(parse_flags(arguments)).messages == MessageFlags(
        ("a.toml", "gs://b/c", "d"), ("gs://e/f",), None, None, "count"
    )
    assert parsed(message_decoder="a.b:c", unknown_fields="refuse").messages == MessageFlags(
        (), (), "a.b:c", None, "refuse"
    )


def test_the_default_message_type():
    """Unmarked messages are SensorEvents, unless there are other types: then a flag or a mapping has to say so."""
    assert parsed().messages == MessageFlags(default="tidetable.v1.SensorEvent")
    assert parsed(message_mapping="a.toml").messages.default is None
    assert parsed(message_decoder="a:b").messages.default is None
    assert parsed(message_mapping="a.toml", default_message_type="json").messages.default == "json"


def test_descriptors_without_a_mapping():
    """Types alone do not say how their messages become events."""
    assert refusal(flags(message_descriptors="a")).startswith("--message-descriptors needs --message-mapping")
