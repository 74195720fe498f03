"""Recomputes aggregates from raw rows, compares them with the stored ones, and rewrites those that are wrong."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput
from apache_beam.typehints import KV

from pipeline.cloud.connection.names import TableName
from pipeline.core.accumulation.accumulator import read_window, window_bytes
from pipeline.core.completion.audit import Extent, Recomputed, StoredRow, Untouched, audit
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, accumulators_of, start_of_readings
from pipeline.core.queries.reads import ForeignRow, ForeignRows
from pipeline.core.queries.sweeps import Span, events_within, window_rows
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_key
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of, groups_for, groups_of_batch
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.repair.newest import by_group, gathered
from pipeline.transforms import metrics
from pipeline.transforms.tables import TableReadingFn, now_us

_READINGS, _RECOMPUTED, _STORED = "readings", "recomputed", "stored"
_FOREIGN = "foreign"
_HELD_UP = "held_up"
_NEWEST = "newest"
_UNTOUCHED = "untouched"

LOOKBACK_US = 2 * 24 * 3_600_000_000
"""The time before audited windows for which last readings are read from raw rows, not from aggregate rows."""

_MOST_HELD = 50_000  # events in memory, before a worker emits its accumulators

_MOST_ROWS = 20_000  # of aggregates, as well


Key = tuple[int, int]
"""A group of sensors, and the start of a window."""

_Window = tuple[str, int, bytes, dict[str, float], bool]  # as bytes: Beam would pickle objects


class ReadTask(NamedTuple):
    """The rows of a key range that belong to a span. One worker reads them in one scan.

    Attributes:
        keys: the key range.
        span: the index of the span, from 0.
        extent: the windows of aggregate rows; None for raw rows.
    """

    keys: KeyRange
    span: int
    extent: Extent | None = None


class Joining(NamedTuple):
    """What is joined: the windows of a group of sensors in one of the longest windows.

    Attributes:
        groups: the number of groups.
        longest: the tier of the longest windows.
    """

    groups: int
    longest: Tier

    @classmethod
    def of(cls, schema: TableSchema, last: Extent) -> "Joining":
        """Returns groups that are the smaller, the more of the shortest windows are in one of the longest."""
        end_us = last.tier.window.end_of(last.start_us)
        return cls(groups_for(schema.rate) * schema.tiers[0].window.count(last.start_us, end_us), last.tier)

    def key(self, sensor_id: str, start_us: int) -> Key:
        """Returns the key of a window, given its sensor and start."""
        return group_of(sensor_id.encode(), self.groups), self.longest.window.start_of(start_us)


class AuditOutputs(NamedTuple):
    """The outputs of :class:`FindWrongWindows`.

    Attributes:
        wrong: a :class:`Finding` for each window whose aggregate row is wrong.
        untouched: an :class:`Untouched` for each window that foreign raw rows may belong to.
        foreign: ``(key, problem)`` for each foreign row that is named.
        newest: :data:`NewestOfSensors`; none if the table has no rows of newest readings.
    """

    wrong: PCollection
    untouched: PCollection
    foreign: PCollection
    newest: PCollection


@dataclass(eq=False)
class FindWrongWindows(beam.PTransform):
    """Audits a table: from the start of a pipeline to :class:`AuditOutputs`.

    Args:
        extents: the windows to audit, the shortest tier first, the last tier with whole windows of all others.
        spans: the spans to read, with all raw rows and aggregate rows of these windows.
        tasks: the same rows in parts, to read in parallel.
    """

    table: TableName
    schema: TableSchema
    extents: Sequence[Extent]
    spans: Sequence[Span]
    tasks: Sequence[ReadTask]
    retention: Retention

    def expand(self, pipeline: PBegin) -> Any:  # AuditOutputs; Beam takes the annotation for a type hint and warns
        table, schema, retention = self.table, self.schema, self.retention
        extents, spans, joining = tuple(self.extents), tuple(self.spans), Joining.of(schema, self.extents[-1])
        raw_tasks = [task for task in self.tasks if task.extent is None]
        aggregate_tasks = [task for task in self.tasks if task.extent is not None]
        raw = (
            pipeline
            | "RawParts" >> beam.Create(raw_tasks)
            | "SpreadRawParts" >> beam.Reshuffle()
            | "ReadRaw"
            >> beam.ParDo(_ReadRawFn(table, spans, schema, joining)).with_outputs(
                _FOREIGN, _HELD_UP, _NEWEST, main=_READINGS
            )
        )
        recomputed = (
            raw[_READINGS]
            | "Gather" >> beam.GroupByKey()
            | "Recompute" >> beam.FlatMap(recompute, joining).with_output_types(tuple[Key, Any])
        )
        aggregates = (
            pipeline
            | "AggregateParts" >> beam.Create(aggregate_tasks)
            | "SpreadAggregateParts" >> beam.Reshuffle()
            | "ReadAggregates"
            >> beam.ParDo(_ReadAggregatesFn(table, spans, joining, extents)).with_outputs(_FOREIGN, main=_STORED)
        )
        compared = (
            {_RECOMPUTED: recomputed, _STORED: aggregates[_STORED], _HELD_UP: raw[_HELD_UP]}
            | "Join" >> beam.CoGroupByKey()
            | "Compare"
            >> beam.ParDo(_CompareFn(table, schema, retention, extents)).with_outputs(_UNTOUCHED, main="wrong")
        )
        foreign = (
            (raw[_FOREIGN], aggregates[_FOREIGN])
            | "Foreign" >> beam.Flatten()
            | "EachOnce" >> beam.CombinePerKey(min).with_output_types(tuple[bytes, str])
        )
        raw[_NEWEST].element_type = KV[int, Any]
        return AuditOutputs(compared.wrong, compared[_UNTOUCHED], foreign, raw[_NEWEST])


class _ReadFn(TableReadingFn):
    """Reads spans of a table. Sensors are passed on in groups, since each element costs as much as a window."""

    def __init__(self, table: TableName, spans: tuple[Span, ...], joining: Joining) -> None:
        super().__init__(table)
        self._spans = spans
        self._joining = joining
        self._unnamed = metrics.counter(metrics.REPAIR_FOREIGN_ROWS_UNNAMED)

    def _report(self, foreign: ForeignRows) -> Iterator[TaggedOutput]:
        named = foreign.messages
        if unnamed := foreign.count - len(named):
            self._unnamed.inc(unnamed)
        return (TaggedOutput(_FOREIGN, row) for row in named.items())


@beam.typehints.with_output_types(tuple[Key, bytes])
class _ReadRawFn(_ReadFn):
    """Turns tasks into readings of the shortest windows, as :class:`GroupedReadings` encodes them.

    A window may come in several pieces, to limit memory. A second output has ``(sensor, start, end)`` for each foreign
    row: the time of its events. Another output has the newest readings.
    """

    def __init__(self, table: TableName, spans: tuple[Span, ...], schema: TableSchema, joining: Joining) -> None:
        super().__init__(table, spans, joining)
        self._schema = schema
        self._events = metrics.counter(metrics.REPAIR_EVENTS)

    def process(self, element: ReadTask) -> Iterator[Any]:
        schema, span = self._schema, self._spans[element.span]
        window = schema.tiers[0].window
        gathered = GroupedReadings(window, schema.identity, groups_of_batch(schema.rate, window), schema.member_fields)
        newest = NewestReadings()
        held = 0
        foreign = ForeignRows()
        held_up: set[tuple[Key, tuple[str, int, int]]] = set()

        def leave_out(problem: ForeignRow) -> None:
            foreign.add(problem)
            held_up.update(self._windows_of(problem, span))

        for record in events_within(schema, self._read, element.keys, span, leave_out):
            sensor_id, time_us, readings = record.sensor_id, record.event_time_us, record.readings
            if readings:  # an event of metadata alone is in no window
                gathered.add((Event(sensor_id, time_us, readings, record.metadata, record.event_id),))
            if schema.latest is not None:
                time_us -= time_us % schema.identity.grain_us
                newest.add(sensor_id, time_us, readings.items())
                if schema.metadata_alone:
                    newest.add_metadata(sensor_id, time_us, record.metadata)
            held += 1
            if held == _MOST_HELD:
                yield from self._take(gathered, newest, held)
                newest, held = NewestReadings(), 0
        yield from self._take(gathered, newest, held)
        yield from (TaggedOutput(_HELD_UP, each) for each in held_up)
        yield from self._report(foreign)

    def _take(self, gathered: GroupedReadings, newest: NewestReadings, held: int) -> Iterator[Any]:
        self._events.inc(held)
        for group, _, data in gathered.take_groups():
            yield (group, start_of_readings(data)), data
        yield from (TaggedOutput(_NEWEST, each) for each in by_group(newest.cells()))

    def _windows_of(self, problem: ForeignRow, span: Span) -> Iterator[tuple[Key, tuple[str, int, int]]]:
        """Returns the possible times of its events, by longest window; none if the key is not a raw row's."""
        if problem.raw_key is None:
            return
        sensor_id, time_us = problem.raw_key[:2]
        end_us = min(self._schema.key.end_us(time_us), span.end_us)
        shortest, longest = self._schema.tiers[0].window, self._joining.longest.window
        first_us, end_us = shortest.start_of(max(time_us, span.start_us)), shortest.first_start(end_us)
        for longest_us in longest.starts(longest.start_of(first_us), end_us):
            within = max(first_us, longest_us), min(end_us, longest.end_of(longest_us))
            yield self._joining.key(sensor_id, longest_us), (sensor_id, *within)


