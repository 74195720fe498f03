from collections import defaultdict

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.profiles import COMMAND_LINE_ONLY, OF_ONE_COMMAND, OPTION_NAMES, settings_of
from pipeline.cli.root import main
from tests.cli.commands import all_commands, params

PROFILES = """
[profiles.default]
project = "my-project"
instance = "i"
table = "t"
app_profile = "r"

[profiles.default."read plot"]
metric = "temperature"
from = 2026-02-17

[profiles.prod]
project = "my-project-2"
instance = "i"
table = "t"
metric = ["a", "b c"]
limit = 5
format = "json"
"""

TABLE = {"TIDETABLE_PROJECT": "my-project", "TIDETABLE_INSTANCE": "i", "TIDETABLE_TABLE": "t"}
CONSENT = {"--accept-expired", "--ack", "--dry-run", "--force", "--yes"}


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Returns a function that writes the file with the profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "tidetable" / "config.toml"
    file.parent.mkdir()

    def written(text):
        file.write_text(text)
        return file

    return written


def test_the_default_profile(write):
    """It applies where no other is chosen; hyphens and underscores are the same."""
    write(PROFILES)
    given = params(["table", "describe"])
    assert (given["project"], given["table"]) == ("my-project", "t")
    assert params(["read", "latest-events", "s"])["app_profile"] == "r"


def test_values_of_one_command(write):
    """A table named after a command sets only its options. Values are TOML's, or as typed."""
    write(PROFILES)
    given = params(["read", "plot", "s"])
    assert "temperature" in (given["metric"] if "metric" in given else given["metrics"])
    assert given["start"].us() == 1_771_286_400_000_000
    assert params(["read", "latest-events", "s"])["metrics"] == ()


@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--profile", "prod"], {}), ([], {"TIDETABLE_PROFILE": "prod"})]
)
def test_another_profile(write, arguments, environment):
    """Nothing comes from the default profile then. Lists set repeatable options, with spaces in values."""
    write(PROFILES)
    given = params([*arguments, "read", "events", "s"], environment)
    assert (given["project"], given["app_profile"], given["metrics"]) == ("my-project-2", "", ("a", "b c"))
    assert given["limit"] == 5
    assert params([*arguments, "table", "describe"], environment)["output"] == "json"


def test_precedence(write):
    """The command line goes first, then the environment, then the profile, then the default."""
    write(PROFILES)
    environment = {"TIDETABLE_TABLE": "of the environment"}
    assert params(["table", "describe"])["table"] == "t"
    assert params(["table", "describe"], {"TIDETABLE_TABLE": ""})["table"] == "t"
    environment["TIDETABLE_TABLE"] = "environment"
    assert params(["table", "describe"], environment)["table"] == "environment"
    assert params(["table", "describe", "--table", "typed"], environment)["table"] == "typed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[profiles.default]\nprojetc = 'p'", "{}: no command has an option projetc; did you mean project?"),
        ("[profiles.default]\nyes = true", "{}: yes can be set on the command line only"),
        ("[profiles.default]\ntier = '1d'", "{}: tier differs between commands; set it for one of them, in [profiles."),
        ("[profiles.default.'read plto']", "{}: no command is called read plto; did you mean read plot?"),
        (
            "[profiles.default.'table describe']\ntabel = 't'",
            "{}: table describe has no option tabel to set; did you mean table?",
        ),
        ("[profiles.default.'table delete']\nyes = true", "{}: yes can be set on the command line only"),
        ("[profiles.default]\ntable = ['a']", "{}: table takes one value, not a list"),
        ("[profile.default]", "FILE: profile: expected only tables [profiles.NAME]"),
        ("profiles = 1", "FILE: profiles: expected only tables [profiles.NAME]"),
        ("[profiles", "FILE: Expected ']'"),
    ],
)
def test_wrong_files(write, text, message):
    """The error names the file and the key, and what was probably meant."""
    file = write(text)
    ran = CliRunner().invoke(main, ["table", "describe"])
    assert (ran.exit_code, ran.stdout) == (2, "")
    expected = message.replace("{}", "profile default in FILE").replace("FILE", str(file))
    assert ran.stderr.startswith(f"Error: {expected}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROFILES, "FILE has no profile prd; did you mean prod?"),
        (None, "no profile prd: FILE does not exist"),
    ],
)
def test_no_such_profile(write, text, message):
    """A profile that was asked for has to exist."""
    file = write("")
    file.unlink() if text is None else file.write_text(text)
    ran = CliRunner().invoke(main, ["--profile", "prd", "table", "describe"])
    assert (ran.exit_code, ran.stderr) == (2, f"Error: {message}\n".replace("FILE", str(file)))


def test_a_wrong_value(write):
    """The message names the profile that it comes from."""
    file = write("[profiles.default]\nproject = 'a/b'")
    ran = CliRunner().invoke(main, ["table", "describe"])
    assert ran.exit_code == 2
    assert f"first a letter, last no hyphen (from profile default in {file})\n" in ran.stderr


def test_help_and_version_need_no_file(write):
    """A file with an error does not keep the toolbox from saying what it can do."""
    write("[profiles")
    assert CliRunner().invoke(main, ["--help"]).exit_code == CliRunner().invoke(main, ["--version"]).exit_code == 0


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
    kinds.pop("format")  # json everywhere; some commands have more
    kinds.pop("sensor")  # the id of a sensor everywhere; repair checks that it can be one
    assert {name for name, found in kinds.items() if len(found) > 1} <= OF_ONE_COMMAND
    assert not COMMAND_LINE_ONLY & set(kinds)


def test_a_variable_counts_where_the_command_line_is_silent():
    """The command line goes first; an empty variable counts as not set."""
    given = params(["read", "latest-events", "s"], TABLE | {"TIDETABLE_METRIC": "a b"})
    assert (given["project"], given["instance"], given["table"], given["metrics"]) == (
        "my-project",
        "i",
        "t",
        ("a", "b"),
    )
    assert params(["table", "describe"], TABLE | {"TIDETABLE_FORMAT": "json"})["output"] == "json"
    assert params(["read", "latest-events", "s", "--table", "other"], TABLE)["table"] == "other"
    assert params(["table", "delete", "--table", "other"], {**TABLE, "TIDETABLE_TABLE": ""})["table"] == "other"


def test_a_variable_of_one_command():
    """It goes before the one that all commands share, and is the only one where commands differ."""
    environment = TABLE | {"TIDETABLE_TABLE_DELETE_TABLE": "special", "TIDETABLE_OUTPUT": "x"}
    assert params(["table", "delete"], environment)["table"] == "special"
    assert params(["table", "describe"], environment)["table"] == "t"
    assert params(["read", "events", "--all"], environment)["out"] == ""
    assert params(["read", "events", "--all"], TABLE | {"TIDETABLE_READ_EVENTS_OUTPUT": "x"})["out"] == "x"


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
