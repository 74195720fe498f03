"""Prints how fast ``tidetable publish`` and ``tidetable simulate`` feed a topic, which must never be the bottleneck.

Each of --runs is a process of its own, as a user starts it, in batches of a hundred events; commands take turns.
Events per second are measured by the command's own clock, as it prints them, and by the wall clock, which includes
Python's start and imports.
"""

import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.cloud.pubsub_v1 import PublisherClient

from benchmarks.measuring import Lines, arguments, emulators, spread
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time, parse_time
from pipeline.local.emulators import PUBSUB
from tests.support.records import write_delimited

EVENTS, SENSORS, BATCH, RUNS = 200_000, 100, 100, 5
START_US = parse_time("2024-05-01T08:00:00Z")
STEP_US = 54_321  # some three hours in all, with fractions of a second
METRICS = ("temperature", "humidity", "pressure")
TIDETABLE = Path(sys.executable).with_name("tidetable")


class _Command(NamedTuple):
    what: str
    arguments: list[str]


def _events(metrics: int) -> Iterator[Event]:
    """Yields events, each sensor in turn."""
    names = METRICS[:metrics]
    for index in range(EVENTS):
        readings = {name: (index * 7 + place) % 1000 / 8 for place, name in enumerate(names)}
        yield Event(f"sensor-{index % SENSORS:03d}", START_US + index * STEP_US, readings, {})


def _write_csv(path: Path, events: Iterator[Event], metrics: int) -> Path:
    with path.open("w") as file:
        file.write(",".join(("sensor_id", "event_time", *METRICS[:metrics])) + "\n")
        for event in events:
            values = map(str, event.readings.values())
            file.write(",".join((event.sensor_id, format_time(event.event_time_us), *values)) + "\n")
    return path


def _write_ndjson(path: Path, events: Iterator[Event]) -> Path:
    with path.open("w") as file:
        for event in events:
            named = {"sensor_id": event.sensor_id, "event_time": format_time(event.event_time_us)}
            file.write(json.dumps(named | event.readings) + "\n")
    return path


def _commands(directory: Path) -> list[_Command]:
    """Writes the files, and returns the commands to measure."""
    commands = []
    for metrics in (1, 3):
        of = f"{metrics} metric{'s' if metrics > 1 else ''}"
        files = {
            "CSV": _write_csv(directory / f"{metrics}.csv", _events(metrics), metrics),
            "NDJSON": _write_ndjson(directory / f"{metrics}.ndjson", _events(metrics)),
            "protobuf": write_delimited(directory / f"{metrics}.pb", _events(metrics)),
        }
        commands += [_Command(f"publish, {kind} of {of}", ["publish", str(file)]) for kind, file in files.items()]
    fleet = [
        "simulate",
        "--sensor-count",
        str(SENSORS),
        "--duration",
        f"{EVENTS // SENSORS * 10}s",
        "--interval",
        "10s",
    ]
    return [*commands, _Command("simulate, 4 metrics", fleet)]


def _run(command: _Command, topic: str) -> tuple[int, float, float]:
    """Returns the number of published events, the seconds by the command's clock, and by ours."""
    begin = time.perf_counter()
    finished = subprocess.run(
        [TIDETABLE, *command.arguments, "--topic", topic, "--batch", str(BATCH), "--format=json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    seconds = time.perf_counter() - begin
    summary = json.loads(finished.stdout)
    return summary["events"], summary["seconds"], seconds


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        topic = f"projects/test-project/topics/feeding-{uuid.uuid4().hex[:8]}"
        PublisherClient().create_topic(name=topic)
        commands = _commands(Path(directory))
        _run(commands[0], topic)  # the emulator is slow at first
        found: dict[str, list[tuple[int, float, float]]] = {command.what: [] for command in commands}
        for _ in range(runs):
            for command in commands:
                found[command.what].append(_run(command, topic))
    lines = Lines("                     command", " events", "events/s", "    least to most", "with Python's start")
    for what, measured in found.items():
        own, wall = ([each[0] / each[clock] for each in measured] for clock in (1, 2))
        lines.add(what, f"{measured[0][0]:,}", *spread(own), spread(wall)[0])


if __name__ == "__main__":
    options = arguments(runs=RUNS)
    with emulators(PUBSUB):
        main(options.runs)
