"""``tidetable read``: sensors, readings, aggregates, alerts and roll-ups of a table with any schema."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import click

from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import AskedRange, BeamCommand, Parsed, asked_range_options, limit_option, prefix_option
from pipeline.cli.output import Output, output_option, print_flat
from pipeline.cli.tables import number, print_table, prose, word
from pipeline.core.alerts.alert_rows import FIELDS, firing_now, history
from pipeline.core.answers.enough_data import ANY_DATA, LeastData
from pipeline.core.answers.gaps import Fill
from pipeline.core.answers.points import FROM_READINGS, Points
from pipeline.core.events.file_columns import SENSOR_ID
from pipeline.core.notation.cell_values import rounded
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.text import counted, plain
from pipeline.core.queries.events import Query
from pipeline.core.queries.sweeps import Chosen, is_glob, scanned
from pipeline.core.queries.windows import tier_of
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.rows.records import AggregateRecord, EventBlock, RawRecord
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import qualifier_of
from pipeline.core.windows import Window
from pipeline.reading.options import (
    Metadata,
    OpenTable,
    chosen_sensors,
    chosen_unless_listed,
    fill_option,
    fresh_option,
    least_options,
    many_sensors,
    metadata_of_many,
    metadata_of_one,
    metadata_option,
    metrics_option,
    missing_of,
    no_metadata_option,
    range_options,
    reading_options,
    sensors_argument,
    usage_errors,
    window_option,
)
from pipeline.reading.plot import plot
from pipeline.reading.printing import Printing, format_options
from pipeline.reading.rollups import rollups
from pipeline.reading.views import (
    AGGREGATES,
    LATEST,
    NEVER,
    RAW,
    between,
    missing_before,
    no_aggregates,
    no_readings,
    no_sensors_message,
    print_blocks,
    print_records,
    print_window_blocks,
)

if TYPE_CHECKING:  # --help does not wait for Google's clients
    from pipeline.cloud.reading.reader import SensorTable

_Record = TypeVar("_Record", RawRecord, AggregateRecord, LatestRecord)

_KINDS_OF_COLUMN = {"rule": prose, "value": number, "unit": prose, "severity": prose}
_ALERT_COLUMNS = [_KINDS_OF_COLUMN.get(field, word)(field.replace("_", " ")) for field in FIELDS]


@click.group(cls=ExampleGroup)
def read() -> None:
    """Read a table's sensors, readings, aggregates and roll-ups.

    The commands work with every schema: a table stores its own. They scan bounded key ranges, the whole table only
    for all sensors.

    A time is ISO 8601 (2026-02-17, 2026-02-17T10, 2026-02-17T10:30:00.25+02:00), now, today, yesterday, or a duration
    before now (-90s, -2h, -1d). A date, or a time without an offset, is in the zone of --time-zone, else in that of the
    tier, else in UTC. Without --from and --to, a command reads the last day. In JSON, a statistic that overflowed is
    the string "inf" or "-inf".

    \b
    Exit codes:
      0  success; if nothing was found, a line on standard error reports it
      1  an id, a glob or a prefix is that of no sensor, or a name that of no rule of alerts
         latest found no reading of a sensor, or plot found no data
         foreign rows, which the schema never writes, were left out; standard error names
         the first ones, and all other rows are printed
         the table can't be read: it doesn't exist, stores no schema or one that differs
         from the flags, or the server is unavailable
      2  wrong usage: a range that does not end after it starts, a tier or a roll-up that
         the table lacks, missing metadata that locates a sensor, a file that is not a PNG
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)


read.add_command(plot)
read.add_command(rollups)


