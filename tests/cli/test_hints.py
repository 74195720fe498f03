import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.hints import EXAMPLES
from pipeline.cli.root import COMMANDS, main
from tests.cli.commands import all_commands, params


@pytest.mark.parametrize(("path", "command"), [pytest.param(*each, id=each[0]) for each in all_commands()])
def test_every_help_ends_with_an_example(path, command, tmp_path, monkeypatch):
    """The example can be pasted: it sets what it needs, and names this command, or one of this group."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readings.csv").touch()
    (tmp_path / "rules.toml").touch()
    (tmp_path / "schema.toml").touch()
    printed = click.Context(command, info_name=path).get_help().split("Example:\n")[-1]
    *exports, line = re.sub(r" \\\n +", " ", printed).strip().splitlines()
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(exports)))
    assert line.strip().startswith(f"tidetable {path} ") or line.strip() == f"tidetable {path}"
    assert params(shlex.split(line)[1:], environment) is not None


def test_no_example_is_left_over():
    """Each example belongs to a command."""
    assert set(EXAMPLES) == {path for path, _ in all_commands()}


SUBSCRIPTION = ["--subscription", "projects/my-project/subscriptions/sub"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reed"], "No such command 'reed'. Did you mean 'read'?"),
        (["Publish"], "No such command 'Publish'. Did you mean 'publish'?"),
        (["aggregates", "s"], "No such command 'aggregates'. Did you mean 'read aggregates'?"),
        (["read", "range"], "No such command 'range'. Did you mean 'read events'?"),
        (["read", "latest"], "No such command 'latest'. Did you mean 'read latest-events or latest-readings'?"),
        (["read", "events", "s", "--json"], "No such option '--json'. Did you mean '--format json'?"),
        (["dead-letters", "list", "--since=-1d"], "No such option '--since'. Did you mean '--from'?"),
        (["xyz"], "No such command 'xyz'.\n"),
        (["read", "event"], "No such command 'event'. Did you mean 'events'?"),
        (["read", "latest-events", "s", "--projekt", "p"], "No such option '--projekt'. Did you mean '--project'?"),
        (
            ["dead-letters", "list", *SUBSCRIPTION, "--reason", "missing_sensor"],
            "Did you mean 'MISSING_SENSOR_ID'?",
        ),
        (["table", "create", "--layout", "Wyde"], "Did you mean 'wide'?"),
    ],
)
def test_what_was_meant(arguments, message):
    """Mistyped commands, options and choices are wrong usage, with a suggestion if one is near."""
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr


def test_completion_of_commands_imports_none():
    """A shell gets the commands and what they do at once."""
    script = (
        "import sys\nfrom pipeline.cli.root import main\n"
        "try:\n    main(prog_name='tidetable')\n"
        "finally:\n    assert not {'apache_beam', 'google.cloud.bigtable', 'rich'} & set(sys.modules)\n"
    )
    environment = {"_TIDETABLE_COMPLETE": "zsh_complete", "COMP_WORDS": "tidetable re", "COMP_CWORD": "1"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:9] == [
        part for name in ("read", "results", "repair") for part in ("plain", name, COMMANDS[name].summary)
    ]
