"""Prints the cost of an event as the number of events, of sensors and of metrics grows.

Run with ``.venv/bin/python -m tests.benchmarks.growth``, optionally with the names of tables; all of them take some
ten minutes. The graph runs without servers, on batches of a hundred events that are generated as they are read, so
memory contains only the events that the graph keeps. Each line is measured in a process of its own, without the time
to generate the events and the time that the graph takes for a hundred events. The goal is to be within 15 % of flat.

Each line's title says what grows: a sensor's hour has as many events in all lines of a table, and they arrive
together. More events are more hours, and more sensors are more windows.

Memory grows with the readings of open windows. FnApiRunner closes no window before the end, and keeps everything
between its steps.
"""

import argparse
import json
import logging
import resource
import statistics
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

from pipeline.core.events.message import message_of
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.support.confirming import confirming, dropping
from tests.support.shuffled import shuffled
from tests.support.streams import NOON, clock, flags, pubsub_message

BATCH, MESSAGES_A_BUNDLE = 100, 50
HOUR_US = 3_600_000_000
SMALLEST = 100  # the run that shows the graph's fixed cost


@dataclass(frozen=True)
class Work:
    """The amount of work."""

    events: int
    sensors: int
    metrics: int
    in_an_hour: int  # events per sensor

    def message(self, number: int) -> PubsubMessage:
        """Returns a message: events are ordered by hour until noon, then by sensor."""
        hours = -(-self.events // (self.sensors * self.in_an_hour))
        events = []
        for index in range(number * BATCH, (number + 1) * BATCH):
            window, place = divmod(index, self.in_an_hour)
            hour, sensor = divmod(window, self.sensors)
            time_us = NOON * 1_000_000 - (hours - hour) * HOUR_US + place * HOUR_US // self.in_an_hour
            event = SensorEvent(sensor_id=f"sensor-{sensor}")
            event.event_time.seconds, micros = divmod(time_us, 1_000_000)
            event.event_time.nanos = micros * 1000
            readings = event.readings
            for metric in range(self.metrics):
                readings[f"metric_{metric}"] = (index * 7 + metric) % 1000 / 8
            events.append(event)
        return pubsub_message(message_of(events))


STANDARD = Work(events=100_000, sensors=100, metrics=3, in_an_hour=100)
SWEEPS = {
    "events": [replace(STANDARD, events=events) for events in (10_000, 100_000, 1_000_000)],
    # Up to ten hours each: a local runner, which closes no window, behaves differently with a thousand.
    "sensors": [
        replace(STANDARD, events=events, sensors=sensors, in_an_hour=3)
        for sensors, events in ((100, 3_000), (1_000, 30_000), (10_000, 300_000), (100_000, 300_000))
    ],
    "metrics": [replace(STANDARD, events=20_000, metrics=metrics) for metrics in (1, 3, 10, 50)],
}
LONG, MOST_RUNS = 300_000, 9  # events that take a minute; smaller runs are repeated
IN_THE_SAME_WINDOWS = [
    replace(STANDARD, events=events, in_an_hour=events // 100) for events in (10_000, 100_000, 1_000_000)
]


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
        tracker.defer_remainder()  # ends the bundle; the rest follows in the next


def seconds(work: Work) -> float:
    """Returns how long the graph takes."""
    settings = settings_of(parse_flags(flags()))
    targets = [Target(name, settings.declared.schema()) for name in settings.tables]
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    messages = pipeline | beam.Create([work], reshuffle=False) | beam.ParDo(_MakeFn())
    with shuffled():
        build_graph(messages, targets, settings, clock, write_raw_rows=confirming, writer_of=dropping)
        begin = time.perf_counter()
        pipeline.run().wait_until_finish()
        return time.perf_counter() - begin


def measure(work: Work) -> None:
    """Prints the seconds of the work alone, and its peak memory beyond what Beam itself takes."""
    logging.disable(logging.WARNING)
    smallest = replace(work, events=SMALLEST)
    seconds(smallest)  # one-time imports and compilation
    without_events = min(seconds(smallest) for _ in range(3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    for number in range(work.events // BATCH):
        work.message(number)
    making = time.perf_counter() - begin
    taken = seconds(work) - making - without_events
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": taken, "bytes": (most - before) * 1024}))


def _measured(work: Work) -> dict[str, float]:
    # Imported instead of run as a module: Beam would pickle the steps of __main__ with everything in it.
    code = f"from tests.benchmarks.growth import Work, measure; measure({work!r})"
    output = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def main() -> None:
    """Prints the tables for events, sensors, metrics and memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth")
    parser.add_argument("tables", nargs="*", default=[*SWEEPS, "memory"], help="events, sensors, metrics, memory")
    selected = parser.parse_args().tables
    console = Console()
    for what in filter(selected.__contains__, SWEEPS):
        per = "cell" if what == "metrics" else "event"
        grid = Table(what, f"µs {'a reading' if per == 'cell' else 'an event'}", "to the first")
        first = 0.0
        for work in SWEEPS[what]:
            taken = statistics.median(
                _measured(work)["seconds"] for _ in range(min(MOST_RUNS, -(-LONG // work.events)))
            )
            each_us = taken * 1e6 / work.events / (work.metrics if per == "cell" else 1)
            first = first or each_us
            grid.add_row(f"{getattr(work, what):,}", f"{each_us:.1f}", f"{each_us / first:.2f}")
        console.print(grid)
    if "memory" in selected:
        grid = Table("events in 100 windows", "peak memory, MB")
        for work in IN_THE_SAME_WINDOWS:
            grid.add_row(f"{work.events:,}", f"{_measured(work)['bytes'] / 1e6:,.0f}")
        console.print(grid)


if __name__ == "__main__":
    main()