@read.command("latest-events")
@sensors_argument
@metrics_option
@metadata_option
@reading_options
@format_options
def latest_events(
    sensors: list[str],
    metrics: tuple[str, ...],
    metadata: Metadata,
    open_table: OpenTable,
    output: Printing,
) -> None:
    """Print the newest event of each SENSOR.

    Reads one row of each sensor in the default schema. With --metric, prints the newest event that has one of these
    metrics. If a sensor has none, standard error reports it and the exit code is 1.
    """
    if globs := [sensor for sensor in sensors if is_glob(sensor)]:
        raise click.UsageError(f"{globs[0]} is a glob; 'tidetable read latest-readings' takes globs")
    with open_table() as table:
        fields = metadata_of_one(table.schema.key, metadata)
        with usage_errors():
            records = table.latest_events(sensors, metrics=metrics or None, metadata=fields)
        seen = _Seen()
        print_records(seen.through(records), RAW, output, several=len(sensors) > 1)
        missing = [sensor for sensor in sensors if sensor not in seen.sensors]
        for sensor in missing:
            click.echo(f"Error: {no_readings(table, sensor, fields, metrics)}", err=True)
    if missing:
        sys.exit(1)


@read.command("latest-readings")
@many_sensors
@click.option(
    "--silent-for",
    type=Parsed("duration", parse_duration),
    help="Print only sensors that have sent nothing for this time, such as 1h, the longest silent first.",
)
@metrics_option
@reading_options
@format_options
def latest_readings(
    sensors: list[str],
    all_sensors: bool,
    prefix: str | None,
    silent_for: timedelta | None,
    metrics: tuple[str, ...],
    open_table: OpenTable,
    output: Printing,
) -> None:
    """Print the newest reading of each metric of each SENSOR.

    A SENSOR may be a glob: * is any text, ? one character. One scan reads all sensors if the schema declares a family
    of latest readings; otherwise, reads each sensor's newest event. --silent-for without a SENSOR reads all sensors.
    """
    everything = all_sensors or (silent_for is not None and not sensors and prefix is None)
    chosen = chosen_sensors(sensors, prefix, all_sensors=everything)
    with open_table() as table, usage_errors():
        # The longest silent of all sensors are first, whatever their prefix.
        starts = [""] if silent_for is not None and len(chosen.prefixes) > 1 else chosen.prefixes
        scans = (table.latest_readings(start, metrics=metrics or None, silent_for=silent_for) for start in starts)
        records = (record for record in chain.from_iterable(scans) if chosen.includes(record.sensor_id))
        print_records(records, LATEST, output, several=True)
        _exit_if_missing(table, chosen)


@read.command(cls=BeamCommand)
@many_sensors
@range_options
@limit_option()
@metrics_option
@metadata_option
@reading_options
@format_options
def events(
    sensors: list[str],
    all_sensors: bool,
    prefix: str | None,
    start_us: int,
    end_us: int,
    limit: int | None,
    metrics: tuple[str, ...],
    metadata: Metadata,
    open_table: OpenTable,
    output: Printing,
) -> None:
    """Print the events of each SENSOR in a time range, newest first.

    Scans only the rows of that range. JSON is printed as it is read, all else once it is complete.

    A SENSOR may be a glob: * is any text, ? one character. With a glob, --all or --prefix, prints the events sensor by
    sensor, in the order of row keys, whatever their number; if row keys begin with the time, by time.

    For fleets that no laptop can read, a job writes them to a bucket or to BigQuery: pass Beam's flags after "--", as
    in … --output gs://… -- --runner=DataflowRunner --region=…
    """
    chosen = chosen_unless_listed(sensors, prefix, all_sensors=all_sensors, by_job=output.beam_flags is not None)
    if output.beam_flags is not None and limit is not None:
        raise click.UsageError("--limit is not for jobs; remove it")
    if chosen is not None:
        with open_table() as table:
            leading = metadata_of_many(table.schema.key, metadata)
            if output.beam_flags is not None:
                _run_job(table, chosen, Query(start_us, end_us, metrics or None, None, leading), None, output)
                return
            if told := scanned(table.schema, leading):
                click.echo(told, err=True)
            with usage_errors():
                blocks = table.events_of(chosen, start_us, end_us, metrics=metrics or None, metadata=leading)
            seen = _Seen()
            print_blocks(seen.through_blocks(blocks, limit), output, metrics)
            if seen.count != limit:
                _report_missing(metrics, seen)
                _exit_if_missing(table, chosen)
                if not seen.count:
                    click.echo(
                        f"no {' or '.join(metrics) or 'readings'} of them{between((start_us, end_us))}", err=True
                    )
        return
    with open_table() as table:
        fields = metadata_of_one(table.schema.key, metadata)
        with usage_errors():
            records = table.events(sensors, start_us, end_us, metrics=metrics or None, limit=limit, metadata=fields)
        seen = _Seen()
        print_records(seen.through(records), RAW, output, several=len(sensors) > 1)
        if seen.count == limit:
            return  # beyond the limit, other sensors or metrics may follow
        lines = [
            no_readings(table, sensor, fields, metrics, (start_us, end_us))
            for sensor in sensors
            if sensor not in seen.sensors
        ]
        _report_missing(metrics, seen)
        _report_absent(lines)


