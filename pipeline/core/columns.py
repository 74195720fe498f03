"""Readings of many events as columns: a tenth of what an object for each of them takes, and far faster to hand on."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import NamedTuple

_HOUR_US = 3_600_000_000
SHORT, LONG, WIDE = "I", "q", "wide"  # forms of times: four bytes, which reach over an hour, eight, and sixteen
_SHORT_END, _LONG_END = 1 << 32, 1 << 63


class Block(NamedTuple):
    """Events that have the same metrics.

    Attributes:
        metrics: their names.
        times_us: of the events.
        values: event by event, in the order of the names.
    """

    metrics: tuple[str, ...]
    times_us: list[int]
    values: list[float]

    def by_metric(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Each metric with its values."""
        width = len(self.metrics)
        for index, metric in enumerate(self.metrics):
            yield metric, self.values[index::width]

    def in_order(self) -> "Block":
        """The same with the metrics in order of their names."""
        metrics = tuple(sorted(self.metrics))
        if metrics == self.metrics:
            return self
        width = len(metrics)
        values = self.values.copy()
        for index, metric in enumerate(self.metrics):
            values[metrics.index(metric) :: width] = self.values[index::width]
        return Block(metrics, self.times_us, values)


def blocks(events: Mapping[int, Mapping[str, float]]) -> Iterator[Block]:
    """Readings by event time, as blocks of events whose metrics come in the same order."""
    alike: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
    latest: tuple[str, ...] = ()
    for time_us, readings in events.items():
        metrics = tuple(readings)
        if metrics != latest:
            latest = metrics
            times_us, values = alike.setdefault(metrics, ([], []))
        times_us.append(time_us)
        values += readings.values()
    for metrics, (times_us, values) in alike.items():
        yield Block(metrics, times_us, values)


class Group(NamedTuple):
    """The columns of events that have the same metrics.

    Attributes:
        times: of the events, in µs behind the base: an array, or a list where they are wide.
        values: event by event, in order of the metrics' names.
    """

    times: MutableSequence[int]
    values: array  # of doubles


class ReadingColumns:
    """Readings by event time and metric, each once: their groups by the metrics' names in order.

    A time is in several groups where an event's metrics came in parts. Times may be wide: any number below 2¹²⁶.

    Attributes:
        base_us: what times are behind: the hour of the first event that came, so that those of an hour are short.
        first: the least of all times.
        last: the greatest.
        form: of times.
        groups: the columns.
    """

    __slots__ = ("_index", "base_us", "first", "form", "groups", "last")

    def __init__(self) -> None:
        self.base_us = self.first = self.last = 0
        self.form = SHORT
        self.groups: dict[tuple[str, ...], Group] = {}
        self._index: dict[int, tuple[str, ...]] | None = None  # metrics by time, once somebody has asked

    def known(self, times_us: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Those of the times that are in the columns, with their metrics."""
        base_us = self.base_us
        if not self._reaches(min(times_us) - base_us, max(times_us) - base_us):
            return {}
        index = self._indexed()
        return {base_us + time: index[time] for time in index.keys() & [time_us - base_us for time_us in times_us]}

    def overlaps(self, other: "ReadingColumns") -> bool:
        """Whether they have a time in common."""
        behind = other.base_us - self.base_us
        if not other.groups or not self._reaches(other.first + behind, other.last + behind):
            return False
        times = self._indexed().keys()
        return not all(times.isdisjoint(_shifted(group.times, behind)) for group in other.groups.values())

    def extend(self, block: Block) -> None:
        """Adds a block of which no reading is known."""
        if not self.groups:
            first_us = block.times_us[0]
            self.base_us = first_us - first_us % _HOUR_US if first_us < _LONG_END else 0
        base_us = self.base_us
        times = [time_us - base_us for time_us in block.times_us]
        self._reach(min(times), max(times))
        block = block.in_order()
        self._extend(block.metrics, times, array("d", block.values))

    def merge(self, other: "ReadingColumns") -> None:
        """Adds all of ``other``, with which there is no overlap; ``other`` stays as it is."""
        if not other.groups:
            return
        if not self.groups:
            self.base_us = other.base_us
        behind = other.base_us - self.base_us
        self._reach(other.first + behind, other.last + behind)
        for metrics, group in other.groups.items():
            self._extend(metrics, _shifted(group.times, behind), group.values)

    def events(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Times in µs with their readings; a time comes once for each group that it is in."""
        for metrics, (times, values) in self.groups.items():
            each = iter(values)
            for time, of_event in zip(times, zip(*[each] * len(metrics), strict=True), strict=True):
                yield self.base_us + time, dict(zip(metrics, of_event, strict=True))

    def by_metric(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Metrics with their values; a metric comes once for each group that it is in."""
        for metrics, group in self.groups.items():
            for index, metric in enumerate(metrics):
                yield metric, group.values[index :: len(metrics)]

    def _reaches(self, first: int, last: int) -> bool:
        # Parts of a window that come one after the other are told apart by this alone.
        return bool(self.groups) and first <= self.last and last >= self.first

    def _reach(self, first: int, last: int) -> None:
        self.first = min(self.first, first) if self.groups else first
        self.last = max(self.last, last) if self.groups else last
        if self.form == SHORT and (self.first < 0 or self.last >= _SHORT_END):
            self._widen(LONG)
        if self.form == LONG and (self.first < -_LONG_END or self.last >= _LONG_END):
            self._widen(WIDE)

    def _widen(self, form: str) -> None:
        self.form = form
        for metrics, (times, values) in self.groups.items():
            self.groups[metrics] = Group(in_form(form, times), values)

    def _extend(self, metrics: tuple[str, ...], times: Sequence[int], values: array) -> None:
        more = in_form(self.form, times)
        group = self.groups.get(metrics)
        if group is None:
            self.groups[metrics] = Group(more, values[:])
        else:
            group.times.extend(more)
            group.values.extend(values)
        if self._index is not None:
            _note(self._index, metrics, times)

    def _indexed(self) -> dict[int, tuple[str, ...]]:
        if self._index is None:
            self._index = {}
            for metrics, group in self.groups.items():
                _note(self._index, metrics, group.times)
        return self._index


def in_form(form: str, times: Iterable[int]) -> MutableSequence[int]:
    """Times in one of the forms."""
    return list(times) if form == WIDE else array(form, times)


def is_wide(time_us: int) -> bool:
    """Whether a time does not fit in eight bytes."""
    return time_us >= _LONG_END


def _note(index: dict[int, tuple[str, ...]], metrics: tuple[str, ...], times: Sequence[int]) -> None:
    if index.keys().isdisjoint(times):
        index.update(dict.fromkeys(times, metrics))
    else:
        for time in times:
            index[time] = index.get(time, ()) + metrics


def _shifted(times: Sequence[int], behind: int) -> Sequence[int]:
    return [time + behind for time in times] if behind else times
