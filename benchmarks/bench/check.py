"""Checks a table: the number of rows, and all statistics of one sensor's aggregates."""

import math
from concurrent.futures import Executor
from itertools import pairwise, repeat
from typing import Any

from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse, RowFilter

from benchmarks.bench.feed import Feed
from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.rows.rows import KeyRange, prefix_range

CHECKED = "sensor-007"


class WrongTable(Exception):
    """A program wrote something wrong."""


def check(name: TableName, feed: Feed, counters: Executor, first: int | None = None) -> None:
    """Raises WrongTable unless the table contains exactly the first events, or all of them if ``first`` is None.

    The emulator answers with a message per row, so counting takes longer than writing: two processes do it.
    """
    raw, windows = len(feed.each[:first]), feed.windows(first)
    halves = [KeyRange(*ends) for ends in pairwise((b"sensor-", b"sensor-050", b"sensor."))]
    if (found := sum(counters.map(count, repeat(name), halves))) != raw:
        raise WrongTable(f"{name.table}: {found:,} raw rows instead of {raw:,}")
    if (found := count(name, prefix_range(b"agg#"))) != windows:
        raise WrongTable(f"{name.table}: {found:,} aggregate rows instead of {windows:,}")
    if wrong := difference(name, feed, first):
        raise WrongTable(f"{name.table}: {wrong}")


def count(name: TableName, keys: KeyRange) -> int:
    """Returns the number of rows in a range, from the ends of rows in a request for keys only."""
    key_only = {"chain": {"filters": [{"cells_per_row_limit_filter": 1}, {"strip_value_transformer": True}]}}
    request = ReadRowsRequest(table_name=str(name), filter=RowFilter(key_only))
    request.rows.row_ranges.append({"start_key_closed": keys.start, "end_key_open": keys.end})
    with bigtable_client() as client:
        return sum(
            chunk.commit_row for response in client.read_rows(request) for chunk in ReadRowsResponse.pb(response).chunks
        )


def difference(name: TableName, feed: Feed, first: int | None = None) -> str:
    """Returns how the aggregates of :data:`CHECKED` are wrong, or "" if they are not.

    Of statistics beyond the default ones, compares the number of events and readings.
    """
    expected = feed.aggregates(CHECKED, first)
    with RowReader.open(name) as reader:
        newest = RowFilter({"cells_per_column_limit_filter": 1})
        rows = reader.read(prefix_range(f"agg#hourly#{CHECKED}#".encode()), newest)
        cells = {row.key.decode(): {cell.qualifier.decode(): cell.value for cell in row.cells} for row in rows}
    if any("sketch_temperature" in of_row for of_row in cells.values()):
        cells, expected = _counts(cells), _counts(expected)
    found = {key: {column: float(value) for column, value in of_row.items()} for key, of_row in cells.items()}
    if found.keys() != expected.keys():
        return f"aggregates {sorted(found)} instead of {sorted(expected)}"
    for key, columns in expected.items():
        if found[key].keys() != columns.keys():
            return f"{key} has {sorted(found[key])} instead of {sorted(columns)}"
        for column, value in columns.items():
            # Sums depend on the order of addition, and the spread of values is small compared to them.
            if not math.isclose(found[key][column], value, rel_tol=1e-9, abs_tol=1e-9):
                return f"{key}: {column} is {found[key][column]!r} instead of {value!r}"
    return ""


def _counts(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        key: {column: value for column, value in of_row.items() if column.startswith(("count_", "reading_count"))}
        for key, of_row in rows.items()
    }
