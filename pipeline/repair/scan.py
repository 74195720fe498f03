"""Scans the raw rows and the aggregate rows of a table side by side, and finds the windows that may be wrong.

A repair on this machine recomputes only these windows, of which there are usually few. The rest is right: the scan has
read all their rows. See :mod:`pipeline.core.completion.column_audit`.

Sensors are in the same order among raw rows and among the aggregate rows of each tier. So a range of sensors is one
scan of each, with few sensors in memory at a time. Ranges of a large table are scanned in a process for each core.
"""

import gc
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple

from pipeline.cloud.connection.key_ranges import Sample, split_points
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.completion.audit import Extent
from pipeline.core.completion.column_audit import Columns, Places, compared, newest_in
from pipeline.core.completion.newest_audit import NewestAudit, within
from pipeline.core.queries.reads import ForeignRows, ReadRows, RowSelection, in_batches
from pipeline.core.queries.sweeps import Span, event_ranges, window_ranges
from pipeline.core.rows.aggregate_rows import AggregateKey, aggregate_prefix, aggregate_range, parse_aggregate_key
from pipeline.core.rows.newest_row import latest_key
from pipeline.core.rows.rows import (
    BlockOfRows,
    Cell,
    KeyRange,
    Part,
    after_prefix,
    in_parts,
    one_by_one,
    split,
    split_range,
)
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import Window
from pipeline.job.processes import processes_of

MOST_SUSPECTS = 20_000
"""The most windows that a scan names: of more, as of a tier that was just added, nearly all have to be recomputed."""

_LARGE_BYTES = 128 << 20  # a smaller table is scanned before other processes have started
_MOST_SENSORS = 256  # that are audited together
_MOST_ROWS = 20_000  # of these, apart from those of the last one


