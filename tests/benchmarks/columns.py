"""Prints the CPU time of a raw row that is read back for its window: in blocks, and one by one as before.

Run with ``.venv/bin/python -m tests.benchmarks.columns``. The rows of an hour at 1 Hz with three metrics come in the
bytes that Bigtable would send, so that the time includes parsing them, but not gRPC. Both ways take turns.

So do the rows of hours of two hundred sensors, from which their days are computed.
"""

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import BlockReader, RowReader
from pipeline.core.completion.stored_windows import MOST_SENSORS, Completion, WindowRows
from pipeline.core.events.event import Event
from pipeline.core.queries.reads import ReadRows
from pipeline.core.rows.rows import Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.support.row_server import response
from tests.support.served import terse_chunks
from tests.support.tables import window_row

START_US, SECOND_US = 1_771_286_400_000_000, 1_000_000  # midnight
ROWS, IN_A_RESPONSE, RUNS = 3600, 250, 15
SENSOR = "sensor-000"
SENSORS = [f"sensor-{number:03}" for number in range(MOST_SENSORS)]
_HOURS = "an hour of a day"


class Served:
    """Bigtable's client, which sends a table's rows from the first key that a request asks for."""

    def __init__(self, rows: list[Row]) -> None:
        self._keys = [row.key for row in rows[::IN_A_RESPONSE]]
        self.responses = [
            ReadRowsResponse.serialize(response(*(each for row in some for each in terse_chunks(row))))
            for some in (rows[n : n + IN_A_RESPONSE] for n in range(0, len(rows), IN_A_RESPONSE))
        ]

    def read_rows(self, request: ReadRowsRequest, **_: Any) -> Iterator[ReadRowsResponse]:
        first = bisect_left(self._keys, request.rows.row_ranges[0].start_key_closed)
        sent = self.responses[first : first + request.rows_limit // IN_A_RESPONSE]
        return map(ReadRowsResponse.deserialize, sent)


def rows_of(schema: TableSchema) -> list[Row]:
    """Returns an hour's rows, as a table has them."""
    rows = []
    for n in range(ROWS):
        rows += schema.rows(Event(SENSOR, START_US + n * SECOND_US, _readings(n), {}, ""))
    return sorted(rows)


def hours_of() -> list[Row]:
    """Returns the aggregate rows of a day of two hundred sensors."""
    return sorted(
        row._replace(cells=sorted(row.cells))
        for number, sensor_id in enumerate(SENSORS)
        for start_us in HOURLY.starts(START_US, DAILY.end_of(START_US))
        for row in [window_row(HOURLY, sensor_id, start_us, *map(_readings, range(number, number + 7)), family="hours")]
    )


def _readings(n: int) -> dict[str, float]:
    return {"humidity": 40 + n % 97 / 10, "pressure": 1013 + n % 89 / 100, "temperature": 20 + n % 83 / 100}


def main() -> None:
    """Prints the table."""
    schema = TableSchema.default()
    client = Served(rows_of(schema))
    reader = RowReader(client, TableName("p", "i", "t"))  # type: ignore[arg-type]

    def window(read: ReadRows) -> None:
        rows = WindowRows(schema, Retention.of(schema), read)
        [readings] = rows.readings(SENSOR, START_US, START_US + HOURLY.length_us, HOURLY).values()
        assert readings.pane().stats.events == ROWS

    def parsed() -> list[Any]:
        return [ReadRowsResponse.pb(ReadRowsResponse.deserialize(each)) for each in client.responses]

    def blocks() -> None:
        assert all(map(BlockReader().block, ([each] for each in parsed())))

    days = parse_schema("tiers = { 1h = 'hours', 1d = 'days' }")
    hours = RowReader(Served(hours_of()), TableName("p", "i", "t"))  # type: ignore[arg-type]

    def of_days() -> None:
        completion = Completion(days, Retention.of(days), hours.read_selection).tiers[days.tiers[1]]
        now_us, fresh = DAILY.end_of(START_US), {each: dict[int, WindowStats]() for each in SENSORS}
        found = completion.each(
            lambda each: completion.completed(each, START_US, now_us, {}), SENSORS, START_US, now_us, fresh=fresh
        )
        assert all(each.stats.events == 24 * 7 for each in found.values())

    programs: dict[str, Callable[[], object]] = {
        "one by one": lambda: window(lambda selection: iter(reader.read(selection.ranges))),
        "in blocks": lambda: window(reader.read_selection),
        "of that, protobuf": parsed,
        "protobuf and blocks": blocks,
        _HOURS: of_days,
    }
    found: dict[str, list[float]] = {what: [] for what in programs}
    for number in range(RUNS + 1):
        for what, program in programs.items():
            begin = time.process_time()
            program()
            if number:  # the first round warms up
                rows = 24 * len(SENSORS) if what == _HOURS else ROWS
                found[what].append((time.process_time() - begin) / rows * 1e6)
    for what, each in found.items():
        print(f"{what:20} {statistics.median(each):6.2f} µs a row, {min(each):.2f} to {max(each):.2f}")
    ratios = [before / after for before, after in zip(found["one by one"], found["in blocks"], strict=True)]
    print(f"ratio {statistics.median(ratios):.1f}")


if __name__ == "__main__":
    main()
