"""Rewrites the wrong windows of a repair, and brings longer windows and roll-ups in line with them, and listed ones."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot, inf, isnan
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsIter, PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Replacement
from pipeline.core.completion.audit import (
    COLLECTED_ROWS,
    KEPT_NO_LONGER,
    OPEN,
    UNSURE,
    Bounds,
    Extent,
    Finding,
    Recomputed,
    StoredRow,
    Untouched,
    finding_of,
)
from pipeline.core.completion.neighbours import leave_out
from pipeline.core.completion.work_list import parse_work_key, work_range, work_range_of, work_row
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.queries.sweeps import Span, SpansInOrder, window_rows
from pipeline.core.rows.aggregate_rows import aggregate_key, parse_window_stats
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import MetricStats, WindowStats
from pipeline.core.windows import sources
from pipeline.transforms import metrics
from pipeline.transforms.settle_rollups import SettleRollups, WrittenWindow
from pipeline.transforms.tables import RETRY_S, CompletingFn, TableReadingFn, now_us

_MOST_SENSORS = 1000  # whose windows are computed together
_MOST_TIMES = 3  # that windows are computed, if their shorter ones keep changing
_COMPUTED = "computed"

_Window = tuple[str, int]  # sensor and start
_Shorter = dict[int, WindowStats | None]
"""Shorter windows that are right, by start: see :meth:`CompletionFromShorterWindows.completed`."""


@dataclass(frozen=True)
class WindowsAbove:
    """The longer windows of a table, and which of them a repair audits.

    Attributes:
        bounds: the bounds of the windows to repair, by tier; None for no bounds.
        from_us: the start from which windows certainly have all rows of their source, by tier.
        audited: the windows that the repair computes from raw rows, in spans of time, by tier.
    """

    tiers: tuple[Tier, ...]
    bounds: Mapping[Tier, Bounds] | None
    from_us: Mapping[Tier, int]
    audited: Mapping[Tier, tuple[Extent, SpansInOrder]]

    @classmethod
    def of(
        cls, tiers: tuple[Tier, ...], bounds: Mapping[Tier, Bounds] | None, retention: Retention, now_us: int
    ) -> "WindowsAbove":
        """Returns the longer windows of a repair that audits nothing yet."""
        from_us = {
            tier: max(retention.aggregates_from_us(tiers[source], now_us), retention.added.get(tiers[source].family, 0))
            for tier, source in zip(tiers, sources(tuple(tier.window for tier in tiers)), strict=True)
        }
        return cls(tiers, bounds, from_us, {})

    def beside(self, audited: Iterable[tuple[Sequence[Extent], Sequence[Span]]]) -> "WindowsAbove":
        """Returns the same beside an audit of extents in spans; those of one tier do not overlap."""
        found: dict[Tier, tuple[Extent, list[Span]]] = {}
        for extents, spans in audited:
            for extent in extents:
                if extent.windows:
                    found.setdefault(extent.tier, (extent, []))[1].extend(spans)
        return replace(self, audited={tier: (each, SpansInOrder(spans)) for tier, (each, spans) in found.items()})

    def around(self, tier: int, start_us: int) -> Iterator[tuple[int, int]]:
        """Yields the tier, by index, and start of each longer window that depends on a window, shortest first."""
        starts = {tier: start_us}
        for index, source in enumerate(sources(tuple(each.window for each in self.tiers))):
            if source in starts:
                starts[index] = self.tiers[index].window.start_of(starts[source])
                yield index, starts[index]

    def are_audited(self, tier: int, sensor_id: str, start_us: int) -> bool:
        """Returns whether the repair computes a window from raw rows."""
        extent, spans = self.audited.get(self.tiers[tier], (None, SpansInOrder([])))
        return extent is not None and start_us in extent and spans.include(sensor_id, start_us)

    def why_left(self, tier: int, start_us: int) -> str | None:
        """Returns why a longer window is not computed, whatever the table has of it; None if it is."""
        of_tier = self.tiers[tier]
        if self.bounds is None:
            return None
        if start_us < self.bounds[of_tier].kept_us:
            return KEPT_NO_LONGER
        return OPEN if of_tier.window.end_of(start_us) > self.bounds[of_tier].latest_us else None

    def follow(self, window: "Changed", rolled_up: Collection[int]) -> bool:
        """Returns whether roll-ups, or longer windows that the repair does not audit, follow a rewritten window.

        It is listed until then. ``rolled_up`` has the indexes of the tiers whose roll-ups follow.
        """
        return window.tier in rolled_up or any(
            not self.are_audited(tier, window.sensor_id, start_us) and self.why_left(tier, start_us) != KEPT_NO_LONGER
            for tier, start_us in self.around(window.tier, window.start_us)
        )

    def computes(self, tier: Tier, start_us: int) -> bool:
        """Returns whether the repair certainly computes a longer window if shorter ones change."""
        index = self.tiers.index(tier)
        certain = self.bounds is None or start_us >= self.from_us[tier]
        return index > 0 and certain and self.why_left(index, start_us) is None


class Changed(NamedTuple):
    """A window that was rewritten, or is listed.

    Attributes:
        rewritten: whether it was rewritten.
        cells: the cells that a dry run would have written; None if the table has them.
        right: whether its row is right by then; if not, a longer window must not count less of it than before.
    """

    sensor_id: str
    tier: int
    start_us: int
    rewritten: bool = True
    cells: tuple[Cell, ...] | None = None
    right: bool = True

    @property
    def window(self) -> WrittenWindow:
        """The window."""
        return WrittenWindow(self.tier, self.start_us, self.sensor_id)


@dataclass(eq=False)
class RewriteWindows(beam.PTransform):
    """Replaces or deletes the aggregate row of each :class:`Finding`. Yields it as :class:`Changed`.

    If others follow, roll-ups or longer windows, the window is on the work list then.

    Args:
        rolled_up: the indexes of the tiers whose windows are rolled up.
        longer: the longer windows.
        listing: the column by which windows are listed.
    """

    table: TableName
    rolled_up: Collection[int]
    longer: WindowsAbove
    listing: bytes

    def expand(self, findings: PCollection) -> PCollection:
        return findings | "Rewrite" >> beam.ParDo(_RewriteFn(self.table, self.rolled_up, self.longer, self.listing))


@dataclass(eq=False)
class ListUntouched(beam.PTransform):
    """Puts each :class:`Untouched` of the shortest tier on the work list, for a later repair.

    Adds a column to the row. At its end, this repair removes only its claim and the columns that it has read before.
    """

    table: TableName
    tier: Tier

    def expand(self, untouched: PCollection) -> PCollection:
        of_tier = untouched | "OfTheShortest" >> beam.Filter(lambda each, tier: each.tier == tier, self.tier)
        return of_tier | "List" >> beam.ParDo(_ListFn(self.table))


@dataclass(eq=False)
class FollowWindows(beam.PTransform):
    """Brings longer windows, and then roll-ups, in line with :class:`Changed` windows, which the table has by then.

    Its output is a :class:`Finding` for each longer window whose row was wrong, and an :class:`Untouched` for each that
    stays as it is, and is listed. Windows that were on the work list are followed too: whoever listed one may have left
    what follows to the repair. Rewritten windows are listed until all is done: a repair that was stopped in between
    finds nothing wrong when it is run again. A dry run writes nothing.

    Args:
        longer: the longer windows around those that the repair audits.
        extents: the windows that this part of the repair audits.
        spans: the spans of these windows.
        listing: the column by which rewritten windows are listed.
        rolled_up: the indexes of the tiers whose roll-ups are settled.
    """

    table: TableName
    schema: TableSchema
    retention: Retention
    longer: WindowsAbove
    extents: Sequence[Extent]
    spans: Sequence[Span]
    listing: bytes
    rolled_up: frozenset[int]
    dry_run: bool

    def expand(self, changed: PCollection) -> PCollection:
        read_fn = _ReadListedFn(self.table, self.schema)
        recompute_fn = _RecomputeFn(self.table, self.schema, self.retention, self.longer, dry_run=self.dry_run)
        listed = changed.pipeline | "Spans" >> beam.Create(self.spans) | "ReadList" >> beam.ParDo(read_fn)
        audited = listed | "Audited" >> beam.FlatMap(changed_of_listed, self.longer.tiers, tuple(self.extents))
        found = (
            (changed, audited)
            | "Changed" >> beam.Flatten()
            | "BySensor" >> beam.Map(lambda each: (each.sensor_id, tuple(each))).with_output_types(tuple[str, Any])
            | "GatherChanged" >> beam.GroupByKey()
            | "RecomputeLonger" >> beam.ParDo(recompute_fn).with_outputs(_COMPUTED, main="found")
        )
        if not self.dry_run:
            self._settle(changed, listed, found[_COMPUTED])
        return found["found"]

    def _settle(self, rewritten: PCollection, listed: PCollection, computed: PCollection) -> None:
        if self.rolled_up:
            of_rewritten = rewritten | "Rewritten" >> beam.Map(lambda each: each.window)
            audited = listed | "RolledUp" >> beam.FlatMap(_within, self.longer.tiers, tuple(self.extents))
            settled = (
                (of_rewritten, computed, audited)
                | "All" >> beam.Flatten()
                | "OfRollups" >> beam.Filter(lambda each, tiers: each.tier in tiers, self.rolled_up)
                | "SettleRollups" >> SettleRollups(self.table, self.schema, less=True)
            )
        else:
            settled = computed | "Computed" >> beam.FlatMap(lambda _: ())
        unlist_fn = _UnlistFn(self.table, self.schema.tiers[0], self.listing)
        followed = rewritten | "Followed" >> beam.Filter(
            lambda each, longer, rolled_up: longer.follow(each, rolled_up), self.longer, self.rolled_up
        )
        _ = followed | "Settled" >> beam.ParDo(unlist_fn, AsIter(settled))


def changed_of_finding(finding: Finding, tiers: tuple[Tier, ...]) -> Changed:
    """Returns the window that a dry run would have rewritten."""
    return Changed(finding.sensor_id, tiers.index(finding.tier), finding.start_us, cells=finding.cells)


def changed_of_listed(window: WrittenWindow, tiers: tuple[Tier, ...], extents: tuple[Extent, ...]) -> Iterator[Changed]:
    """Yields a listed window if it is audited."""
    if any(each.tier == tiers[window.tier] and window.start_us in each for each in extents):
        yield Changed(window.sensor_id, window.tier, window.start_us, rewritten=False)


def _within(window: WrittenWindow, tiers: tuple[Tier, ...], extents: tuple[Extent, ...]) -> Iterator[WrittenWindow]:
    """Yields the audited windows of every tier around a listed one."""
    for extent in extents:
        start_us = extent.tier.window.start_of(window.start_us)
        if start_us in extent:
            yield window._replace(tier=tiers.index(extent.tier), start_us=start_us)


@beam.typehints.with_output_types(Changed)
class _RewriteFn(TableReadingFn):
    """Writes the rows of a bundle together. Idempotent, for bundles that Beam retries."""

    def __init__(self, name: TableName, rolled_up: Collection[int], longer: WindowsAbove, listing: bytes) -> None:
        super().__init__(name)
        self._rolled_up, self._longer, self._listing = rolled_up, longer, listing
        self._rewritten = metrics.counter(metrics.REPAIR_WINDOWS_REWRITTEN)

    def start_bundle(self) -> None:
        self._findings: list[Finding] = []

    def process(self, element: Finding) -> None:
        self._findings.append(element)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        tiers = self._longer.tiers
        written = [Changed(each.sensor_id, tiers.index(each.tier), each.start_us) for each in self._findings]
        followed = (each for each in written if self._longer.follow(each, self._rolled_up))
        listed = sorted({(each.sensor_id, each.start_us) for each in followed})
        self._writer.add(work_row(tiers[0], *each, self._listing) for each in listed)
        self._writer.replace(Replacement(it.key, it.tier.family, it.cells, it.deletes) for it in self._findings)
        self._rewritten.inc(len(self._findings))
        yield from map(GlobalWindows.windowed_value, written)


class _ListFn(TableReadingFn):
    def start_bundle(self) -> None:
        self._rows: list[Row] = []

    def process(self, element: Untouched) -> None:
        self._rows.append(work_row(element.tier, element.sensor_id, element.start_us))

    def finish_bundle(self) -> None:
        self._writer.add(self._rows)


@beam.typehints.with_output_types(WrittenWindow)
class _ReadListedFn(TableReadingFn):
    def __init__(self, name: TableName, schema: TableSchema) -> None:
        super().__init__(name, RETRY_S)
        self._schema = schema

    def process(self, element: Span) -> Iterator[WrittenWindow]:
        families = CellSelection(tuple(tier.family for tier in self._schema.tiers), keys_only=True)
        for index, listed in enumerate(self._schema.tiers):  # the shortest tier when they were listed
            window = listed.window
            rows = window_rows(
                self._read,
                families,
                work_range(window),
                element,
                partial(parse_work_key, window),
                partial(work_range_of, window),
                leave_out,
            )
            yield from (WrittenWindow(index, listed_us, sensor_id) for (sensor_id, listed_us), _ in rows)


class _UnlistFn(TableReadingFn):
    """Takes windows off the work list when all that follows is settled."""

    def __init__(self, name: TableName, shortest: Tier, listing: bytes) -> None:
        super().__init__(name, RETRY_S)
        self._shortest, self._listing = shortest, listing

    def start_bundle(self) -> None:
        self._keys: set[bytes] = set()

    def process(self, element: Changed, _: Iterable[object]) -> None:
        self._keys.add(work_row(self._shortest, element.sensor_id, element.start_us).key)

    def finish_bundle(self) -> None:
        if self._keys:
            self._writer.delete_column(self._keys, self._shortest.family, self._listing)


class _RecomputeFn(CompletingFn):
    def __init__(
        self, table: TableName, schema: TableSchema, retention: Retention, longer: WindowsAbove, *, dry_run: bool
    ) -> None:
        super().__init__(table, schema, retention, search=True)
        self._longer, self._dry_run = longer, dry_run

    def start_bundle(self) -> None:
        super().start_bundle()
        self._waiting: dict[str, list[Changed]] = {}

    def process(self, element: tuple[str, Iterable[tuple[Any, ...]]]) -> Iterator[Any]:
        sensor_id, changed = element
        self._waiting[sensor_id] = [Changed(*each) for each in changed]
        if len(self._waiting) >= _MOST_SENSORS:
            yield from self._computed()

    def finish_bundle(self) -> Iterator[Any]:
        """Computes what is waiting. Beam asks for windowed values here."""
        for each in self._computed():
            if isinstance(each, TaggedOutput):
                yield TaggedOutput(each.tag, GlobalWindows.windowed_value(each.value))
            else:
                yield GlobalWindows.windowed_value(each)

    def _computed(self) -> Iterator[Any]:
        waiting, self._waiting = self._waiting, {}
        tiers = self._schema.tiers
        changed: dict[int, dict[_Window, Changed]] = defaultdict(dict)
        for each in (each for of_sensor in waiting.values() for each in of_sensor):
            known = changed[each.tier].get((each.sensor_id, each.start_us))
            if known is None or not known.rewritten:
                changed[each.tier][each.sensor_id, each.start_us] = each
        for tier, source in enumerate(sources(tuple(tier.window for tier in tiers))):
            if not changed[source]:
                continue
            within: dict[_Window, list[Changed]] = defaultdict(list)
            for (sensor_id, start_us), each in changed[source].items():
                within[sensor_id, tiers[tier].window.start_of(start_us)].append(each)
            todo = dict[_Window, _Shorter]()
            for (sensor_id, start_us), shorter in within.items():
                rewritten = any(each.rewritten for each in shorter)
                mark = Changed(sensor_id, tier, start_us, rewritten, right=False)
                changed[tier].setdefault((sensor_id, start_us), mark)
                if self._longer.are_audited(tier, sensor_id, start_us):
                    continue
                why = self._longer.why_left(tier, start_us)
                if why is None:
                    todo[sensor_id, start_us] = {
                        each.start_us: self._stats_of(each, tiers[source]) for each in shorter if each.right
                    }
                elif why != KEPT_NO_LONGER and rewritten:
                    yield from self._left([Untouched(tiers[tier], sensor_id, start_us, why)])
            for key in todo:
                changed[tier][key] = changed[tier][key]._replace(right=True)
            for found in self._brought_in_line(tiers[tier], todo):
                yield found
                key = found.sensor_id, found.start_us
                if isinstance(found, Untouched):
                    changed[tier][key] = changed[tier][key]._replace(right=False)
                elif self._dry_run:
                    changed[tier][key] = changed[tier][key]._replace(cells=found.cells)
            yield from (TaggedOutput(_COMPUTED, WrittenWindow(tier, start_us, each)) for each, start_us in todo)

    def _stats_of(self, changed: Changed, tier: Tier) -> WindowStats | None:
        if changed.cells is None:
            return None
        row = Row(aggregate_key(tier.window, changed.sensor_id, changed.start_us), list(changed.cells))
        return parse_window_stats(tier.window, row, tier.statistics)[1] if row.cells else WindowStats()

    def _brought_in_line(self, tier: Tier, todo: Mapping[_Window, _Shorter]) -> Iterator[Finding | Untouched]:
        """Rewrites wrong windows, and looks at them again: others may write them, or those in them."""
        for number in range(_MOST_TIMES):
            found = list(self._found(tier, todo))
            wrong = [each for each in found if isinstance(each, Finding)]
            if not number:
                yield from wrong
            yield from self._left([each for each in found if isinstance(each, Untouched)])
            if self._dry_run or not wrong:
                break
            self._writer.replace(Replacement(each.key, each.tier.family, each.cells) for each in wrong)
            todo = {key: todo[key] for key in ((each.sensor_id, each.start_us) for each in wrong)}

    def _found(self, tier: Tier, todo: Mapping[_Window, _Shorter]) -> Iterator[Finding | Untouched]:
        """Yields what is wrong with windows, or that their rows stay as they are, for want of shorter windows."""
        table, by_start = self._completion, defaultdict[int, list[str]](list)
        for sensor_id, start_us in todo:
            by_start[start_us].append(sensor_id)
        for start_us, sensors in by_start.items():
            end_us = tier.window.end_of(start_us)
            with table.together.kept(table.row_selection(tier, each, start_us, end_us) for each in sensors):
                compared = partial(self._compared, tier, todo)
                found = table.longer[tier].each(compared, [(each, start_us) for each in sensors], now_us())
                yield from (each for each in found.values() if each is not None)

    def _compared(self, tier: Tier, todo: Mapping[_Window, _Shorter], window: _Window) -> Finding | Untouched | None:
        table, now, (sensor_id, start_us) = self._completion, now_us(), window
        completion, right = table.longer[tier], todo[window]
        why = UNSURE if completion.is_certain(start_us, now) else COLLECTED_ROWS
        try:
            completed = completion.completed(sensor_id, start_us, now, {}, right)
        except ForeignRow:
            return Untouched(tier, sensor_id, start_us, UNSURE)
        if completed is None:
            return Untouched(tier, sensor_id, start_us, why)
        stats = completed.stats
        if stats.events and not (tier.statistics.known_in(stats) and table.tells_members(stats)):
            return Untouched(tier, sensor_id, start_us, UNSURE)  # they were declared later
        magnitudes = {metric: _magnitude(of_metric) for metric, of_metric in stats.metrics.items()}
        found = Recomputed(stats, magnitudes, sizes=dict(stats.sizes or {})) if stats.events else None
        selection = table.row_selection(tier, sensor_id, start_us, tier.window.end_of(start_us))
        row = next(table.together(selection), None)
        return finding_of(tier, sensor_id, start_us, found, StoredRow() if row is None else StoredRow.of(row))

    def _left(self, windows: list[Untouched]) -> list[Untouched]:
        if windows and not self._dry_run:
            self._writer.add(work_row(self._schema.tiers[0], each.sensor_id, each.start_us) for each in windows)
        return windows


def _magnitude(stats: MetricStats) -> float:
    """Returns Σ|x|; of values of both signs, a bound: a row does not tell more."""
    has_one_sign = stats.minimum >= 0 or stats.maximum <= 0
    found = abs(stats.total) if has_one_sign else stats.count * hypot(stats.average, stats.deviation)
    return inf if isnan(found) else found
