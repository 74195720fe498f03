"""``tidetable read``: sensors, readings and aggregates of a table, whatever its schema."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import click

from pipeline.cli.console import print_json_line
from pipeline.core.records import RawRecord
from pipeline.core.text import plain
from pipeline.core.windows import HOURLY, Window
from pipeline.reading.absences import no_aggregates, no_readings, no_readings_of_many, no_sensors_message
from pipeline.reading.options import (
    WINDOW,
    Metadata,
    OpenTable,
    limit_of_many_option,
    limit_option,
    metadata_of_many,
    metadata_of_one,
    metadata_option,
    metrics_option,
    no_metadata_option,
    range_options,
    reading_options,
    sensors_argument,
    usage_errors,
)
from pipeline.reading.plot import plot
from pipeline.reading.views import AGGREGATES, RAW, Record, print_records


@click.group()
def read() -> None:
    """Read the sensors of a table, their readings and their aggregates.

    Every command works on every schema, which the table says itself. Every command scans bounded ranges of keys and
    never the whole table.

    Times are ISO 8601, UTC where they have no offset: 2026-02-17, 2026-02-17T10, 2026-02-17T10:30:00.25Z. In JSON a
    statistic that overflowed is the string "inf", or "-inf".

    Exit codes: 0 also where a range holds nothing, or nothing of a sensor or metric, which a line on standard error
    tells; 1 where latest finds no reading of a sensor, where rows were left out that somebody else wrote and the schema
    never does (standard error names the first of them; all others are printed), or where the table cannot be read: it
    is missing, does not say its schema or says another than the flags, or the server is away; 2 for wrong usage: a
    range that does not end after it starts, a tier that the table does not have, metadata that is needed to find a
    sensor, a file that is no PNG.
    """


read.add_command(plot)


@read.command()
@sensors_argument
@metrics_option
@metadata_option
@reading_options
def latest(
    sensors: tuple[str, ...], metrics: tuple[str, ...], metadata: Metadata, open_table: OpenTable, as_json: bool
) -> None:
    """Print the newest event of each SENSOR. Reads one row of each in the default schema.

    With --metric, it is the newest that has one of these readings. A sensor that has none is told on standard error,
    with exit code 1.
    """
    listed = list(dict.fromkeys(sensors))
    with open_table() as table:
        known = metadata_of_one(table.schema.key, metadata)
        with usage_errors():
            records = table.latest(listed, metrics=metrics or None, metadata=known)
        seen = _Seen()
        print_records(seen.through(records), RAW, as_json=as_json, several=len(listed) > 1)
        missing = [sensor for sensor in listed if sensor not in seen.sensors]
        for sensor in missing:
            click.echo(f"Error: {no_readings(table, sensor, known, metrics)}", err=True)
    if missing:
        sys.exit(1)


@read.command("range")
@sensors_argument
@range_options
@limit_option
@metrics_option
@metadata_option
@reading_options
def range_(
    sensors: tuple[str, ...],
    start_us: int,
    end_us: int,
    limit: int | None,
    metrics: tuple[str, ...],
    metadata: Metadata,
    open_table: OpenTable,
    as_json: bool,
) -> None:
    """Print the events of each SENSOR in a range of time, newest first.

    Scans the rows of that range alone. JSON is printed as it is read, a table once all of it is there.
    """
    listed = list(dict.fromkeys(sensors))
    with open_table() as table:
        known = metadata_of_one(table.schema.key, metadata)
        with usage_errors():
            records = table.range(_of(listed), start_us, end_us, metrics=metrics or None, limit=limit, metadata=known)
        seen = _Seen()
        print_records(seen.through(records), RAW, as_json=as_json, several=len(listed) > 1)
        if seen.count == limit:
            return  # of what would have come behind the limit nothing is known
        for sensor in listed:
            if sensor not in seen.sensors:
                click.echo(no_readings(table, sensor, known, metrics, (start_us, end_us)), err=True)
        _tell_missing(metrics, seen)


@read.command()
@range_options
@click.option("--sensors", default="", metavar="PREFIX", help="What the sensors' ids begin with, such as balloon-.")
@limit_of_many_option
@metrics_option
@metadata_option
@reading_options
def prefix(
    start_us: int,
    end_us: int,
    sensors: str,
    limit: int | None,
    metrics: tuple[str, ...],
    metadata: Metadata,
    open_table: OpenTable,
    as_json: bool,
) -> None:
    """Print the events of many sensors side by side: of a location, or those whose ids begin alike.

    One scan over all times of these sensors, of which those of the range are printed, sensor by sensor, newest first.
    For tables whose row keys begin with the sensor, or with metadata and then the sensor; JSON is printed as it is
    read, a table once all of it is there.
    """
    if not sensors and not metadata:
        raise click.UsageError(
            "say which sensors: --sensors balloon-, or --metadata location=us-west2 where row keys begin with it"
        )
    with open_table() as table:
        known = metadata_of_many(table.schema.key, metadata, all_of_it=True)
        with usage_errors():
            records = table.prefix(
                start_us, end_us, sensors=sensors, metrics=metrics or None, limit=limit, metadata=known
            )
        seen = _Seen()
        print_records(seen.through(records), RAW, as_json=as_json, several=True)
        if not seen.count:
            click.echo(no_readings_of_many(table, sensors, known, metrics, (start_us, end_us)), err=True)
        elif seen.count != limit:
            _tell_missing(metrics, seen)


@read.command()
@sensors_argument
@range_options
@click.option("--tier", type=WINDOW, help="The length of the windows; by default the shortest that the table has.")
@no_metadata_option
@reading_options
def aggregates(
    sensors: tuple[str, ...], start_us: int, end_us: int, tier: Window | None, open_table: OpenTable, as_json: bool
) -> None:
    """Print the aggregates of each SENSOR whose windows start in a range of time, oldest first.

    Scans the rows of that range alone. JSON is printed as it is read, a table once all of it is there.
    """
    _print_aggregates(list(dict.fromkeys(sensors)), start_us, end_us, tier, open_table, as_json)


@read.command()
@click.argument("sensor")
@range_options
@click.option(
    "--window",
    type=WINDOW,
    default=HOURLY.text,
    show_default=True,
    help="The length of the windows, written as the pipeline's --window was.",
)
@no_metadata_option
@reading_options
def hourly(sensor: str, start_us: int, end_us: int, window: Window, open_table: OpenTable, as_json: bool) -> None:
    """Print the aggregates of SENSOR by the hour, whose windows start in a range of time, oldest first.

    Scans the rows of that range alone. JSON is printed as it is read, a table once all of it is there.
    """
    _print_aggregates([sensor], start_us, end_us, window, open_table, as_json)


@read.command()
@click.option("--prefix", default="", help="Only those whose ids begin so.")
@metadata_option
@reading_options
def sensors(prefix: str, metadata: Metadata, open_table: OpenTable, as_json: bool) -> None:
    """Print the sensors that have readings, one a line, in the order of row keys.

    Costs one seek a sensor, however many rows each of them has. Where row keys begin with the time, it prints those
    that have aggregates.
    """
    found = False
    with open_table() as table:
        known = metadata_of_many(table.schema.key, metadata, all_of_it=False)
        with usage_errors():
            sensor_ids = table.sensors(prefix, known)
        for sensor_id in sensor_ids:
            found = True
            if as_json:
                print_json_line({"sensor_id": sensor_id})
            else:
                click.echo(plain(sensor_id))
        if not found:
            click.echo(no_sensors_message(table, prefix, known), err=True)


def _print_aggregates(
    sensors: list[str], start_us: int, end_us: int, tier: Window | None, open_table: OpenTable, as_json: bool
) -> None:
    with open_table() as table:
        with usage_errors():
            records = table.aggregates(_of(sensors), start_us, end_us, tier=tier)
        seen = _Seen()
        print_records(seen.through(records), AGGREGATES, as_json=as_json, several=len(sensors) > 1)
        window = tier or table.schema.tiers[0].window
        for sensor in sensors:
            if sensor not in seen.sensors:
                click.echo(no_aggregates(table, sensor, window, (start_us, end_us)), err=True)


@dataclass
class _Seen:
    """What was among the records that came through."""

    count: int = 0
    sensors: set[str] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self.count += 1
            self.sensors.add(record.sensor_id)
            self.metrics.update(record.readings if isinstance(record, RawRecord) else record.metrics)
            yield record


def _of(sensors: list[str]) -> str | list[str]:
    """One sensor as itself: it is read page by page, and nothing of it ahead."""
    return sensors[0] if len(sensors) == 1 else sensors


def _tell_missing(metrics: tuple[str, ...], seen: _Seen) -> None:
    for metric in metrics:
        if seen.count and metric not in seen.metrics:
            click.echo(f"none of these events has {metric}", err=True)
