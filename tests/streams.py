"""Runs the real graph on a scripted stream of messages, with a scripted watermark and a fixed clock."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import GlobalWindows, TimestampedValue

from pipeline.core.events import sensor_event
from pipeline.core.messages import Message
from pipeline.core.outgoing import message_of
from pipeline.core.rows import EncodedRow, EncodedRows, Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.private_apis.dofn_specs import specs_by_class
from pipeline.private_apis.option_views import kept_views
from pipeline.proto.sensor_event_pb2 import SensorEvent

NOON = int(datetime(2026, 2, 17, 12, tzinfo=UTC).timestamp())
MINUTE = 60
HOUR = 3600


def clock() -> float:
    """Returns a fixed time, four in the afternoon."""
    return NOON + 4 * HOUR


def flags(**changes: str) -> list[str]:
    """Returns a complete command line without throttling of late panes, which TestStream can't handle."""
    parts = {
        "runner": "BundleBasedDirectRunner",
        "project": "test-project",
        "input_subscription": "projects/test-project/subscriptions/events",
        "dead_letter_topic": "projects/test-project/topics/dead-letters",
        "bigtable_instance": "instance",
        "bigtable_table": "table",
        "late_firing": "0",
        "early_firing": "0",
    }
    return [f"--{name}={value}" for name, value in (parts | changes).items()]


def event_at(seconds: float, value: float = 1.0, sensor_id: str = "a", metric: str = "t") -> SensorEvent:
    """Returns an event so many seconds after noon."""
    return sensor_event(sensor_id, round((NOON + seconds) * 1_000_000), {metric: value}, {})


def key_at(seconds: float, sensor_id: str = "a") -> str:
    """Returns the key of the raw row of :func:`event_at` in the default schema."""
    return f"{sensor_id}#{9_999_999_999_999_999 - round((NOON + seconds) * 1_000_000)}"


def pubsub_message(message: Message) -> PubsubMessage:
    return PubsubMessage(
        message.data, dict(message.attributes), message.message_id, message.publish_time, message.ordering_key
    )


class Script:
    """A TestStream for this pipeline: arriving messages, the watermark and processing time."""

    def __init__(self) -> None:
        self._stream = TestStream().advance_watermark_to(NOON - 24 * HOUR)
        self._seconds = NOON - 24 * HOUR

    def watermark(self, seconds: float) -> "Script":
        """Moves the watermark to so many seconds after noon."""
        self._seconds = NOON + seconds
        self._stream.advance_watermark_to(self._seconds)
        return self

    def arrive(self, *events: SensorEvent) -> "Script":
        """Adds each event in its own message, all in one bundle."""
        return self.arrive_messages(*(message_of([event]) for event in events))

    def arrive_messages(self, *messages: Message) -> "Script":
        self._stream.add_elements([TimestampedValue(pubsub_message(message), self._seconds) for message in messages])
        return self

    def pass_time(self, seconds: float) -> "Script":
        """Advances processing time."""
        self._stream.advance_processing_time(seconds)
        return self

    def run(
        self,
        *,
        raw: Sequence[str] | None = None,
        aggregates: Sequence[tuple[str, str, str]] | None = None,
        dead_letters: Sequence[str] | None = None,
        schemas: Mapping[str, TableSchema] | None = None,
        late: Sequence[str] | None = None,
        began: float | None = None,
        retention: Retention | None = None,
        **changes: str,
    ) -> None:
        """Runs the real graph and checks its outputs.

        Args:
            raw: keys of the raw rows; if there are several tables, like ``other: a#…``.
            aggregates: key, reading_count and sum of ``t`` of every aggregate row that reached the sinks.
            dead_letters: reasons of the dead letters.
            schemas: schemas by table name; by default there is one table as the flags declare.
            late: keys of the work list rows.
            retention: the tables' retention; by default as in their schemas.
            began: start of the job in seconds after noon; by default before everything.
            changes: flags that differ from :func:`flags`.
        """
        settings = settings_of(
            parse_flags(flags(**({"bigtable_table": ",".join(schemas)} if schemas else {}), **changes))
        )
        targets = [
            Target(name, schemas[name.table] if schemas else settings.declared.schema(), retention)
            for name in settings.tables
        ]
        options = PipelineOptions(streaming=True)
        with (
            specs_by_class(),  # as a launch does
            kept_views(),
            TestPipeline(options=options, runner="BundleBasedDirectRunner") as pipeline,
        ):
            messages = pipeline | self._stream.advance_watermark_to_infinity()
            began_us = None if began is None else round((NOON + began) * 1_000_000)
            outputs = build_graph(messages, targets, settings, clock, began_us)
            found: dict[str, list[beam.PCollection]] = {"Raw": [], "Late": [], "Aggregates": []}
            for target, rows in zip(targets, outputs.rows, strict=True):
                table = f"{target.name.table}: " if len(targets) > 1 else ""
                keys = rows.raw | f"Key{table}" >> beam.FlatMap(_keys, table)
                found["Raw"].append(keys | f"Raw{table}" >> beam.Filter(lambda key: "repair#" not in key))
                found["Late"].append(keys | f"Late{table}" >> beam.Filter(lambda key: "repair#" in key))
                for index, of_list in enumerate(rows.listed):
                    found["Late"].append(of_list | f"LateRow{index}{table}" >> beam.FlatMap(_keys, table))
                for tier, of_tier in rows.aggregates.items():
                    label = f"Aggregate{table}{tier.window.text}"
                    found["Aggregates"].append(of_tier | label >> beam.Map(_aggregate, table))
            _check(found["Raw"], raw, "Raw")
            _check(found["Late"], late, "Late")
            _check(found["Aggregates"], aggregates, "Aggregates")
            reasons = outputs.dead_letters | beam.Map(lambda letter: letter.attributes["dead_letter_reason"])
            _check([reasons], dead_letters, "Dead")


def _keys(rows: EncodedRows, table: str) -> list[str]:
    return [_key(row, table) for row in rows]


def _key(row: Row | EncodedRow, table: str) -> str:
    return table + row.key.decode()


def _aggregate(row: Row, table: str) -> tuple[str, str, str]:
    values = {cell.qualifier: cell.value.decode() for cell in row.cells}
    return _key(row, table), values[b"reading_count"], values[b"sum_t"]


def _check(found: Sequence[beam.PCollection], expected: Sequence | None, label: str) -> None:
    if expected is None:
        return
    if not found:
        assert not expected
        return
    alike = [part | f"{label}{i}" >> beam.WindowInto(GlobalWindows()) for i, part in enumerate(found)]
    assert_that(alike | f"All{label}" >> beam.Flatten(), equal_to(list(expected)), label=label)
