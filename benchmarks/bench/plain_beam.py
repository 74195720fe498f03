"""(3) The Beam pipeline that a newcomer would write from the documentation, with Beam's ``WriteToBigTable``."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from google.cloud.bigtable.row import DirectRow

from benchmarks.bench import source
from benchmarks.bench.by_hand import aggregate_key, columns, raw_key, text
from pipeline.cloud.connection.names import TableName
from pipeline.proto.sensor_event_pb2 import SensorEventBatch

_Event = tuple[str, int, dict[str, float]]


def prepare(messages: list[PubsubMessage]) -> Callable[[TableName], Callable[[], None]]:
    """Returns a function that builds the pipeline for a table and returns the function that runs it."""
    source.held = messages

    def build(name: TableName) -> Callable[[], None]:
        pipeline = beam.Pipeline(FnApiRunner(), PipelineOptions([]))
        table = {"project_id": name.project, "instance_id": name.instance, "table_id": name.table}
        events = pipeline | source.ReadHeld() | "Parse" >> beam.FlatMap(_parse)
        _ = events | "RawRows" >> beam.Map(_raw_row) | "WriteRaw" >> WriteToBigTable(**table)
        _ = (
            events
            | "Hours" >> beam.WindowInto(FixedWindows(3600))
            | "BySensor" >> beam.Map(lambda event: (event[0], event[2]))
            | "Statistics" >> beam.CombinePerKey(_Statistics())
            | "AggregateRows" >> beam.ParDo(_AggregateRow())
            | "WriteAggregates" >> WriteToBigTable(**table)
        )
        return lambda: pipeline.run().wait_until_finish()

    return build


def _parse(message: PubsubMessage) -> Iterator[Any]:  # Beam takes TimestampedValue for the elements' own type
    for event in SensorEventBatch.FromString(message.data).events:
        time_us = event.event_time.ToMicroseconds()
        yield TimestampedValue((event.sensor_id, time_us, dict(event.readings)), time_us / 1e6)


def _raw_row(event: _Event) -> DirectRow:
    sensor_id, time_us, readings = event
    row = DirectRow(raw_key(sensor_id, time_us))
    time = datetime.fromtimestamp(time_us / 1e6, UTC)
    for metric, value in readings.items():
        row.set_cell("raw", metric.encode(), text(value), time)
    return row


class _Statistics(beam.CombineFn):
    """The number of events, and of each metric: count, sum, minimum, maximum, mean, squared deviations."""

    def create_accumulator(self) -> tuple[int, dict[str, tuple]]:
        return 0, {}

    def add_input(self, accumulator: tuple[int, dict], readings: dict[str, float]) -> tuple[int, dict]:
        events, metrics = accumulator
        for metric, value in readings.items():
            metrics[metric] = _merged(metrics.get(metric), (1, value, value, value, value, 0.0))
        return events + 1, metrics

    def merge_accumulators(self, accumulators: list[tuple[int, dict]]) -> tuple[int, dict]:
        total, merged = self.create_accumulator()
        for events, metrics in accumulators:
            total += events
            for metric, stats in metrics.items():
                merged[metric] = _merged(merged.get(metric), stats)
        return total, merged

    def extract_output(self, accumulator: tuple[int, dict]) -> tuple[int, dict]:
        return accumulator


def _merged(one: tuple | None, other: tuple) -> tuple:
    if one is None:
        return other
    count, delta = one[0] + other[0], other[4] - one[4]
    mean = one[4] + delta * other[0] / count
    squares = one[5] + other[5] + delta * delta * one[0] * other[0] / count
    return count, one[1] + other[1], min(one[2], other[2]), max(one[3], other[3]), mean, squares


class _AggregateRow(beam.DoFn):
    def process(
        self,
        element: tuple[str, tuple[int, dict]],
        window: beam.transforms.window.IntervalWindow = beam.DoFn.WindowParam,
    ) -> Iterator[DirectRow]:
        sensor_id, (events, metrics) = element
        start = window.start.seconds()
        row = DirectRow(aggregate_key(sensor_id, start // 3600))
        for column, value in columns(events, {metric: list(stats) for metric, stats in metrics.items()}):
            row.set_cell("stats", column, value, datetime.fromtimestamp(start, UTC))
        yield row
