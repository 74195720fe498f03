"""Accumulates a window from its readings, of which it keeps each once: a redelivered event does not count again.

Statistics alone cannot show which readings two accumulators have in common; the readings themselves can. So the
accumulator keeps them, and counts each once however often and in whatever order accumulators are merged.

An event is identified by its time. If its identity includes more than that, it is identified by a *wide* time: the time
followed by 64 bits of a digest of the rest.

New readings are buffered. They are deduplicated and counted when a result is needed: in bulk, this is far cheaper.
Counted readings are kept to recognize others, and are rarely looked at: what is serialized often is sealed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.accumulation.accumulator_bytes import (
    Reader,
    columns_bytes,
    events_bytes,
    head_bytes,
    read_columns,
    read_events,
    read_stats,
    stats_bytes,
)
from pipeline.core.accumulation.gathering import Columns
from pipeline.core.accumulation.reading_columns import (
    FEW,
    Block,
    ReadingColumns,
    count_events,
    event_key,
    is_wide,
    time_of_key,
)
from pipeline.core.statistics.member import Member, after, noted
from pipeline.core.statistics.rules import BY_DEFAULT, Statistics, add_parts
from pipeline.core.statistics.window_stats import MAX_METRICS, MetricStats, WindowStats


class Pane(NamedTuple):
    """The result of a window so far.

    Attributes:
        stats: the window's statistics; empty if it is too wide.
        too_wide: whether the window has more metrics than fit in a row.
    """

    stats: WindowStats
    too_wide: bool = False


_TOO_WIDE = 128  # a flag
SEAL_AT = 256  # events, from which on they are sealed: larger blocks are hardly smaller, and more events wait for them


class WindowReadings:
    """The accumulator of a window of the shortest tier.

    A reading is identified by its event and its metric. Of several values for one reading, the last counts, as in a
    table. Not thread-safe: even reading a result may count buffered readings.

    Attributes:
        differs: whether a reading had several values since it was made: its raw cell may contain another one.
    """

    __slots__ = ("_bulk", "_fresh", "_kept", "_restored", "_stats", "_too_wide", "differs")

    def __init__(self) -> None:
        # Added but not counted yet: readings by event time.
        self._fresh: dict[int, Mapping[str, float]] = {}
        self._bulk: list[Block] = []  # the same, of many events at once; they count before the fresh ones
        self._stats = WindowStats()  # of the counted readings
        self._kept = ReadingColumns()  # the counted readings
        self._restored: WindowStats | None = None  # of other readings than those added
        self._too_wide = False
        self.differs = False

    @classmethod
    def of(cls, columns: Columns) -> "WindowReadings":
        """Returns the accumulator of gathered readings, with each once."""
        found = cls()
        for metrics, (times, values) in columns.items():
            found.extend(metrics, times, values)
        return found

    def add(self, time_us: int, readings: Mapping[str, float], discriminator: str = "") -> None:
        """Adds an event's readings, and replaces those already known.

        Args:
            time_us: the event time.
            readings: metric name to finite value; they must not change later.
            discriminator: the text that identifies the event besides its time; "" if the time alone does.
        """
        if not readings:
            return  # from a row that contains only metadata
        if discriminator:
            time_us = event_key(time_us, discriminator)
        first = self._fresh.setdefault(time_us, readings)
        if first is not readings:
            self._fresh[time_us] = {**first, **readings}
            self.differs |= any(first.get(metric, value) != value for metric, value in readings.items())

    def extend(self, metrics: tuple[str, ...], times: Sequence[int], values: Sequence[float]) -> None:
        """Adds the readings of events with the same metrics, as :meth:`add` does for each.

        Args:
            metrics: the metric names, at least one.
            times: the event times; wide ones if more than the time identifies an event.
            values: finite values, event by event.
        """
        if self._too_wide:
            return
        width = len(metrics)
        if len(times) < FEW or not self._fresh.keys().isdisjoint(times):
            for index, time_us in enumerate(times):
                self.add(time_us, dict(zip(metrics, values[index * width : (index + 1) * width], strict=True)))
            return
        self._bulk.append(Block(metrics, list(times), list(values)))

    @property
    def member(self) -> Member | None:
        """The newest event, if roll-ups group sensors by metadata."""
        return self._stats.member

    def note(self, *members: Member) -> bool:
        """Notes the newest of these events if no reading is newer. Returns whether a known one tells something else."""
        stats = self._stats
        newest, changed, contradicted = noted(stats.member, members)
        if stats.member is None and newest is not None:  # roll-ups may not have needed metadata until now
            newest_us = self._kept.newest_us(list(self._fresh), *(block.times_us for block in self._bulk))
            if newest.event_time_us < newest_us:
                return False
        stats.member = newest
        self.differs |= contradicted
        return changed

    def follow(self, earlier: Member | None) -> None:
        """Notes what the window told earlier of its sensor's groups, if it tells anything now."""
        if self._stats.member is not None and earlier is not None:
            self._stats.member = after(self._stats.member, earlier)

    @property
    def exact(self) -> bool:
        return self._restored is None

    def restore(self, statistics: WindowStats) -> None:
        """Continues from an aggregate row's statistics, whose readings are not known."""
        self._restored = statistics

    def merge(self, other: "WindowReadings") -> None:
        """Adds the readings of ``other``, which stays unchanged; its values count where they differ."""
        if self._too_wide or other._too_wide:
            self._give_up()
            return
        if other.member is not None:
            self.note(other.member)
        if other._kept:
            self._merge_kept(other._kept, other._stats)
        for block in other._bulk:
            self.extend(*block)
        for time_us, readings in other._fresh.items():
            self.add(time_us, readings)
        self.differs |= other.differs
        self._check_width()

    def pane(self, statistics: Statistics = BY_DEFAULT) -> Pane:
        self._settle()
        if self._too_wide:
            return Pane(WindowStats(), too_wide=True)
        total = WindowStats()
        total.merge(self._stats)
        for readings in self._fresh.values():
            total.add(readings)
        if statistics.has_parts:
            add_parts(total, statistics, self._series())
        if self._restored is not None:
            restored = WindowStats()
            restored.merge(self._restored)
            restored.merge(total)
            total = restored
        if len(total.metrics) > statistics.most_metrics:
            return Pane(WindowStats(), too_wide=True)
        return Pane(total)

    def _series(self) -> Iterator[tuple[Sequence[int], Mapping[str, Sequence[float]]]]:
        """Yields times in µs with each metric's values at these times."""
        for times, values in self._kept.series():
            yield (times if not is_wide(max(times)) else list(map(time_of_key, times))), values
        for time_us, readings in self._fresh.items():
            yield (time_of_key(time_us),), {metric: (value,) for metric, value in readings.items()}

    def magnitudes(self) -> dict[str, float]:
        """Returns Σ|x| of the kept readings by metric, to which the tolerance of sums is relative."""
        self._settle()
        found: dict[str, float] = defaultdict(float)
        for metric, values in self._kept.by_metric():
            found[metric] += sum(map(abs, values))
        for readings in self._fresh.values():
            for metric, value in readings.items():
                found[metric] += abs(value)
        return dict(found)

    def newest(self) -> Iterator[tuple[int, str, float]]:
        self._count()
        return self._kept.newest()

    def without(self, other: "WindowReadings") -> "WindowReadings":
        """Returns the readings that are kept here but not in ``other``."""
        other._settle()
        self._settle()
        known = other._by_time()
        rest = WindowReadings()
        for time_us, readings in self._by_time().items():
            of_other = known.get(time_us, {})
            rest.add(time_us, {metric: value for metric, value in readings.items() if metric not in of_other})
        return rest

    def _by_time(self) -> dict[int, Mapping[str, float]]:
        found: dict[int, Mapping[str, float]] = {}
        for events in (self._kept.events(), self._fresh.items()):
            for time_us, readings in events:
                found[time_us] = {**found.get(time_us, {}), **readings}
        return found

    def _settle(self) -> None:
        """Counts the fresh events, unless they are few and nothing is counted yet."""
        if self._kept or self._bulk or len(self._fresh) >= FEW:
            self._count()

    def _count(self) -> None:
        """Counts the fresh readings; those already kept only replace the values."""
        if self._bulk:
            self._count_bulk()
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        if self._too_wide:
            return
        more: dict[int, Mapping[str, float]] = {}  # new readings of events that are already counted
        if known := self._kept.known(fresh):
            changed: dict[int, dict[str, float]] = {}
            for time_us, stored in self._kept.readings_at(known).items():
                readings = fresh.pop(time_us)
                if new := {metric: value for metric, value in readings.items() if metric not in stored}:
                    more[time_us] = new
                if other := {metric: value for metric, value in readings.items() if stored.get(metric, value) != value}:
                    changed[time_us] = other
            if changed:
                self._replace(changed)
        count_events(more, self._stats, self._kept)
        self._stats.events -= len(more)
        count_events(fresh, self._stats, self._kept)
        self._check_width()

    def _replace(self, changed: Mapping[int, Mapping[str, float]]) -> None:
        """Replaces values of kept readings, and counts their metrics anew."""
        self.differs = True
        self._kept.replace(changed)
        for metric in {metric for readings in changed.values() for metric in readings}:
            values = [value for name, of_name in self._kept.by_metric() if name == metric for value in of_name]
            self._stats.metrics[metric] = MetricStats.of(values)

    def _count_bulk(self) -> None:
        """Counts events that were added many at once. If any of them is known, all become fresh ones instead."""
        bulk, self._bulk = self._bulk, []
        by_metrics: dict[tuple[str, ...], Block] = {}
        for block in bulk:
            whole = by_metrics.setdefault(block.metrics, Block(block.metrics, [], []))
            whole.times_us.extend(block.times_us)
            whole.values.extend(block.values)
        times = {time_us for block in bulk for time_us in block.times_us}
        if len(times) == sum([len(block.times_us) for block in bulk]) and not self._kept.known(times):
            for whole in by_metrics.values():
                self._stats.extend(whole.by_metric(), len(whole.times_us))
                self._kept.extend(whole)
            self._check_width()
            return
        later, self._fresh = self._fresh, {}
        for metrics, times_us, values in bulk:
            each = iter(values)
            for time_us, of_event in zip(times_us, zip(*[each] * len(metrics), strict=True), strict=True):
                self.add(time_us, dict(zip(metrics, of_event, strict=True)))
        for time_us, readings in later.items():
            self.add(time_us, readings)

    def _check_width(self) -> None:
        if len(self._stats.metrics) > MAX_METRICS:
            self._give_up()

    def _give_up(self) -> None:
        """Drops all content and marks the window as too wide, to bound its memory."""
        self._fresh, self._bulk, self._stats = {}, [], WindowStats()
        self._kept = ReadingColumns()
        self._restored, self._too_wide = None, True

    def _merge_kept(self, other: ReadingColumns, stats: WindowStats) -> None:
        self._count()
        if self._kept.overlaps(other):
            for time_us, readings in other.events():
                self.add(time_us, readings)
        else:
            self._kept.merge(other)
            self._stats.merge(stats)

    def to_bytes(self) -> bytes:
        self._settle()
        if self._too_wide:
            return head_bytes(_TOO_WIDE)
        columns = self._kept or None
        if columns is not None:
            columns.seal(SEAL_AT)
        wide = any(map(is_wide, self._fresh))
        flags = (self._restored is not None) << 2 | (columns is not None) << 3 | bool(self._fresh) << 4 | wide << 5
        return b"".join(
            (
                head_bytes(flags),
                stats_bytes(self._stats),
                b"" if self._restored is None else stats_bytes(self._restored),
                b"" if columns is None else columns_bytes(columns, self._stats.metrics),
                events_bytes(self._fresh, wide=wide) if self._fresh else b"",
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "WindowReadings":
        """Parses what :meth:`to_bytes` wrote; damage within sealed readings is found only when they are needed."""
        reader = Reader(data)
        reader.version()
        flags = reader.byte()
        found = cls()
        if flags & _TOO_WIDE:
            found._too_wide = True
            reader.end()
            return found
        found._stats = read_stats(reader)
        if flags & 4:
            found._restored = read_stats(reader)
        if flags & 8:
            found._kept = read_columns(reader, found._stats.metrics)
        if flags & 16:
            found._fresh = read_events(reader, wide=bool(flags & 32))
        reader.end()
        return found


def merged(shorter: Mapping[int, WindowStats], statistics: Statistics) -> Pane:
    """Returns the result of a longer window.

    Args:
        shorter: the statistics of the shorter windows, by start in µs.
        statistics: the rules that tell which statistics a row contains, and how many metrics fit.
    """
    total = WindowStats()
    for start_us in sorted(shorter):
        stats = shorter[start_us]
        total.merge(stats)
        if stats.events and stats.member is None:
            total.member = None  # the newest event counts even if it does not tell its metadata: no roll-up needed it
    if len(total.metrics) > statistics.most_metrics:
        return Pane(WindowStats(), too_wide=True)
    total.sizes = {start_us: stats.size for start_us, stats in shorter.items()}
    return Pane(total)
