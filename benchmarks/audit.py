"""Prints the CPU time of ``tidetable repair --dry-run`` a raw row, beside a loop that does as little as possible.

A table of ten-minute rows with three metrics has hours and days, all of them right, and newest readings. The command
audits all rows, and two days of them: the difference is divided by that of their rows, so that starting does not count.
The loop reads the same rows by Google's plain messages, parses them, aggregates hours and days, and compares these with
the table's. CPU time is that of the command with its processes, and of the loop, without the emulator's.
"""

import resource
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import sqrt

from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from benchmarks.measuring import Lines, arguments, emulators, spread
from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_prefix, encoded_aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import EncodedRow, KeyRange, encoded, prefix_range
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY

EVERY_US = 600_000_000
SCHEMA = parse_schema("latest = 'latest'\ntiers = { 1h = 'hours', 1d = 'days' }")


def _readings(n: int) -> dict[str, float]:
    return {"humidity": 40 + n % 97 / 10, "pressure": 1013 + n % 89 / 100, "temperature": 20 + n % 83 / 100}


def rows_of(schema: TableSchema, sensor_id: str, times_us: list[int], first: int) -> Iterator[EncodedRow]:
    """Yields the rows of a sensor with readings at these times."""
    windows: dict[tuple[int, int], list[dict[str, float]]] = defaultdict(list)
    newest = NewestReadings()
    for n, time_us in enumerate(times_us, first):
        readings = _readings(n)
        yield from map(encoded, schema.rows(Event(sensor_id, time_us, readings, {}, "")))
        newest.add(sensor_id, time_us, readings.items())
        for tier, each in enumerate(schema.tiers):
            windows[tier, each.window.start_of(time_us)].append(readings)
    for (tier, start_us), events in windows.items():
        stats = WindowStats()
        stats.extend([(name, [each[name] for each in events]) for name in events[0]], len(events))
        of_tier = schema.tiers[tier]
        yield encoded_aggregate_row(of_tier.window, sensor_id, start_us, stats, of_tier.family, of_tier.statistics)
    if schema.latest is not None:
        yield from newest.rows(schema.latest)


def write_table(name: TableName, sensors: int, times_us: list[int]) -> None:
    """Creates the table, and writes all of its rows."""
    tables.create(name, SCHEMA)
    with Rewriter.open(name) as rewriter:
        for number in range(sensors):
            rewriter.write(rows_of(SCHEMA, f"sensor-{number:05}", times_us, number))


def audited(name: TableName, start_us: int, end_us: int) -> float:
    """Returns the CPU seconds of an audit from one time to another."""
    between = ["--from", format_time(start_us), "--to", format_time(end_us)]
    of_table = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    program = [sys.executable, "-c", "from pipeline.cli.root import main; main()", "repair", "--dry-run"]
    before = _children_s()
    done = subprocess.run(
        [*program, *of_table, *between, "--allowed-lateness", "0s"], check=False, capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr
    return _children_s() - before


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_hand(name: TableName) -> float:
    """Returns the CPU seconds of the loop over the whole table."""
    began = time.process_time()
    with bigtable_client() as client:

        def rows(keys: KeyRange) -> Iterator[tuple[bytes, dict[bytes, float]]]:
            request = ReadRowsRequest(
                **name.target,
                rows={"row_ranges": [{"start_key_closed": keys.start, "end_key_open": keys.end}]},
            )
            key, cells = b"", dict[bytes, float]()
            column = b""
            for response in map(ReadRowsResponse.pb, client.read_rows(request)):
                for chunk in response.chunks:
                    key = chunk.row_key or key
                    column = chunk.qualifier.value or column
                    cells[column] = float(chunk.value) if column != b"window_sizes" else 0.0
                    if chunk.commit_row:
                        yield key, cells
                        key, cells = b"", {}

        right: dict[bytes, dict[bytes, float]] = {}
        values: dict[tuple[bytes, int], dict[bytes, list[float]]] = defaultdict(lambda: defaultdict(list))
        windows = [(each, aggregate_prefix(each).encode()) for each in (HOURLY, DAILY)]
        for key, cells in rows(prefix_range(b"sensor-")):
            sensor, _, reverse = key.partition(b"#")
            time_us = 9_999_999_999_999_999 - int(reverse)
            for window, prefix in windows:
                of_window = values[prefix + sensor, time_us - time_us % window.length_us]
                for metric, value in cells.items():
                    of_window[metric].append(value)
        starts: dict[tuple[bytes, int], bytes] = {}
        for (before, start_us), of_metrics in values.items():
            window = windows[before.startswith(windows[1][1])][0]
            start = starts.get((before[:6], start_us)) or starts.setdefault(
                (before[:6], start_us), window.start_text(start_us).encode()
            )
            found = right[before + b"#" + start] = {}
            for metric, column in of_metrics.items():
                count, total = len(column), sum(column)
                mean = total / count
                found[b"count_" + metric], found[b"sum_" + metric] = count, total
                found[b"min_" + metric], found[b"max_" + metric] = min(column), max(column)
                found[b"avg_" + metric] = mean
                found[b"stddev_" + metric] = sqrt(sum([(value - mean) ** 2 for value in column]) / count)
        for _, prefix in windows:
            for key, cells in rows(prefix_range(prefix)):
                assert all(abs(cells[column] - value) < 1e-6 for column, value in right.pop(key).items()), key
        assert not right
    return time.process_time() - began


def main() -> None:
    options = arguments(sensors=100, rows=10_000, runs=3)
    end_us = HOURLY.start_of(time.time_ns() // 1000 - DAILY.length_us)
    times_us = [end_us - number * EVERY_US for number in range(options.rows, 0, -1)]
    start_us = DAILY.start_of(times_us[0])
    with emulators():
        name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
        write_table(name, options.sensors, times_us)
        rows = options.sensors * options.rows
        of_a_day = options.sensors * sum(time_us < start_us + 2 * DAILY.length_us for time_us in times_us)
        programs: dict[str, Callable[[], float]] = {
            "by hand": lambda: by_hand(name) / rows,
            "the audit": lambda: (
                (
                    audited(name, start_us, end_us + DAILY.length_us)
                    - audited(name, start_us, start_us + 2 * DAILY.length_us)
                )
                / (rows - of_a_day)
            ),
        }
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(options.runs):
            for what, program in programs.items():
                found[what].append(program() * 1e6)
    lines = Lines("               program", "µs a raw row", "least to most")
    for what, each in found.items():
        lines.add(what, *spread(each, ".2f"))


if __name__ == "__main__":
    main()
