"""Queries for the aggregates of one sensor, oldest first. Like other queries, they are pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pipeline.core.queries.foreign import ForeignRow, OnForeign
from pipeline.core.queries.seeks import ReadRows, RowSelection, skip_scan
from pipeline.core.queries.sweeps import sensor_prefix
from pipeline.core.rows import aggregate_rows as aggregates
from pipeline.core.rows.records import AggregateRecord, GroupRecord
from pipeline.core.rows.rows import after_prefix, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows.fixed import Window

Record = TypeVar("Record", AggregateRecord, GroupRecord)


def tier_of(schema: TableSchema, window: Window | None) -> Tier:
    """Returns the tier with windows of that length; the shortest for None. Raises ValueError if the table lacks it."""
    return tier_among(schema.tiers, window, "table")


def tier_among(tiers: Sequence[Tier], window: Window | None, owner: str) -> Tier:
    """Returns the tier with windows of that length; the first for None. Raises ValueError that tells what lacks it."""
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
    """Yields the windows that start from ``start_us``, inclusive, to ``end_us``, exclusive.

    With ``metrics``, yields only these metrics, and only windows that have one of them.
    """
    key_range = aggregates.aggregate_range(tier.window, sensor_id, start_us, end_us)
    columns = None if metrics is None else aggregates.qualifiers(metrics, tier.statistics)
    selection = CellSelection((tier.family,), columns, versions=1)
    for row in read(RowSelection(key_range, selection, page_rows=page_rows)):
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
