"""Answers about groups of sensors: what their windows amount to, which come first, and which sensors belong to them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from pipeline.core.events.event import LATEST_US
from pipeline.core.notation.text import shown
from pipeline.core.queries.reads import ForeignRow, OnForeign, ReadRows, RowSelection, in_batches
from pipeline.core.rollups.contributions import is_contribution, texts_in
from pipeline.core.rows.aggregate_rows import MEMBER, READING_COUNT, aggregate_range, stats_of
from pipeline.core.rows.records import AggregateRecord, GroupRecord, MetricSummary, SensorGroup, summary_of
from pipeline.core.rows.rollup_rows import FAMILY, PARTS, is_sensor, members_key, rollup_key
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import member_fields, parse_member
from pipeline.core.statistics.window_stats import MetricStats, WindowSpan, WindowStats, split_qualifier, statistic
from pipeline.core.windows import Window

_COUNTS = "sensors", "reading_count"
_RISEN = "increase", "rate"

Rank = Callable[[GroupRecord], float | None]
"""Returns the value by which a group is ranked; None if it has none."""

_CELLS = CellSelection((FAMILY,), versions=1)


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


def sensors_of_group(
    rollup: Rollup, window: Window, read: ReadRows, group: SensorGroup, start_us: int, on_foreign: OnForeign
) -> Iterator[str]:
    """Yields the sensors that belong to a group in the window that starts then, in the order of shards.

    Reads the row of the group's parts, which tells the shards, and what all sensors of these contribute, a few shards
    at first.
    """
    shards = sorted(
        int(cell.qualifier)
        for row in read(RowSelection(_one(rollup_key(window, rollup.name, group.text, start_us, PARTS)), _CELLS))
        for cell in row.cells
        if cell.qualifier.isdigit()
    )
    for ranges in in_batches(_one(members_key(window, shard, start_us)) for shard in shards):
        for row in read(RowSelection(ranges, _CELLS)):
            try:
                yield from _members(rollup, row, group)
            except (ValueError, IndexError) as error:
                on_foreign(ForeignRow(row, ValueError(str(error))))


def groups_of_sensor(schema: TableSchema, read: ReadRows, sensor_id: str, on_foreign: OnForeign) -> list[SensorGroup]:
    """Returns the groups that a sensor belongs to in its newest window, by the order of the schema's roll-ups.

    Reads that window's aggregate row, of the shortest tier that has one.
    """
    columns = READING_COUNT.encode(), MEMBER.encode()
    for tier in schema.tiers if schema.rollups else ():
        keys = aggregate_range(tier.window, sensor_id, 0, LATEST_US + 1)
        selection = RowSelection(keys, CellSelection((tier.family,), columns, versions=1), page_rows=1, reverse=True)
        row = next(read(selection), None)
        if row is None:
            continue
        try:
            texts = [parse_member(cell.value).text for cell in row.cells if cell.qualifier == MEMBER.encode()]
        except ValueError as error:
            on_foreign(ForeignRow(row, error))
            continue
        member = member_fields(texts[0]) if texts else {}
        return [
            SensorGroup(rollup.name, text, {field: member[field] or "" for field in rollup.by})
            for rollup in schema.rollups
            if (text := rollup.value_of(member)) is not None
        ]
    return []


def _members(rollup: Rollup, row: Row, group: SensorGroup) -> list[str]:
    """Returns the sensors of the group among those of a shard."""
    found = [
        (cell.qualifier, texts_in(cell.value)[0].decode())
        for cell in row.cells
        if cell.value and is_sensor(cell.qualifier) and is_contribution(cell.value)
    ]
    return [sensor.decode() for sensor, text in found if rollup.value_of(member_fields(text)) == group.text]


def _one(key: bytes) -> KeyRange:
    return KeyRange(key, key + b"\x00")
