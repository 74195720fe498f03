"""Queries for windows: the aggregates of one sensor, and the rows of roll-ups. Like other queries, pure functions."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pipeline.core.notation.text import counted, shown
from pipeline.core.queries.reads import ForeignRow, OnForeign, ReadRows, RowSelection, in_batches, skip_scan
from pipeline.core.rows import aggregate_rows as aggregates
from pipeline.core.rows.aggregate_rows import qualifiers, sensor_prefix
from pipeline.core.rows.records import AggregateRecord, GroupRecord, SensorGroup
from pipeline.core.rows.rollup_rows import (
    EXPECTED,
    FAMILY,
    SENSORS,
    groups_range,
    parse_rollup_key,
    parse_rollup_row,
    rollup_range,
)
from pipeline.core.rows.rows import KeyRange, Row, after_prefix, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rollup import ALL, Rollup, decoded_values, encoded_value, is_shortened
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window

Record = TypeVar("Record", AggregateRecord, GroupRecord)


def tier_of(schema: TableSchema, window: Window | None) -> Tier:
    """Returns the tier with windows of that length; the shortest for None. Raises ValueError if the table lacks it."""
    return tier_among(schema.tiers, window, "table")


def tier_among(tiers: Sequence[Tier], window: Window | None, owner: str) -> Tier:
    """Returns the tier with windows of that length; the first for None. Raises ValueError that names what lacks it."""
    prefix = window and aggregates.aggregate_prefix(window)  # keys decide: 60m is 1h, but 5400s is not 90m
    found = next((tier for tier in tiers if prefix in (None, aggregates.aggregate_prefix(tier.window))), None)
    if found is None:
        available = ", ".join(tier.window.text for tier in tiers) or "none"
        requested = f"of {window.text}" if window else "at all"
        raise ValueError(f"the {owner} has no aggregates {requested}; its tiers: {available}")
    return found


def windows_of(
    tier: Tier,
    read: ReadRows,
    sensor_id: str,
    start_us: int,
    end_us: int,
    metrics: tuple[str, ...] | None,
    page_rows: int | None,
    on_foreign: OnForeign,
) -> Iterator[AggregateRecord]:
    """Returns the windows that start from ``start_us``, inclusive, to ``end_us``, exclusive.

    With ``metrics``, only these metrics, and only windows that have one of them.
    """
    key_range = aggregates.aggregate_range(tier.window, sensor_id, start_us, end_us)
    rows = read(RowSelection(key_range, selection_of_windows(tier, metrics), page_rows=page_rows))
    return parsed_windows(tier, rows, metrics, on_foreign)


def selection_of_windows(tier: Tier, metrics: tuple[str, ...] | None) -> CellSelection:
    """Returns the cells of aggregate rows that have the metrics; all cells for None."""
    columns = None if metrics is None else qualifiers(metrics, tier.statistics)
    return CellSelection((tier.family,), columns, versions=1)


def parsed_windows(
    tier: Tier, rows: Iterable[Row], metrics: tuple[str, ...] | None, on_foreign: OnForeign
) -> Iterator[AggregateRecord]:
    """Yields the windows of aggregate rows; with ``metrics`` only these, and only windows that have one of them."""
    for row in rows:
        if metrics is not None and aggregates.only_counts_events(row):
            continue  # the window has none of these metrics
        try:
            record = aggregates.parse_aggregate_row(tier.window, row, tier.statistics)
        except ValueError as error:
            on_foreign(ForeignRow(row, error))
            continue
        # If the names are too long for a filter, the server sends all columns.
        if (requested := selected(record, metrics)) is not None:
            yield requested


def sensors_with_windows(tier: Tier, read: ReadRows, prefix: str, after: str, on_foreign: OnForeign) -> Iterator[str]:
    """Returns the sensors that have an aggregate row of the tier, whose ids have the prefix and follow ``after``."""
    of_tier = aggregates.aggregate_prefix(tier.window)
    keys = prefix_range(f"{of_tier}{prefix}".encode())
    if after:
        keys = keys._replace(start=max(keys.start, after_prefix(f"{of_tier}{after}#".encode())))
    parse = partial(aggregates.parse_aggregate_key, tier.window)
    found = skip_scan(read, keys, parse, sensor_prefix, on_foreign, skip=())
    return (key.sensor_id for _, key in found)


def selected(record: Record, metrics: tuple[str, ...] | None) -> Record | None:
    """Returns the window with only these metrics, or with all for None; None if it has none of them."""
    if metrics is None:
        return record
    requested = {metric: of_metric for metric, of_metric in record.metrics.items() if metric in metrics}
    return replace(record, metrics=requested) if requested else None


_KEYS = CellSelection((FAMILY,), keys_only=True)
_FEW_WINDOWS, _GROWTH = 2, 16  # that a search for the newest looks at first, and by which it grows


def rollup_of(schema: TableSchema, name: str) -> Rollup:
    """Returns the roll-up of that name. Raises ValueError if the table lacks it."""
    found = next((rollup for rollup in schema.rollups if rollup.name == name), None)
    if found is None:
        known = ", ".join(rollup.name for rollup in schema.rollups) or "none"
        raise ValueError(f"the table has no roll-up {shown(name)}; its roll-ups: {known}")
    return found


def tiers_of(schema: TableSchema, rollup: Rollup) -> tuple[Tier, ...]:
    """Returns the tiers of a roll-up, with the family of its rows, shortest first."""
    return tuple(replace(tier, family=FAMILY) for tier in schema.tiers if rollup in schema.rollups_of(tier.window))


def tier_of_rollup(schema: TableSchema, rollup: Rollup, window: Window | None) -> Tier:
    """Returns the tier with windows of that length, the shortest for None. Raises ValueError if it has no such rows."""
    return tier_among(tiers_of(schema, rollup), window, f"roll-up {rollup.name}")


def group_named(rollup: Rollup, values: Sequence[str]) -> SensorGroup:
    """Returns the group with these values of its fields. Raises ValueError for too few or too many."""
    if len(values) != len(rollup.by):
        takes = f"{len(rollup.by)}, of {' and '.join(rollup.by)}" if rollup.by else "none: it has one group"
        raise ValueError(f"{counted(len(values), 'value')} for the roll-up {rollup.name}, which takes {takes}")
    return SensorGroup(
        rollup.name, encoded_value(values) if rollup.by else ALL, dict(zip(rollup.by, values, strict=True))
    )


def group_of(rollup: Rollup, text: str) -> SensorGroup:
    """Returns the group that row keys name by that text. Raises ValueError if it can't be one of the roll-up."""
    values = decoded_values(text) if rollup.by else []
    if not is_shortened(text) and text != (encoded_value(values) if len(values) == len(rollup.by) > 0 else ALL):
        form = f"percent-encoded values of {' and '.join(rollup.by)}, joined by a slash" if rollup.by else ALL
        if len(rollup.by) == 1:
            form = f"a percent-encoded value of {rollup.by[0]}; of this one, that is {encoded_value([text])}"
        raise ValueError(f"{shown(text)} can't be a group of the roll-up {rollup.name}: it takes {form}")
    return SensorGroup(rollup.name, text, dict(zip(rollup.by, values, strict=False)))


