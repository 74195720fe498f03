"""``tidetable alerts``: the rules of a table's alerts, and their delivery."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

import click

from pipeline.cli.console import open_backlog, print_json_line
from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import InputPath, InputText, Parsed, TextFile, table_options
from pipeline.cloud.connection.names import TableName, subscription_path
from pipeline.cloud.connection.problems import ServerProblem
from pipeline.core.alerts.rules import Rule, RulesError, parse_rules
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.web import checked_url, is_loopback, read_token

if TYPE_CHECKING:
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.core.schema.table_schema import TableSchema

_LOOKED_AT = 10_000  # sensors

_FILE = click.argument("file", type=TextFile())


@click.group(cls=ExampleGroup)
def alerts() -> None:
    """Store, check and show the rules of a table's alerts, and deliver alerts.

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


@alerts.command()
@click.option(
    "--subscription",
    required=True,
    type=Parsed("subscription", subscription_path),
    help="A subscription of the alerts' topic, projects/PROJECT/subscriptions/SUBSCRIPTION, that nobody else reads.",
)
@click.option(
    "--to",
    "url",
    required=True,
    metavar="URL",
    type=Parsed("url", checked_url),
    help="The receiver, https://HOST/PATH.",
)
@click.option(
    "--key-file", type=InputPath(), help="A file with the key that signs each request, in X-Tidetable-Signature."
)
@click.option("--insecure-http", is_flag=True, help="Send by http:// beyond this machine, which others can read.")
@click.option("--once", is_flag=True, help="Stop when no alert has come for three seconds.")
@click.pass_context
def deliver(
    ctx: click.Context,
    subscription: str,
    url: SplitResult,
    key_file: Path | None,
    insecure_http: bool,
    once: bool,
) -> None:
    """Send each alert of a subscription to a URL, by an HTTP POST of its JSON, until Ctrl-C.

    An alert is acknowledged when the receiver has answered 2xx. One that it refuses, or does not take within two
    minutes, stays on the subscription, and is sent again later. One older than another that was sent is dropped.

    \b
    Exit codes:
      0    with --once, nothing is left
      1    with --once, some alerts are left; or the subscription does not exist, or the server is unavailable
      2    wrong usage
      130  Ctrl-C; pulled alerts are returned first
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    if url.scheme == "http" and not is_loopback(url.hostname or "") and not insecure_http:
        raise click.UsageError("--to sends alerts as others can read them; use https://, or add --insecure-http")
    try:
        key = read_token(key_file).encode() if key_file else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key-file") from error
    from pipeline.delivery import AlertDelivery

    with open_backlog(subscription) as (backlog, stopped):
        delivery = AlertDelivery(backlog, url, key, once)
        delivery.run(stopped)
    counts = delivery.counts
    click.echo(f"alerts: {counts['delivered']:,} delivered, {counts['dropped']:,} dropped, {counts['left']:,} left")
    ctx.exit(130 if stopped() else 1 if counts["left"] else 0)


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
