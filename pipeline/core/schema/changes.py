"""How two schemas differ, and which of the differences a table with rows in it survives."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.core.schema.policies import same_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import document_of

_WHY_NOT = {
    "key": "the rows that are there have the old keys, and no reader would find them",
    "layout": "the rows that are there have the old layout, and no reader could tell which is which",
    "values": "the cells that are there have the old encoding, and no reader could tell which is which",
    "metrics": "the family may hold readings, and no reader would look for them there any more",
    "metadata": "the family may hold metadata, and no reader would look for it there any more",
    "tiers": "the family may hold aggregates, and no reader would look for them there any more",
}
_INSTEAD = (
    "make another table with the schema that is wanted, and give the pipeline both: --bigtable_table may be repeated"
)


@dataclass(frozen=True)
class Change:
    """One key of the schema that is not as wanted. None stands for a key that is not there."""

    key: str  # as in the TOML: "layout", "metrics.raw", "policies.stats"
    actual: Any
    wanted: Any

    @property
    def safe(self) -> bool:
        """Whether rows that are there are still found and read aright after it."""
        section = self.key.partition(".")[0]
        if section in ("policies", "rate"):
            return True
        if section in ("metrics", "metadata"):
            return self.wanted is not None  # whatever a family takes: every family is searched for what it has
        return section == "tiers" and self.actual is None

    def __str__(self) -> str:
        actual, wanted = (("absent" if value is None else repr(value)) for value in (self.actual, self.wanted))
        return f"{self.key} is {actual}, wanted {wanted}"

    @property
    def refusal(self) -> str:
        """Why a change that is not safe is not made, and what to do instead."""
        return f"{self}: {_WHY_NOT[self.key.partition('.')[0]]}; {_INSTEAD}"


def changes(actual: TableSchema, wanted: TableSchema) -> list[Change]:
    """What would have to change, in the order of the TOML's keys."""
    before, after = dict(_flat(document_of(actual))), dict(_flat(document_of(wanted)))
    same = {f"policies.{family}" for family in actual.families if _same_policy(actual, wanted, family)}
    return [
        *_reordered("metrics", actual.metrics.families, wanted.metrics.families),
        *_reordered("metadata", actual.metadata.families, wanted.metadata.families),
    ] + [
        Change(key, before.get(key), after.get(key))
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key) and key not in same
    ]


def _reordered(key: str, actual: tuple[str, ...], wanted: tuple[str, ...]) -> Iterator[Change]:
    """The first family that matches takes a name, so that their order says something too."""
    before, after = [f for f in actual if f in wanted], [f for f in wanted if f in actual]
    if before != after:
        yield Change(key, before, after)


def _same_policy(actual: TableSchema, wanted: TableSchema, family: str) -> bool:
    return family in wanted.families and same_policy(actual.policies[family], wanted.policies[family])


def _flat(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict) and key != "rate":
            for name, entry in value.items():
                yield f"{key}.{name}", entry
        else:
            yield key, value
