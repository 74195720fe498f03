"""Prints what a backfill costs, in µs of CPU time for each raw row, beside loops that write the same rows by hand.

A file of CSV has ten-minute values of three metrics. ``new`` is the backfill of an empty table, ``half`` that of one
with the first half of each sensor's rows, ``again`` that of one with all. ``client`` is a loop over the file with the
rows of Google's client library, ``protobuf`` one that fills the library's requests itself. The loops parse the file,
write raw rows and hourly aggregates of five statistics, and check nothing. At the end, every raw row and aggregate of
``half`` is compared with an independent computation. Imports are left out, and so is the server,
which is the built-in emulator if the environment names it.
"""

import csv
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from google.cloud import bigtable
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable_v2.types import MutateRowsRequest

from benchmarks.measuring import METRICS, Lines, arguments, emulators, resident_mb
from pipeline.backfill.request import Backfill
from pipeline.backfill.run import load
from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.table_schema import TableSchema
from pipeline.formats.values import EventMaker, FileColumns, clock_us
from pipeline.job.settings import Target
from tests.support.lasting import lasting
from tests.support.tables import created

_START = datetime(2025, 1, 1, tzinfo=UTC)
_HOUR_MS = 3_600_000
_ROWS_OF_REQUEST = 1000  # of the loops

_Cells = Iterable[tuple[str, bytes, int, bytes]]  # family, column, timestamp in ms, value


def write_file(path: Path, sensors: int, start: int, end: int) -> None:
    """Writes the values of each sensor from one number to another."""
    rng = Random(start)
    with path.open("w") as file:
        print("sensor_id", "event_time", *METRICS, sep=",", file=file)
        for sensor in range(sensors):
            for number in range(start, end):
                time_text = f"{_START + timedelta(minutes=10 * number):%Y-%m-%dT%H:%M:%SZ}"
                values = [f"{rng.gauss(mean, 5):.2f}" for mean in (20, 50, 1013)]
                print(f"station-{sensor:03}", time_text, *values, sep=",", file=file)


def backfill(table: TableName, schema: TableSchema, path: Path) -> None:
    expiry = Expiry.of(schema, tables.describe(table))
    hour, nothing = timedelta(hours=1), timedelta(0)
    maker = EventMaker(FileColumns(), clock_us)
    size = {str(path): path.stat().st_size}
    load(Backfill(size, maker, Target(table, schema), expiry, hour, nothing, nothing, None, str, []), restart=True)


