"""``tidetable table``: creates, adopts, compares, describes and deletes a table."""

import sys
import time

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import dry_run_option, format_option, json_option, table_options, yes_option
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import schema_store, tables
from pipeline.cloud.tables.retention_notes import record_added_tiers, record_losses, retention_of, tiers_without_rows
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.queries.events import Query, events_of_all
from pipeline.core.queries.reads import ForeignRows
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.sizing import warnings
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.core.schema.toml import format_schema
from pipeline.table.adopt import adopt
from pipeline.table.comparison import Comparison, description_of, print_description, summary
from pipeline.table.schema_flags import SchemaFlags, schema_flags

_MOST_HELD = 50_000  # events, before their sensors' rows are written


@click.group(cls=ExampleGroup)
def table() -> None:
    """Create, change, adopt, compare, describe or delete a table."""


table.add_command(adopt)


@table.command()
@table_options
@schema_flags
@dry_run_option
def create(table: TableName, flags: SchemaFlags, dry_run: bool) -> None:
    """Create the table with its families and its schema, or report how an existing table differs.

    Settings without an option come from the default schema. An existing table stays unchanged; if it differs, the exit
    code is 1, and table apply changes it.
    """
    if tables.find(table) is None:
        requested = flags.requested(TableSchema.for_new_table())
        _warn(requested)
        if dry_run:
            click.echo(f"table {table} would be created\nschema: {summary(requested)}")
            return
        if tables.create(table, requested):
            _print_created(table, requested)
            return
        _print_comparison(Comparison.of(table, flags))
    else:
        _print_comparison(_compared(table, flags))


@table.command()
@table_options
@schema_flags
@dry_run_option
def apply(table: TableName, flags: SchemaFlags, dry_run: bool) -> None:
    """Change an existing table: add families, set policies and store the schema.

    Settings without an option come from the table's stored schema, or else from the default schema. Never drops a
    family, and refuses a schema that existing rows do not fit. A shorter policy collects older cells. With --dry-run,
    the exit code is 1 if the table differs.
    """
    comparison = _compared(table, flags)
    if comparison.same or dry_run:
        _print_comparison(comparison)
        return
    for difference in comparison.lines():
        click.echo(difference)
    if _apply(comparison):
        click.echo(f"table {table} changed: it has the requested schema now")
        _print_rollups(comparison)
    elif comparison.stored is None:  # another program stored the first schema
        _print_comparison(Comparison.of(table, flags))
    else:
        raise click.ClickException(
            f"table {table} is unchanged: another program has changed its schema meanwhile; "
            "'tidetable table diff' shows how it differs now"
        )


@table.command()
@table_options
@schema_flags
@json_option
def diff(table: TableName, flags: SchemaFlags, as_json: bool) -> None:
    """Print how the table differs from the schema that the options describe. Changes nothing.

    Takes the options of create. Without any, compares the table's families and policies with its stored schema. The
    exit code is 0 for a table that matches, and 1 for one that differs.
    """
    comparison = Comparison.of(table, flags)
    if as_json:
        for record in comparison.records():
            print_json_line(record)
    else:
        for difference in comparison.lines():
            click.echo(difference)
    sys.exit(0 if comparison.same else 1)


@table.command()
@table_options
@format_option("table", "json", "toml")
def describe(table: TableName, output: str) -> None:
    """Print the table's schema, example row keys, and its families with their garbage collection policies.

    In TOML, prints only the schema, for --schema.
    """
    families = {family: format_policy(policy) for family, policy in tables.describe(table).items()}
    schema = schema_store.read_schema(table)
    if output == "json":
        of_schema = {"schema": None} if schema is None else description_of(schema)
        print_json_line({"table": str(table), **of_schema, "families": families})
    elif output == "toml":
        if schema is None:
            raise click.ClickException(f"table {table} has no stored schema")
        click.echo(format_schema(schema, for_new_table=True), nl=False)
    else:
        print_description(table, schema, families)


@table.command()
@table_options
@yes_option
def delete(table: TableName, yes: bool) -> None:
    """Delete the table and everything in it, after confirmation on a terminal or with --yes."""
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(f"nobody can confirm here that table {table} is to be deleted; pass --yes")
        click.confirm(f"Delete table {table} and everything in it?", abort=True, err=True)
    tables.delete(table)
    click.echo(f"table {table} deleted")


def _compared(table: TableName, flags: SchemaFlags) -> Comparison:
    comparison = Comparison.of(table, flags)
    _warn(comparison.requested)
    for family in comparison.families:
        if family.collects_more:
            click.echo(f"warning: {family}, which collects older cells", err=True)
    return comparison


def _warn(schema: TableSchema) -> None:
    for warning in warnings(schema):
        click.echo(f"warning: {warning}", err=True)


