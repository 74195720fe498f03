"""What commands import: a second of imports is most of the time that a short command takes."""

import json
import subprocess
import sys

import pytest

from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.schema.table_schema import TableSchema
from tests.support.lasting import lasting
from tests.support.tables import raw_row, unused_name, write

# Slow to import, and needed by no reading that prints text.
NEVER = {
    "aiohttp",
    "apache_beam",
    "fastavro",
    "google.cloud.bigtable",  # the package that loads the administration and monitoring clients
    "google.cloud.bigtable_admin_v2",
    "google.cloud.monitoring_v3",
    "google.cloud.pubsub_v1",
    "matplotlib",
    "numpy",
    "opentelemetry.sdk",
    "pandas",
    "plotext",
    "pyarrow",
    "rich.progress",
    "tomlkit",
}
CLIENTS = {"google.api_core", "google.auth", "google.cloud.bigtable_v2", "grpc", "proto", "requests"}
READING = [
    ["read"],
    *(["read", name] for name in ("latest-events", "latest-readings", "events", "aggregates", "sensors", "plot")),
]


def loaded_by(*arguments):
    """Returns the modules that a process of the command has loaded at its end, and what it printed."""
    script = (
        f"import sys; sys.argv[1:] = {list(arguments)!r}\n"
        "from pipeline.cli.extras import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.split()), ran.stdout


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_help_of_a_reading(command):
    """The help of a reading command loads none of Google's clients."""
    loaded, printed = loaded_by(*command, "--help")
    assert printed.startswith("Usage:")
    assert sorted((NEVER | CLIENTS) & loaded) == []


def test_a_reading(bigtable):
    """A reading loads the client that it uses, and no other."""
    name = unused_name()
    tables.create(name, lasting(TableSchema.default()))
    write(name, [raw_row(Event("s", 1_771_324_200_000_000, {"t": 21.5}, {}))])
    place = [f"--project={name.project}", f"--instance={name.instance}", f"--table={name.table}"]
    loaded, printed = loaded_by("read", "latest-events", "s", *place, "--format=json")
    assert json.loads(printed)["readings"] == {"t": 21.5}
    assert sorted(NEVER & loaded) == []
