"""Prints the cost of an event as the number of events, of sensors and of metrics grows.

All --tables take some ten minutes: events, sensors, metrics and memory. The graph runs without servers, on batches of a
hundred events that are generated as they are read, so memory contains only the events that the graph keeps. Each line
is measured in a process of its own, without the time to generate the events and the time that the graph takes for a
hundred events. The goal is to be within 15 % of flat.

Each line's title says what grows: a sensor's hour has as many events in all lines of a table, and they arrive
together. More events are more hours, and more sensors are more windows.

Memory grows with the readings of open windows. FnApiRunner closes no window before the end, and keeps everything
between its steps.
"""

import json
import logging
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from benchmarks.bench import source
from benchmarks.measuring import Lines, arguments
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


class _Messages:
    """The messages of some work, each made when it is read."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return self._work.events // BATCH

    def __getitem__(self, number: int) -> PubsubMessage:
        return self._work.message(number)


def seconds(work: Work) -> float:
    """Returns how long the graph takes."""
    settings = settings_of(parse_flags(flags()))
    targets = [Target(name, settings.declared.schema()) for name in settings.tables]
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    source.held = _Messages(work)
    messages = pipeline | source.ReadHeld(MESSAGES_A_BUNDLE)
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
    code = f"from benchmarks.growth import Work, measure; measure({work!r})"
    output = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def main() -> None:
    selected = arguments(tables=[*SWEEPS, "memory"]).tables
    for what in filter(selected.__contains__, SWEEPS):
        of = "cell" if what == "metrics" else "event"
        lines = Lines(f"{what:>9}", f"µs {'a reading' if of == 'cell' else 'an event'}", "to the first")
        first = 0.0
        for work in SWEEPS[what]:
            runs = min(MOST_RUNS, -(-LONG // work.events))
            taken = statistics.median(_measured(work)["seconds"] for _ in range(runs))
            each_us = taken * 1e6 / work.events / (work.metrics if of == "cell" else 1)
            first = first or each_us
            lines.add(f"{getattr(work, what):,}", f"{each_us:.1f}", f"{each_us / first:.2f}")
    if "memory" in selected:
        lines = Lines("events in 100 windows", "peak memory, MB")
        for work in IN_THE_SAME_WINDOWS:
            lines.add(f"{work.events:,}", f"{_measured(work)['bytes'] / 1e6:,.0f}")


if __name__ == "__main__":
    main()
