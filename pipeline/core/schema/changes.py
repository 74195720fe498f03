"""Compares two schemas, decides which changes are safe for a table with rows, and compares a table with flags."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.schema.gc_policies import same_policy
from pipeline.core.schema.rollup import SHARDS
from pipeline.core.schema.table_schema import TableSchema, canonical
from pipeline.core.schema.toml import document_of
from pipeline.core.statistics.window_stats import DEFAULT, Statistics
from pipeline.core.windows import HOURLY, Window

_SHARDS_KEY = f"rollups.{SHARDS}"
_WHY_UNSAFE = {
    "key": "existing rows have the old keys, and no reader would find them",
    "layout": "existing rows have the old layout, and no reader could distinguish the two",
    "values": "existing cells have the old encoding, and no reader could distinguish the two",
    "metrics": "the family may contain readings, and no reader would look for them there any more",
    "metadata": "the family may contain metadata, and no reader would look for it there any more",
    "tiers": "the family may contain aggregates, and no reader would look for them there any more",
    "latest": "the family contains newest readings, and no reader would look for them there any more",
    "statistics": "rows that contain the statistic would keep its old value when they are written again",
    "rollups": "existing rows are of other groups, which would stay beside the new ones",
    _SHARDS_KEY: "sensors would be in other shards, and count twice in rows that exist",
}
_INSTEAD = {"rollups": "declare another roll-up, with a new name", _SHARDS_KEY: "leave the number as it is"}
ALTERNATIVE = (
    "create another table with the new schema, and let the pipeline write to both: --bigtable-table may be repeated"
)


@dataclass(frozen=True)
class Change:
    """A difference in one key of the schema. None stands for an absent key."""

    key: str  # as in the TOML: "layout", "metrics.raw", "policies.stats"
    actual: Any
    wanted: Any
    about_metric: bool = False  # the change of one metric's declaration

    @property
    def for_people(self) -> bool:
        """Whether a metric's unit or label changes, which concerns no row."""
        return self.about_metric and not self.key.endswith(".valid")

    @property
    def safe(self) -> bool:
        """Whether readers still find and read existing rows after the change, except rows of dropped roll-ups."""
        section = self.key.partition(".")[0]
        if section in ("policies", "rate", "metadata_alone", "invalid") or self.about_metric:
            return True
        if section in ("metrics", "metadata"):
            return self.wanted is not None  # readers search every family of the schema
        if section == "statistics":
            in_order = self.key != section  # in another order, another glob may match first
            return in_order and self.wanted is not None and set(self.actual) <= set(self.wanted)
        if section == "rollups" and self.key != _SHARDS_KEY:
            return self.actual is None or not self.key.endswith(".by") or self.wanted is None
        return section in ("tiers", "latest", "rollups") and self.actual is None

    def __str__(self) -> str:
        actual, wanted = map(_shown, (self.actual, self.wanted))
        return f"{self.key} is {actual}, wanted {wanted}"

    @property
    def made(self) -> str:
        """The words about a change that was made."""
        actual, wanted = map(_shown, (self.actual, self.wanted))
        return f"{self.key} was {actual} and is {wanted}"

    @property
    def refusal(self) -> str:
        """The message about an unsafe change: why it is refused, and what to do instead."""
        of = self.key if self.key in _WHY_UNSAFE else self.key.partition(".")[0]
        return f"{self}: {_WHY_UNSAFE[of]}; {_INSTEAD.get(of, ALTERNATIVE)}"


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    return repr(list(value) if isinstance(value, tuple) else value)


def changes(actual: TableSchema, wanted: TableSchema) -> list[Change]:
    """Returns the changes from one schema to the other, in the order of the TOML's keys."""
    before, after = dict(_flat(document_of(actual))), dict(_flat(document_of(wanted)))
    both = actual.policies.keys() & wanted.policies
    same = {f"policies.{family}" for family in both if same_policy(actual.policies[family], wanted.policies[family])}
    return [
        *_reordered("metrics", actual.metrics.families, wanted.metrics.families),
        *_reordered("metadata", actual.metadata.families, wanted.metadata.families),
        *_statistics(actual.statistics, wanted.statistics),
        *_rollups(actual, wanted),
        *(replace(change, about_metric=True) for change in _differing(_of_metrics(actual), _of_metrics(wanted))),
        *(change for change in _differing(before, after) if change.key not in same),
    ]


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for key in dict.fromkeys([*after, *before]):
        if before.get(key) != after.get(key):
            yield Change(key, before.get(key), after.get(key))


def _of_metrics(schema: TableSchema) -> dict[str, Any]:
    return {
        f"metrics.{metric}.{key}": value
        for metric, declared in schema.declared.items()
        for key, value in declared.document().items()
    }


def _reordered(key: str, actual: tuple[str, ...], wanted: tuple[str, ...]) -> Iterator[Change]:
    """Yields a change if the order of families differs: the first with a glob that matches a name takes it."""
    before, after = [f for f in actual if f in wanted], [f for f in wanted if f in actual]
    if before != after:
        yield Change(key, before, after)


def _statistics(actual: Statistics, wanted: Statistics) -> Iterator[Change]:
    """Yields the changes of statistics. A new glob may take metrics that had any of the statistics before."""
    before, after = dict(actual.globs), dict(wanted.globs)
    yield from _reordered("statistics", tuple(before), tuple(after))
    everything = tuple(dict.fromkeys([*(name for names in before.values() for name in names), *DEFAULT]))
    for glob in dict.fromkeys([*after, *before]):
        if before.get(glob) != after.get(glob):
            yield Change(f"statistics.{glob}", before.get(glob, everything), after.get(glob))


def _rollups(actual: TableSchema, wanted: TableSchema) -> Iterator[Change]:
    """Yields the changes of roll-ups: all of an added or dropped one, or each key of one that stays."""
    before, after = _entries(actual), _entries(wanted)
    for name in dict.fromkeys([*after, *before]):
        key, old, new = f"rollups.{name}", before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from (Change(f"{key}.{each}", old[each], new[each]) for each in old if old[each] != new[each])
        elif old != new:
            yield Change(key, old, new)


def _entries(schema: TableSchema) -> dict[str, Any]:
    """Returns the section of roll-ups, each with all of its keys."""
    every = {"tiers": [tier.window.text for tier in schema.tiers], "metrics": ["*"]}
    section = document_of(schema).get("rollups", {})
    return {name: entry if name == SHARDS else {"by": entry["by"], **every, **entry} for name, entry in section.items()}


def _flat(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if key in ("statistics", "rollups"):
            continue
        if isinstance(value, dict) and key != "rate":
            for name, entry in value.items():
                if not isinstance(entry, dict):  # as metrics are
                    yield f"{key}.{name}", entry
        else:
            yield key, value


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
        """Yields a phrase for each part of the schema that differs from the flags.

        Ignores policies, rates, units and labels. The default schema may keep newest readings or not: older tables
        don't.
        """
        if self.default:
            for change in changes(schema, self.schema()):
                if not change.key.startswith(("policies", "rate", "latest")) and not change.for_people:
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
