"""Finds windows after rewritten ones: the last reading from which they continue may have changed."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.completion.audit import Extent
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.events.event import MAX_FUTURE_US
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import READING_COUNT, AggregateKey
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import split_qualifier
from pipeline.repair.transforms import LOOKBACK_US


def windows_after(
    table: TableName,
    schema: TableSchema,
    retention: Retention,
    extents: Sequence[Extent],
    rewritten: Iterable[dict[str, Any]],
    open_us: int | None = None,
) -> Iterator[AggregateKey]:
    """Yields windows of the shortest tier whose rows may not continue from the last readings before them.

    These are rows that the table has, and those of a running job that may be on their way.

    Args:
        table: the table's name.
        schema: the table's schema.
        retention: the retention of the table's cells.
        extents: the windows that were audited, of tiers that nest, the shortest first.
        rewritten: findings; see :meth:`pipeline.core.completion.audit.Finding.record`.
        open_us: the start of the first window that a job may still write; None without a job.
    """
    window, longest = schema.tiers[0].window, extents[-1].tier.window
    metrics: dict[tuple[str, int], set[str]] = {}  # by sensor and end of the audited windows
    for finding in rewritten:
        if finding["window"] == window.text:
            start_us = parse_time(finding["start"])
            end_us = min(longest.end_of(longest.start_of(start_us)), extents[0].end_us)
            names = metrics.setdefault((finding["sensor_id"], end_us), set())
            for name in finding["differences"].keys() - {READING_COUNT}:
                with suppress(ValueError):  # another program's column
                    names.add(split_qualifier(name)[1])
    now_us = time.time_ns() // 1000
    with RowReader.open(table) as reader:
        neighbours = Neighbours(schema, retention, reader.read_selection, LOOKBACK_US)
        for (sensor_id, end_us), names in metrics.items():
            carried = [name for name in names if schema.statistics.carries_to(name)]
            lasts = neighbours.before(sensor_id, carried, 0, end_us, now_us)
            found, until_us = neighbours.following(sensor_id, lasts, end_us)
            after = {start_us for start_us, continues in found.items() if not continues}
            if lasts and open_us is not None:
                after.update(window.starts(max(open_us, end_us), min(until_us, now_us + MAX_FUTURE_US + 1)))
            yield from (AggregateKey(sensor_id, start_us) for start_us in sorted(after))