@read.command(cls=BeamCommand)
@many_sensors
@range_options
@window_option
@metrics_option
@fresh_option
@fill_option
@least_options
@no_metadata_option
@reading_options
@format_options
def aggregates(
    sensors: list[str],
    all_sensors: bool,
    prefix: str | None,
    start_us: int,
    end_us: int,
    tier: Window | None,
    metrics: tuple[str, ...],
    fresh: bool,
    fill: str,
    least: LeastData,
    open_table: OpenTable,
    output: Printing,
) -> None:
    """Print the aggregates of each SENSOR for windows that start in a time range, oldest first.

    Scans only the rows of that range. With --fresh, computes windows that are still open from their raw rows. JSON is
    printed as it is read, all else once it is complete.

    A SENSOR may be a glob: * is any text, ? one character. With a glob, --all or --prefix, prints the windows sensor by
    sensor, whatever their number; with Beam's flags after "--", a job does, as for events.
    """
    chosen = chosen_unless_listed(sensors, prefix, all_sensors=all_sensors, by_job=output.beam_flags is not None)
    if output.beam_flags is not None and (fresh or fill != Fill.NONE):
        raise click.UsageError("--fresh and --fill are not for jobs; remove them")
    with open_table() as table:
        read_windows = table.aggregates if chosen is None else table.windows_of
        with usage_errors():
            records = read_windows(
                chosen or sensors,  # type: ignore[arg-type] # each gets what it takes
                start_us,
                end_us,
                tier=tier,
                metrics=metrics or None,
                fill=fill,
                fresh=fresh,
                min_coverage=least.coverage,
                min_count=least.readings,
            )
        if chosen is not None and output.beam_flags is not None:
            query, of_tier = Query(start_us, end_us, metrics or None), tier_of(table.schema, tier)
            _run_job(table, chosen, query, of_tier, output, least)
            if lost := missing_before(records.incomplete_before_us, "windows"):
                click.echo(lost, err=True)
            return
        seen, window, span_us = _Seen(), tier or table.schema.tiers[0].window, (start_us, end_us)
        if chosen is not None and output.in_columns and not (fresh or any(least)) and fill == Fill.NONE:
            blocks = table.window_blocks_of(chosen, start_us, end_us, tier=tier, metrics=metrics or None)
            print_window_blocks(seen.through_blocks(blocks), window, output)
        else:
            print_records(seen.through(records), AGGREGATES, output, several=chosen is not None or len(sensors) > 1)
        what = "aggregates with enough readings" if any(least) else "aggregates"
        absent = [
            no_aggregates(table, sensor, window, metrics, span_us, what)
            for sensor in sensors
            if chosen is None and sensor not in seen.sensors
        ]
        _report_missing(metrics, seen, "windows", "enough readings of " if any(least) else "")
        if lost := missing_before(records.incomplete_before_us, "windows"):
            click.echo(lost, err=True)
        if chosen is None:
            _report_absent(absent, of_metrics=bool(metrics))
            return
        _exit_if_missing(table, chosen)
        if not seen.count:
            click.echo(f"no {what} of them in windows of {window.text} that start{between(span_us)}", err=True)


