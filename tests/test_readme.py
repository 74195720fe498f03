"""The README says what the code says."""

import re
from pathlib import Path

from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.core.events import Reason
from pipeline.core.schema.policies import format_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.settings import TidetableOptions
from pipeline.transforms import metrics
from tests.benchmarks import state_size
from tests.benchmarks.bench import report

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def rows_of(heading):
    """The cells of the first table below a heading, by the text of the first cell."""
    section = README.split(f"\n{heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()[2:]
    return {
        cells[0].strip("` "): cells[1:]
        for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    }


def test_every_flag_with_its_default():
    """The table of flags has every flag, no other, and the right defaults: of a schema, those of the default one."""
    table = rows_of("### Flags")
    options = TidetableOptions([])
    schema = TableSchema.default()
    of_schema = {
        "--window": schema.tiers[0].window.text,
        "--raw_family": schema.metrics.families[0],
        "--stats_family": schema.tiers[0].family,
        "--meta_family": schema.metadata.families[0],
    }
    assert {name.removeprefix("--") for name in table} == set(options._visible_option_list())
    for name, (_, default) in table.items():
        actual = of_schema.get(name, getattr(options, name.removeprefix("--")))
        assert actual is None or default == f"`{actual}`", name


def test_every_reason():
    """The reasons of dead letters are listed, all of them and no other."""
    listed = re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE)
    assert listed == [reason.value for reason in Reason]


def test_every_metric():
    """Every counter and distribution is named."""
    names = [metrics.MESSAGES, metrics.EMPTY_BATCHES, metrics.EVENTS, metrics.DEAD_LETTERS, metrics.RAW_ROWS]
    names += [metrics.AGGREGATE_ROWS, metrics.EVENT_DELAY_MS, metrics.LATE_EVENTS, metrics.EXPIRED_EVENTS]
    names += [metrics.WINDOWS_RESTORED, metrics.WINDOWS_INCOMPLETE, metrics.PANES_HELD_BACK, metrics.LETTERS_DROPPED]
    names += [metrics.PANES_EARLY, metrics.PANES_ON_TIME, metrics.PANES_LATE]
    for name in names:
        assert f"`{name}`" in README


def test_families_and_policies():
    """The table of families has the policies that a table is created with."""
    table = rows_of("## The table")
    policies = TableSchema.default().policies
    assert {family: policy.strip("`") for family, (_, policy) in table.items()} == {
        family: format_policy(policy) for family, policy in policies.items()
    }


def test_every_guarantee_is_shown():
    """Each line of the table of guarantees names tests that exist."""
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for what, cells in rows_of("## Guarantees").items():
        named = re.findall(r"`(test_\w+)`", cells[-1])
        assert named, what
        for name in named:
            assert f"def {name}(" in written, name


def test_state_size():
    """The sizes are those that the named command prints."""
    assert "\n".join(state_size.lines()) in README


def test_speed():
    """The page on speed quotes the benchmark's result."""
    assert "\n".join(report.readme_lines(report.RESULT)) in README


def test_every_command():
    """The toolbox's own list of commands is quoted as it is."""
    commands = CliRunner().invoke(main, ["--help"], terminal_width=110).output.split("Commands:\n")[1]
    assert commands.rstrip() in README


def test_links_lead_somewhere():
    """Every file that is linked to exists."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
