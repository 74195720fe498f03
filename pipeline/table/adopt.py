"""``tidetable table adopt``: takes over a table that somebody else's program made and filled in our format."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.options import table_options
from pipeline.cloud import schema_store, tables
from pipeline.cloud.names import TableName
from pipeline.cloud.retention_notes import record_added_tiers, tiers_without_rows
from pipeline.cloud.row_reader import RowReader
from pipeline.core.schema.policies import Never, Policy, format_policy, same_policy
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, SchemaError, TableSchema
from pipeline.core.schema.toml import document_of
from pipeline.table.comparison import summary
from pipeline.table.look import Look, Report
from pipeline.table.schema_flags import SchemaFlags, schema_flags


@click.command()
@table_options
@schema_flags
@click.option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="How many raw rows, and aggregate rows of each tier, are looked at; of a table that has no more, all.",
)
@click.option("--dry-run", is_flag=True, help="Look, tell, and store nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def adopt(table: TableName, flags: SchemaFlags, sample: int, dry_run: bool, as_json: bool) -> None:
    """Take over a table that another program made and filled in Tidetable's format.

    Looks at the table's families, at raw rows and aggregate rows from many places, and at aggregates beside their raw
    rows. Where all of that fits the schema, adds the family 'tidetable' and stores the schema in it; where something
    does not fit, tells what, and changes nothing. No policy is changed: the schema has those of the table.

    \b
    Exit code:
      0  the schema is stored; with --dry-run, it would be
      1  something does not fit, or the table has a schema already, or no rows: nothing was changed
      2  the command line is wrong
    """  # noqa: D301 (\b is click's mark for a paragraph that keeps its lines)
    wanted = flags.wanted(None)
    policies = tables.describe(table)
    if schema_store.read_stored(table) is not None:
        raise click.ClickException(f"table {table} has a schema already; 'tidetable table describe' prints it")
    report = Report()
    schema = _with_policies_of(policies, wanted, report)
    with RowReader.open(table) as reader:
        Look(reader, schema, policies, sample, report).look()
    if not any(report.inspected.values()):
        raise click.ClickException(f"table {table} has no rows; 'tidetable table create' with --apply stores a schema")
    if report.fits and not dry_run:
        _store(table, schema, policies)
    if as_json:
        print_json_line(_record(table, schema, report, dry_run=dry_run))
    else:
        _print(schema, report)
        if report.fits:
            click.echo(f"table {table} {'fits, and is left as it is' if dry_run else 'has this schema now'}")
    if not report.fits:
        click.echo(f"table {table} is left as it is: not all that was looked at fits", err=True)
        sys.exit(1)


def _with_policies_of(actual: Mapping[str, Policy], wanted: TableSchema, report: Report) -> TableSchema:
    """The schema with the policies that the table has; families and policies that do not fit are reported."""
    unsaid = replace(wanted, policies={}).policies
    for family in wanted.families:
        policy = wanted.policies[family]
        if family not in actual:
            report.mismatch("families", f"family {family} is missing; create it, or name the one that there is")
        elif same_policy(policy, actual[family]) or same_policy(policy, unsaid[family]):
            report.families.append(f"family {family}: policy is {format_policy(actual[family])}")
        else:
            difference = tables.Difference(family, actual[family], policy)
            report.mismatch("families", f"{difference}; set it, or leave it out of what is wanted")
    if SCHEMA_FAMILY in actual and actual[SCHEMA_FAMILY] != Never():
        report.mismatch("families", str(tables.Difference(SCHEMA_FAMILY, actual[SCHEMA_FAMILY], Never())))
    for family in sorted(actual.keys() - {*wanted.families, SCHEMA_FAMILY}):
        report.families.append(str(tables.Difference(family, actual[family], None)))
    try:
        return replace(wanted, policies={family: actual.get(family, wanted.policies[family]) for family in unsaid})
    except SchemaError as error:
        report.mismatch("families", str(error))
        return wanted


def _store(table: TableName, schema: TableSchema, policies: Mapping[str, Policy]) -> None:
    if SCHEMA_FAMILY not in policies:
        tables.apply(table, [tables.Difference(SCHEMA_FAMILY, None, Never())])
    record_added_tiers(table, tiers_without_rows(table, schema.tiers))
    if not schema_store.replace_text(table, None, schema_store.text_of(schema)):
        raise click.ClickException(f"table {table} is left as it is: somebody else has stored a schema meanwhile")


def _print(schema: TableSchema, report: Report) -> None:
    click.echo(f"schema: {summary(schema)}")
    for line in report.families:
        click.echo(line)
    for kind, count in report.inspected.items():
        click.echo(f"looked at {count:,} {kind}{', which are all' if count and report.all_of[kind] else ''}")
    click.echo(f"compared {report.windows:,} windows with their raw rows")
    for note in report.notes:
        click.echo(note)
    for kind, count in report.misfits.items():
        click.echo(f"{kind} that do not fit: {count:,}")
        for what in report.named[kind]:
            click.echo(f"  {what}")


def _record(table: TableName, schema: TableSchema, report: Report, *, dry_run: bool) -> dict[str, Any]:
    return {
        "table": str(table),
        "schema": document_of(schema),
        "fits": report.fits,
        "stored": report.fits and not dry_run,
        "families": report.families,
        "looked_at": {kind: {"rows": count, "all": report.all_of[kind]} for kind, count in report.inspected.items()},
        "windows_compared": report.windows,
        "notes": report.notes,
        "misfits": {kind: {"count": count, "first": report.named[kind]} for kind, count in report.misfits.items()},
    }
