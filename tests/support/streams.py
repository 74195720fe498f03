"""Runs the real graph on a scripted stream of messages, with a scripted watermark and clock."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from unittest import mock

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct import direct_runner
from apache_beam.runners.direct.clock import TestClock
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from pipeline.cloud.connection.names import TableName
from pipeline.core.events.message import Message, message_of, sensor_event
from pipeline.core.panes.grouped_readings import RawRows
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.newest_row import is_latest_key
from pipeline.core.rows.rows import EncodedRow, EncodedRows, Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.job.table_steps import TableSteps
from pipeline.private_apis.repeated_work import kept_views, specs_by_class
from pipeline.proto.sensor_event_pb2 import SensorEvent
from pipeline.transforms.alerts import AlertMessages
from pipeline.transforms.tables import TableReadingFn
from pipeline.transforms.write import BulkWriteFn, BulkWriteRows, WriteRawRows, Written
from tests.support.confirming import confirming
from tests.support.memory import Memory
from tests.support.rows import decoded

NOON = int(datetime(2026, 2, 17, 12, tzinfo=UTC).timestamp())
MINUTE = 60
HOUR = 3600


class _StreamClock(TestClock):
    """The clock of a TestStream's runner, which the steps see too."""

    seconds = float(NOON + 4 * HOUR)

    def __init__(self) -> None:
        super().__init__(Timestamp(NOON + 4 * HOUR))
        type(self).seconds = self.time()

    def advance_time(self, advance_by: float) -> None:
        super().advance_time(advance_by)
        type(self).seconds = self.time()


def clock() -> float:
    """Returns the time, which begins at four in the afternoon and passes as a script tells."""
    return _StreamClock.seconds


