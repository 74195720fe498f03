from collections import defaultdict

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.profiles import COMMAND_LINE_ONLY, OF_ONE_COMMAND, OPTION_NAMES, settings_of
from pipeline.cli.root import main
from tests.cli.commands import all_commands, params

TABLE = {"TIDETABLE_PROJECT": "my-project", "TIDETABLE_INSTANCE": "i", "TIDETABLE_TABLE": "t"}
CONSENT = {"--accept-expired", "--ack", "--apply", "--dry-run", "--force", "--yes"}


def test_every_option_has_its_variable():
    """It is named after the long option; consent has none."""
    for path, command in all_commands():
        for option in command.params:
            if not isinstance(option, click.Option) or option.hidden or "--help" in option.opts:
                continue
            named = {name for name in option.opts if name.startswith("--")}
            variables = {name.removeprefix("--").replace("-", "_").upper() for name in named}
            if named & CONSENT:
                assert option.envvar is None, path
            else:
                own = {f"TIDETABLE_{path.replace(' ', '_').replace('-', '_').upper()}_{name}" for name in variables}
                assert own <= set(option.envvar), path
                if not {name[2:] for name in named} & OF_ONE_COMMAND:
                    assert {f"TIDETABLE_{name}" for name in variables} <= set(option.envvar), path


def test_a_variable_means_the_same_in_every_command():
    """Options that share a variable take the same kind of value."""
    kinds = defaultdict(set)
    for path, command in all_commands():
        for option, names in settings_of(command):
            for name in names if path != "run" else ():  # it passes on text, which the job parses
                kinds[name].add((option.type.name, tuple(getattr(option.type, "choices", ())), option.is_flag))
    kinds.pop("sensor")  # the id of a sensor everywhere; repair checks that it can be one
    assert {name for name, found in kinds.items() if len(found) > 1} <= OF_ONE_COMMAND
    assert not COMMAND_LINE_ONLY & set(kinds)


def test_a_variable_counts_where_the_command_line_is_silent():
    """The command line goes first; an empty variable counts as not set."""
    given = params(["read", "latest", "s"], TABLE | {"TIDETABLE_METRIC": "a b"})
    assert (given["project"], given["instance"], given["table"], given["metrics"]) == (
        "my-project",
        "i",
        "t",
        ("a", "b"),
    )
    assert params(["table", "describe"], TABLE | {"TIDETABLE_JSON": "1"})["as_json"] is True
    assert params(["read", "latest", "s", "--table", "other"], TABLE)["table"] == "other"
    assert params(["table", "delete", "--table", "other"], {**TABLE, "TIDETABLE_TABLE": ""})["table"] == "other"


def test_a_variable_of_one_command():
    """It goes before the one that all commands share, and is the only one where commands differ."""
    environment = TABLE | {"TIDETABLE_TABLE_DELETE_TABLE": "special", "TIDETABLE_SENSORS": "x-"}
    assert params(["table", "delete"], environment)["table"] == "special"
    assert params(["table", "describe"], environment)["table"] == "t"
    day = ["--from", "2026-02-17", "--to", "2026-02-18"]
    assert params(["read", "prefix", *day], environment)["sensors"] == ""
    assert params(["read", "prefix", *day], TABLE | {"TIDETABLE_READ_PREFIX_SENSORS": "x-"})["sensors"] == "x-"


def test_consent_is_given_on_the_command_line_only():
    """A variable can't delete a table without a question."""
    environment = TABLE | {"TIDETABLE_YES": "1", "TIDETABLE_TABLE_DELETE_YES": "1"}
    assert params(["table", "delete"], environment)["yes"] is False
    assert params(["table", "delete", "--yes"], environment)["yes"] is True


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**TABLE, "TIDETABLE_TABLE": "a/b"}, "first neither a hyphen nor a dot (from TIDETABLE_TABLE)"),
        ({}, "Missing option '--project'. Set it, or TIDETABLE_PROJECT, or project in a profile."),
    ],
)
def test_messages_name_the_variable(environment, message):
    """A value that is wrong or missing is named with where it comes from, or could."""
    ran = CliRunner().invoke(main, ["table", "describe"], env=environment)
    assert ran.exit_code == 2
    assert message in ran.stderr


def test_the_help_says_so_once():
    """The help of the toolbox names the rule and what is left out."""
    output = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    assert "such as TIDETABLE_PROJECT for --project" in output
    assert f"Only the command line sets {', '.join(sorted(CONSENT))}." in output


def test_the_list_of_options():
    """It has the names of all options that a profile can set, and no other."""
    found = {name for _, command in all_commands() for _, names in settings_of(command) for name in names}
    assert found == OPTION_NAMES
