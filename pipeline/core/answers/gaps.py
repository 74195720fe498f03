"""Fills gaps: windows of a range that have no row, because the sensor sent nothing in them.

A filled window counts no events and no readings. Only statistics that are a level of the metric are carried or
interpolated: an average, an extreme, a quantile, the first or last value; not a count, a sum or an increase. As in
TimescaleDB, nothing is carried into windows before the first with a row, or interpolated beyond the last.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from pipeline.core.rows.records import AggregateRecord, GroupRecord, MetricSummary, summary_of
from pipeline.core.windows import Window

MAX_WINDOWS = 100_000
"""The most windows in a range whose gaps are filled."""

Record = TypeVar("Record", AggregateRecord, GroupRecord)

_LEVELS = frozenset({"avg", "min", "max", "first", "last", "time_weighted_mean"})


class Fill(StrEnum):
    """The content of a window without a row.

    Attributes:
        NONE: no record at all.
        NULL: a record without statistics.
        PREVIOUS: the levels of the last window before it.
        LINEAR: levels on a line between the windows around it, by their starts.
    """

    NONE = "none"
    NULL = "null"
    PREVIOUS = "previous"
    LINEAR = "linear"


def check_fill(window: Window, start_us: int, end_us: int, most: int = MAX_WINDOWS) -> None:
    """Raises ValueError if a range has more than ``most`` windows, too many to fill its gaps."""
    count = (end_us - start_us) // window.length_us  # at least: a calendar's windows are counted one by one
    if count <= most:
        count = window.count(window.first_start(start_us), window.first_start(end_us))
    if count > most:
        raise ValueError(
            f"the range has more than {most:,} windows of {window.text}, too many to fill their gaps; "
            f"choose a shorter range, or longer windows{', or a higher limit' if most < MAX_WINDOWS else ''}"
        )


def filled(records: Iterable[Record], empty: Record, start_us: int, end_us: int, fill: Fill) -> Iterator[Record]:
    """Yields a record for every window of one sensor, or of one group, that starts in the range, oldest first.

    Args:
        records: the existing records, oldest first.
        empty: a filled record without metrics, of any start.
        start_us: the earliest start.
        end_us: the end of the range of starts.
        fill: the content of windows without a record.
    """
    starts = iter(empty.window.starts(start_us, end_us))
    before: Record | None = None
    for record in records:
        gap = list(iter(starts.__next__, record.start_us))
        yield from _gap(empty, gap, before, record, fill)
        yield record
        before = record
    yield from _gap(empty, starts, before, None, fill)


def _gap(
    empty: Record, starts: Iterable[int], before: Record | None, after: Record | None, fill: Fill
) -> Iterator[Record]:
    for start_us in starts:
        metrics: Mapping[str, Mapping[str, float]] = {}
        if fill == Fill.PREVIOUS and before is not None:
            metrics = {metric: _levels(summary) for metric, summary in before.metrics.items()}
        elif fill == Fill.LINEAR and before is not None and after is not None:
            share = (start_us - before.start_us) / (after.start_us - before.start_us)
            metrics = {
                metric: _between(_levels(summary), _levels(after.metrics[metric]), share)
                for metric, summary in before.metrics.items()
                if metric in after.metrics
            }
        yield replace(
            empty, start_us=start_us, metrics={metric: _summary(levels) for metric, levels in metrics.items()}
        )


def _levels(summary: MetricSummary) -> dict[str, float]:
    known = summary.statistics()
    return {name: value for name, value in known.items() if name in _LEVELS or name[0] == "p"}


def _between(before: Mapping[str, float], after: Mapping[str, float], share: float) -> dict[str, float]:
    return {name: value * (1 - share) + after[name] * share for name, value in before.items() if name in after}


def _summary(levels: Mapping[str, float]) -> MetricSummary:
    return summary_of({**levels, "count": 0})
