import subprocess
import sys

import pytest
from click.testing import CliRunner

from pipeline.cli.root import COMMANDS, main

SUBSCRIPTION = ["--subscription", "projects/my-project/subscriptions/sub"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reed"], "No such command 'reed'. Did you mean 'read'?"),
        (["Publish"], "No such command 'Publish'. Did you mean 'publish'?"),
        (["latest", "s"], "No such command 'latest'. Did you mean 'read latest'?"),
        (["xyz"], "No such command 'xyz'.\n"),
        (["read", "ranges"], "No such command 'ranges'. Did you mean 'range'?"),
        (["read", "latest", "s", "--projekt", "p"], "No such option '--projekt'. Did you mean '--project'?"),
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
