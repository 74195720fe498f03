"""``tidetable plan``: estimates the resources and the cost of a fleet of sensors."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.options import (
    FloatRange,
    InputText,
    Parsed,
    TextFile,
    json_option,
    schema_option,
    sensor_count_option,
)
from pipeline.core.events.event import is_name
from pipeline.core.notation.documents import placed
from pipeline.core.notation.durations import format_interval, parse_duration, parse_interval
from pipeline.core.schema.rate import Rate, groups_for
from pipeline.core.schema.sizing import check_sizes, warnings
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.plan.estimate import estimate_of, least_costs, limits_passed, outweighing
from pipeline.plan.prices import Prices, costs, costs_on_one_machine, parse_prices
from pipeline.plan.sizes import YEARS, counts_versions_of
from pipeline.plan.views import Findings, estimate_json, print_estimate
from pipeline.plan.workload import MAX_SENSORS, Workload, names

_MOST_NAMES = 1000
_MICROSECOND = timedelta(microseconds=1)

_DURATION = Parsed("duration", parse_duration)


def _names(kind: str, least: int) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        found = names(kind, int(text)) if text.isdecimal() and len(text) < 6 else tuple(text.split(","))
        if not least <= len(found) <= _MOST_NAMES:
            raise ValueError(f"{text!r} must be from {least} to {_MOST_NAMES:,}")
        if bad := next((name for name in found if not is_name(name)), None):
            raise ValueError(f"{bad!r} is not a name; write a number, or names like temperature,humidity")
        if len(set(found)) < len(found):
            raise ValueError(f"{text!r} has a name twice")
        return found

    return Parsed("names", parse)


@click.command()
@sensor_count_option(MAX_SENSORS)
@click.option(
    "--interval",
    "every",
    required=True,
    type=Parsed("duration", parse_interval),
    help="The time between two events of a sensor.",
)
@click.option(
    "--metrics",
    type=_names("metric", 1),
    default="1",
    show_default=True,
    help="The number of an event's readings, or their names.",
)
@click.option(
    "--metadata-fields",
    "metadata",
    type=_names("field", 0),
    default="0",
    show_default=True,
    help="The number of an event's metadata fields, or their names. Those in row keys are added.",
)
@schema_option
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Events per message.")
@click.option("--early-firing", type=_DURATION, default="5m", show_default=True, help="The job's --early-firing.")
@click.option(
    "--allowed-lateness", type=_DURATION, default="10m", show_default=True, help="The job's --allowed-lateness."
)
@click.option("--newest-every", type=_DURATION, default="0", show_default=True, help="The job's --newest-every.")
@click.option(
    "--late",
    type=FloatRange(0, 1),
    default=0.001,
    show_default=True,
    help="The share of events that arrive after their window has closed, by up to a day.",
)
@click.option(
    "--bigtable-writer",
    "writer",
    type=click.Choice(["connector", "bulk"]),
    default="connector",
    show_default=True,
    help="The job's --bigtable-writer.",
)
@click.option(
    "--results",
    type=click.Choice(["none", "final", "all"]),
    default="none",
    show_default=True,
    help="The job's --results, if it has a --results-topic, delivered to one subscription.",
)
@click.option(
    "--rollup-groups",
    type=click.IntRange(1, MAX_SENSORS),
    default=100,
    show_default=True,
    help="The number of groups of each roll-up by metadata, if the schema has any.",
)
@click.option("--disk", type=click.Choice(["ssd", "hdd"]), default="ssd", show_default=True, help="The nodes' storage.")
@click.option("--prices", type=TextFile(), help="A file with unit prices as TOML: adds the cost.")
@json_option
def plan(
    sensors: int,
    every: int,
    metrics: tuple[str, ...],
    metadata: tuple[str, ...],
    schema: InputText | None,
    batch: int,
    early_firing: timedelta,
    allowed_lateness: timedelta,
    newest_every: timedelta,
    late: float,
    writer: str,
    results: Literal["none", "final", "all"],
    rollup_groups: int,
    disk: str,
    prices: InputText | None,
    as_json: bool,
) -> None:
    """Estimate messages, workers, nodes, storage and cost of a fleet.

    Compares Dataflow with one VM. Needs no server. Retention follows the schema's policies. Without --prices no costs
    are printed. The exit code is 1 if the fleet passes a limit of Dataflow, or if one cause costs more than the rest
    together.
    """
    table, declared = _schema(schema, every, metrics, metadata)
    workload = Workload(
        schema=table,
        sensors=sensors,
        every_us=every,
        metrics=metrics,
        metadata=tuple(dict.fromkeys((*metadata, *table.key.metadata_names))),
        batch=batch,
        early_us=early_firing // _MICROSECOND,
        lateness_us=allowed_lateness // _MICROSECOND,
        newest_us=newest_every // _MICROSECOND,
        bulk=writer == "bulk",
        ssd=disk == "ssd",
        rollup_groups=rollup_groups,
        late=late,
        results=None if results == "none" else results,
    )
    estimate = estimate_of(workload)
    of_units = None if prices is None else _prices(prices)
    in_a_month = {years: costs(estimate, of_units, years) for years in YEARS} if of_units else {}
    among_limits = ("tiers: ", "rollups: ")
    notes = [note for note in warnings(table) if not note.startswith(among_limits)]
    notes += _note_of_groups(declared, workload.rate) if table.tiers else []
    notes += [f"{family}: versions may be collected sooner" for family in counts_versions_of(workload)]
    notes += least_costs(estimate, in_a_month)
    findings = Findings(
        costs=in_a_month,
        on_one_machine={years: costs_on_one_machine(estimate, of_units, each) for years, each in in_a_month.items()}
        if of_units
        else {},
        limits=limits_passed(workload, estimate),
        outweighing=outweighing(estimate, in_a_month),
        notes=notes,
    )
    if as_json:
        print_json_line(estimate_json(estimate, findings))
    else:
        print_estimate(workload, estimate, findings)
    if findings.limits or findings.outweighing:
        click.get_current_context().exit(1)


def _note_of_groups(declared: Rate | None, rate: Rate) -> list[str]:
    found, needed = groups_for(declared), groups_for(rate)
    if found == needed:
        return []
    every = format_interval(rate.every_us)
    return [
        f"rate: these are figures for {needed:,} groups of sensors, and the schema makes {found:,}: declare [rate] "
        f'every = "{every}" and sensors = {rate.sensors}'
    ]


def _schema(
    file: InputText | None, every_us: int, metrics: tuple[str, ...], metadata: tuple[str, ...]
) -> tuple[TableSchema, Rate | None]:
    """Returns the schema at the given rate, and the rate that it declares.

    Raises UsageError if it is invalid or can't store such events.
    """
    name = "the default schema" if file is None else file.name
    text = ""
    try:
        schema = TableSchema.for_new_table()
        if file is not None:
            text = file.text
            if not text.strip():
                raise SchemaError("schema", "the file is empty")
            schema = parse_schema(text, schema)
        declared = replace(schema, rate=Rate(every_us, len(metrics), len(metadata)))
        check_sizes(declared)
    except SchemaError as error:
        raise click.UsageError(f"{placed(name, text, str(error))}: {error}") from None
    stored = [] if schema.layout.serializes else [set(metadata) - set(schema.key.metadata_names)]
    for what, rules, of in (
        ("--metrics", schema.metrics, metrics),
        *(("--metadata-fields", schema.metadata, tuple(sorted(kept))) for kept in stored),
    ):
        if missing := next((each for each in of if rules.family_of(each) is None), None):
            raise click.UsageError(f"{what}: {missing} matches none of the families in {name}; pass names that do")
    return declared, schema.rate


def _prices(file: InputText) -> Prices:
    try:
        return parse_prices(file.text)
    except ValueError as error:
        raise click.UsageError(f"{file.name}: {error}") from None
