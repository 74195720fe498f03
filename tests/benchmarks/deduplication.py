"""Prints the cost of deduplication: throughput with and without it, measured together.

Run with ``.venv/bin/python -m tests.benchmarks.deduplication``. It runs the graph without servers, on batches of a
hundred events of three metrics, which are decoded, formatted and aggregated.
"""

import logging
import statistics
import time

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline.core.events.publishing import message_of
from pipeline.core.events.wire import sensor_event
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from tests.support.confirming import confirming
from tests.support.streams import NOON, flags, pubsub_message

EVENTS, BATCH, SENSORS, RUNS = 60_000, 100, 20, 5


def feed() -> list[beam.io.PubsubMessage]:
    """Returns three hours of events of several sensors, in batches."""
    events = [
        sensor_event(f"sensor-{i % SENSORS}", NOON * 1_000_000 + i * 180_000, {"t": i / 7, "p": i / 3, "h": 0.5}, {})
        for i in range(EVENTS)
    ]
    return [pubsub_message(message_of(events[i : i + BATCH])) for i in range(0, EVENTS, BATCH)]


def seconds(messages: list[beam.io.PubsubMessage], deduplicate: str) -> float:
    """Returns how long the graph takes."""
    settings = settings_of(parse_flags(flags(deduplicate=deduplicate)))
    targets = [Target(name, settings.declared.schema()) for name in settings.tables]
    begin = time.perf_counter()
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        elements = pipeline | beam.Create(messages, reshuffle=False)
        build_graph(elements, targets, settings, write_raw_rows=confirming)
    return time.perf_counter() - begin


def main() -> None:
    logging.disable(logging.WARNING)
    messages = feed()
    seconds(messages, "on")  # one-time imports and compilation
    rates: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(RUNS):
        for deduplicate, found in rates.items():
            found.append(EVENTS / seconds(messages, deduplicate))
    for deduplicate, found in rates.items():
        median, least, most = statistics.median(found), min(found), max(found)
        print(f"--deduplicate={deduplicate:3}  {median:9,.0f} events/s, {least:,.0f} to {most:,.0f}")
    print(f"ratio {statistics.median(rates['on']) / statistics.median(rates['off']):.2f}")


if __name__ == "__main__":
    main()
