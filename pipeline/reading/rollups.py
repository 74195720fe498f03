"""``tidetable read rollups``: the roll-ups of a table, their groups, and the windows and sensors of a group."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipeline.cli.options import COUNT, AskedRange, asked_range_options, prefix_option
from pipeline.cli.output import Output, print_flat
from pipeline.cli.tables import print_table, prose, word
from pipeline.core.answers.gaps import Fill
from pipeline.core.answers.record_json import rollup_json
from pipeline.core.events.file_columns import SENSOR_ID
from pipeline.core.notation.text import joined, plain
from pipeline.core.notation.times import format_time
from pipeline.core.queries.sweeps import Chosen, is_glob
from pipeline.core.queries.windows import group_named, rollup_of, tier_of_rollup
from pipeline.core.schema.rollup import Rollup
from pipeline.core.windows import Window
from pipeline.reading.options import (
    OpenTable,
    all_option,
    fill_option,
    last_day,
    metrics_option,
    reading_options,
    usage_errors,
    window_option,
)
from pipeline.reading.printing import Printing, format_options
from pipeline.reading.views import GROUPS, missing_before, print_records

if TYPE_CHECKING:  # --help does not wait for Google's clients
    from pipeline.cloud.reading.reader import SensorTable

_COLUMNS = "rollup", "by", "tiers", "metrics"


@click.command()
@click.argument("name", required=False)
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@asked_range_options
@window_option
@metrics_option
@click.option("--top", type=COUNT, help="Print at most this many groups, the first by --by.")
@click.option(
    "--by",
    metavar="COLUMN",
    help="Rank the groups, the greatest first, by a statistic of a metric such as avg_temperature, by sensors, or by "
    "reading_count.",
)
@all_option
@prefix_option
@click.option("--sensors", is_flag=True, help="Print the ids of the group's sensors in its last window before --to.")
@fill_option
@reading_options
@format_options
def rollups(
    name: str | None,
    values: tuple[str, ...],
    asked: AskedRange,
    tier: Window | None,
    metrics: tuple[str, ...],
    top: int | None,
    by: str | None,
    all_sensors: bool,
    prefix: str | None,
    sensors: bool,
    fill: str,
    open_table: OpenTable,
    output: Printing,
) -> None:
    """Print the windows of a group of sensors, the groups of the roll-up NAME, or the roll-ups of the table.

    Each VALUE is that of one of the roll-up's fields: read rollups site north. A roll-up of all sensors has one group,
    and takes no value. Windows are printed oldest first, each with the number of sensors that contributed. A VALUE may
    be a glob (* is any text, ? one character): with a glob, --all or --prefix, prints the windows of all such groups.

    Without a VALUE, prints the groups: those of the newest window before --to, or with --from what their windows in the
    range amount to. The windows of a group are by default
    those of a day. An average is that of all readings, not one of averages. With --by, they are ranked.
    """
    many = all_sensors or prefix is not None or any(map(is_glob, values))
    if all_sensors + (prefix is not None) + bool(values) > 1:
        raise click.UsageError("pass either values, or --prefix, or --all")
    ranking = top is not None or by is not None
    if top is not None and by is None:
        raise click.UsageError("--top needs --by, such as --by avg_temperature")
    if name is None and (ranking or sensors):
        raise click.UsageError(f"name the roll-up whose {'sensors' if sensors else 'groups'} to print")
    if many and (name is None or ranking or sensors or fill != Fill.NONE):
        raise click.UsageError(
            "globs, --prefix and --all print windows: name a roll-up, without --by, --sensors or --fill"
        )
    if ranking and (sensors or values):
        raise click.UsageError("--by ranks all groups of a roll-up; remove --sensors and the values")
    if sensors and metrics:
        raise click.UsageError("--sensors prints ids; remove --metric")
    with open_table() as table, usage_errors():
        if name is None:
            _print_rollups(table, output)
            return
        rollup = rollup_of(table.schema, name)
        start_us, end_us = asked.us(tier_of_rollup(table.schema, rollup, tier).window)
        if sensors:
            _print_sensors(table, rollup, values, end_us, tier, output)
        elif many:
            choices = [Chosen([value]) for value in values] or [Chosen(prefix=prefix or "")]
            _print_chosen(table, rollup, choices, (start_us, end_us), tier, metrics, output)
        elif ranking or (rollup.by and not values):
            if fill != Fill.NONE:
                raise ValueError("--fill is for the windows of one group; remove it, or name the group")
            _print_groups(table, rollup, (start_us, end_us), tier, metrics, by, top, output)
        else:
            _print_windows(table, rollup, values, (start_us, end_us), tier, metrics, fill, output)


def _print_rollups(table: "SensorTable", output: Printing) -> None:
    found = [rollup_json(table.schema, rollup) for rollup in table.schema.rollups]
    if output.output != Output.TABLE:
        print_flat(found, _COLUMNS, output.output)
    elif found:
        rows = ([str(each["rollup"]), *(", ".join(each[column]) for column in _COLUMNS[1:])] for each in found)
        print_table([word(_COLUMNS[0]), *map(prose, _COLUMNS[1:])], rows)
    if not found:
        click.echo("the table has no roll-ups; declare them in its schema's [rollups]", err=True)


def _print_windows(
    table: "SensorTable",
    rollup: Rollup,
    values: Sequence[str],
    span_us: tuple[int | None, int | None],
    tier: Window | None,
    metrics: tuple[str, ...],
    fill: str,
    output: Printing,
) -> None:
    start_us, end_us = last_day(*span_us)
    records = table.rollups(rollup.name, values, start_us, end_us, tier=tier, metrics=metrics or None, fill=fill)
    found = list(records)
    print_records(found, GROUPS, table.schema, output)
    if all(record.filled for record in found):
        group = group_named(rollup, values)
        what = f"{' or '.join(metrics)} of " if metrics else ""
        where = f"{plain(joined(group.fields) or group.text)} in the roll-up {rollup.name}"
        others = "" if metrics or not rollup.by else f"; 'tidetable read rollups {rollup.name}' prints its groups"
        click.echo(f"no windows of {what}{where}{_between(start_us, end_us)}{others}", err=True)
    if lost := missing_before(records.incomplete_before_us, "windows"):
        click.echo(lost, err=True)


def _print_chosen(
    table: "SensorTable",
    rollup: Rollup,
    choices: Sequence[Chosen],
    span_us: tuple[int | None, int | None],
    tier: Window | None,
    metrics: tuple[str, ...],
    output: Printing,
) -> None:
    if len(choices) > len(rollup.by) > 0:
        group_named(rollup, [""] * len(choices))  # raises
    start_us, end_us = last_day(*span_us)
    records = table.rollups_of(rollup.name, choices, start_us, end_us, tier=tier, metrics=metrics or None)
    print_records(records, GROUPS, table.schema, output, several=True)
    if lost := missing_before(records.incomplete_before_us, "windows"):
        click.echo(lost, err=True)
    if missing := [text for chosen in choices if rollup.by for text in chosen.missing]:
        click.echo(f"Error: no group of the roll-up {rollup.name} has {plain(' or '.join(missing))}", err=True)
        sys.exit(1)


def _print_groups(
    table: "SensorTable",
    rollup: Rollup,
    span_us: tuple[int | None, int | None],
    tier: Window | None,
    metrics: tuple[str, ...],
    by: str | None,
    top: int | None,
    output: Printing,
) -> None:
    start_us, end_us = span_us
    if start_us is not None:
        start_us, end_us = last_day(start_us, end_us)
    records = table.groups(rollup.name, start_us, end_us, tier=tier, metrics=metrics or None, by=by, top=top)
    found = list(records)
    print_records(found, GROUPS, table.schema, output, several=True)
    if not found:
        which = f" with {by}" if by else f" with {' or '.join(metrics)}" if metrics else ""
        when = "" if start_us is None or end_us is None else _between(start_us, end_us)
        click.echo(f"no group of the roll-up {rollup.name}{which}{when}", err=True)


def _print_sensors(
    table: "SensorTable",
    rollup: Rollup,
    values: Sequence[str],
    end_us: int | None,
    tier: Window | None,
    output: Printing,
) -> None:
    found = sorted(table.sensors_of_group(rollup.name, values, end_us, tier=tier))
    if output.output == Output.TABLE:
        for sensor_id in found:
            click.echo(plain(sensor_id))
    else:
        print_flat(({SENSOR_ID: sensor_id} for sensor_id in found), [SENSOR_ID], output.output)
    if not found:
        click.echo("the group has no sensor", err=True)


def _between(start_us: int, end_us: int) -> str:
    return f" that start between {format_time(start_us)} and {format_time(end_us)}"
