"""Scans the raw rows and the aggregate rows of a table side by side, and finds the windows that may be wrong.

A repair on this machine recomputes only these windows, of which there are usually few. The rest is right: the scan has
read all their rows. See :mod:`pipeline.core.completion.column_audit`.

Sensors are in the same order among raw rows and among the aggregate rows of each tier. So a range of sensors is one
scan of each, with one sensor in memory at a time. Ranges of a large table are scanned in as many processes as there are
cores.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import chain, groupby
from multiprocessing import get_context
from operator import itemgetter
from typing import NamedTuple

from pipeline.cloud.connection.key_ranges import Sample, split_points, split_range
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.completion.audit import Extent
from pipeline.core.completion.column_audit import EVENTS, Columns, compared
from pipeline.core.completion.newest_audit import NewestAudit, within
from pipeline.core.notation.cell_values import format_value
from pipeline.core.queries.reads import ForeignRows, ReadRows, RowSelection, in_batches
from pipeline.core.queries.sweeps import Span, event_ranges, window_ranges
from pipeline.core.rows.aggregate_rows import AggregateKey, aggregate_prefix, aggregate_range, parse_aggregate_key
from pipeline.core.rows.newest_row import latest_key
from pipeline.core.rows.rows import BlockOfRows, Cell, KeyRange, Part, after_prefix, in_parts, one_by_one, split
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema

MOST_SUSPECTS = 20_000
"""The most windows that a scan names: of more, as of a tier that was just added, nearly all have to be recomputed."""

_LARGE_BYTES = 256 << 20  # a smaller table is scanned before other processes have started


@dataclass(frozen=True)
class SensorScan:
    """A scan of all windows in a span.

    Args:
        table: the table's name.
        schema: the table's schema.
        retention: the retention of the table's cells.
        extents: the windows, shortest tier first, the last tier with whole windows of all others.
        span: the span of these windows.
        listed: the longest windows that are suspect anyway.
    """

    table: TableName
    schema: TableSchema
    retention: Retention
    extents: Sequence[Extent]
    span: Span
    listed: Collection[AggregateKey]

    def parts(self, samples: Sequence[Sample]) -> list[KeyRange]:
        """Returns ranges of sensors, by the starts of their keys, to scan in parallel.

        Args:
            samples: sampled row keys of the table.
        """
        if self.span.sensors is not None:
            prefixes = [f"{sensor_id}#".encode() for sensor_id in sorted(self.span.sensors)]
            return [KeyRange(prefix, after_prefix(prefix)) for prefix in prefixes]
        points = {key[: key.index(b"#") + 1] for key in split_points(samples) if b"#" in key}
        return split_range(KeyRange(b"", b""), sorted(points))

    def results(self, parts: Sequence[KeyRange], size_bytes: int) -> Iterator["Scanned"]:
        """Scans ranges of sensors, and yields each result when it is there. Raises ServerProblem.

        Args:
            parts: the ranges.
            size_bytes: the size of the table.
        """
        processes = min(len(parts), os.cpu_count() or 1) if size_bytes >= _LARGE_BYTES else 1
        if processes == 1:
            yield from map(self.scanned, parts)
            return
        # Forked processes might hang, since the client has threads. Ctrl-C ends the others at once.
        end_at_once = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with ProcessPoolExecutor(processes, get_context("spawn"), end_at_once) as pool:
            try:
                for each in as_completed([pool.submit(self.scanned, part) for part in parts]):
                    yield each.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def scanned(self, part: KeyRange) -> "Scanned":
        """Scans a range of sensors. Raises ServerProblem."""
        with RowReader.open(self.table) as reader:
            return _Scanning(self, part, reader).result()


class Scanned(NamedTuple):
    """The result of the scan of some sensors.

    Attributes:
        checked: the number of windows that are right.
        suspects: the longest windows in which a window may be wrong; if they are more than :data:`MOST_SUSPECTS`, the
            scan is not complete.
        foreign: the problem of each foreign row that belongs to no window, by its key.
        unnamed: the number of further foreign rows.
    """

    checked: int
    suspects: set[AggregateKey]
    foreign: dict[bytes, str]
    unnamed: int


class _Scanning:
    def __init__(self, scan: SensorScan, part: KeyRange, reader: RowReader) -> None:
        self._scan, schema = scan, scan.schema
        self._extents = [extent for extent in scan.extents if extent.windows]
        self._longest = scan.extents[-1].tier.window
        self._foreign, self._listed = ForeignRows(), defaultdict[str, set[int]](set)
        for sensor_id, start_us in scan.listed:
            self._listed[sensor_id].add(start_us)
        read = reader.read_selection
        ranges = event_ranges(schema.key, read, part, scan.span, self._foreign.add)
        self._streams = [_by_sensor(read, ranges, schema.metrics.families, b"", 0)]
        for index, extent in enumerate(self._extents, 1):
            window, prefix = extent.tier.window, aggregate_prefix(extent.tier.window).encode()
            read = reader.with_new_counters().read_selection  # it expects the columns of the rows before
            parse, range_of, [span] = (
                partial(parse_aggregate_key, window),
                partial(aggregate_range, window),
                within([scan.span], extent),
            )
            ranges = window_ranges(read, _below(prefix, part), span, parse, range_of, self._foreign.add)
            self._streams.append(_by_sensor(read, ranges, (extent.tier.family,), prefix, index))
        self._newest: NewestAudit | None = None
        if schema.latest is not None and (spans := within([scan.span], scan.extents[0])):
            read, keys = reader.with_new_counters().read_selection, _below(latest_key(""), part)
            self._newest = NewestAudit(schema, scan.retention, read, spans, time.time_ns() // 1000)
            self._streams.append(_by_sensor(read, [keys], (schema.latest,), latest_key(""), len(self._streams)))

    def result(self) -> Scanned:
        checked, suspects = 0, set[AggregateKey]()
        for sensor, parts in groupby(merge(*self._streams, key=itemgetter(0, 1)), key=itemgetter(0)):
            sensor_id = sensor[:-1].decode(errors="replace")
            every, wrong = self._audited(sensor_id, parts)
            suspects.update(AggregateKey(sensor_id, start_us) for start_us in wrong)
            checked += sum(self._longest.start_of(each) not in wrong for each in every) if wrong else len(every)
            if len(suspects) > MOST_SUSPECTS:
                break
        messages = self._foreign.messages
        return Scanned(checked, suspects, messages, self._foreign.count - len(messages))

    def _audited(self, sensor_id: str, parts: Iterable[tuple[bytes, int, Part]]) -> tuple[list[int], set[int]]:
        """Returns the starts of a sensor's windows, and those of the longest windows in which some may be wrong."""
        span, start_of = self._scan.span, self._longest.start_of
        events, cells, rows = Columns(), list[Cell](), [Columns() for _ in self._extents]
        try:
            for _, index, part in parts:
                if not index:
                    events.add_events(self._scan.schema, part)
                elif index <= len(rows):
                    rows[index - 1].add_windows(self._extents[index - 1].tier.window, part)
                else:
                    cells += (cell for row in one_by_one([part]) for cell in row.cells)
        except ValueError:  # all windows of the sensor are suspect
            return [], set(self._longest.starts(start_of(span.start_us), span.end_us))
        every, suspects, series = list[int](), self._listed[sensor_id], events.series()
        for extent, of_tier in zip(self._extents, rows, strict=True):
            starts, wrong = compared(extent, series, of_tier.series())
            every += starts
            suspects.update(map(start_of, wrong))
        if self._newest is not None:
            newest = [
                (name, int(at[-1]), format_value(float(of[-1]))) for name, (at, of) in series.items() if name != EVENTS
            ]
            if self._newest.wrong_cells(sensor_id, cells, newest):
                times = {*(time_us for _, time_us, _ in newest), *(cell.timestamp_us for cell in cells)}
                suspects.update(start_of(each) for each in times if span.start_us <= each < span.end_us)
        return every, suspects


def _by_sensor(
    read: ReadRows, ranges: Iterable[KeyRange], families: tuple[str, ...], prefix: bytes, index: int
) -> Iterator[tuple[bytes, int, Part]]:
    """Yields the newest cells of rows by sensor: the start of their keys after a prefix, an index, and the rows."""
    cells = CellSelection(families, versions=1)
    for part in chain.from_iterable(in_parts(read(RowSelection(some, cells))) for some in in_batches(ranges)):
        rest: Part | None = part
        while rest is not None:
            key = rest.keys[0] if isinstance(rest, BlockOfRows) else rest.key
            sensor = key[len(prefix) :].partition(b"#")[0] + b"#"
            own, rest = split(rest, after_prefix(prefix + sensor))
            if own is not None:
                yield sensor, index, own


def _below(prefix: bytes, part: KeyRange) -> KeyRange:
    """Returns the keys with a prefix before keys of a range."""
    return KeyRange(prefix + part.start, prefix + part.end if part.end else after_prefix(prefix))