@read.command("chart-points")
@click.argument("sensor")
@click.option("--metric", required=True, metavar="METRIC", help="The metric.")
@range_options
@click.option(
    "--max-points",
    type=click.IntRange(4, 1_000_000),
    default=4000,
    show_default=True,
    help="Print at most this many points: four for each column of pixels.",
)
@metadata_option
@reading_options
@format_options
def chart_points(
    sensor: str,
    metric: str,
    start_us: int,
    end_us: int,
    max_points: int,
    metadata: Metadata,
    open_table: OpenTable,
    output: Printing,
) -> None:
    """Print the points that a line chart of a metric needs, oldest first.

    They are the first, the last, the least and the greatest reading of each column: a line through them looks like one
    through all readings. Reads aggregate rows if they suffice, and otherwise raw rows. Standard error reports which,
    and whether readings may be missing.
    """
    with open_table() as table, usage_errors():
        fields = metadata_of_one(table.schema.key, metadata)
        found = table.points(sensor, metric, start_us, end_us, max_points, metadata=fields)
        print_records((RawRecord(sensor, time_us, {metric: value}) for time_us, value in found.points), RAW, output)
        click.echo(_about(found), err=True)


def _about(found: Points) -> str:
    lost = missing_before(found.incomplete_before_us, "readings")
    ending = f"; {lost}" if lost else ""
    if not found.points:
        return f"{found.sensor_id} has no {found.metric} in this range{ending}"
    source = "raw rows" if found.source == FROM_READINGS else f"windows of {found.source}"
    nature = "the picture of all readings" if found.exact else "only nearly the picture of all readings"
    rows, columns = counted(found.rows_read, "row"), f"{found.column_us / 1e6:,.6g} s"
    return f"{counted(len(found.points), 'point')} from {source}, {rows} read: {nature} in columns of {columns}{ending}"


@read.command()
@prefix_option
@metadata_option
@reading_options
@output_option
def sensors(prefix: str | None, metadata: Metadata, open_table: OpenTable, output: Output) -> None:
    """Print the ids of the sensors that have readings, one per line, in row key order.

    Costs one seek per sensor, however many rows it has. If row keys begin with the time, prints the sensors that have
    aggregates.
    """
    with open_table() as table:
        fields = metadata_of_many(table.schema.key, metadata)
        with usage_errors():
            sensor_ids = iter(table.sensors(prefix or "", fields))
        first = list(islice(sensor_ids, 1))
        found = chain(first, sensor_ids)
        if output == Output.TABLE:
            for sensor_id in found:
                click.echo(plain(sensor_id))
        else:
            print_flat(({SENSOR_ID: sensor_id} for sensor_id in found), [SENSOR_ID], output)
        if not first:
            click.echo(no_sensors_message(table, prefix or "", fields), err=True)


