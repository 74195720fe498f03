"""Finds windows after rewritten ones: the last reading from which they continue may have changed."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.events.event import LATEST_US
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import READING_COUNT, AggregateKey
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.definitions import split_qualifier
from pipeline.core.windows.fixed import Window
from pipeline.repair.transforms import LOOKBACK_US


def windows_after(
    table: TableName,
    schema: TableSchema,
    retention: Retention,
    longest: Window,
    rewritten: Iterable[dict[str, Any]],
) -> Iterator[AggregateKey]:
    """Yields windows of the shortest tier whose rows do not continue from the last readings before them.

    Args:
        table: the table's name.
        schema: the table's schema.
        retention: the retention of the table's cells.
        longest: the longest windows, each audited as a whole.
        rewritten: findings; see :meth:`pipeline.core.completion.audit.Finding.record`.
    """
    metrics: dict[tuple[str, int], set[str]] = {}  # by sensor and end of the longest window
    for finding in rewritten:
        if finding["window"] == schema.tiers[0].window.text:
            end_us = longest.end_of(longest.start_of(parse_time(finding["start"])))
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
            bounds = {metric: (last, LATEST_US) for metric, last in lasts.items()}
            for start_us in neighbours.stale(sensor_id, bounds, end_us) if bounds else ():
                yield AggregateKey(sensor_id, start_us)
