"""Audits all windows of a sensor together, as columns of numbers, and tells which of them may be wrong.

This costs a small part of :mod:`pipeline.core.completion.audit`, which says what is wrong with a window, and is needed
only for windows that may be wrong. All others are right by its rules. Numbers are added in another order here, which
changes a sum by less than half of what these rules allow; so a sum may differ by the other half.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.core.completion.audit import Extent
from pipeline.core.notation.cell_values import parse_values
from pipeline.core.queries.events import has_time_last, series_in
from pipeline.core.rows.aggregate_rows import OF_WRITERS, READING_COUNT, parse_statistic, starts_in
from pipeline.core.rows.rows import Part, block_of, time_us_of
from pipeline.core.schema.key_tokens import SensorToken
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import qualifier_of
from pipeline.core.windows import CalendarWindow, Window

Times = NDArray[np.int64]
Numbers = NDArray[np.float64]
Series = dict[str, tuple[Times, Numbers]]
"""Times in µs, ascending, and the values at these times, by name."""

EVENTS = ""
"""The name of the times of all events, and of the timestamps of aggregate rows."""

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


class Columns:
    """Gathers the readings of a sensor by metric, or what its aggregate rows have, by column."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[Times, Numbers]]] = defaultdict(list)

    def add_events(self, schema: TableSchema, part: Part) -> None:
        """Adds the readings in raw rows. Raises ValueError if a row may be foreign."""
        for metrics, times_us, columns in series_in(schema, block_of(part)):
            times = np.array(times_us, np.int64)
            for name, column in zip((EVENTS, *metrics), (times, *columns), strict=True):
                self._parts[name].append((times, np.array(column, np.float64)))

    def add_windows(self, window: Window, part: Part) -> None:
        """Adds the content of aggregate rows. Raises ValueError if a row may be foreign or has other than numbers."""
        block = block_of(part)
        starts = np.array(starts_in(window, block.keys), np.int64)
        self._parts[EVENTS].append((starts, np.array(list(map(time_us_of, block.times)), np.float64)))
        for qualifier, column in zip(block.qualifiers, block.values, strict=True):
            name = qualifier.decode()
            own, some = (
                (starts[list(map(bool, column))], list(filter(None, column))) if b"" in column else (starts, column)
            )
            if name in OF_WRITERS:
                for value in some:
                    parse_statistic(qualifier, value)
            else:
                self._parts[name].append((own, np.array(parse_values(some))))

    def series(self) -> Series:
        """Returns the columns in the order of time."""
        found: Series = {}
        for name, parts in self._parts.items():
            times, values = (np.concatenate(each) for each in zip(*parts, strict=True))
            if not (times[1:] > times[:-1]).all():
                order = np.argsort(times, kind="stable")  # rows come newest first
                times, values = times[order], values[order]
            found[name] = times, values
        return found


def compared(extent: Extent, events: Series, rows: Series) -> tuple[set[int], set[int]]:
    """Compares a sensor's aggregate rows with its events.

    Args:
        extent: the windows to compare.
        events: the readings of all events in these windows.
        rows: the aggregate rows of these windows.

    Returns:
        The starts of all windows that have events or a row, and of those that may be wrong.
    """
    right, wrong, nothing = _computed(extent, events), set[int](), (_NONE, _NONE.astype(np.float64))
    for name in right | rows:
        starts, values, tolerances = right.get(name, (*nothing, nothing[1]))
        own, others = rows.get(name, nothing)
        if not np.array_equal(starts, own):
            wrong.update(np.setxor1d(starts, own, assume_unique=True).tolist())
            starts, here, there = np.intersect1d(starts, own, assume_unique=True, return_indices=True)
            values, tolerances, others = values[here], tolerances[here], others[there]
        with np.errstate(invalid="ignore"):
            wrong.update(starts[~(np.abs(values - others) <= tolerances)].tolist())
    every = (each.get(EVENTS, (_NONE,))[0].tolist() for each in (right, rows))
    return set().union(*every), wrong


def _computed(extent: Extent, events: Series) -> dict[str, tuple[Times, Numbers, Numbers]]:
    """Returns the columns of the right aggregate rows: starts of windows, values, and by how much these may differ.

    A timestamp may be any from the window's start to the one that is written: others would hide what is written.
    """
    starts, counts, _ = _grouped(extent, events.get(EVENTS, (_NONE,))[0])
    found = {READING_COUNT: (starts, counts.astype(np.float64), np.zeros(len(starts)))}
    sizes, widths = counts.copy(), np.zeros(len(starts), np.int64)
    for metric, (times, values) in events.items():
        own, of_metric, inside = _grouped(extent, times)
        if metric != EVENTS and len(own):
            indexes = np.searchsorted(starts, own)
            sizes[indexes] += of_metric
            widths[indexes] += 1
            with np.errstate(all="ignore"):
                for name, value, tolerance in _statistics(values[inside], of_metric):
                    found[qualifier_of(name, metric)] = own, value, tolerance
    can_be_compared = (widths <= extent.tier.statistics.most_metrics) & (counts <= _MOST_EVENTS)
    found[EVENTS] = starts, starts + 500.0 * sizes, np.where(can_be_compared, 500.0 * sizes, np.nan)
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


def _grouped(extent: Extent, times: Times) -> tuple[Times, Times, slice]:
    """Returns the starts of the extent's windows that contain times, the number in each, and the place of them all."""
    first, end = np.searchsorted(times, (extent.start_us, extent.end_us))
    starts = _starts_of(extent.tier.window, times[first:end])
    begins = np.flatnonzero(np.diff(starts, prepend=-1))
    return starts[begins], np.diff(begins, append=len(starts)), slice(first, end)


def _starts_of(window: Window, times: Times) -> Times:
    """Returns the start of the window of each time."""
    if not isinstance(window, CalendarWindow) or not len(times):
        return times - times % window.length_us
    starts = np.array([*window.starts(window.start_of(int(times[0])), int(times[-1]) + 1)], np.int64)
    return starts[np.searchsorted(starts, times, side="right") - 1]
