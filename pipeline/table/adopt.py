"""``tidetable table adopt``: takes over a table that another program created and filled in Tidetable's format."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.options import dry_run_option, json_option, table_options
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import schema_store, tables
from pipeline.cloud.tables.retention_notes import record_added_tiers, tiers_without_rows
from pipeline.core.notation.text import counted
from pipeline.core.schema.gc_policies import Never, Policy, format_policy, same_policy
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, SchemaError, TableSchema
from pipeline.core.schema.toml import document_of
from pipeline.table.comparison import summary
from pipeline.table.inspection import Inspection, InspectionReport
from pipeline.table.schema_flags import SchemaFlags, schema_flags


@click.command()
@table_options
@schema_flags
@click.option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="The number of raw rows, and of aggregate rows of each tier, to check; all if the table has no more.",
)
@dry_run_option
@json_option
def adopt(table: TableName, flags: SchemaFlags, sample: int, dry_run: bool, as_json: bool) -> None:
    """Take over a table that another program created and filled in Tidetable's format.

    Checks the table's families, and a sample of its raw rows and aggregate rows from all over the table. Compares
    aggregates with their raw rows. If everything fits the schema, adds the family 'tidetable' and stores the schema in
    it. Otherwise, reports what does not fit and changes nothing. Never changes a policy: the schema takes the table's
    policies.

    \b
    Exit code:
      0  the schema is stored; with --dry-run, it would be
      1  nothing was changed: something does not fit, or the table has a schema already, or no rows
      2  wrong usage
    """  # noqa: D301 (\b is click's mark for a paragraph with fixed line breaks)
    requested = flags.requested(TableSchema.default())
    policies = tables.describe(table)
    if schema_store.read_stored(table) is not None:
        raise click.ClickException(f"table {table} has a schema already; 'tidetable table describe' prints it")
    report = InspectionReport()
    schema = _with_policies_of(policies, requested, report)
    with RowReader.open(table) as reader:
        Inspection(reader, schema, policies, sample, report).run()
    if not any(report.inspected.values()):
        raise click.ClickException(f"table {table} has no rows; 'tidetable table apply' stores a schema")
    if report.fits and not dry_run:
        _store(table, schema, policies)
    if as_json:
        print_json_line(_record(table, schema, report, dry_run=dry_run))
    else:
        _print(schema, report)
        if report.fits:
            click.echo(f"table {table} {'fits; nothing was changed' if dry_run else 'has this schema now'}")
    if not report.fits:
        click.echo(f"table {table} is unchanged: it does not fit", err=True)
        sys.exit(1)


def _with_policies_of(actual: Mapping[str, Policy], requested: TableSchema, report: InspectionReport) -> TableSchema:
    """Returns the schema with the table's policies. Reports families and policies that do not fit."""
    defaults = replace(requested, policies={}).policies
    for family in requested.families:
        policy = requested.policies[family]
        if family not in actual:
            report.mismatch("families", f"family {family} is missing; create it, or name the existing one")
            continue
        completed = requested.completed(family, actual[family])
        if same_policy(policy, completed) or same_policy(policy, defaults[family]):
            adds = "" if completed == actual[family] else "; 'tidetable table apply' adds maxversions=1"
            report.families.append(f"family {family}: policy is {format_policy(actual[family])}{adds}")
        else:
            difference = tables.Difference(family, actual[family], policy)
            report.mismatch("families", f"{difference}; change the policy, or do not request one")
    if SCHEMA_FAMILY in actual and actual[SCHEMA_FAMILY] != Never():
        report.mismatch("families", str(tables.Difference(SCHEMA_FAMILY, actual[SCHEMA_FAMILY], Never())))
    for family in sorted(actual.keys() - {*requested.families, SCHEMA_FAMILY}):
        report.families.append(str(tables.Difference(family, actual[family], None)))
    try:
        return replace(
            requested, policies={family: actual.get(family, requested.policies[family]) for family in defaults}
        )
    except SchemaError as error:
        report.mismatch("families", str(error))
        return requested


def _store(table: TableName, schema: TableSchema, policies: Mapping[str, Policy]) -> None:
    if SCHEMA_FAMILY not in policies:
        tables.apply(table, [tables.Difference(SCHEMA_FAMILY, None, Never())])
    record_added_tiers(table, tiers_without_rows(table, schema.tiers))
    if not schema_store.replace_text(table, None, schema_store.text_of(schema)):
        raise click.ClickException(f"table {table} is unchanged: another program has stored a schema meanwhile")


def _print(schema: TableSchema, report: InspectionReport) -> None:
    click.echo(f"schema: {summary(schema)}")
    for line in report.families:
        click.echo(line)
    for kind, count in report.inspected.items():
        rows = kind.replace("rows", "row", 1) if count == 1 else kind
        click.echo(f"checked {'all ' if count > 1 and report.all_of[kind] else ''}{count:,} {rows}")
    click.echo(f"compared {counted(report.windows, 'window')} with the raw rows")
    for note in report.notes:
        click.echo(note)
    for kind, count in report.misfits.items():
        click.echo(f"{kind} that do not fit: {count:,}")
        for what in report.named[kind]:
            click.echo(f"  {what}")


def _record(table: TableName, schema: TableSchema, report: InspectionReport, *, dry_run: bool) -> dict[str, Any]:
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
