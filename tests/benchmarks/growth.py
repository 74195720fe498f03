"""Prints what an event costs as work grows: with the number of events, of sensors and of metrics.

Run with ``.venv/bin/python -m tests.benchmarks.growth``; ``--quick`` leaves out the largest of each. The graph without
its servers, on batches of a hundred events that are made as they are read, so that no more of them are in memory than
the graph keeps. Each line is a process of its own: what it takes to make the events, and what the same graph takes for
a hundred events, is measured in it and left out. The goal is to be within 15 % of flat.

FnApiRunner runs one step after the other and keeps what is between them, and de-duplication keeps the readings of open
windows: that is the memory that grows with the events.
"""

import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.core import RestrictionProvider
from rich.console import Console
from rich.table import Table

from pipeline.core.outgoing import message_of
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.streams import NOON, flags, pubsub_message

BATCH, MESSAGES_A_BUNDLE = 100, 50
THREE_HOURS_US = 3 * 3600 * 1_000_000
SMALLEST = 100  # events of the run that tells what the graph takes without any to speak of


@dataclass(frozen=True)
class Work:
    """How much there is to do."""

    events: int
    sensors: int
    metrics: int

    def message(self, number: int) -> PubsubMessage:
        """One of its messages: every sensor in turn, over three hours."""
        events = []
        for index in range(number * BATCH, (number + 1) * BATCH):
            time_us = NOON * 1_000_000 + index * THREE_HOURS_US // self.events
            event = SensorEvent(sensor_id=f"sensor-{index % self.sensors}")
            event.event_time.seconds, micros = divmod(time_us, 1_000_000)
            event.event_time.nanos = micros * 1000
            readings = event.readings
            for metric in range(self.metrics):
                readings[f"metric_{metric}"] = (index * 7 + metric) % 1000 / 8
            events.append(event)
        return pubsub_message(message_of(events))


STANDARD = Work(100_000, 100, 3)
SWEEPS = {
    "events": [replace(STANDARD, events=events) for events in (10_000, 100_000, 1_000_000)],
    "sensors": [replace(STANDARD, sensors=sensors) for sensors in (100, 1_000, 10_000, 100_000)],
    "metrics": [replace(STANDARD, events=20_000, metrics=metrics) for metrics in (1, 3, 10, 50)],
}


class _Messages(RestrictionProvider):
    def initial_restriction(self, element: Work) -> OffsetRange:
        return OffsetRange(0, element.events // BATCH)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Work, restriction: OffsetRange) -> int:
        return restriction.size()


_TRACKER = beam.DoFn.RestrictionParam(_Messages())


class _MakeFn(beam.DoFn):
    def process(self, element: Work, tracker: Any = _TRACKER) -> Iterator[PubsubMessage]:
        first = tracker.current_restriction().start
        for number in range(first, first + MESSAGES_A_BUNDLE):
            if not tracker.try_claim(number):
                return
            yield element.message(number)
        tracker.defer_remainder()  # ends the bundle; the rest comes in the next


def seconds(work: Work) -> float:
    """How long the graph takes."""
    settings = settings_of(parse_flags(flags()))
    targets = [Target(name, settings.said.schema()) for name in settings.tables]
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    messages = pipeline | beam.Create([work], reshuffle=False) | beam.ParDo(_MakeFn())
    build_graph(messages, targets, settings)
    begin = time.perf_counter()
    pipeline.run().wait_until_finish()
    return time.perf_counter() - begin


def measure(work: Work) -> None:
    """Prints seconds of the work alone, and the most bytes that it had in memory beyond what Beam itself has."""
    logging.disable(logging.WARNING)
    smallest = replace(work, events=SMALLEST, sensors=min(work.sensors, SMALLEST))
    seconds(smallest)  # what is imported and compiled once
    without_events = min(seconds(smallest) for _ in range(3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    for number in range(work.events // BATCH):
        work.message(number)
    making = time.perf_counter() - begin
    taken = seconds(work) - making - without_events
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": taken, "bytes": (most - before) * 1024}))


def main() -> None:
    """Prints a table for each of the three."""
    console = Console()
    for what, works in SWEEPS.items():
        per = "cell" if what == "metrics" else "event"
        grid = Table(what, f"µs {'a reading' if per == 'cell' else 'an event'}", "to the first", "peak memory, MB")
        first = 0.0
        for work in works[:-1] if "--quick" in sys.argv else works:
            # Imported and not run as a module, whose steps would be pickled with all that is in it.
            code = f"from tests.benchmarks.growth import Work, measure; measure({work!r})"
            command = [sys.executable, "-c", code]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            each_us = found["seconds"] * 1e6 / work.events / (work.metrics if per == "cell" else 1)
            first = first or each_us
            row = f"{getattr(work, what):,}", f"{each_us:.1f}", f"{each_us / first:.2f}", f"{found['bytes'] / 1e6:,.0f}"
            grid.add_row(*row)
        console.print(grid)


if __name__ == "__main__":
    main()