def _print_created(table: TableName, schema: TableSchema) -> None:
    click.echo(f"table {table} created")
    click.echo(f"schema: {summary(schema)}")
    if schema.latest is None and schema.tiers:
        click.echo("no newest readings: 'read latest-readings --all' will read each sensor's newest event")
    for family, policy in tables.policies_of(schema).items():
        click.echo(f"family {family}: policy is {format_policy(policy)}")
    if splits := schema.key.split_keys(tables.MAX_SPLITS):
        click.echo(f"split into {len(splits) + 1} tablets, at {splits[0].decode()} … {splits[-1].decode()}")


def _print_rollups(comparison: Comparison) -> None:
    """Prints how the past of new and changed roll-ups is computed, if the table has rows."""
    known = comparison.stored.rollups if comparison.stored else ()
    new = [rollup.name for rollup in comparison.requested.rollups if rollup not in known]
    if new and schema_store.has_rows(comparison.table):
        click.echo(
            f"roll-ups {', '.join(new)}: jobs that start or are updated from now on write them; "
            "'tidetable repair --rollups' computes earlier windows"
        )


def _print_comparison(comparison: Comparison) -> None:
    """Prints how the table differs. Exits with code 1 if it does."""
    for difference in comparison.lines():
        click.echo(difference)
    if comparison.same:
        click.echo(f"table {comparison.table} has the requested schema: nothing to do")
        return
    would = (
        "would not make these changes: not all of them are safe" if comparison.refusals else "would make these changes"
    )
    click.echo(f"table {comparison.table} is unchanged; 'tidetable table apply' {would}")
    sys.exit(1)


def _apply(comparison: Comparison) -> bool:
    """Changes the table. Returns False, with nothing changed, if another program has stored a schema meanwhile.

    If some changes are not safe, prints why and exits, with nothing changed.
    """
    table = comparison.table
    if comparison.refusals:
        for refusal in comparison.refusals:
            click.echo(refusal, err=True)
        click.echo(f"table {table} is unchanged", err=True)
        if not schema_store.has_rows(table):
            click.echo("It has no rows: you can delete it and create it again.", err=True)
        sys.exit(1)
    changes = [difference for difference in comparison.families if not difference.left_alone]
    if SCHEMA_FAMILY not in comparison.actual:
        tables.apply(table, [change for change in changes if change.family == SCHEMA_FAMILY])
        changes = [change for change in changes if change.family != SCHEMA_FAMILY]
    # Before the families: if another program stores a schema first, they stay unchanged.
    before, after = comparison.read.text if comparison.read else None, schema_store.text_of(comparison.requested)
    rewrites = comparison.stored is None or bool(comparison.schema)
    if rewrites and not schema_store.replace_text(table, before, after):
        return False
    _note_retention(comparison)
    if changes:
        try:
            tables.apply(table, changes)
        except ServerError:
            if rewrites:  # the schema must not name a missing family
                schema_store.replace_text(table, after, before)
            raise
    added = comparison.requested.latest
    if added is not None and comparison.stored is not None and comparison.stored.latest is None:
        fill_newest(table, comparison.requested, added)
    return True


def _note_retention(comparison: Comparison) -> None:
    """Notes in the table what may be collected, and which tiers have no rows of earlier windows."""
    table, stored, requested = comparison.table, comparison.stored, comparison.requested
    # Even if no policy changes: the policies of the previous schema may have collected cells.
    lost = retention_of(table, stored or requested, comparison.actual)
    record_losses(table, requested, lost, tables.policies_of(requested))
    if schema_store.has_rows(table):
        if stored is None:  # older jobs may have written the tiers of a table without a schema
            added = tiers_without_rows(table, requested.tiers)
        else:
            known = {(tier.window, tier.family) for tier in stored.tiers}  # other statistics make no new tier
            added = [tier.family for tier in requested.tiers if (tier.window, tier.family) not in known]
        record_added_tiers(table, added)


def fill_newest(name: TableName, schema: TableSchema, family: str) -> None:
    """Writes each sensor's newest readings by one scan of all raw rows, and prints how many events it has read.

    Newer readings that a job writes meanwhile stay: Bigtable keeps the newest cell. Raises ServerError if the table
    is out of reach or refuses rows.
    """
    click.echo(
        f"reading all raw rows to fill {family}; if this ends early, 'tidetable repair' of all times does the rest",
        err=True,
    )
    from_us = Retention.of(schema).cells_stay_from_us(family, time.time_ns() // 1000)
    newest, foreign, events = NewestReadings(), ForeignRows(), 0
    with RowReader.open(name) as reader, BulkWriter.open(name) as writer:
        for record in events_of_all(schema, reader.read_selection, Query(), foreign.add):
            newest.add(record.sensor_id, record.event_time_us, record.readings.items())
            if schema.metadata_alone:
                newest.add_metadata(record.sensor_id, record.event_time_us, record.metadata)
            events += 1
            if events % _MOST_HELD == 0:
                writer.add_encoded(list(newest.rows(family, from_us)))
                newest = NewestReadings()
        writer.add_encoded(list(newest.rows(family, from_us)))
        if refused := writer.finish():
            raise ServerError(f"table {name}: row {refused[0].key.decode()} was refused: {refused[0].message}")
    click.echo(f"{family}: filled from {events:,} events; update the running job, which writes it from then on")
