"""How a table differs from what is wanted of it: its families, their policies, and the schema that it has of itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.cloud import schema_store, tables
from pipeline.cloud.names import TableName
from pipeline.core.schema.changes import Change, changes
from pipeline.core.schema.policies import Policy, format_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import document_of
from pipeline.table.schema_flags import SchemaFlags

_INSTEAD = (
    "make another table with the schema that is wanted, and give the pipeline both: --bigtable_table may be repeated"
)


def summary(schema: TableSchema) -> str:
    """What rows and readings are written by, in a phrase."""
    values = "" if schema.layout.serializes else f", values {schema.values}"
    return f"key {schema.key}, layout {schema.layout.name}{values}"


@dataclass(frozen=True)
class Comparison:
    """A table that is there, and what is wanted of it.

    Args:
        table: which.
        actual: its families and their policies.
        read: what it has of itself, as it was read; None where it has nothing.
        wanted: the schema that it should have.
    """

    table: TableName
    actual: dict[str, Policy]
    read: schema_store.Stored | None
    wanted: TableSchema

    @classmethod
    def of(cls, table: TableName, flags: SchemaFlags) -> "Comparison":
        """Asks the table. Raises ServerProblem, and click.UsageError for flags that make no schema."""
        actual, read = tables.describe(table), schema_store.read_stored(table)
        return cls(table, actual, read, flags.wanted(read.schema if read else None))

    @property
    def stored(self) -> TableSchema | None:
        """The schema that the table has of itself; None where it has none."""
        return self.read.schema if self.read else None

    @cached_property
    def families(self) -> list[tables.Difference]:
        """Families that are not as wanted, and those that nobody asked for."""
        return tables.differences(self.actual, tables.policies_of(self.wanted))

    @cached_property
    def schema(self) -> list[Change]:
        """What is otherwise in the schema that the table has of itself; nothing where it has none."""
        return [] if self.stored is None else changes(self.stored, self.wanted)

    @property
    def same(self) -> bool:
        return self.stored is not None and not self.schema and all(it.left_alone for it in self.families)

    @cached_property
    def refusals(self) -> list[str]:
        """Why the table can't be made as wanted, a line each."""
        if self.stored is None:
            return list(self._refusals_of_unknown_rows())
        return [change.refusal for change in self.schema if not change.safe]

    def lines(self) -> Iterator[str]:
        """Every difference, a line each, for a person."""
        if self.stored is None:
            yield f"schema: the table has none of its own, wanted {summary(self.wanted)}"
        for change in self._schema_alone():
            yield f"schema: {change}"
        yield from map(str, self.families)

    def records(self) -> Iterator[dict[str, Any]]:
        """The same for a program."""
        if self.stored is None:
            yield {"schema": None, "actual": None, "wanted": document_of(self.wanted), "safe": not self.refusals}
        for change in self._schema_alone():
            yield {"schema": change.key, "actual": change.actual, "wanted": change.wanted, "safe": change.safe}
        for difference in self.families:
            actual, wanted = (
                None if policy is None else format_policy(policy) for policy in (difference.actual, difference.wanted)
            )
            yield {"family": difference.family, "actual": actual, "wanted": wanted, "safe": True}

    def _schema_alone(self) -> Iterator[Change]:
        """The changes of the schema, but for the policies that are told as those of their families."""
        told = {f"policies.{difference.family}" for difference in self.families if not difference.left_alone}
        return (change for change in self.schema if change.key not in told)

    def _refusals_of_unknown_rows(self) -> Iterator[str]:
        """A table that says nothing of itself has rows of the default schema, as older pipelines wrote them, or none.

        To store another schema in it would be a lie.
        """
        default, wanted = TableSchema.default(), self.wanted
        hidden = self._hidden_families()
        if (wanted.key, wanted.layout, wanted.values) != (default.key, default.layout, default.values):
            problem = f"the rows of a table that says nothing of itself can be of no other than {summary(default)}"
            problem += f"; {_INSTEAD}; if another program wrote them so, 'tidetable table adopt' takes the table over"
        elif not any(family in self.actual for family in wanted.metrics.families):
            problem = f"it has no family of readings that is called {' or '.join(wanted.metrics.families)}; {_INSTEAD}"
        elif hidden:
            flags = " ".join(f"--{family}-family {family}" for family in hidden)
            problem = (
                f"it has the default schema's {' and '.join(hidden)}, which would no longer be read; "
                f"name what is there with {flags}, or pass the families by --schema"
            )
        else:
            return
        if schema_store.has_rows(self.table):
            yield f"schema: the table has rows, and they are not of the schema that is wanted: {problem}"

    def _hidden_families(self) -> list[str]:
        """Those that are there under a name of the default schema, and are no such family in the one that is wanted."""
        wanted = {
            "raw": self.wanted.metrics.families,
            "stats": tuple(tier.family for tier in self.wanted.tiers),
            "meta": self.wanted.metadata.families,
        }
        return [family for family, families in wanted.items() if family in self.actual and family not in families]
