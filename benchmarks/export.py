"""Prints the CPU time of an exported row: events and windows of three metrics, to Parquet.

The command runs in this process, as users run it, and the built-in emulator in another. The figures are of this
process, and the best of several rounds. ``declared`` has windows with p95, first and last in place of the usual six
statistics, from which roll-ups and longer windows are computed.
"""

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from benchmarks.measuring import METRICS, Lines, arguments
from pipeline.cli.root import main as command
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member
from pipeline.core.windows import HOURLY
from pipeline.local.emulators import BIGTABLE, running_emulators
from tests.support.groups import MIDNIGHT
from tests.support.tables import created

MINUTE, SENSORS = 60_000_000, 25
EVENTS, WINDOWS = 30 * 24 * 6, 30 * 24  # of each sensor: a month of ten-minute values, and of hours
GOALS = {"events": 8, "windows": 40}
DECLARED = """
[tiers]
1h = "stats"
1d = "days"
[statistics]
"*" = ["p95", "first", "last"]
[rollups]
site = { by = ["metadata.site"] }
"""


def readings(n: int) -> dict[str, float]:
    return {name: round(20 + number + n % 977 / 97, 2) for number, name in enumerate(METRICS)}


def events() -> Iterator[Event]:
    for number in range(SENSORS):
        for n in range(EVENTS):
            yield Event(f"sensor-{number:03}", MIDNIGHT + n * 10 * MINUTE, readings(n + number), {})


def windows(schema: TableSchema) -> Iterator[Row]:
    tier = schema.tiers[0]
    for number in range(SENSORS):
        for hour in range(WINDOWS):
            start_us = MIDNIGHT + hour * HOURLY.length_us
            times_us = [start_us + n * 10 * MINUTE for n in range(6)]
            of_metrics = [readings(number + hour + n) for n in range(6)]
            columns = {metric: [each[metric] for each in of_metrics] for metric in METRICS}
            stats = schema.statistics.stats_of(times_us, columns)
            if schema.rollups:
                stats.member = Member(times_us[-1], '{"site":"north"}')
            yield aggregate_row(tier.window, f"sensor-{number:03}", start_us, stats, tier.family, schema.statistics)


def filled(schema: TableSchema) -> TableName:
    """Returns a table with the rows."""
    name = created(schema)
    with BulkWriter.open(name) as writer:
        writer.add_encoded(schema.encoded_rows(list(events())))
        for row in windows(schema):
            writer.add(row)
        assert not writer.finish()
    return name


def exported(name: TableName, what: str, rounds: int) -> list[float]:
    """Returns the CPU seconds of exports, the first of which warms up."""
    end = format_time(MIDNIGHT + WINDOWS * HOURLY.length_us)
    table = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    found = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "all.parquet"))
        for _ in range(rounds + 1):
            began = time.process_time()
            options = ["--all", "--from", format_time(MIDNIGHT), "--to", end, "--output", out]
            result = CliRunner().invoke(command, ["read", what, *table, *options])
            found.append(time.process_time() - began)
            assert result.exit_code == 0, result.output
    return found[1:]


def main(rounds: int) -> None:
    lines = Lines("               what", "   rows", "µs a row", "goal")
    for of, schema in {"": TableSchema.default(), ", declared": parse_schema(DECLARED)}.items():
        name = filled(schema)
        for what, rows in {"events": SENSORS * EVENTS, "windows": SENSORS * WINDOWS}.items():
            seconds = min(exported(name, {"events": "events", "windows": "aggregates"}[what], rounds))
            lines.add(what + of, f"{rows:,}", f"{seconds / rows * 1e6:.1f}", GOALS[what])


if __name__ == "__main__":
    given = arguments(rounds=3)
    gc.set_threshold(50_000)  # as the script sets it
    with running_emulators(embedded=True) as environment:
        os.environ[BIGTABLE.variable] = environment[BIGTABLE.variable]
        main(given.rounds)
