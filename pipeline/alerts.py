"""``tidetable alerts``: the rules of a table's alerts."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import InputText, TextFile, table_options
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.connection.problems import ServerProblem
from pipeline.core.alerts.rules import Rule, RulesError, parse_rules
from pipeline.core.notation.text import counted, plain

if TYPE_CHECKING:
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.core.schema.table_schema import TableSchema

_LOOKED_AT = 10_000  # sensors

_FILE = click.argument("file", type=TextFile())


@click.group(cls=ExampleGroup)
def alerts() -> None:
    """Store, check and show the rules of a table's alerts.

    A job with --alerts_topic watches readings by these rules. It takes a change within a minute, without a relaunch.
    """


@alerts.command()
@_FILE
@table_options
def apply(file: InputText, table: TableName) -> None:
    """Store the rules of FILE in the table, in place of those that it has.

    Alerts of rules that are no longer there, or that fire for something else now, are resolved. The table gets a family
    of alerts if it has none. A file without rules removes them all.

    \b
    Exit codes:
      0  the rules are stored
      1  the table can't be read or written, or stores no schema
      2  wrong usage, or a rule is not valid; the table stays as it is
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.tables import alert_store  # slow to import, and --help does not need them

    with RowReader.open(table) as rows:
        schema = _schema_of(rows)
        rules = _rules_of(file, schema)
        _warn(rows, schema, rules)
    alert_store.add_families(table, schema)
    alert_store.write_rules_text(table, file.text if rules else "")
    click.echo(f"table {table.table}: {counted(len(rules), 'rule')} stored; a running job takes them within a minute")


@alerts.command()
@_FILE
@table_options
def check(file: InputText, table: TableName) -> None:
    """Check the rules of FILE against the table, and store nothing.

    Warns of a metric that none of the table's first 10,000 sensors has sent.

    \b
    Exit codes:
      0  the rules are valid
      1  the table can't be read, or stores no schema
      2  wrong usage, or a rule is not valid
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    from pipeline.cloud.scanning.row_reader import RowReader

    with RowReader.open(table) as rows:
        schema = _schema_of(rows)
        rules = _rules_of(file, schema)
        _warn(rows, schema, rules)
    _print(rules)


@alerts.command()
@click.option("--toml", is_flag=True, help="Print the rules as they were applied.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each rule.")
@table_options
def show(toml: bool, as_json: bool, table: TableName) -> None:
    """Show the rules that the table stores."""
    if toml and as_json:
        raise click.UsageError("pass either --toml or --json")
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.tables import alert_store

    with RowReader.open(table) as rows:
        if toml:
            click.echo(alert_store.read_rules_text(rows), nl=False)
            return
        rules = alert_store.read_rules(rows, _schema_of(rows)).rules
    if as_json:
        for rule in rules:
            print_json_line(
                {
                    "rule": rule.name,
                    "sensors": rule.sensors,
                    "metadata": dict(rule.metadata),
                    "condition": rule.summary,
                    "severity": rule.severity,
                    "revision": rule.revision,
                }
            )
    else:
        _print(rules)
    if not rules:
        click.echo(f"table {table.table} has no rules of alerts", err=True)


def _schema_of(rows: "RowReader") -> "TableSchema":
    from pipeline.cloud.tables.schema_store import read_schema

    schema = read_schema(rows.name)
    if schema is None:
        raise ServerProblem(
            f"table {rows.name} stores no schema, and so no rules; store it: {rows.name.create_command}"
        )
    return schema


def _rules_of(file: InputText, schema: "TableSchema") -> tuple[Rule, ...]:
    try:
        return parse_rules(file.text, file.name, schema)
    except RulesError as error:
        first, *others = map(plain, error.problems)
        raise click.UsageError("\n".join([first, *(f"Error: {each}" for each in others)])) from error


def _warn(rows: "RowReader", schema: "TableSchema", rules: Iterable[Rule]) -> None:
    """Warns of metrics that no event seems to have, after a look at the rows of newest readings."""
    metrics = {rule.metric for rule in rules if rule.metric is not None}
    if not metrics or schema.latest is None:
        return
    from pipeline.core.queries.newest import newest_rows
    from pipeline.core.rows.newest_row import latest_range

    found = newest_rows(schema.latest, rows.read_selection, latest_range(), None, None, lambda _: None)
    known: set[str] = set()
    for record in islice(found, _LOOKED_AT):
        known |= record.readings.keys()
        if metrics <= known:
            return
    for metric in sorted(metrics - known) if known else ():
        click.echo(f"Warning: no sensor has sent {plain(metric)}; the table has {_some(sorted(known))}", err=True)


def _some(names: list[str]) -> str:
    return ", ".join(map(plain, names[:8])) + (", …" if len(names) > 8 else "")


def _print(rules: Iterable[Rule]) -> None:
    for rule in rules:
        of = [f"sensors {rule.sensors}", *(f"{name}={value}" for name, value in rule.metadata)]
        click.echo(plain(f"{rule.name}: {rule.summary}; {', '.join(of)}; severity {rule.severity}"))
