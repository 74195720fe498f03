"""``tidetable read``: sensors, readings and aggregates, as tables for people or as lines of JSON."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from pipeline.cloud.names import TableName
from pipeline.cloud.reader import DEFAULT_FAMILIES, AggregateRecord, RawRecord, SensorTable
from pipeline.core.rows import STATISTICS, Families, format_value
from pipeline.core.times import format_time, parse_time
from pipeline.core.windows import HOURLY, Window
from pipeline.toolbox.console import out, print_json_line
from pipeline.toolbox.options import Parsed, family_options, table_options

Record = TypeVar("Record")

# For what is piped: a line is as long as it needs to be, and nothing is folded.
_UNBOUNDED = Console(width=1_000_000, highlight=False, emoji=False)


TIME = Parsed("time", parse_time)
from_option = click.option("--from", "start_us", type=TIME, required=True, help="The start of the range, inclusive.")
to_option = click.option("--to", "end_us", type=TIME, required=True, help="Its end, exclusive.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each record.")


@click.group()
def read() -> None:
    """Read the sensors of a table, their readings and their aggregates.

    Every command scans a bounded range of keys and never the whole table.

    Times are ISO 8601, UTC where they have no offset: 2026-02-17, 2026-02-17T10, 2026-02-17T10:30:00.25Z. In JSON a
    statistic that overflowed is the string "inf", or "-inf".

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
    with _opened(table, families) as opened:
        with _usage_errors():
            record = opened.latest(sensor)
        if record is None:
            raise click.ClickException(f"no readings of {sensor}")
        _print(iter([record]), RAW, as_json)


@read.command("range")
@click.argument("sensor")
@from_option
@to_option
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
    with _opened(table, families) as opened:
        with _usage_errors():
            records = opened.range(sensor, start_us, end_us, limit)
        if not _print(records, RAW, as_json):
            click.echo(f"no readings of {sensor} {_between(start_us, end_us)}", err=True)


@read.command()
@click.argument("sensor")
@from_option
@to_option
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
    with _opened(table, families) as opened:
        with _usage_errors():
            records = opened.aggregates(sensor, start_us, end_us, window)
        if not _print(records, AGGREGATES, as_json):
            between = _between(start_us, end_us)
            click.echo(f"no aggregates of {sensor} in windows of {window.text} that start {between}", err=True)


@read.command()
@table_options
@json_option
def sensors(table: TableName, as_json: bool) -> None:
    """Print the sensors that have readings, one a line.

    Costs one seek a sensor, however many rows each of them has.
    """
    found = False
    with _opened(table) as opened:
        for sensor_id in opened.sensors():
            found = True
            if as_json:
                print_json_line({"sensor_id": sensor_id})
            else:
                click.echo(sensor_id)
    if not found:
        click.echo(f"no sensors in table {table}", err=True)


def _opened(table: TableName, families: Families = DEFAULT_FAMILIES) -> AbstractContextManager[SensorTable]:
    return SensorTable.open(table.project, table.instance, table.table, families)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _between(start_us: int, end_us: int) -> str:
    return f"between {format_time(start_us)} and {format_time(end_us)}"


# Printing


@dataclass(frozen=True)
class View(Generic[Record]):
    """How records of one kind are shown."""

    json: Callable[[Record], dict[str, Any]]
    table: Callable[[Sequence[Record]], Table]
    lines: Callable[[Record], tuple[str, dict[str, Text]]]  # a heading and named lines: where a table is too wide


def _print(records: Iterator[Record], view: View[Record], as_json: bool) -> bool:
    """Prints the records as they are wanted. False where there are none."""
    first = next(records, None)
    if first is None:
        return False
    if as_json:
        for record in chain([first], records):
            print_json_line(view.json(record))
    else:
        _print_table([first, *records], view)
    return True


def _print_table(records: Sequence[Record], view: View[Record]) -> None:
    """Prints a table; where a terminal is too narrow for one, a block a record, so that no number is ever folded."""
    console = out if out.is_terminal else _UNBOUNDED
    table = view.table(records)
    if Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).minimum <= console.width:
        console.print(table)
        return
    for record in records:
        heading, lines = view.lines(record)
        grid = Table.grid("name", Column(overflow="fold"), padding=(0, 2))
        for name, line in lines.items():
            grid.add_row(name, line)
        console.print(Text(heading, style="bold"), Padding(grid, (0, 0, 1, 2), expand=False))


def _raw_json(record: RawRecord) -> dict[str, Any]:
    return {
        "sensor_id": record.sensor_id,
        "event_time": format_time(record.event_time_us),
        "readings": record.readings,
        "metadata": record.metadata,
    }


def _raw_table(records: Sequence[RawRecord]) -> Table:
    metrics = sorted({metric for record in records for metric in record.readings})
    table = _table(_word("event time"), *map(_number, metrics), Column("metadata"))
    for record in records:
        values = (_text(record.readings[metric]) if metric in record.readings else "" for metric in metrics)
        table.add_row(format_time(record.event_time_us), *values, _joined(record.metadata))
    return table


def _raw_lines(record: RawRecord) -> tuple[str, dict[str, Text]]:
    readings = {metric: _text(value) for metric, value in record.readings.items()}
    lines = {"readings": _joined(readings), "metadata": _joined(record.metadata)}
    return format_time(record.event_time_us), {name: line for name, line in lines.items() if line}


def _aggregate_json(record: AggregateRecord) -> dict[str, Any]:
    return {
        "sensor_id": record.sensor_id,
        "window_start": format_time(record.start_us),
        "window": record.window.text,
        "reading_count": record.reading_count,
        "metrics": {
            metric: {statistic: _json_number(value) for statistic, value in asdict(summary).items()}
            for metric, summary in record.metrics.items()
        },
    }


def _aggregate_table(records: Sequence[AggregateRecord]) -> Table:
    table = _table(_word("window start"), _number("events"), _word("metric"), *map(_number, STATISTICS))
    for record in records:
        for metric, summary in record.metrics.items():
            values = map(_text, asdict(summary).values())
            table.add_row(format_time(record.start_us), str(record.reading_count), metric, *values)
    return table


def _aggregate_lines(record: AggregateRecord) -> tuple[str, dict[str, Text]]:
    lines = {
        metric: _joined({name: _text(x) for name, x in asdict(summary).items()})
        for metric, summary in record.metrics.items()
    }
    return f"{format_time(record.start_us)}, {record.reading_count} events", lines


RAW = View(_raw_json, _raw_table, _raw_lines)
AGGREGATES = View(_aggregate_json, _aggregate_table, _aggregate_lines)


def _table(*columns: Column) -> Table:
    return Table(*columns, box=box.SIMPLE, pad_edge=False, collapse_padding=True)


def _word(header: str) -> Column:
    return Column(header, no_wrap=True)


def _number(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)


def _text(value: float) -> str:
    return format_value(value).decode()


def _joined(pairs: Mapping[str, str]) -> Text:
    """``name=value, …``; a value with a comma, or with what does not print, is quoted as Python quotes it."""
    shown = {name: value if value.isprintable() and "," not in value else repr(value) for name, value in pairs.items()}
    return Text(", ".join(f"{name}={value}" for name, value in shown.items()))


def _json_number(value: float) -> float | str:
    """JSON has no infinity: an overflow is the text that its cell has."""
    return value if math.isfinite(value) else _text(value)
