"""The sinks: rows to Bigtable, by Beam's connector or our own writer, and dead letters and results to Pub/Sub."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.metrics.metric import Lineage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.cloud.connection.bigtable_client import shared_client
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.cloud.writing.bulk_writer import BulkWriter, Limits, Tally
from pipeline.core.completion.work_list import LATE, encoded_work_rows, listing
from pipeline.core.events.dead_letter import ROW_REFUSED, RefusedRow, refused_row_letter
from pipeline.core.events.message import Message
from pipeline.core.panes.grouped_readings import Kind, RawRows, Unconfirmed, kind_of
from pipeline.core.results.window_results import Encoding, message_of, read_batch
from pipeline.core.rows.aggregate_rows import parse_aggregate_key
from pipeline.core.rows.rollup_rows import is_sensor, parse_members_key
from pipeline.core.rows.rows import Cell, EncodedRow, EncodedRows, Row
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.bigtable_writer import ConnectorWriteFn, ServiceCalls, WriteToBigTable
from pipeline.transforms import (
    coders,  # noqa: F401 (registers the coder of raw rows)
    metrics,
)
from pipeline.transforms.tables import Clock

CELLS_PER_REQUEST = 10_000
"""The connector counts cells, not rows. An aggregate row of ten metrics has 61 cells."""


@dataclass(eq=False)
class WriteRows(beam.PTransform):
    """Writes ``Row`` elements, or ``EncodedRows``, to a table with Beam's Bigtable connector."""

    name: TableName
    guard: TableGuard | None = None

    def expand(self, rows: PCollection) -> PCollection:
        sink = WriteToBigTable(self.name, flush_count=CELLS_PER_REQUEST, guard=self.guard)
        return rows | "WriteToBigTable" >> sink


@dataclass(eq=False)
class WriteDeadLetters(beam.PTransform):
    """Publishes ``Message`` elements to a topic."""

    topic: str

    def expand(self, dead_letters: PCollection) -> PCollection:
        return (
            dead_letters
            | "ToPubsubMessage" >> beam.Map(_pubsub_message).with_output_types(PubsubMessage)
            | "WriteToPubSub" >> WriteToPubSub(self.topic, with_attributes=True)
        )


def _pubsub_message(message: Message) -> PubsubMessage:
    return PubsubMessage(message.data, dict(message.attributes))


_EntryMessage = MutateRowsRequest.Entry.pb()  # the plain protobuf class


@dataclass(eq=False)
class BulkWriteRows(beam.PTransform):
    """Writes ``Row`` or ``EncodedRows`` elements to a table. Outputs refused rows as ``Message`` dead letters.

    A bundle ends when each of its rows is confirmed or a dead letter. It fails if a row can be neither, or if too many
    rows are refused for the rows to be the cause. A failed bundle loses nothing: the runner tries it again.

    If the schema is known, the windows of refused aggregate rows, and of refused parts of roll-ups, are put on the work
    list: the table lacks what they count.

    Args:
        name: the table.
        limits: the writer's limits.
        clock: the function that returns seconds since the epoch, for dead letters.
        schema: the schema of the table, which has aggregates; None to list no windows.
        guard: the table as it was at the job's launch; None for any table. A bundle fails if the table is another one.
    """

    name: TableName
    limits: Limits | None = None
    clock: Clock = time.time
    schema: TableSchema | None = None
    guard: TableGuard | None = None

    def expand(self, rows: PCollection) -> PCollection:
        if not isinstance(rows.windowing.windowfn, GlobalWindows):
            rows |= "ForgetWindows" >> beam.WindowInto(GlobalWindows())  # dead letters have no window
        write_fn = BulkWriteFn(self.name, self.label, self.limits, self.schema, self.guard, self.clock)
        return rows | "MutateRows" >> beam.ParDo(write_fn).with_output_types(Message)