@beam.typehints.with_output_types(tuple[Key, Any])
class _ReadAggregatesFn(_ReadFn):
    """Turns tasks into lists of ``(sensor, tier, start, values)``, one for each aggregate row.

    The tier is given as its index among the extents.
    """

    def __init__(self, table: TableName, spans: tuple[Span, ...], joining: Joining, extents: Sequence[Extent]) -> None:
        super().__init__(table, spans, joining)
        self._tiers = [extent.tier for extent in extents]

    def process(self, element: ReadTask) -> Iterator[Any]:
        if element.extent is None:
            raise ValueError(f"{element} has raw rows, not aggregate rows")
        tier, start_us, end_us = element.extent
        span, index = self._spans[element.span], self._tiers.index(tier)
        foreign = ForeignRows()
        rows = window_rows(
            self._read,
            CellSelection((tier.family,), versions=1),
            element.keys,
            span._replace(start_us=max(span.start_us, start_us), end_us=min(span.end_us, end_us)),
            lambda key: parse_aggregate_key(tier.window, key),
            lambda *windows: aggregate_range(tier.window, *windows),
            foreign.add,
        )
        found = (
            (self._joining.key(*key), (key.sensor_id, index, key.start_us, StoredRow.of(row))) for key, row in rows
        )
        yield from gathered(found, _MOST_ROWS)
        yield from self._report(foreign)