def windows_of_groups(
    tier: Tier,
    read: ReadRows,
    groups: Iterable[SensorGroup],
    start_us: int,
    end_us: int,
    metrics: tuple[str, ...] | None,
    on_foreign: OnForeign,
) -> Iterator[GroupRecord]:
    """Yields the windows of groups that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first.

    Groups have to be of one roll-up, in the order of their row keys, and so is the answer. With ``metrics``, yields
    only these metrics, and only windows that have one of them.
    """
    columns = None
    if metrics is not None:
        columns = (SENSORS.encode(), EXPECTED.encode(), *qualifiers(metrics, tier.statistics))
    cells = CellSelection((FAMILY,), columns, versions=1)
    named: dict[str, SensorGroup] = {}
    for ranges in in_batches(_ranges(tier.window, _noted(groups, named), start_us, end_us)):
        for row in read(RowSelection(ranges, cells)):
            try:
                found = parse_rollup_row(tier.window, row)
            except ValueError as error:
                on_foreign(ForeignRow(row, error))
                continue
            if found is None:
                continue
            record = replace(found, group=named[found.group.text])
            if (requested := selected(record, metrics)) is not None:
                yield requested


def groups_with_rows(rollup: Rollup, tier: Tier, read: ReadRows, on_foreign: OnForeign) -> Iterator[SensorGroup]:
    """Yields the groups that have a row of the tier, in the order of their row keys: one seek for each."""

    def parse(key: bytes) -> SensorGroup:
        return group_of(rollup, parse_rollup_key(tier.window, key).value)

    def prefix(key: bytes, _: SensorGroup) -> bytes:
        return key.rpartition(b"#")[0] + b"#"

    found = skip_scan(read, groups_range(tier.window, rollup.name), parse, prefix, on_foreign, skip=())
    return (group for _, group in found)


def newest_windows(
    tier: Tier,
    read: ReadRows,
    groups: Collection[SensorGroup],
    before_us: int,
    now_us: int,
    metrics: tuple[str, ...] | None,
    on_foreign: OnForeign,
) -> list[GroupRecord]:
    """Returns the windows of groups that start together: last of all before ``before_us``, and with a sensor.

    Looks back from ``before_us``, or from ``now_us`` if that is earlier, first at few windows, then at more.
    """
    while (newest_us := _newest(tier.window, read, groups, before_us, now_us, on_foreign)) is not None:
        found = windows_of_groups(tier, read, groups, newest_us, newest_us + 1, metrics, on_foreign)
        if records := list(found):
            return records
        before_us = newest_us  # its groups have no sensor any more, or none of the metrics
    return []


def _newest(
    window: Window, read: ReadRows, groups: Collection[SensorGroup], before_us: int, now_us: int, on_foreign: OnForeign
) -> int | None:
    """Returns the start of the last window before a time that has a row of any of the groups."""
    until_us, count = before_us, _FEW_WINDOWS
    while until_us > 0:
        from_us = max(min(before_us, now_us) - count * window.length_us, 0)
        newest_us = -1
        for ranges in in_batches(_ranges(window, groups, from_us, until_us)):
            for row in read(RowSelection(ranges, _KEYS)):
                try:
                    newest_us = max(newest_us, parse_rollup_key(window, row.key).start_us)
                except ValueError as error:
                    on_foreign(ForeignRow(row, error))
        if newest_us >= 0:
            return newest_us
        until_us, count = from_us, count * _GROWTH
    return None


def _ranges(window: Window, groups: Iterable[SensorGroup], start_us: int, end_us: int) -> Iterator[KeyRange]:
    """Yields the keys of windows of each group."""
    for group in groups:
        keys = rollup_range(window, group.rollup, group.text, start_us, end_us)
        if keys.start < keys.end:
            yield keys


def _noted(groups: Iterable[SensorGroup], named: dict[str, SensorGroup]) -> Iterator[SensorGroup]:
    for group in groups:
        named[group.text] = group
        yield group