class BulkWriteFn(beam.DoFn):
    """Writes a bundle's rows. Each is in the table, or refused, once the results of :meth:`finish_bundle` are read.

    The arguments are those of :class:`BulkWriteRows`, and the label of the step, for dead letters.

    Attributes:
        refused: the bundle's refused rows; not noted if the schema is known.
    """

    def __init__(
        self,
        name: TableName,
        step: str,
        limits: Limits | None = None,
        schema: TableSchema | None = None,
        guard: TableGuard | None = None,
        clock: Clock = time.time,
    ) -> None:
        self._name = name
        self._step = step
        self._limits = limits or Limits()
        self._schema = schema
        self.guard = guard
        self._clock = clock
        self._metrics = _Metrics(name)

    def setup(self) -> None:
        with explained(self._name):
            self._writer = BulkWriter(shared_client(), self._name, self._limits)

    def start_bundle(self) -> None:
        if self.guard:
            self.guard.check()
        self._has_refused = False
        self._writer.abandon()  # drops the rows of a bundle that failed: they come again
        self.refused: list[RefusedRow] = []
        self._lacking: set[tuple[str, int]] = set()  # the windows of refused rows

    def process(self, element: Row | EncodedRows) -> Iterable[Message]:
        if isinstance(element, Row):
            self._writer.add(element)
        else:
            self._writer.add_encoded(element)
        refused = self._writer.refused()
        if not refused:
            return ()  # Beam warns of None at each start of a job
        self._has_refused = True
        self._note(refused)
        return self._letters(refused)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        try:
            refused = self._finish()
        except ServerError:
            if self.guard:
                self.guard.check_now()
            raise
        finally:
            self._metrics.count(self._writer.take_tally())
        if self.guard:
            if refused or self._has_refused:  # perhaps because the table lacks their families
                self.guard.check_now()
            self.guard.check()
        Lineage.sinks().add("bigtable", self._name.project, self._name.instance, self._name.table)
        at = Timestamp(self._clock())
        for letter in self._letters(refused):
            yield WindowedValue(letter, at, (GlobalWindow(),))

    def _finish(self) -> list[RefusedRow]:
        """Writes everything that is left of the bundle. Returns the refused rows."""
        refused = self._writer.finish()
        self._note(refused)
        if self._lacking and self._schema is not None:
            column = listing(LATE, round(self._clock() * 1e6))
            self._writer.add_encoded(encoded_work_rows(self._schema.tiers[0], sorted(self._lacking), column))
            refused += self._writer.finish()
        return refused

    def teardown(self) -> None:
        self._writer.close()

    def display_data(self) -> dict[str, DisplayDataItem]:
        return {
            "projectId": DisplayDataItem(self._name.project, label="Bigtable Project Id"),
            "instanceId": DisplayDataItem(self._name.instance, label="Bigtable Instance Id"),
            "tableId": DisplayDataItem(self._name.table, label="Bigtable Table Id"),
        }

    def _note(self, refused: Iterable[RefusedRow]) -> None:
        """Notes refused rows, or their windows."""
        if self._schema is None:
            self.refused += refused
        else:
            self._lacking.update(window for row in refused for window in _windows_of(row, self._schema))

    def _letters(self, refused: Iterable[RefusedRow]) -> list[Message]:
        now = datetime.fromtimestamp(self._clock(), UTC)
        letters = [refused_row_letter(row, str(self._name), self._step, now) for row in refused]
        for count in self._metrics.refused:
            count.inc(len(letters))
        return letters


def _windows_of(row: RefusedRow, schema: TableSchema) -> set[tuple[str, int]]:
    """Returns the sensor and the start of the first shortest window of a refused row.

    A row of what the sensors of a shard contribute to roll-ups has a column for each. Empty for any other row than that
    and an aggregate row.
    """
    window = schema.tiers[0].window
    for tier in schema.tiers:
        with suppress(ValueError):
            sensor_id, start_us = parse_aggregate_key(tier.window, row.key)
            return {(sensor_id, window.start_of(start_us))}
        with suppress(ValueError):
            _, start_us = parse_members_key(tier.window, row.key)
            mutations = _EntryMessage.FromString(row.entry).mutations
            columns = {each.set_cell.column_qualifier for each in mutations if each.HasField("set_cell")}
            return {(column.decode(), window.start_of(start_us)) for column in filter(is_sensor, columns)}
    return set()


class _Metrics:
    """Our own metrics, and those that Beam's connector reports of its calls. Used by the processing thread only.

    Part of a DoFn: it pickles.
    """

    def __init__(self, name: TableName) -> None:
        self.refused = [
            metrics.counter(name)
            for name in (metrics.BULK_REFUSED, metrics.DEAD_LETTERS, metrics.dead_letters_of(ROW_REFUSED))
        ]
        self._rows = metrics.counter(metrics.BULK_ROWS)
        self._bytes = metrics.counter(metrics.BULK_BYTES)
        self._requests = metrics.counter(metrics.BULK_REQUESTS)
        self._latency_ms = metrics.distribution(metrics.BULK_LATENCY_MS)
        self._rows_in_flight = metrics.distribution(metrics.BULK_ROWS_IN_FLIGHT)
        self._service_calls = ServiceCalls(name)

    def count(self, tally: Tally) -> None:
        self._rows.inc(tally.rows)
        self._bytes.inc(tally.size_bytes)
        self._requests.inc(tally.requests)
        for code, rows in tally.retries.items():
            metrics.counter(metrics.bulk_retries_of(code)).inc(rows)
        for latency_ms in tally.latencies_ms:
            self._latency_ms.update(latency_ms)
        for rows in tally.rows_in_flight:
            self._rows_in_flight.update(rows)
        for number, entries in tally.statuses.items():
            self._service_calls.count(number, entries)


_DEAD_LETTERS = "dead_letters"
_GLOBAL = (GlobalWindow(),)


class Written(NamedTuple):
    """The outputs of writing raw rows.

    Attributes:
        readings: ``(group, readings)`` of one of the shortest windows, with a timestamp within it, in the encoding of
            :mod:`pipeline.core.panes.grouped_readings`.
        dead_letters: ``Message`` elements of refused rows; None if the writer has none.
    """

    readings: PCollection
    dead_letters: PCollection | None = None