def recompute(element: tuple[Key, Iterable[bytes]], joining: Joining) -> Iterable[tuple[Key, list[_Window]]]:
    """Returns the recomputed windows to join, given the readings of a group in one of the shortest windows.

    The longest windows may have more readings than fit in memory.
    """
    (_, start_us), parts = element
    found: dict[Key, list[_Window]] = defaultdict(list)
    for sensor_id, windows in accumulators_of(parts).items():
        each = Recomputed.of(windows[start_us], joining.longest.statistics)
        window = sensor_id, start_us, window_bytes(each.stats), each.magnitudes, each.too_wide
        found[joining.key(sensor_id, start_us)].append(window)
    return found.items()


def by_sensor(recomputed: Iterable[list[_Window]]) -> dict[str, dict[int, Recomputed]]:
    """Returns recomputed windows by sensor and start."""
    found: dict[str, dict[int, Recomputed]] = defaultdict(dict)
    for sensor_id, start_us, stats, magnitudes, too_wide in chain.from_iterable(recomputed):
        found[sensor_id][start_us] = Recomputed(read_window(stats), magnitudes, too_wide)
    return found


class _CompareFn(TableReadingFn):
    def __init__(
        self, table: TableName, schema: TableSchema, retention: Retention, extents: tuple[Extent, ...]
    ) -> None:
        super().__init__(table)
        self._schema = schema
        self._retention = retention
        self._extents = extents
        self._checked = metrics.counter(metrics.REPAIR_WINDOWS_CHECKED)
        self._wrong = metrics.counter(metrics.REPAIR_WINDOWS_WRONG)
        self._untouched = metrics.counter(metrics.REPAIR_WINDOWS_UNTOUCHED)

    def process(self, element: tuple[Key, Mapping[str, Iterable[Any]]]) -> Iterator[Any]:
        _, found = element
        recomputed = by_sensor(found[_RECOMPUTED])
        stored: dict[str, dict[tuple[Tier, int], StoredRow]] = defaultdict(dict)
        for sensor_id, tier, start_us, row in chain.from_iterable(found[_STORED]):
            stored[sensor_id][self._extents[tier].tier, start_us] = row
        held_up: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for sensor_id, start_us, end_us in found[_HELD_UP]:
            held_up[sensor_id].add((start_us, end_us))
        for sensor_id in dict.fromkeys(chain(recomputed, stored, held_up)):
            yield from self._of_sensor(
                sensor_id, recomputed.get(sensor_id, {}), stored.get(sensor_id, {}), held_up.get(sensor_id, ())
            )

    def _of_sensor(
        self,
        sensor_id: str,
        recomputed: Mapping[int, Recomputed],
        stored: Mapping[tuple[Tier, int], StoredRow],
        held_up: Collection[tuple[int, int]],
    ) -> Iterator[Any]:
        if self._schema.statistics.carries:
            first_us = min((extent.start_us for extent in self._extents if extent.windows), default=0)
            stats = {start_us: each.stats for start_us, each in recomputed.items() if start_us >= first_us}
            neighbours, now = Neighbours(self._schema, self._retention, self._read, LOOKBACK_US), now_us()
            neighbours.carry(sensor_id, stats, now, self._retention.readings_from_us(now))
        for audited in audit(sensor_id, self._extents, recomputed, stored, held_up):
            if isinstance(audited, Untouched):
                self._untouched.inc()
                yield TaggedOutput(_UNTOUCHED, audited)
                continue
            self._checked.inc()
            if audited.finding is not None:
                self._wrong.inc()
                yield audited.finding
