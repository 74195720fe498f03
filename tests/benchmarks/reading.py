"""Prints the cost of readers: ``SensorTable.range``, and a bare loop over Google's ``read_rows`` that builds nothing.

    .venv/bin/tidetable emulators run -- .venv/bin/python -m tests.benchmarks.reading

The same 100,000 rows of one sensor, three readings each, are read in turns. The bare loop iterates over the rows of
one request from Google's data client; ``responses`` does not even assemble rows, and shows what the server and the
connection allow.
"""

import statistics
import time
import uuid
from collections.abc import Callable

from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery, RowRange
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse
from rich.console import Console
from rich.table import Table

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables import tables
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.table_schema import TableSchema
from tests.benchmarks.bench import hand_loop
from tests.benchmarks.bench.feed import HOUR_US, Feed
from tests.support.lasting import lasting

ROWS, RUNS = 100_000, 5
SENSOR = "sensor-000"


def filled(start_us: int) -> TableName:
    """Creates a table with the rows."""
    name = TableName("test-project", "instance", f"reading-{uuid.uuid4().hex[:8]}")
    tables.create(name, lasting(TableSchema.default()))
    hand_loop.prepare(Feed(start_us, ROWS, sensors=1, hours=24).messages(100))(name)
    return name


def main() -> None:
    """Prints the table."""
    start_us = (time.time_ns() // 1000 // HOUR_US - 24) * HOUR_US
    name = filled(start_us)
    start, end = prefix_range(f"{SENSOR}#".encode())
    with (
        SensorTable.open(name.project, name.instance, name.table) as table,
        BigtableDataClient(project=name.project) as client,
        client.get_table(name.instance, name.table) as bare,
        bigtable_client() as transport,
    ):

        def our_range() -> int:
            return sum(1 for _ in table.range(SENSOR, start_us, start_us + 24 * HOUR_US))

        def read_rows() -> int:
            query = ReadRowsQuery()
            query.add_range(RowRange(start, end))
            return sum(1 for _ in bare.read_rows_stream(query))

        def responses() -> int:
            request = ReadRowsRequest(table_name=str(name))
            request.rows.row_ranges.append({"start_key_closed": start, "end_key_open": end})
            each = map(ReadRowsResponse.pb, transport.read_rows(request))
            return sum(chunk.commit_row for response in each for chunk in response.chunks)

        programs: dict[str, Callable[[], int]] = {
            "SensorTable.range": our_range,
            "read_rows, nothing built": read_rows,
            "responses alone": responses,
        }
        rates: dict[str, list[float]] = {what: [] for what in programs}
        for number in range(RUNS + 1):
            for what, program in programs.items():
                begin = time.perf_counter()
                found = program()
                seconds = time.perf_counter() - begin
                assert found == ROWS, (what, found)
                if number:  # the first round warms up
                    rates[what].append(ROWS / seconds)
    tables.delete(name)
    grid = Table("", "rows/s", "least to most", "range to it")
    for what, found_rates in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates["SensorTable.range"], found_rates, strict=True)]
        spread = f"{min(found_rates):,.0f} – {max(found_rates):,.0f}"
        grid.add_row(what, f"{statistics.median(found_rates):,.0f}", spread, f"{statistics.median(ratios):.2f}")
    Console().print(grid)


if __name__ == "__main__":
    main()
