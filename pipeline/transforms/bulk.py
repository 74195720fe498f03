"""Our own Bigtable sink: writes many rows at once, and turns refused rows into dead letters."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Lineage
from apache_beam.pvalue import PCollection
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerProblem, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.cloud.writing.bulk_writer import BulkWriter, Limits
from pipeline.cloud.writing.request_retrier import Tally
from pipeline.core.completion.work_list import LATE, encoded_work_rows, is_work_key, listing
from pipeline.core.dead_letters.refused_rows import ROW_REFUSED, RefusedRow, refused_row_letter
from pipeline.core.events.message import Message
from pipeline.core.rows.aggregate_rows import parse_aggregate_key
from pipeline.core.rows.rollup_rows import NO_SENSORS, ROLLUP, parse_members_key
from pipeline.core.rows.rows import EncodedRows, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.service_calls import ServiceCalls
from pipeline.transforms import metrics

Clock = Callable[[], float]

_EntryMessage = MutateRowsRequest.Entry.pb()  # the plain protobuf class


class BulkWriteRows(beam.PTransform):
    """Writes ``Row`` or ``EncodedRows`` elements to a table. Outputs refused rows as ``Message`` dead letters.

    A bundle ends when each of its rows is confirmed or a dead letter. It fails if a row can be neither, or if too many
    rows are refused for the rows to be the cause. A failed bundle loses nothing: the runner tries it again.

    Rows of the work list are written after all other rows of the bundle, so that a reader of the list finds the events
    of its windows. If the schema is known, the windows of refused rows are put on the work list too: their aggregates
    count events that are dead letters now.

    Args:
        name: the table.
        limits: the writer's limits.
        clock: the function that returns seconds since the epoch, for dead letters.
        schema: the table's schema; None if it is not known.
        guard: the table as it was at the job's launch; None for any table. A bundle fails if the table is another one.
    """

    def __init__(
        self,
        name: TableName,
        limits: Limits | None = None,
        clock: Clock = time.time,
        schema: TableSchema | None = None,
        guard: TableGuard | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._limits = limits or Limits()
        self._clock = clock
        self._schema = schema
        self._guard = guard

    def expand(self, rows: PCollection) -> PCollection:
        if not isinstance(rows.windowing.windowfn, GlobalWindows):
            rows |= "ForgetWindows" >> beam.WindowInto(GlobalWindows())  # dead letters have no window
        write_fn = _BulkWriteFn(self._name, self._limits, self.label, self._clock, self._schema, self._guard)
        return rows | "MutateRows" >> beam.ParDo(write_fn).with_output_types(Message)


class _BulkWriteFn(beam.DoFn):
    def __init__(
        self,
        name: TableName,
        limits: Limits,
        step: str,
        clock: Clock,
        schema: TableSchema | None = None,
        guard: TableGuard | None = None,
    ) -> None:
        self._name = name
        self._limits = limits
        self._step = step
        self._clock = clock
        self._schema = schema
        self._guard = guard
        self._metrics = _Metrics(name)

    def setup(self) -> None:
        self._closing = ExitStack()
        with explained(self._name):
            client = self._closing.enter_context(_shared_client())
        self._writer = BulkWriter(client, self._name, self._limits)
        self._closing.callback(self._writer.close)

    def start_bundle(self) -> None:
        if self._guard:
            self._guard.check()
        self._has_refused = False
        self._writer.abandon()  # drops the rows of a bundle that failed: they come again
        self._last = EncodedRows()
        self._lacking: set[tuple[str, int]] = set()  # the windows of refused rows

    def process(self, element: Row | EncodedRows) -> Iterable[Message]:
        if isinstance(element, Row):
            self._writer.add(element)
        elif element and is_work_key(element[0].key):
            self._last += element
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
        except ServerProblem:
            if self._guard:
                self._guard.check_now()
            raise
        finally:
            self._metrics.count(self._writer.take_tally())
        if self._guard:
            if refused or self._has_refused:  # perhaps because the table lacks their families
                self._guard.check_now()
            self._guard.check()
        Lineage.sinks().add("bigtable", self._name.project, self._name.instance, self._name.table)
        at = Timestamp(self._clock())
        for letter in self._letters(refused):
            yield WindowedValue(letter, at, (GlobalWindow(),))

    def _finish(self) -> list[RefusedRow]:
        """Writes everything that is left of the bundle. Returns the refused rows."""
        refused = self._writer.finish()
        self._note(refused)
        if self._schema is not None and self._schema.tiers:
            column = listing(LATE, round(self._clock() * 1e6))
            self._last += encoded_work_rows(self._schema.tiers[0], sorted(self._lacking), column)
        if self._last:
            self._writer.add_encoded(self._last)
            refused += self._writer.finish()
        return refused

    def teardown(self) -> None:
        self._closing.close()

    def display_data(self) -> dict[str, DisplayDataItem]:
        return {
            "projectId": DisplayDataItem(self._name.project, label="Bigtable Project Id"),
            "instanceId": DisplayDataItem(self._name.instance, label="Bigtable Instance Id"),
            "tableId": DisplayDataItem(self._name.table, label="Bigtable Table Id"),
        }

    def _note(self, refused: Iterable[RefusedRow]) -> None:
        """Notes the windows of refused rows."""
        if self._schema is not None and self._schema.tiers:
            self._lacking.update(window for row in refused for window in _windows_of(row, self._schema))

    def _letters(self, refused: Iterable[RefusedRow]) -> list[Message]:
        now = datetime.fromtimestamp(self._clock(), UTC)
        letters = [refused_row_letter(row, str(self._name), self._step, now) for row in refused]
        for count in self._metrics.refused:
            count.inc(len(letters))
        return letters


def _windows_of(row: RefusedRow, schema: TableSchema) -> set[tuple[str, int]]:
    """Returns the sensor and the start of each shortest window that contains a timestamp of the row's cells.

    For an aggregate row of a longer window, that is its first shortest window. A row of what the sensors of a shard
    contribute to roll-ups has a column for each. Empty for a group's row, and for a foreign one.
    """
    window = schema.tiers[0].window
    cells = [each.set_cell for each in _EntryMessage.FromString(row.entry).mutations if each.HasField("set_cell")]
    if row.key.startswith(ROLLUP.encode()):
        for tier in schema.tiers:
            with suppress(ValueError):
                _, start_us = parse_members_key(tier.window, row.key)
                sensors = (cell.column_qualifier for cell in cells if cell.column_qualifier not in NO_SENSORS)
                return {(sensor_id.decode(), window.start_of(start_us)) for sensor_id in sensors}
        return set()
    sensor_id = _sensor_of(row.key, schema)
    return set() if sensor_id is None else {(sensor_id, window.start_of(cell.timestamp_micros)) for cell in cells}


def _sensor_of(key: bytes, schema: TableSchema) -> str | None:
    """Returns the sensor of the raw row or aggregate row with this key; None if it is neither."""
    parsers: list[Callable[[bytes], Any]] = [partial(parse_aggregate_key, tier.window) for tier in schema.tiers]
    for parse in (*parsers, schema.key.parse_key):
        with suppress(ValueError):
            return str(parse(key).sensor_id)
    return None


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


@dataclass
class _Shared:
    client: BigtableClient
    closing: ExitStack
    users: int = 0


_clients: dict[str | None, _Shared] = {}
_clients_lock = threading.Lock()


@contextmanager
def _shared_client() -> Iterator[BigtableClient]:
    """Yields this process's only client of the service, or of the emulator. Closes it when the last block ends."""
    key = os.environ.get("BIGTABLE_EMULATOR_HOST")
    with _clients_lock:
        if key not in _clients:
            closing = ExitStack()
            _clients[key] = _Shared(closing.enter_context(bigtable_client()), closing)
        shared = _clients[key]
        shared.users += 1
    try:
        yield shared.client
    finally:
        with _clients_lock:
            shared.users -= 1
            if not shared.users:
                del _clients[key]
                shared.closing.close()
