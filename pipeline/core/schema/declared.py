"""The schema that flags declare, and its comparison with a table's own schema."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.core.schema.changes import changes
from pipeline.core.schema.table_schema import TableSchema, canonical
from pipeline.core.windows import HOURLY, Window


@dataclass(frozen=True)
class DeclaredSchema:
    """The parts of a schema that flags set. None is left to the table.

    Args:
        default: whether the schema must be the default one (``--schema=default``).
        raw: the family of readings.
        stats: the family of aggregates of the shortest window.
        meta: the family of metadata.
        window: the shortest window of aggregates.
    """

    default: bool = False
    raw: str | None = None
    stats: str | None = None
    meta: str | None = None
    window: Window | None = None

    def schema(self) -> TableSchema:
        """Returns the default schema with the declared parts. Raises SchemaError if two families are the same."""
        return TableSchema.default(self.raw or "raw", self.stats or "stats", self.meta or "meta", self.window or HOURLY)

    def disagreements(self, schema: TableSchema) -> Iterator[str]:
        """Yields a phrase for each part of the schema that differs from the flags; ignores policies, rates and units.

        The default schema may keep newest readings or not: older tables don't.
        """
        if self.default:
            for change in changes(schema, self.schema()):
                if not change.key.startswith(("policies", "rate", "latest")) and not change.of_unit:
                    yield f"--schema=default: {change}"
            return
        yield from _differs("the family of readings", self.raw, ", ".join(schema.metrics.families))
        yield from _differs("the family of metadata", self.meta, ", ".join(schema.metadata.families))
        shortest = schema.tiers[0] if schema.tiers else None
        yield from _differs("the family of aggregates", self.stats, shortest.family if shortest else "")
        window = canonical(self.window).text if self.window else None
        yield from _differs("the shortest window", window, shortest.window.text if shortest else "")


NOTHING_DECLARED = DeclaredSchema()


def _differs(what: str, declared: str | None, actual: str) -> Iterator[str]:
    # Without the flag's name: the pipeline spells it --raw_family, the toolbox --raw-family.
    if declared is not None and declared != actual:
        yield f"{what} is declared as {declared}, the table's is {actual or 'none'}"