@dataclass(eq=False)
class WriteRawRows(beam.PTransform):
    """Writes ``RawRows`` elements to a table. Outputs :class:`Written`.

    Readings are passed on after the server has confirmed the rows of their events. The readings of refused rows are not
    passed on. A bundle that fails passes on nothing, and the runner tries it again.

    Args:
        name: the table.
        schema: the table's schema.
        guard: the table as it was at the job's launch; None for any table.
        bulk: whether the bulk writer writes, and not Beam's connector.
        kind: the kind of the gathered readings; None for that of a job.
        clock: the function that returns seconds since the epoch, for dead letters.
    """

    name: TableName
    schema: TableSchema
    guard: TableGuard | None = None
    bulk: bool = field(default=False, kw_only=True)
    kind: Kind | None = field(default=None, kw_only=True)
    clock: Clock = field(default=time.time, kw_only=True)

    def expand(self, raw: PCollection) -> Any:  # Written, which Beam would take for a type hint
        if not self.bulk:
            return Written(raw | "WriteToBigTable" >> beam.ParDo(self.step()).with_output_types(KV[int, bytes]))
        write = beam.ParDo(self.step()).with_outputs(_DEAD_LETTERS, main="readings")
        written = raw | "MutateRows" >> write
        written.readings.element_type = KV[int, bytes]
        return Written(written.readings, written[_DEAD_LETTERS])

    def step(self) -> beam.DoFn:
        """Returns the step that writes rows."""
        writer: ConnectorWriteFn | BulkWriteFn
        if self.bulk:
            writer = BulkWriteFn(self.name, self.label, guard=self.guard, clock=self.clock)
        else:
            writer = ConnectorWriteFn(self.name, CELLS_PER_REQUEST, self.guard)
        return _WriteRawFn(writer, self.schema, self.kind)


class _WriteRawFn(beam.DoFn):
    """Writes with another DoFn, which confirms its rows at the end of a bundle. A long bundle is confirmed in parts."""

    def __init__(self, writer: ConnectorWriteFn | BulkWriteFn, schema: TableSchema, kind: Kind | None = None) -> None:
        self._writer = writer
        self._schema, self._kind = schema, kind or kind_of(schema)

    def display_data(self) -> dict[str, Any]:
        return self._writer.display_data()

    @property
    def guard(self) -> TableGuard | None:
        return self._writer.guard

    def setup(self) -> None:
        self._writer.setup()

    def start_bundle(self) -> None:
        self._unconfirmed = Unconfirmed(self._schema, self._kind, _row_of)
        self._writer.start_bundle()

    def process(self, element: RawRows) -> Iterable[Any]:
        letters = [TaggedOutput(_DEAD_LETTERS, letter) for letter in self._writer.process(element.rows)]
        if not self._unconfirmed.add(element):
            return letters
        confirmed = list(self._confirmed())
        self._writer.start_bundle()
        return [*letters, *confirmed]

    def finish_bundle(self) -> Iterator[Any]:
        return self._confirmed()

    def _confirmed(self) -> Iterator[Any]:
        """Yields dead letters and readings once all rows are confirmed or refused."""
        for letter in self._writer.finish_bundle():
            yield TaggedOutput(_DEAD_LETTERS, letter)
        for part in self._unconfirmed.confirm(self._writer.refused):
            yield WindowedValue((part.group, part.data), Timestamp(micros=part.time_us), _GLOBAL)

    def teardown(self) -> None:
        self._writer.teardown()


def _row_of(row: EncodedRow) -> Row:
    cells = [each.set_cell for each in _EntryMessage.FromString(row.mutations).mutations]
    return Row(
        row.key, [Cell(each.family_name, each.column_qualifier, each.timestamp_micros, each.value) for each in cells]
    )


@dataclass(eq=False)
class PublishResults(beam.PTransform):
    """Publishes batches of results, as :func:`pipeline.core.results.window_results.batches_of` encodes them.

    The batches are shuffled first. So only results of committed firings are published: if a firing is repeated, it may
    have more readings, and what its first attempt would have published has the same ids.

    Args:
        topic: the topic's full path.
        encoding: the encoding of the messages.
        declared: the declarations of metrics, whose units and labels the messages have.
    """

    topic: str
    encoding: Encoding
    declared: Mapping[str, DeclaredMetric]

    def expand(self, batches: PCollection) -> PCollection:
        return (
            batches
            | "OfCommitted" >> beam.Reshuffle()
            | "ToPubsubMessages"
            >> beam.FlatMap(_messages_of, self.encoding, dict(self.declared)).with_output_types(PubsubMessage)
            | "WriteToPubSub" >> WriteToPubSub(self.topic, with_attributes=True)
        )


def _messages_of(batch: bytes, encoding: Encoding, declared: Mapping[str, DeclaredMetric]) -> Iterator[PubsubMessage]:
    for serialized in read_batch(batch):
        yield _pubsub_message(message_of(serialized, encoding, declared))
