"""Describes a table as text or JSON: its schema, example row keys, and its families."""

from collections.abc import Iterator
from typing import Any

import click

from pipeline.cli.tables import print_table, prose, word
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.schema_store import SCHEMA_KEY
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.newest_row import latest_key
from pipeline.core.rows.rollup_rows import rollup_key
from pipeline.core.schema.key_space import KeyBindings
from pipeline.core.schema.key_tokens import DAY_US
from pipeline.core.schema.sizing import warnings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import document_of, format_schema
from pipeline.core.statistics.sketch import RELATIVE_ERROR

_AT_US = parse_time("2026-02-17T10:30:00.25Z")
_DAY_START_US = _AT_US - _AT_US % DAY_US


def _examples(schema: TableSchema) -> tuple[str, dict[str, str], dict[str, str]]:
    """Returns example keys: of a raw row, of aggregate rows by window, and of the other rows by kind."""
    metadata = {name: name for name in schema.key.metadata_names}
    event = Event("sensor-1", _AT_US, {"temperature": 23.5}, metadata, "event-1")
    aggregates = {
        tier.window.text: aggregate_key(tier.window, "sensor-1", tier.window.start_of(_AT_US)).decode()
        for tier in schema.tiers
    }
    others = {} if schema.latest is None else {"latest": latest_key("sensor-1").decode()}
    for rollup in schema.rollups:
        window = next(tier.window for tier in schema.tiers if rollup in schema.rollups_of(tier.window))
        value = rollup.value_of({name: name for name in rollup.by}) or ""
        others[f"roll-up {rollup.name}"] = rollup_key(window, rollup.name, value, window.start_of(_AT_US)).decode()
    others["schema"] = SCHEMA_KEY.decode()
    return schema.key.render(event, "temperature").decode(), aggregates, others


def _scan_of_a_day(schema: TableSchema) -> tuple[int, bool]:
    """Returns the number of key ranges of a sensor's (or metric's) day, and whether other sensors share them."""
    bindings = KeyBindings("sensor-1", "temperature", {name: name for name in schema.key.metadata_names})
    scan = schema.keys.scan(bindings, _DAY_START_US, _DAY_START_US + DAY_US)
    return sum(1 for _ in scan.ranges), scan.pattern is not None


def description_of(schema: TableSchema) -> dict[str, Any]:
    """Returns the schema as a JSON object, with an example key of each kind, and the number of scanned ranges."""
    event, aggregates, others = _examples(schema)
    return {
        "schema": document_of(schema),
        "examples": {"event": event, "aggregates": aggregates, **others},
        "newest_first": schema.key.newest_first,
        "ranges": {"sensor_day": _scan_of_a_day(schema)[0], "all_sensors": schema.key.spread_factor},
        **({"quantile_error": RELATIVE_ERROR} if schema.statistics.has_quantiles else {}),
        "warnings": list(warnings(schema)),
    }


def print_description(table: TableName, schema: TableSchema | None, families: dict[str, str]) -> None:
    """Prints the schema, examples and warnings as text, with the families that the server reports."""
    click.echo(f"table {table}")
    if schema is None:
        click.echo("It has no stored schema; 'tidetable table create' with --apply stores one.")
    else:
        click.echo(f"\n{format_schema(schema)}")
        for line in _lines_about_keys(schema):
            click.echo(line)
    print_table([word("family"), prose("policy")], families.items())
    for warning in warnings(schema) if schema else ():
        click.echo(f"warning: {warning}")


def _lines_about_keys(schema: TableSchema) -> Iterator[str]:
    event, aggregates, others = _examples(schema)
    row = "bucket" if schema.layout.bucketed else "reading" if schema.layout.row_per_metric else "event"
    keys = {row: event} | {f"window of {window}": key for window, key in aggregates.items()}
    yield "row keys, for example"
    yield from _aligned(keys | others)
    count, among_others = _scan_of_a_day(schema)
    day = _ranges(count)
    day += " a metric" if schema.layout.row_per_metric else ""
    day += ", shared with other sensors' rows" if among_others else ""
    yield ""
    yield "keys"
    yield from _aligned(
        {
            "of one sensor": "newest first" if schema.key.newest_first else "oldest first",
            "one sensor, one day": day,
            "all sensors": _ranges(schema.key.spread_factor),
        }
    )
    if schema.statistics.has_quantiles:
        yield ""
        yield f"quantiles are at most {RELATIVE_ERROR:.0%} off"


def _ranges(count: int) -> str:
    return f"{count:,} {'range' if count == 1 else 'ranges'}"


def _aligned(lines: dict[str, str]) -> Iterator[str]:
    width = max(map(len, lines))
    return (f"  {name:{width}}  {text}" for name, text in lines.items())
