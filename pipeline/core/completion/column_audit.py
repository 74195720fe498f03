"""Audits all windows of many sensors together, as columns of numbers, and tells which of them may be wrong.

This costs a small part of :mod:`pipeline.core.completion.audit`, which says what is wrong with a window, and is needed
only for windows that may be wrong. All others are right by its rules. Numbers are added in another order here, which
changes a sum by less than half of what these rules allow; so a sum may differ by the other half.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.completion.audit import Extent
from pipeline.core.notation.cell_values import format_value, parse_values
from pipeline.core.queries.events import has_time_last, series_in
from pipeline.core.rows.aggregate_rows import OF_WRITERS, READING_COUNT, parse_statistic, starts_in
from pipeline.core.rows.newest_row import NewestCell
from pipeline.core.rows.rows import Part, block_of, time_us_of
from pipeline.core.schema.key_tokens import SensorToken
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import qualifier_of
from pipeline.core.windows import CalendarWindow, Window

Times = NDArray[np.int64]
Numbers = NDArray[np.float64]
Series = dict[str, tuple[Times, Numbers]]
"""Places of events or windows, ascending, and the values there, by name. See :class:`Places`."""

EVENTS = ""
"""The name of the places of all events, and of the timestamps of aggregate rows."""

_TOLERANCE = 0.5e-9  # share of Σ|x| by which sums may differ: half of what an audit allows
_MOST_EVENTS = 1_000_000  # of a window; sums of more may differ by more than the other half
_NONE: Times = np.empty(0, np.int64)


def audits_columns(schema: TableSchema) -> bool:
    """Returns whether windows can be audited as columns.

    They can if a raw row is an event, its key begins with the sensor and ends with the time, and an aggregate row has
    the default statistics alone.
    """
    return (
        has_time_last(schema)
        and isinstance(schema.key.parts[0], SensorToken)
        and schema.identity.distinguishes_by_time_only
        and not (schema.statistics.globs or schema.member_fields or schema.metadata_alone)
    )


class Places(NamedTuple):
    """Puts the times of several sensors, which have numbers, in one order: by sensor, and then by time.

    Attributes:
        start_us: the earliest time.
        length_us: the time from there to the end of the latest one.
    """

    start_us: int
    length_us: int

    def of(self, number: int, times_us: Sequence[int]) -> Times:
        """Returns the places of a sensor's times."""
        return np.array(times_us, np.int64) + (number * self.length_us - self.start_us)

    def times(self, places: Times) -> Times:
        """Returns the times at these places."""
        return places % self.length_us + self.start_us


class Columns:
    """Gathers the readings of sensors by metric, or the content of their aggregate rows by column.

    Args:
        places: the places of events, or of windows.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._parts: dict[str, list[tuple[Times, Numbers]]] = defaultdict(list)

    def add_events(self, schema: TableSchema, number: int, part: Part) -> None:
        """Adds the readings in raw rows of a sensor. Raises ValueError if a row may be foreign."""
        for metrics, times_us, columns in series_in(schema, block_of(part)):
            places = self._places.of(number, times_us)
            for name, column in zip((EVENTS, *metrics), (places, *columns), strict=True):
                self._parts[name].append((places, np.array(column, np.float64)))

    def add_windows(self, window: Window, number: int, part: Part) -> None:
        """Adds a sensor's aggregate rows. Raises ValueError if a row may be foreign, or has other than numbers."""
        block = block_of(part)
        places = self._places.of(number, starts_in(window, block.keys))
        self._parts[EVENTS].append((places, np.array(list(map(time_us_of, block.times)), np.float64)))
        for qualifier, column in zip(block.qualifiers, block.values, strict=True):
            name, own, some = qualifier.decode(), places, column
            if b"" in column:
                own, some = places[list(map(bool, column))], list(filter(None, column))
            if name in OF_WRITERS:
                for value in some:
                    parse_statistic(qualifier, value)
            else:
                self._parts[name].append((own, np.array(parse_values(some))))

    def series(self) -> Series:
        """Returns the columns in the order of places."""
        found: Series = {}
        for name, parts in self._parts.items():
            places, values = (np.concatenate(each) for each in zip(*parts, strict=True))
            if not (places[1:] > places[:-1]).all():
                order = np.argsort(places, kind="stable")  # a sensor's events come newest first
                places, values = places[order], values[order]
            found[name] = places, values
        return found


