"""Compares a table with a requested schema: its families, their policies, and its stored schema."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import schema_store, tables
from pipeline.core.schema.changes import ALTERNATIVE, Change, changes
from pipeline.core.schema.gc_policies import Policy, format_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import document_of
from pipeline.table.schema_flags import SchemaFlags


def summary(schema: TableSchema) -> str:
    """Returns a phrase with the key template, the layout and the format of values."""
    values = "" if schema.layout.serializes else f", values {schema.values}"
    return f"key {schema.key}, layout {schema.layout.name}{values}"


@dataclass(frozen=True)
class Comparison:
    """An existing table and the requested schema.

    Args:
        table: the table's name.
        actual: the policies of the table's families.
        read: the stored schema and its text; None for a table without one.
        requested: the requested schema.
    """

    table: TableName
    actual: dict[str, Policy]
    read: schema_store.Stored | None
    requested: TableSchema

    @classmethod
    def of(cls, table: TableName, flags: SchemaFlags) -> "Comparison":
        """Reads the table. Raises ServerProblem, and click.UsageError for flags that describe no valid schema."""
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
        for change in self._schema_alone():
            yield f"schema: {change}"
        yield from map(str, self.families)

    def records(self) -> Iterator[dict[str, Any]]:
        """Returns every difference as a JSON object."""
        if self.stored is None:
            yield {"schema": None, "actual": None, "wanted": document_of(self.requested), "safe": not self.refusals}
        for change in self._schema_alone():
            yield {"schema": change.key, "actual": change.actual, "wanted": change.wanted, "safe": change.safe}
        for difference in self.families:
            actual, wanted = (
                None if policy is None else format_policy(policy) for policy in (difference.actual, difference.wanted)
            )
            yield {"family": difference.family, "actual": actual, "wanted": wanted, "safe": True}

    def _schema_alone(self) -> Iterator[Change]:
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
