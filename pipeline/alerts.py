"""``tidetable alerts``: the rules of a table's alerts, and their delivery."""

import json
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

import click

from pipeline.cli.console import open_backlog, print_json_line
from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import InputPath, InputText, Parsed, TextFile, dry_run_option, format_option, table_options
from pipeline.cloud.connection.names import TableName, subscription_path
from pipeline.cloud.connection.problems import ServerError
from pipeline.core.alerts.rules import MAX_BYTES, Rule, RulesError, parse_rules
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.notation.documents import read_text
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import format_time
from pipeline.core.notation.web import checked_url, is_loopback, read_token

if TYPE_CHECKING:
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.core.schema.table_schema import TableSchema

_LOOKED_AT = 10_000  # sensors

_SENSORS_FILE = re.compile(r"""^([ \t]*)sensors_file[ \t]*=[ \t]*["']([^"'\n]+)["'][ \t]*(?:#.*)?\r?$""", re.MULTILINE)


@click.group(cls=ExampleGroup)
def alerts() -> None:
    """Store and show the rules of a table's alerts, and deliver alerts.

    A job with --alerts-topic watches readings by these rules. It takes a change within a minute, without a relaunch.
    """


@alerts.command()
@click.argument("file", type=TextFile())
@dry_run_option
@table_options
def apply(file: InputText, dry_run: bool, table: TableName) -> None:
    """Store the rules of FILE in the table, in place of those that it has.

    Alerts of rules that are no longer there, or that fire for something else now, are resolved. The table gets a family
    of alerts if it has none. A file without rules removes them all. A rule's sensors_file, with an id in each line, is
    read beside FILE, and its ids are stored. Warns of a metric that none of the table's first 10,000 sensors has sent.
    With --dry-run, checks and prints the rules.

    \b
    Exit codes:
      0  the rules are stored; with --dry-run, they are valid
      1  the table can't be read or written, or stores no schema
      2  wrong usage, or a rule is not valid; the table stays as it is
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.tables import alert_store  # slow to import, and --help does not need them

    with RowReader.open(table) as rows:
        schema = _schema_of(rows)
        rules, text = _rules_of(file, schema)
        _warn(rows, schema, rules)
    if dry_run:
        _print(rules)
        return
    alert_store.add_families(table, schema)
    alert_store.write_rules_text(table, text if rules else "")
    click.echo(f"table {table.table}: {counted(len(rules), 'rule')} stored; a running job takes them within a minute")


@alerts.command()
@click.argument("rule")
@click.argument("sensor", required=False, default="")
@click.option(
    "--for",
    "duration",
    type=Parsed("duration", parse_duration),
    required=True,
    help="Time for which messages wait, like 2h; 0 ends a mute.",
)
@dry_run_option
@table_options
def mute(rule: str, sensor: str, duration: timedelta, dry_run: bool, table: TableName) -> None:
    """Let the messages of RULE wait, about one SENSOR or about all.

    Alerts fire, resolve and are recorded as ever. When the time is over, those are told that still fire. A running job
    takes a mute within a minute.

    \b
    Exit codes:
      0  the rule is muted, or not any more
      1  the table can't be read or written, or stores no schema
      2  wrong usage, or the table has no such rule
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.tables import alert_store

    with RowReader.open(table) as rows:
        names = [known.name for known in alert_store.read_rules(rows, _schema_of(rows)).rules]
    if rule not in names:
        raise click.UsageError(f"table {table.table} has no rule {plain(rule)}; it has {_some(names) or 'none'}")
    if sensor:
        try:
            checked_sensor_id(sensor)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    until = datetime.now(UTC) + duration
    if not dry_run:
        alert_store.mute(table, rule, sensor, int(until.timestamp() * 1_000_000) if duration else 0)
    of = f"rule {rule}{f' of {sensor}' if sensor else ''}"
    would = "would wait" if dry_run else "wait"
    click.echo(f"{of}: messages {would} {f'until {until:%Y-%m-%dT%H:%M:%SZ}' if duration else 'no more'}")


@alerts.command()
@format_option("table", "json", "toml")
@table_options
def rules(output: str, table: TableName) -> None:
    """Print the rules that the table stores; in TOML, as they were applied. What fired is in read alerts."""
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.tables import alert_store

    with RowReader.open(table) as rows:
        if output == "toml":
            click.echo(alert_store.read_rules_text(rows), nl=False)
            return
        stored = alert_store.read_rules(rows, _schema_of(rows))
    if output == "json":
        for rule in stored.rules:
            print_json_line(
                {
                    "rule": rule.name,
                    "sensors": rule.sensors if isinstance(rule.sensors, str) else list(rule.sensors),
                    "metadata": dict(rule.metadata),
                    "condition": rule.summary,
                    "severity": rule.severity,
                    "revision": rule.revision,
                }
            )
    else:
        _print(stored.rules)
        for (name, sensor), until_us in sorted(stored.mutes.items()):
            if until_us > time.time_ns() // 1000:
                click.echo(plain(f"{name}{f' of {sensor}' if sensor else ''}: muted until {format_time(until_us)}"))
    if not stored.rules:
        click.echo(f"table {table.table} has no rules of alerts", err=True)


@alerts.command()
@click.option(
    "--alerts-subscription",
    "subscription",
    required=True,
    type=Parsed("subscription", subscription_path),
    help="A subscription of the alerts' topic that nobody else reads, projects/PROJECT/subscriptions/SUBSCRIPTION.",
)
@click.option(
    "--url",
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
        raise click.UsageError("--url sends alerts as others can read them; use https://, or add --insecure-http")
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
        raise ServerError(f"table {rows.name} stores no schema, and so no rules; store it: {rows.name.apply_command}")
    return schema


def _rules_of(file: InputText, schema: "TableSchema") -> tuple[tuple[Rule, ...], str]:
    """Returns the rules of a file, and its text with the ids of the files that it names."""
    try:
        text = _SENSORS_FILE.sub(lambda match: _ids_in(Path(file.name).parent / match[2], match[1]), file.text)
        return parse_rules(text, file.name, schema), text
    except RulesError as error:
        first, *others = map(plain, error.problems)
        raise click.UsageError("\n".join([first, *(f"Error: {each}" for each in others)])) from error


def _ids_in(path: Path, indent: str) -> str:
    try:
        return f"{indent}sensors = {json.dumps(read_text(path, MAX_BYTES).split())}"
    except ValueError as error:
        raise click.UsageError(f"{plain(str(path))}: {error}; sensors_file names it") from error


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
        whom = f"sensors {rule.sensors}" if isinstance(rule.sensors, str) else counted(len(rule.sensors), "sensor")
        of = [whom, *(f"{name}={value}" for name, value in rule.metadata)]
        click.echo(plain(f"{rule.name}: {rule.summary}; {', '.join(of)}; severity {rule.severity}"))
