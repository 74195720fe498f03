"""Runs the programs of the page on results as they stand, with classes that its readers generate."""

import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from pipeline.core.results.window_results import PaneResult, batches_of, message_of, read_batch
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from tests.templates.hcl import VARIABLES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/results.md").read_text()
START_US = 1_771_322_400_000_000  # 2026-02-17T10:00:00Z

# A stand-in for the package, whose decorator registers the function.
FRAMEWORK = "def cloud_event(function):\n    return function\n"

FUNCTION = """
from types import SimpleNamespace

for data in {data!r}:
    on_result(SimpleNamespace(data={{"message": {{"data": data}}}}))
"""

PIPELINE = """
import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage

with beam.Pipeline("FnApiRunner") as pipeline:
    messages = pipeline | beam.Create([PubsubMessage(*each) for each in {messages!r}])
    newest(messages) | beam.Map(lambda result: print(result.sensor_id, result.reading_count))
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def results():
    """Two results of a warm window, of which the second is newer, and one of another window."""
    found = []
    for batch, (sensor_id, values) in enumerate([("a", [31.0]), ("a", [31.0, 33.0]), ("b", [9.0])]):
        stats = WindowStats()
        for value in values:
            stats.add({"temperature": value})
        result = PaneResult(0, sensor_id, START_US, stats, "late")
        (encoded,) = batches_of([result], TableSchema.default().tiers, START_US, batch)
        found += [message_of(each, "protobuf") for each in read_batch(encoded)]
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the generated classes."""
    folder = tmp_path_factory.mktemp("project")
    proto = "tidetable/v1/window_result.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "protos", f"--python_out={folder}", proto]
    subprocess.run(command, check=True)
    (folder / "functions_framework.py").write_text(FRAMEWORK)
    return folder


def run(project, program):
    (project / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_function(project):
    """It reads the event that Eventarc sends for a message."""
    data = [b64encode(each.data).decode() for each in results()]
    function, _ = blocks("python")
    assert run(project, function + FUNCTION.format(data=data)) == [
        f"a was warm at 2026-02-17T10:00:00Z: {mean} (agg#hourly#a#2026-02-17T10/{START_US}-{number:012d})"
        for number, mean in enumerate(["31.0", "32.0"])
    ]


def test_the_second_pipeline(project):
    """It keeps the newest result of each window, in whatever order they come."""
    messages = [(each.data, dict(each.attributes)) for each in reversed(results())]
    _, pipeline = blocks("python")
    assert sorted(run(project, pipeline + PIPELINE.format(messages=messages))) == ["a 2", "b 1"]


def test_terraform():
    """The module has the variables."""
    (hcl,) = blocks("hcl")
    assert set(re.findall(r"^(\w+) +=", hcl, re.MULTILINE)) == {"results_to_bigquery", "results_days"} <= set(VARIABLES)
