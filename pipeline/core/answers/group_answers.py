"""Answers about the groups of a roll-up: what their windows in a range of time amount to, and which come first."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from pipeline.core.notation.text import shown
from pipeline.core.rows.aggregate_rows import stats_of
from pipeline.core.rows.records import AggregateRecord, GroupRecord, MetricSummary, summary_of
from pipeline.core.statistics.window_stats import MetricStats, WindowSpan, WindowStats, split_qualifier, statistic

_COUNTS = "sensors", "reading_count"
_RISEN = "increase", "rate"

Rank = Callable[[GroupRecord], float | None]
"""Returns the value by which a group is ranked; None if it has none."""


def rank_by(column: str) -> tuple[Rank, str | None]:
    """Returns what ranks groups by a column such as ``avg_temperature``, and its metric; None for a column of none.

    Raises:
        ValueError: rows of roll-ups have no such column.
    """
    if column in _COUNTS:
        return lambda record: getattr(record, column), None
    try:
        found, metric = split_qualifier(column)
    except ValueError:
        raise ValueError(
            f"groups can't be ranked by {shown(column)}; name a statistic and its metric, such as avg_temperature, or "
            f"{' or '.join(_COUNTS)}"
        ) from None
    return lambda record: record.metrics[metric].value(found.name) if metric in record.metrics else None, metric


def ranked(records: Iterable[GroupRecord], rank: Rank) -> list[GroupRecord]:
    """Returns the records with a value, the greatest first; of equal ones, in the order that they came."""
    with_values = [(value, record) for record in records if (value := rank(record)) is not None]
    return [record for _, record in sorted(with_values, key=lambda each: each[0], reverse=True)]


def together(records: Iterable[GroupRecord]) -> Iterable[GroupRecord]:
    """Yields what the windows of each group amount to, given the windows group by group."""
    for _, of_group in groupby(records, lambda record: record.group):
        yield merged_windows(list(of_group))


def merged_windows(records: Sequence[GroupRecord]) -> GroupRecord:
    """Returns what windows of a group amount to: merged, so an average is that of all readings.

    A rate is the mean over the windows' time, and a coverage that of all readings that were expected. A metric has the
    statistics that all its windows have.
    """
    first = records[0]
    stats = WindowStats()
    for each in records:
        stats.merge(stats_of(AggregateRecord("", each.start_us, each.window, each.reading_count, each.metrics)))
    metrics = {
        metric: _summary(of_metric, [(each, each.metrics[metric]) for each in records if metric in each.metrics])
        for metric, of_metric in sorted(stats.metrics.items())
    }
    known = [each.expected for each in records if each.expected is not None]
    return GroupRecord(
        first.group,
        first.start_us,
        first.window,
        max(each.sensors for each in records),
        max(known, default=None),
        stats.events,
        metrics,
        windows=len(records),
    )


def _summary(stats: MetricStats, windows: Sequence[tuple[GroupRecord, MetricSummary]]) -> MetricSummary:
    names = set.intersection(*(set(summary.statistics()) for _, summary in windows))
    first, last = windows[0][0], windows[-1][0]
    span = WindowSpan(first.start_us, last.window.end_of(last.start_us), _expected(windows))
    found: dict[str, Any] = {name: statistic(name).value(stats, span) for name in names if name not in _RISEN}
    values = {name: [summary.more[name] for _, summary in windows] for name in _RISEN if name in names}
    if "increase" in values:
        found["increase"] = sum(values["increase"])
    if "rate" in values:
        lengths = [record.window.end_of(record.start_us) - record.start_us for record, _ in windows]
        found["rate"] = sum(map(float.__mul__, values["rate"], map(float, lengths))) / sum(lengths)
    found["sketch"] = (stats.parts or {}).get("sketch")
    return summary_of({name: value for name, value in found.items() if value is not None})


def _expected(windows: Sequence[tuple[GroupRecord, MetricSummary]]) -> float | None:
    """Returns the number of readings that were expected, if all windows tell which share of them came."""
    shares = [summary.more.get("coverage") for _, summary in windows]
    counts = [summary.count for _, summary in windows]
    return sum(count / share for count, share in zip(counts, shares, strict=True) if share) if all(shares) else None
