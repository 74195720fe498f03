"""Compares a table with a requested schema, and describes the schema that it has."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click

from pipeline.cli.tables import print_table, prose, word
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import schema_store, tables
from pipeline.cloud.tables.schema_store import SCHEMA_KEY
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.newest_row import latest_key
from pipeline.core.rows.rollup_rows import rollup_key
from pipeline.core.schema.changes import ALTERNATIVE, Change, changes
from pipeline.core.schema.gc_policies import Policy, format_policy
from pipeline.core.schema.key_template import KeyBindings
from pipeline.core.schema.key_tokens import DAY_US
from pipeline.core.schema.sizing import warnings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import document_of, format_schema
from pipeline.core.statistics.sketch import RELATIVE_ERROR
from pipeline.table.schema_flags import SchemaFlags

_AT_US = parse_time("2026-02-17T10:30:00.25Z")
_DAY_START_US = _AT_US - _AT_US % DAY_US


def summary(schema: TableSchema) -> str:
    """Returns a phrase with the key template, the layout and the format of values."""
    values = "" if schema.layout.serializes else f", values {schema.values}"
    return f"key {schema.key}, layout {schema.layout.name}{values}"


@dataclass(frozen=True)
class Comparison:
    """An existing table, the policies of its families, its stored schema with its text, and the requested schema."""

    table: TableName
    actual: dict[str, Policy]
    read: schema_store.Stored | None
    requested: TableSchema

    @classmethod
    def of(cls, table: TableName, flags: SchemaFlags) -> "Comparison":
        """Reads the table. Raises ServerError, and click.UsageError for flags that describe no valid schema."""
        actual, read = tables.describe(table), schema_store.read_stored(table)
        if read:
            current = read.schema
        elif schema_store.has_rows(table):
            current = TableSchema.default()  # older pipelines wrote no newest readings
        else:
            current = TableSchema.for_new_table()
        return cls(table, actual, read, flags.requested(current))

    @property
    def stored(self) -> TableSchema | None:
        """The stored schema; None for a table without one."""
        return self.read.schema if self.read else None

    @cached_property
    def families(self) -> list[tables.Difference]:
        """The families that differ from the requested ones, and further families of the table."""
        return tables.differences(self.actual, tables.policies_of(self.requested))

    @cached_property
    def schema(self) -> list[Change]:
        """The changes from the stored to the requested schema; empty for a table without a stored one."""
        return [] if self.stored is None else changes(self.stored, self.requested)

    @property
    def same(self) -> bool:
        """Whether the table has the requested schema already."""
        return self.stored is not None and not self.schema and all(it.left_alone for it in self.families)

    @cached_property
    def refusals(self) -> list[str]:
        """The reasons why the changes are not safe, a line each."""
        if self.stored is None:
            return list(self._refusals_without_schema())
        return [change.refusal for change in self.schema if not change.safe]

    def lines(self) -> Iterator[str]:
        """Returns every difference as a line of text."""
        if self.stored is None:
            yield f"schema: the table has none, wanted {summary(self.requested)}"
        for change in self._other_changes():
            yield f"schema: {change}"
        yield from map(str, self.families)

    def records(self) -> Iterator[dict[str, Any]]:
        """Returns every difference as a JSON object."""
        if self.stored is None:
            yield {"schema": None, "actual": None, "wanted": document_of(self.requested), "safe": not self.refusals}
        for change in self._other_changes():
            yield {"schema": change.key, "actual": change.actual, "wanted": change.wanted, "safe": change.safe}
        for difference in self.families:
            actual, wanted = (
                None if policy is None else format_policy(policy) for policy in (difference.actual, difference.wanted)
            )
            yield {"family": difference.family, "actual": actual, "wanted": wanted, "safe": True}

    def _other_changes(self) -> Iterator[Change]:
        """Returns the changes of the schema, except policies that already differ in their families."""
        of_families = {f"policies.{difference.family}" for difference in self.families if not difference.left_alone}
        return (change for change in self.schema if change.key not in of_families)

    def _refusals_without_schema(self) -> Iterator[str]:
        """Refuses any schema but the default one for a table that has rows and no stored schema.

        Older pipelines wrote such rows, always in the default schema.
        """
        default, wanted = TableSchema.default(), self.requested
        hidden = self._hidden_families()
        if (wanted.key, wanted.layout, wanted.values) != (default.key, default.layout, default.values):
            problem = f"the rows of a table without a stored schema must have {summary(default)}"
            problem += (
                f"; {ALTERNATIVE}; if another program wrote other rows, 'tidetable table adopt' takes the table over"
            )
        elif not any(family in self.actual for family in wanted.metrics.families):
            problem = f"it has no family of readings named {' or '.join(wanted.metrics.families)}; {ALTERNATIVE}"
        elif hidden:
            flags = " ".join(f"--{family}-family {family}" for family in hidden)
            problem = (
                f"it has the default schema's families {' and '.join(hidden)}, which would no longer be read; "
                f"keep them with {flags}, or pass the families with --schema"
            )
        else:
            return
        if schema_store.has_rows(self.table):
            yield f"schema: the table has rows that do not fit the requested schema: {problem}"

    def _hidden_families(self) -> list[str]:
        """Returns the table's families with a default name that the requested schema does not use in that role."""
        by_role = {
            "raw": self.requested.metrics.families,
            "stats": tuple(tier.family for tier in self.requested.tiers),
            "meta": self.requested.metadata.families,
        }
        return [family for family, families in by_role.items() if family in self.actual and family not in families]


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
    scan = schema.key.scan(bindings, _DAY_START_US, _DAY_START_US + DAY_US)
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
        click.echo("It has no stored schema; 'tidetable table apply' stores one.")
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