def rows_of(path: Path) -> Iterator[tuple[bytes, _Cells]]:
    """Yields the rows of a loop: each raw row, then those of the hours."""
    hours: dict[tuple[str, int], dict[bytes, list[float]]] = {}
    with path.open(newline="") as file:
        records = csv.reader(file)
        names = [name.encode() for name in next(records)[2:]]
        for sensor, time_text, *texts in records:
            at_ms = int(datetime.fromisoformat(time_text).timestamp() * 1000)
            yield (
                f"{sensor}#{at_ms:013}".encode(),
                [("raw", name, at_ms, text.encode()) for name, text in zip(names, texts, strict=True)],
            )
            of_hour = hours.setdefault((sensor, at_ms // _HOUR_MS), {})
            for name, text in zip(names, texts, strict=True):
                value = float(text)
                stats = of_hour.setdefault(name, [0, 0.0, value, value])
                stats[0] += 1
                stats[1] += value
                stats[2] = min(stats[2], value)
                stats[3] = max(stats[3], value)
    for (sensor, hour), metrics in hours.items():
        cells = []
        for name, (count, total, least, greatest) in metrics.items():
            named = ("count", count), ("sum", total), ("min", least), ("max", greatest), ("avg", total / count)
            cells += [("stats", f"{each}_".encode() + name, hour * _HOUR_MS, repr(of).encode()) for each, of in named]
        yield f"1h#{sensor}#{hour * _HOUR_MS:013}".encode(), cells


def by_client(name: TableName, path: Path) -> None:
    table = bigtable.Client(project=name.project).instance(name.instance).table(name.table)
    batch: list[DirectRow] = []

    def send() -> None:
        assert not any(status.code for status in table.mutate_rows(batch))
        batch.clear()

    for key, cells in rows_of(path):
        row = DirectRow(key)
        for family, column, at_ms, value in cells:
            row.set_cell(family, column, value, datetime.fromtimestamp(at_ms / 1000, UTC))
        batch.append(row)
        if len(batch) == _ROWS_OF_REQUEST:
            send()
    if batch:
        send()


def by_protobuf(name: TableName, path: Path) -> None:
    table = f"projects/{name.project}/instances/{name.instance}/tables/{name.table}"

    def new() -> Any:
        return MutateRowsRequest.pb()(table_name=table)

    with bigtable_client() as client:

        def send(request: Any) -> None:
            for response in client.mutate_rows(MutateRowsRequest.wrap(request)):
                assert not any(entry.status.code for entry in response.entries)

        request = new()
        for key, cells in rows_of(path):
            entry = request.entries.add(row_key=key)
            for family, column, at_ms, value in cells:
                cell = entry.mutations.add().set_cell
                cell.family_name, cell.column_qualifier, cell.timestamp_micros = family, column, at_ms * 1000
                cell.value = value
            if len(request.entries) == _ROWS_OF_REQUEST:
                send(request)
                request = new()
        if request.entries:
            send(request)


def check(name: TableName, path: Path) -> None:
    """Compares every raw row and aggregate with those of a loop over the file, which shares no code with a backfill."""
    expected: dict[bytes, dict[bytes, float]] = {}
    hours: dict[tuple[str, str], dict[str, list[float]]] = {}
    with path.open(newline="") as file:
        for record in csv.DictReader(file):
            sensor, time_text = record.pop("sensor_id"), record.pop("event_time")
            time_us = int(datetime.fromisoformat(time_text).timestamp()) * 1_000_000
            values = {metric: float(text) for metric, text in record.items()}
            key = f"{sensor}#{9_999_999_999_999_999 - time_us}".encode()
            expected[key] = {metric.encode(): value for metric, value in values.items()}
            for metric, value in values.items():
                hours.setdefault((sensor, time_text[:13]), {}).setdefault(metric, []).append(value)
    for (sensor, hour), metrics in hours.items():
        row = expected[f"agg#hourly#{sensor}#{hour}".encode()] = {}
        for metric, of_metric in metrics.items():
            row[b"reading_count"] = len(of_metric)
            named = {
                "count": len(of_metric), "sum": math.fsum(of_metric), "min": min(of_metric), "max": max(of_metric),
                "avg": statistics.fmean(of_metric), "stddev": statistics.pstdev(of_metric),
            }  # fmt: skip
            row |= {f"{each}_{metric}".encode(): value for each, value in named.items()}
    table = bigtable.Client(project=name.project).instance(name.instance).table(name.table)
    for row in table.read_rows():
        if row.row_key.startswith((b"agg#", b"station-")):
            wanted = expected.pop(row.row_key)
            found = {column: float(some[0].value) for columns in row.cells.values() for column, some in columns.items()}
            assert found.keys() == wanted.keys(), row.row_key
            assert all(math.isclose(found[each], wanted[each], abs_tol=1e-7) for each in wanted), row.row_key
    assert not expected, f"{len(expected):,} rows are missing"


def main(sensors: int, rows: int) -> None:
    schema = lasting(TableSchema.default())
    lines = Lines("      way", "µs/row", "of client", "of protobuf", "seconds")
    with tempfile.TemporaryDirectory() as folder:
        whole, half = Path(folder, "whole.csv"), Path(folder, "half.csv")
        write_file(whole, sensors, 0, rows)
        write_file(half, sensors, 0, rows // 2)

        def measured(write: Callable[..., None], *arguments: Any) -> tuple[float, float]:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            write(*arguments, whole)
            return (time.process_time() - cpu_begin) / (sensors * rows) * 1e6, time.perf_counter() - begin

        found = {"client": measured(by_client, created(schema)), "protobuf": measured(by_protobuf, created(schema))}
        table = created(schema)
        found["new"], found["again"] = (measured(backfill, table, schema) for _ in range(2))
        table = created(schema)
        backfill(table, schema, half)
        found["half"] = measured(backfill, table, schema)
        memory = resident_mb()
        check(table, whole)
        for way, (each_us, seconds) in found.items():
            ratios = [f"{found[other][0] / each_us:.2f}" for other in ("client", "protobuf")]
            lines.add(way, f"{each_us:.1f}", *ratios, f"{seconds:.0f}")
    print(f"{memory:,.0f} MB of memory")
    print("The table equals an independent computation.")


if __name__ == "__main__":
    options = arguments(sensors=100, rows=1000)
    with emulators():
        main(options.sensors, options.rows)