@dataclass(frozen=True)
class SensorScan:
    """A scan of all windows in a span.

    Args:
        extents: the windows, shortest tier first, the last tier with whole windows of all others.
        span: the span of these windows.
        listed: the longest windows that are suspect anyway, by sensor.
    """

    table: TableName
    schema: TableSchema
    retention: Retention
    extents: Sequence[Extent]
    span: Span
    listed: Mapping[str, Collection[AggregateKey]]

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
        """Scans ranges of sensors, and yields each result when it is there. Raises ServerError.

        Args:
            parts: the ranges.
            size_bytes: the size of the table.
        """
        size = min(len(parts), os.cpu_count() or 1) if size_bytes >= _LARGE_BYTES else 1
        if size == 1:
            yield from map(self.scanned, parts)
            return
        with processes_of(size) as processes:
            yield from processes.each(self.scanned, ((part,) for part in parts))

    def scanned(self, part: KeyRange) -> "Scanned":
        """Scans a range of sensors. Raises ServerError."""
        schema, span, foreign = self.schema, self.span, ForeignRows()
        newest, checked, suspects = None, 0, set[AggregateKey]()
        with RowReader.open(self.table) as reader:
            read = reader.read_selection
            ranges = event_ranges(schema.key, read, part, span, foreign.add)
            streams = [_by_sensor(read, ranges, schema.metrics.families, b"", 0)]
            for index, extent in enumerate(self.audited, 1):
                window, prefix = extent.tier.window, aggregate_prefix(extent.tier.window).encode()
                read = reader.with_new_counters().read_selection  # it expects the columns of the rows before
                parse, range_of = partial(parse_aggregate_key, window), partial(aggregate_range, window)
                [clipped] = within([span], extent)
                ranges = window_ranges(read, _below(prefix, part), clipped, parse, range_of, foreign.add)
                streams.append(_by_sensor(read, ranges, (extent.tier.family,), prefix, index))
            if schema.latest is not None and (spans := within([span], self.extents[0])):
                read, keys = reader.with_new_counters().read_selection, _below(latest_key(""), part)
                newest = NewestAudit(schema, self.retention, read, spans, time.time_ns() // 1000)
                streams.append(_by_sensor(read, [keys], (schema.latest,), latest_key(""), len(streams)))
            rows = groupby(merge(*streams, key=itemgetter(0, 1)), key=itemgetter(0))
            with _collecting_seldom() as collect:
                while len(suspects) <= MOST_SUSPECTS and (sensors := _Sensors(self)).read(rows):
                    right, wrong = sensors.audited(newest)
                    checked += right
                    suspects |= wrong
                    collect()
        messages = foreign.messages
        return Scanned(checked, suspects, messages, foreign.count - len(messages))

    @cached_property
    def audited(self) -> list[Extent]:
        """The extents that have windows."""
        return [extent for extent in self.extents if extent.windows]

    @cached_property
    def longest(self) -> Window:
        """The longest windows."""
        return self.extents[-1].tier.window

    @cached_property
    def places(self) -> Places:
        """The places of the span's events, and of the windows around them."""
        first_us, last_us = map(self.longest.start_of, (self.span.start_us, self.span.end_us - 1))
        return Places(first_us, self.longest.end_of(last_us) - first_us)


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


class _Sensors:
    """Some sensors, whose windows are audited together."""

    def __init__(self, scan: SensorScan) -> None:
        self._scan, self._odd = scan, set[AggregateKey]()
        self._events, self._stored = Columns(scan.places), [Columns(scan.places) for _ in scan.audited]
        self._cells: dict[str, list[Cell]] = {}  # of newest readings

    def read(self, rows: Iterator[tuple[bytes, Iterable[tuple[bytes, int, Part]]]]) -> bool:
        """Takes sensors from the rows of each. Returns whether there are any."""
        size, scan = 0, self._scan
        for sensor, parts in islice(rows, min(_MOST_SENSORS, (1 << 62) // scan.places.length_us)):
            sensor_id, number = sensor[:-1].decode(errors="replace"), len(self._cells)
            cells = self._cells[sensor_id] = list[Cell]()
            try:
                for _, index, part in parts:
                    size += len(part.keys) if isinstance(part, BlockOfRows) else 1
                    if not index:
                        self._events.add_events(scan.schema, number, part)
                    elif index <= len(self._stored):
                        self._stored[index - 1].add_windows(scan.audited[index - 1].tier.window, number, part)
                    else:
                        cells += (cell for row in one_by_one([part]) for cell in row.cells)
            except ValueError:  # all windows of the sensor are suspect
                starts = scan.longest.starts(scan.places.start_us, scan.span.end_us)
                self._odd.update(AggregateKey(sensor_id, start_us) for start_us in starts)
            if size >= _MOST_ROWS:
                break
        return bool(self._cells)

    def audited(self, newest: NewestAudit | None) -> tuple[int, set[AggregateKey]]:
        """Returns the number of windows that are right, and the suspects: the longest windows around others.

        Args:
            newest: the audit of newest readings, if the table has these.
        """
        scan, places, every = self._scan, self._scan.places, list[int]()
        sensors, events = list(self._cells), self._events.series()

        def longest(place: int) -> AggregateKey:
            number, offset_us = divmod(place, places.length_us)
            return AggregateKey(sensors[number], scan.longest.start_of(places.start_us + offset_us))

        suspects = self._odd.union(*(scan.listed.get(sensor_id, ()) for sensor_id in sensors))
        for extent, stored in zip(scan.audited, self._stored, strict=True):
            windows, wrong = compared(extent, places, events, stored.series())
            every += windows.tolist()
            suspects.update(map(longest, wrong))
        if newest is not None:
            found = newest_in(places, events)
            for number, (sensor_id, cells) in enumerate(self._cells.items()):
                if newest.wrong_cells(sensor_id, cells, found.get(number, ())):
                    times = {
                        *(cell.timestamp_us for cell in cells),
                        *(time_us for _, time_us, _ in found.get(number, ())),
                    }
                    around = (
                        scan.longest.start_of(each) for each in times if scan.span.start_us <= each < scan.span.end_us
                    )
                    suspects.update(AggregateKey(sensor_id, each) for each in around)
        return sum(longest(place) not in suspects for place in every) if suspects else len(every), suspects


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


@contextmanager
def _collecting_seldom() -> Iterator[Callable[[], object]]:
    """Stops the garbage collector, which would go through rows again and again. Yields what collects new garbage."""
    gc.disable()
    try:
        yield partial(gc.collect, 0)
    finally:
        gc.enable()


def _below(prefix: bytes, part: KeyRange) -> KeyRange:
    """Returns the keys with a prefix before keys of a range."""
    return KeyRange(prefix + part.start, prefix + part.end if part.end else after_prefix(prefix))
