import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pipeline import __version__
from pipeline.cli.root import main


def test_help_has_sections():
    """Commands stand in the order in which people need them, in sections; so do subcommands."""
    output = CliRunner().invoke(main, ["--help"]).output
    sections = re.findall(r"^([A-Z][\w ]+):\n((?:  .+\n)+)", output.partition("--help")[2], re.MULTILINE)
    listed = {title: [line.split()[0] for line in lines.splitlines()] for title, lines in sections}
    assert listed == {
        "Start": ["demo", "emulators"],
        "Run": ["plan", "table", "mapping", "alerts", "run"],
        "Feed": ["simulate", "publish", "backfill"],
        "Read": ["read", "results", "serve"],
        "Maintain": ["dead-letters", "forget", "repair"],
    }
    output = CliRunner().invoke(main, ["read", "--help"]).output.partition("Commands:\n")[2]
    assert re.findall(r"^  ([\w-]+)", output, re.MULTILINE)[:3] == ["sensors", "latest-events", "latest-readings"]


def test_version():
    """The version is the package's."""
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_unknown_command():
    """An unknown command is wrong usage."""
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


@pytest.mark.parametrize(
    ("imported", "excluded"),
    [
        (
            "pipeline.cli.root",
            {"apache_beam", "google.cloud.bigtable", "google.cloud.pubsub_v1", "matplotlib", "rich"},
        ),
        ("pipeline.reading.command", {"apache_beam", "matplotlib", "plotext"}),
        ("pipeline.local.publish", {"apache_beam", "matplotlib", "plotext"}),
        ("pipeline.backfill.command", {"apache_beam", "matplotlib", "plotext"}),
        ("pipeline.local.demo", {"apache_beam", "matplotlib", "plotext"}),
        ("pipeline.dead_letters.command", {"apache_beam", "google.cloud.bigtable", "matplotlib", "plotext"}),
        ("pipeline.core.events.dead_letter", {"apache_beam", "google.cloud.bigtable", "google.api_core", "grpc"}),
    ],
)
def test_modules_not_loaded(imported, excluded):
    """A command imports only what it needs; the core needs only protobuf."""
    script = f"import sys, {imported}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not excluded & set(loaded)