@read.command()
@click.option("--rule", metavar="NAME", help="Only alerts of this rule.")
@prefix_option
@asked_range_options
@reading_options
@output_option
def alerts(rule: str | None, prefix: str | None, asked: AskedRange, open_table: OpenTable, output: Output) -> None:
    """Print the alerts that fire now, or with --from what fired and resolved in a time range, oldest first.

    Reads the rows of alerts alone. A job with --alerts-topic writes them, by the rules that tidetable alerts stores.
    A value has the unit that the schema declares for the rule's metric.
    """
    from pipeline.cloud.reading.alert_reader import AlertReader  # slow to import

    start_us, end_us = asked.us()
    if start_us is None and end_us is not None:
        raise click.UsageError("--to needs --from")
    with open_table() as table:
        reader = AlertReader(table)
        try:
            records = reader.records(rule, lately=start_us is None)
        except ValueError as problem:
            raise click.ClickException(plain(str(problem))) from problem
        if start_us is None:
            found = list(firing_now(records, prefix or "", reader.units))
        else:
            end_us = time.time_ns() // 1000 if end_us is None else end_us
            if end_us <= start_us:
                raise click.UsageError("--to is not after --from")
            found = history(records, start_us, end_us, prefix or "", reader.units)
    if output != Output.TABLE:
        print_flat(found, FIELDS, output)
    elif found:
        shown = [
            each | {"value": "" if each["value"] is None else rounded(float(each["value"])), "unit": each["unit"] or ""}
            for each in found
        ]
        print_table(_ALERT_COLUMNS, ([each[field] for field in FIELDS] for each in shown))
    if not found:
        click.echo("no alert fires" if start_us is None else "no alert fired or resolved in this time", err=True)


@dataclass
class _Seen:
    """Counts the records that pass through, and collects their sensors and metrics."""

    count: int = 0
    sensors: set[str] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)

    def through(self, records: Iterable[_Record]) -> Iterator[_Record]:
        for record in records:
            if isinstance(record, AggregateRecord) and record.filled:
                yield record
                continue
            self.count += 1
            self.sensors.add(record.sensor_id)
            self.metrics.update(record.metrics if isinstance(record, AggregateRecord) else record.readings)
            yield record

    def through_blocks(self, blocks: Iterable[EventBlock], limit: int | None = None) -> Iterator[EventBlock]:
        """Yields the first events of blocks, at most ``limit``; or windows, whose columns count as metrics."""
        for block in blocks:
            left = len(block) if limit is None else limit - self.count
            self.count += min(left, len(block))
            self.metrics.update(block.readings)
            yield block if left >= len(block) else block.first(left)
            if self.count == limit:
                return


def _run_job(
    table: "SensorTable",
    chosen: Chosen,
    query: Query,
    tier: Tier | None,
    output: Printing,
    least: LeastData = ANY_DATA,
) -> None:
    """Exports by a job of Beam's, unless an id or a glob chooses no sensor. Exits with 1 if rows were left out."""
    from pipeline.job.flags import BadFlag  # slow to import, as the next
    from pipeline.reading import batch

    _exit_if_missing(table, chosen, tier)
    try:
        written, foreign, where = batch.run(
            batch.Export(table.rows.name, table.schema, chosen, query, tier, output, least)
        )
    except BadFlag as problem:
        raise click.UsageError(str(problem)) from problem
    what = counted(written, "event" if tier is None else "window")
    click.echo(f"{what} written to {output.out} by a job {where}", err=True)
    if foreign:
        click.echo(f"{counted(foreign, 'foreign row')} left out; 'tidetable repair --dry-run' names them", err=True)
        sys.exit(1)


def _exit_if_missing(table: "SensorTable", chosen: Chosen, tier: Tier | None = None) -> None:
    """Exits with 1 if an id or a glob chose no sensor of the table, nor of the tier."""
    if missing := missing_of(table, chosen, tier):
        which = "" if missing == ["*"] else f" is {plain(' or '.join(missing))}"
        click.echo(f"Error: no sensor of table {table.rows.name}{which or ' has readings'}", err=True)
        sys.exit(1)


def _report_absent(lines: Iterable[str], *, of_metrics: bool = False) -> None:
    """Prints why there are no records. Exits with 1 if a sensor has none at any time, not only none of some metrics."""
    never = False
    for line in lines:
        click.echo(line, err=True)
        never = never or line.endswith(NEVER)
    if never and not of_metrics:
        sys.exit(1)


def _report_missing(metrics: tuple[str, ...], seen: _Seen, what: str = "events", of: str = "") -> None:
    for metric in metrics:
        if seen.count and not {metric, qualifier_of("count", metric)} & seen.metrics:
            click.echo(f"none of these {what} has {of}{metric}", err=True)