def newest_in(places: Places, events: Series) -> dict[int, list[NewestCell]]:
    """Returns the newest reading of each metric, by the sensor's number."""
    found: dict[int, list[NewestCell]] = defaultdict(list)
    for name in events.keys() - {EVENTS}:
        at, values = events[name]
        numbers = at // places.length_us
        last = np.flatnonzero(np.diff(numbers, append=-1))
        newest = numbers[last].tolist(), places.times(at[last]).tolist(), values[last].tolist()
        for number, time_us, value in zip(*newest, strict=True):
            found[number].append((name, time_us, format_value(value)))
    return found


def compared(extent: Extent, places: Places, events: Series, rows: Series) -> tuple[Times, set[int]]:
    """Compares aggregate rows with events.

    Args:
        extent: the windows to compare.
        places: the places of their starts, and of all events in them.
        events: the readings of these events.
        rows: the aggregate rows of these windows.

    Returns:
        The places of all windows that have events or a row, and those of windows that may be wrong.
    """
    right, wrong, nothing = _computed(extent, places, events), set[int](), (_NONE, _NONE.astype(np.float64))
    for name in right | rows:
        starts, values, tolerances = right.get(name, (*nothing, nothing[1]))
        own, others = rows.get(name, nothing)
        if not np.array_equal(starts, own):
            wrong.update(np.setxor1d(starts, own, assume_unique=True).tolist())
            starts, here, there = np.intersect1d(starts, own, assume_unique=True, return_indices=True)
            values, tolerances, others = values[here], tolerances[here], others[there]
        with np.errstate(all="ignore"):
            wrong.update(starts[~(np.abs(values - others) <= tolerances)].tolist())
    return np.union1d(right[EVENTS][0], rows.get(EVENTS, nothing)[0]), wrong


def _computed(extent: Extent, places: Places, events: Series) -> dict[str, tuple[Times, Numbers, Numbers]]:
    """Returns the columns of the right aggregate rows: places of windows, values, and by how much these may differ.

    A timestamp may be any from the window's start to the one that is written: others would hide what is written.
    """
    starts, counts, _ = _grouped(extent, places, events.get(EVENTS, (_NONE,))[0])
    found = {READING_COUNT: (starts, counts.astype(np.float64), np.zeros(len(starts)))}
    sizes, widths = counts.copy(), np.zeros(len(starts), np.int64)
    for metric, (at, values) in events.items():
        own, of_metric, inside = _grouped(extent, places, at)
        if metric != EVENTS and len(own):
            indexes = np.searchsorted(starts, own)
            sizes[indexes] += of_metric
            widths[indexes] += 1
            with np.errstate(all="ignore"):
                for name, value, tolerance in _statistics(values[inside], of_metric):
                    found[qualifier_of(name, metric)] = own, value, tolerance
    can_be_compared = (widths <= extent.tier.statistics.most_metrics) & (counts <= _MOST_EVENTS)
    found[EVENTS] = starts, places.times(starts) + 500.0 * sizes, np.where(can_be_compared, 500.0 * sizes, np.nan)
    return found


def _statistics(values: Numbers, counts: Times) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yields each statistic's name, its values, and by how much these may differ.

    Args:
        values: the readings of all windows, window by window.
        counts: the number of readings in each window, at least one.
    """
    begins, exact = np.cumsum(counts) - counts, np.zeros(len(counts))
    total, magnitude = np.add.reduceat(values, begins), np.add.reduceat(np.abs(values), begins)
    least, most = np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)
    mean = np.clip(total / counts, least, most)
    distances = values - np.repeat(mean, counts)
    deviation = np.sqrt(np.add.reduceat(distances * distances, begins) / counts)
    tolerance = _TOLERANCE * np.minimum(magnitude / counts, np.maximum(-least, most))
    yield "count", counts.astype(np.float64), exact
    yield "sum", total, tolerance * counts
    yield "min", least, exact
    yield "max", most, exact
    yield "avg", mean, tolerance
    yield "stddev", deviation, np.minimum(tolerance, deviation)  # no deviation is negative


def _grouped(extent: Extent, places: Places, at: Times) -> tuple[Times, Times, NDArray[np.bool_]]:
    """Returns the places of the extent's windows that contain events, the number in each, and which are in one."""
    times = places.times(at)
    inside = (times >= extent.start_us) & (times < extent.end_us)
    starts = at[inside] - times[inside] + _starts_of(extent.tier.window, times[inside])
    begins = np.flatnonzero(np.diff(starts, prepend=-1))
    return starts[begins], np.diff(begins, append=len(starts)), inside


def _starts_of(window: Window, times: Times) -> Times:
    """Returns the start of the window of each time."""
    if not isinstance(window, CalendarWindow) or not len(times):
        return times - times % window.length_us
    starts = np.array([*window.starts(window.start_of(int(times.min())), int(times.max()) + 1)], np.int64)
    return starts[np.searchsorted(starts, times, side="right") - 1]