@contextmanager
def stream_clock() -> Iterator[None]:
    """Makes :func:`clock` the clock of TestStreams within the block."""
    began = _StreamClock.seconds
    with mock.patch.object(direct_runner, "TestClock", _StreamClock):
        try:
            yield
        finally:
            _StreamClock.seconds = began


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
        return self._settled()

    def arrive(self, *events: SensorEvent) -> "Script":
        """Adds each event in its own message, all in one bundle."""
        return self.arrive_messages(*(message_of([event]) for event in events))

    def arrive_messages(self, *messages: Message) -> "Script":
        self._stream.add_elements([TimestampedValue(pubsub_message(message), self._seconds) for message in messages])
        return self._settled()

    def pass_time(self, seconds: float) -> "Script":
        """Advances processing time."""
        self._stream.advance_processing_time(seconds)
        return self._settled()

    def _settled(self) -> "Script":
        """Lets the moment pass for which rows are collected before they are written."""
        self._stream.advance_processing_time(1)
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
        written: bool = False,
        alerts: Sequence[tuple[str, str, str]] | None = None,
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
            began: start of the job in seconds after noon, whose tables exist; by default before everything.
            alerts: rule, sensor and kind of every message about alerts.
            written: whether to write raw rows and aggregate rows to the tables, which have to exist.
            changes: flags that differ from :func:`flags`.
        """
        _FOUND.clear()
        _TABLES.clear()
        settings = settings_of(
            parse_flags(flags(**({"bigtable_table": ",".join(schemas)} if schemas else {}), **changes))
        )
        targets = [
            Target(name, schemas[name.table] if schemas else settings.declared.schema(), retention)
            for name in settings.tables
        ]
        options = PipelineOptions([], streaming=True)
        with (
            specs_by_class(),  # as a launch does
            kept_views(),
            stream_clock(),
            nullcontext() if written or began is not None else mock.patch.object(TableReadingFn, "_read", _read_here),
            TestPipeline(options=options, runner="BundleBasedDirectRunner") as pipeline,
        ):
            messages = pipeline | self._stream.advance_watermark_to_infinity()
            began_us = None if began is None else round((NOON + began) * 1_000_000)
            labels = {target.name: f"{target.name.table}: " if len(targets) > 1 else "" for target in targets}

            def write_raw_rows(table: TableSteps, raw: beam.PCollection) -> Written:
                name, schema = table.target[:2]
                _ = raw | f"Raw{labels[name]}" >> beam.Map(_keep_raw, labels[name])
                if not written:
                    return confirming(table, raw)
                return raw | f"WriteRaw{labels[name]}" >> WriteRawRows(name, schema, bulk=True)

            def writer_of(table: TableSteps, _: PipelineOptions) -> beam.DoFn:
                name = table.target.name
                return _Writer(name, labels[name], BulkWriteFn(name, "") if written else None)

            outputs = build_graph(
                messages,
                targets,
                settings,
                clock,
                began_us,
                write_raw_rows=write_raw_rows,
                writer_of=writer_of,
            )
            for (name, table), rows in zip(labels.items(), outputs.derived, strict=True):
                if rows is None:
                    continue
                if rows.alerts is not None:
                    _ = rows.alerts | f"WriteAlerts{table}" >> BulkWriteRows(name)
                _ = rows.listed | f"Late{table}" >> beam.Map(_keep_keys, "late", table)
            if outputs.alerts is not None:
                _ = outputs.alerts | AlertMessages(clock) | beam.Map(_keep_alert)
            _ = outputs.dead_letters | beam.Flatten() | beam.Map(_keep_reason)
        found, expected = _FOUND, {"raw": raw, "late": late, "aggregates": aggregates, "dead": dead_letters}
        expected["alerts"] = alerts
        for kind, of_kind in expected.items():
            if of_kind is not None:
                written = sorted(found.get(kind, []))
                if kind == "late":  # a window is listed as often as the job looks at it in vain
                    written, of_kind = sorted(set(written)), set(of_kind)
                assert written == sorted(of_kind), f"{kind}: {written}, not {sorted(of_kind)}"
        for key in {key for key, *_ in found.get("aggregates", [])}:
            counts = [int(count) for of_row, count, _ in found["aggregates"] if of_row == key]
            assert counts == sorted(counts), f"the panes of {key} came in another order"


# What the last run's steps have put out. The runner's threads are this process's.
_FOUND: dict[str, list] = defaultdict(list)
_TABLES: dict[str, Memory] = defaultdict(Memory)  # by name


def _keep_keys(rows: EncodedRows, kind: str, table: str) -> None:
    _FOUND[kind] += [_key(row, table) for row in rows]


def _keep_raw(raw: RawRows, table: str) -> None:
    _keep_keys(raw.rows, "raw", table)


def _keep_reason(letter: Message) -> None:
    _FOUND["dead"].append(letter.attributes["dead_letter_reason"])


def _keep_alert(message: PubsubMessage) -> None:
    of = message.attributes
    _FOUND["alerts"].append((of["rule"], of.get("sensor_id", ""), of["kind"]))


class _Writer(beam.DoFn):
    """Keeps aggregate rows, and writes them: to the table, or in memory.

    Args:
        name: the table.
        label: what its rows are named by.
        writer: the writer of an existing table; None for a table in memory.
    """

    guard = None

    def __init__(self, name: TableName, label: str, writer: BulkWriteFn | None) -> None:
        self._table, self._label, self._writer = name.table, label, writer

    def setup(self) -> None:
        if self._writer is not None:
            self._writer.setup()

    def start_bundle(self) -> None:
        if self._writer is not None:
            self._writer.start_bundle()

    def process(self, element: EncodedRows) -> tuple[()]:
        for row in element:
            if self._writer is None:
                _TABLES[self._table].write_encoded(row)
            if not is_latest_key(row.key):
                values = {cell.qualifier: cell.value for cell in decoded(row).cells}
                count, total = values[b"reading_count"].decode(), values.get(b"sum_t", b"").decode()
                _FOUND["aggregates"].append((_key(row, self._label), count, total))
        if self._writer is not None:
            assert not list(self._writer.process(element))
        return ()

    def finish_bundle(self) -> tuple[()]:
        if self._writer is not None:
            assert not list(self._writer.finish_bundle())
        return ()

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.teardown()


def _read_here(reading: TableReadingFn, selection: RowSelection) -> Iterator[Row]:
    """Reads a table in memory, which has the aggregate rows."""
    return _TABLES[reading._name.table](selection)


def _key(row: EncodedRow, table: str) -> str:
    return table + row.key.decode()
