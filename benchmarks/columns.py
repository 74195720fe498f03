"""Prints the CPU time of a raw row that is read back for its window: in blocks, and one by one as before.

The rows of an hour at 1 Hz with three metrics come in the bytes that Bigtable would send, so that the time includes
parsing them, but not gRPC. Both ways take turns, and so do the rows of hours of two hundred sensors, from which their
days are computed.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from benchmarks.measuring import Lines, arguments, in_turn, spread
from benchmarks.served import Served
from pipeline.cloud.scanning.row_reader import BlockReader
from pipeline.core.completion.stored_windows import MOST_WINDOWS, Completion
from pipeline.core.events.event import Event
from pipeline.core.queries.reads import ReadRows
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.support.groups import MIDNIGHT, SECOND
from tests.support.tables import window_row

ROWS, IN_A_RESPONSE, RUNS = 3600, 250, 15
SENSOR = "sensor-000"
SENSORS = [f"sensor-{number:03}" for number in range(MOST_WINDOWS)]
_HOURS = "an hour of a day"


def _readings(n: int) -> dict[str, float]:
    return {"humidity": 40 + n % 97 / 10, "pressure": 1013 + n % 89 / 100, "temperature": 20 + n % 83 / 100}


def main() -> None:
    runs = arguments(runs=RUNS).runs
    schema = TableSchema.default()
    times = [MIDNIGHT + n * SECOND for n in range(ROWS)]
    rows = [row for n, at in enumerate(times) for row in schema.rows(Event(SENSOR, at, _readings(n), {}, ""))]
    table = Served(rows, IN_A_RESPONSE)
    everything = ReadRowsRequest(rows={"row_ranges": [{"start_key_closed": b"", "end_key_open": b"t"}]})
    responses = [ReadRowsResponse.serialize(each) for each in table.read_rows(everything)]

    def window(read: ReadRows) -> None:
        rows = Completion(schema, Retention.of(schema), read)
        [readings] = rows.readings(SENSOR, MIDNIGHT, MIDNIGHT + HOURLY.length_us, HOURLY).values()
        assert readings.pane().stats.events == ROWS

    def parsed() -> list[Any]:
        return [ReadRowsResponse.pb(ReadRowsResponse.deserialize(each)) for each in responses]

    def blocks() -> None:
        assert all(map(BlockReader().block, ([each] for each in parsed())))

    days = parse_schema("tiers = { 1h = 'hours', 1d = 'days' }")
    of_hours = [
        window_row(HOURLY, sensor_id, start_us, *map(_readings, range(number, number + 7)), family="hours")
        for number, sensor_id in enumerate(SENSORS)
        for start_us in HOURLY.starts(MIDNIGHT, DAILY.end_of(MIDNIGHT))
    ]
    hours = Served(of_hours, IN_A_RESPONSE)

    def of_days() -> None:
        completion = Completion(days, Retention.of(days), hours).tiers[days.tiers[1]]
        now_us, fresh = DAILY.end_of(MIDNIGHT), {(each, MIDNIGHT): dict[int, WindowStats]() for each in SENSORS}
        found = completion.each(lambda each: completion.completed(*each, now_us, {}), list(fresh), now_us, fresh=fresh)
        assert all(each.stats.events == 24 * 7 for each in found.values())

    programs: dict[str, Callable[[], object]] = {
        "one by one": lambda: window(lambda selection: iter(table.reader.read(selection.ranges))),
        "in blocks": lambda: window(table),
        "of that, protobuf": parsed,
        "protobuf and blocks": blocks,
        _HOURS: of_days,
    }
    found = in_turn(programs, runs, time.process_time)
    lines = Lines("               program", "µs a row", "least to most")
    for what, seconds in found.items():
        rows = 24 * len(SENSORS) if what == _HOURS else ROWS
        lines.add(what, *spread([each / rows * 1e6 for each in seconds], ".2f"))
    ratios = [before / after for before, after in zip(found["one by one"], found["in blocks"], strict=True)]
    print(f"one by one takes {statistics.median(ratios):.1f} times as long")


if __name__ == "__main__":
    main()
