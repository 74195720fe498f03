"""``tidetable read``: sensors, readings and aggregates, as tables for people or as lines of JSON."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.cloud.reader import AggregateRecord, RawRecord, SensorTable
from pipeline.cloud.tables import TableName
from pipeline.core.rows import STATISTICS, Families, format_value
from pipeline.core.times import format_time, parse_time
from pipeline.core.windows import HOURLY, Window
from pipeline.toolbox.console import out, print_json_line
from pipeline.toolbox.options import Command, family_options, table_options

Record = TypeVar("Record")

# For what is piped: a line is as long as it needs to be, and nothing is folded.
_UNBOUNDED = Console(width=1_000_000, highlight=False)


class Parsed(click.ParamType):
    """A text that a function reads, with a ValueError that says what is wrong with it."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def time_options(command: Command) -> Command:
    """Adds ``--from`` and ``--to``; the command is given ``start_us`` and ``end_us``."""
    time = Parsed("time", parse_time)
    command = click.option("--to", "end_us", type=time, required=True, help="The end of the range, exclusive.")(command)
    return click.option("--from", "start_us", type=time, required=True, help="Its start, inclusive.")(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each record.")


@click.group()
def read() -> None:
    """Read the sensors of a table, their readings and their aggregates.

    Every command scans a bounded range of keys and never the whole table.

    Times are ISO 8601, UTC where they have no offset: 2026-02-17, 2026-02-17T10, 2026-02-17T10:30:00.25Z. In JSON a
    sum that overflowed is the string "Infinity" or "-Infinity", as protobuf's JSON has it.

    Exit codes: 0 also where a range holds nothing, which a line on standard error tells; 1 where latest finds no
    reading, or the table cannot be read; 2 for wrong usage.
    """


@read.command()
@click.argument("sensor")
@table_options
@family_options
@json_option
def latest(sensor: str, table: TableName, families: Families, as_json: bool) -> None:
    """Print the newest readings of SENSOR. Reads one row.

    A sensor that has none is told on standard error, with exit code 1.
    """
    with _opened(table, families) as sensors:
        with _usage_errors():
            record = sensors.latest(sensor)
        if record is None:
            raise click.ClickException(f"no readings of {sensor}")
        _print(iter([record]), RAW, as_json)


@read.command("range")
@click.argument("sensor")
@time_options
@click.option("--limit", type=click.IntRange(min=1), help="Print no more than this many, the newest.")
@table_options
@family_options
@json_option
def range_(
    sensor: str, start_us: int, end_us: int, limit: int | None, table: TableName, families: Families, as_json: bool
) -> None:
    """Print the readings of SENSOR in a range of time, newest first.

    Scans the rows of that range alone. JSON is printed as it is read, a table once all of it is there.
    """
    with _opened(table, families) as sensors:
        with _usage_errors():
            records = sensors.range(sensor, start_us, end_us, limit)
        if not _print(records, RAW, as_json):
            _tell(f"no readings of {sensor} between {format_time(start_us)} and {format_time(end_us)}")


@read.command()
@click.argument("sensor")
@time_options
@click.option(
    "--window",
    type=Parsed("window", Window.parse),
    default=HOURLY.text,
    show_default=True,
    help="The length of the windows, written as the pipeline's --window was.",
)
@table_options
@family_options
@json_option
def hourly(
    sensor: str, start_us: int, end_us: int, window: Window, table: TableName, families: Families, as_json: bool
) -> None:
    """Print the aggregates of SENSOR whose windows start in a range of time, oldest first.

    Scans the rows of that range alone. JSON is printed as it is read, a table once all of it is there.
    """
    with _opened(table, families) as sensors:
        with _usage_errors():
            records = sensors.aggregates(sensor, start_us, end_us, window)
        if not _print(records, AGGREGATES, as_json):
            between = f"between {format_time(start_us)} and {format_time(end_us)}"
            _tell(f"no aggregates of {sensor} over windows of {window.text} that start {between}")


@read.command()
@table_options
@json_option
def sensors(table: TableName, as_json: bool) -> None:
    """Print the sensors that have readings, one a line.

    Costs one seek a sensor, however many rows each has.
    """
    with _opened(table, Families()) as sensors:
        found = False
        for found, sensor_id in enumerate(sensors.sensors(), start=1):
            print_json_line({"sensor_id": sensor_id}) if as_json else click.echo(sensor_id)
    if not found:
        _tell(f"no sensors in table {table}")
