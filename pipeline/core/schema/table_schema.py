"""The schema of a table: row keys, layout, families, tiers, and garbage collection."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property

from pipeline.core.events.event import Event, is_name, serialized
from pipeline.core.events.invalid_readings import Invalid
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.cell_values import Values
from pipeline.core.notation.durations import format_interval
from pipeline.core.notation.text import shown
from pipeline.core.rows.rollup_rows import FAMILY
from pipeline.core.rows.rows import EncodedRow, Row
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, collected_after, counts_versions, of_newest, parse_policy
from pipeline.core.schema.key_template import KeyBindings, KeyTemplate
from pipeline.core.schema.key_tokens import EventIdToken, MetricToken
from pipeline.core.schema.layouts import LAYOUTS, Identity, Layout, LayoutContext
from pipeline.core.schema.rate import Rate, shards_for
from pipeline.core.schema.rollup import Rollup, member_problem, rollup_problems
from pipeline.core.statistics.window_stats import BY_DEFAULT, Statistics
from pipeline.core.windows import DAILY, HOURLY, Window, tier_problem

SCHEMA_FAMILY = "tidetable"
"""The family of the table's own rows; never collected."""

MAX_FAMILIES = 100  # Bigtable's limit

MAX_GROWTH = 128
"""The greatest ratio of an event's rows to its own size, in layouts that repeat key and metadata for each metric."""

_WITHOUT_UNIT = ("count", "coverage", "first_time", "last_time")  # statistics
_FEW_METRICS = 8  # with no more metrics, the growth is not checked
_FAMILY = re.compile(r"[-_.A-Za-z0-9]{1,64}")
_READINGS_POLICY = parse_policy("maxage=90d")
_NEWEST_POLICY = parse_policy("maxage=730d || maxversions=1")  # of rows whose older versions nobody reads


class SchemaError(ValueError):
    """An invalid schema. ``str()`` is one line that begins with the key at fault."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key if key.isprintable() else shown(key)}: {problem}")


@dataclass(frozen=True)
class Tier:
    """A window of aggregates, the family that contains them, and the statistics in their rows."""

    window: Window
    family: str
    statistics: Statistics = BY_DEFAULT


def canonical(window: Window) -> Window:
    """Returns the window as it appears in row keys: ``60m`` becomes ``1h``, ``24h`` ``1d``; others keep their text."""
    return next((known for known in (HOURLY, DAILY) if known.label == window.label), window)


@dataclass(frozen=True)
class TableSchema:
    """A table's schema. The constructor validates it, and raises :class:`SchemaError`.

    Args:
        key: the row key template of raw rows.
        layout: converts events to rows and cells.
        values: the encoding of readings.
        metrics: the families of readings; in a serializing layout, the one family of events.
        metadata: the families of metadata; none in a serializing layout.
        tiers: the windows of aggregates, shortest first; each but the first is computed from a shorter one, of which
            its windows consist: see :mod:`pipeline.core.windows`.
        policies: garbage-collection policies by family; others have the default of their kind. Policies of tiers are
            :meth:`completed`.
        rate: the expected rate of a sensor, if known.
        statistics: the statistics of each metric in aggregate rows.
        latest: the family of the newest readings; None for a table without them.
        metadata_alone: whether the table keeps events that have metadata and no readings.
        rollups: the roll-ups of aggregates.
        rollup_shards: the number of shards among which the sensors of roll-ups are divided; with roll-ups, None stands
            for the number that follows from the rate. It stays with the table: a sensor keeps its shard.
        declared: the declarations of metrics.
        invalid: the fate of events with readings that are not finite or not in their metric's range.
    """

    key: KeyTemplate
    layout: Layout
    values: Values
    metrics: FamilyRules
    metadata: FamilyRules
    tiers: tuple[Tier, ...]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    rate: Rate | None = None
    statistics: Statistics = BY_DEFAULT
    latest: str | None = None
    metadata_alone: bool = False
    rollups: tuple[Rollup, ...] = ()
    rollup_shards: int | None = None
    declared: Mapping[str, DeclaredMetric] = field(default_factory=dict)
    invalid: Invalid = Invalid.DROP_READING

    @classmethod
    def default(
        cls, raw: str = "raw", stats: str = "stats", meta: str = "meta", window: Window = HOURLY
    ) -> "TableSchema":
        """Returns the default schema of a table that stores none, with these families and this window."""
        return cls(
            KeyTemplate.parse("{sensor_id}#{reverse_us}"),
            LAYOUTS["wide"],
            Values.TEXT,
            metrics=FamilyRules(((raw, ("*",)),)),
            metadata=FamilyRules(((meta, ("*",)),)),
            tiers=(Tier(window, stats),),
        )

    @classmethod
    def for_new_table(cls) -> "TableSchema":
        """Returns the default schema of a new table, which keeps each sensor's newest readings too."""
        return replace(cls.default(), latest="latest")

    def __post_init__(self) -> None:
        statistics = replace(self.statistics, every_us=self.rate.every_us if self.rate else None)
        tiers = (Tier(canonical(tier.window), tier.family, statistics) for tier in self.tiers)
        object.__setattr__(self, "tiers", tuple(sorted(tiers, key=lambda tier: (tier.window.length, tier.window.text))))
        self._check_families()
        self._check_layout()
        self._check_metadata_alone()
        self._check_tiers()
        self._check_policies()
        defaults = dict.fromkeys(self.families, _NEWEST_POLICY) | dict.fromkeys(self.reading_families, _READINGS_POLICY)
        policies = (defaults | dict(self.policies)).items()
        object.__setattr__(self, "policies", {family: self.completed(family, policy) for family, policy in policies})
        self._check_statistics()
        self._check_rollups()
        self._check_declared()

    def completed(self, family: str, policy: Policy) -> Policy:
        """Returns a family's policy; that of a tier also collects older versions of cells, which nobody reads."""
        return of_newest(policy) if any(tier.family == family for tier in self.tiers) else policy

    @property
    def reading_families(self) -> tuple[str, ...]:
        """The families of raw rows: readings, then metadata."""
        return self.metrics.families + self.metadata.families

    @property
    def families(self) -> tuple[str, ...]:
        """Every family except the table's own."""
        tiers = tuple(tier.family for tier in self.tiers)
        return self.reading_families + tiers + self._latest_families + self._rollup_families

    @property
    def _latest_families(self) -> tuple[str, ...]:
        return () if self.latest is None else (self.latest,)

    @property
    def _rollup_families(self) -> tuple[str, ...]:
        return (FAMILY,) if self.rollups else ()

    @cached_property
    def member_fields(self) -> tuple[str, ...]:
        """The metadata fields that roll-ups group by, sorted."""
        return tuple(sorted({field for rollup in self.rollups for field in rollup.by}))

    @cached_property
    def member_families(self) -> tuple[str, ...]:
        """The families of these fields: none for fields in row keys, or in events that are stored whole."""
        in_cells = set(self.member_fields) - self._always_kept
        return tuple(sorted({self.metadata.family_of(name) or "" for name in in_cells}))

    @property
    def _always_kept(self) -> frozenset[str]:
        """The fields of roll-ups that raw rows keep as long as readings."""
        return frozenset(self.member_fields if self.layout.serializes else self.key.metadata_names)

    @property
    def shards_of_rollups(self) -> int:
        """The number of shards among which the sensors of roll-ups are divided."""
        return self.rollup_shards or shards_for(self.rate)

    def rollups_of(self, window: Window) -> tuple[Rollup, ...]:
        """Returns the roll-ups that have rows of a tier's windows."""
        return tuple(rollup for rollup in self.rollups if not rollup.tiers or window.text in rollup.tiers)

    @cached_property
    def layout_context(self) -> LayoutContext:
        return LayoutContext(self.key, self.values, self.metrics, self.metadata)

    @cached_property
    def grain_us(self) -> int:
        """The time in microseconds by which two events of a sensor must differ to be stored separately."""
        return self.layout.grain_us(self.layout_context)

    @cached_property
    def identity(self) -> Identity:
        """The rule by which rows distinguish the events of a sensor; aggregates count the same events."""
        return self.layout.identity(self.layout_context)

    @property
    def versions_are_events(self) -> bool:
        """Whether the versions of one raw cell may belong to different events, at the declared rate.

        If the keys' grain is no longer than the time between events, a row contains one event, unless it is a bucket.
        """
        if not self.layout.versions_are_events(self.layout_context):
            return False
        return self.layout.bucketed or self.rate is None or self.rate.every_us < self.key.grain_us

    @cached_property
    def finds_sensors(self) -> bool:
        """Whether the sensor id suffices to find a window's events without reading those of other sensors."""
        return not self.key.time_first and not self.key.missing_metadata(KeyBindings("sensor"))

    @cached_property
    def units(self) -> Mapping[str, str]:
        """The units of metrics, for people; no row depends on them."""
        return {metric: declared.unit for metric, declared in self.declared.items() if declared.unit}

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The names of metrics for people, with the metric behind a name of several; no row depends on them."""
        named = {metric: declared.label for metric, declared in self.declared.items() if declared.label}
        times = Counter(named.values())
        return {metric: f"{label} [{metric}]" if times[label] > 1 else label for metric, label in named.items()}

    @cached_property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """The least and the greatest valid readings of the metrics that have a range."""
        return {metric: declared.valid for metric, declared in self.declared.items() if declared.valid}

    def unit_of(self, metric: str, statistic: str | None = None) -> str | None:
        """Returns the unit of a metric's readings or of one of its statistics; None if none is known."""
        unit = self.units.get(metric)
        if unit is None or statistic in _WITHOUT_UNIT:
            return None
        return f"{unit}/s" if statistic == "rate" else unit

    def title_of(self, metric: str) -> str:
        """Returns the heading of a metric's values for people: its label, or else its name, and its unit."""
        name, unit = self.labels.get(metric, metric), self.units.get(metric)
        return f"{name} ({unit})" if unit else name

    def tier(self, window: Window) -> Tier | None:
        """Returns the tier with these windows, in whatever notation; None if no tier has them."""
        return next((tier for tier in self.tiers if tier.window.same_as(window)), None)

    @cached_property
    def accepts_all_events(self) -> bool:
        """Whether the table can store every valid event, without :meth:`check`."""
        return (
            self.key.accepts_all_events
            and self.metrics.exhaustive
            and (self.metadata.exhaustive or self.layout.serializes)
            and not self.layout.row_per_metric
        )

    def check(self, event: Event) -> None:
        """Raises BadData for a valid event that this table can't store."""
        self.key.check(event)
        alone = self.metadata_alone and not event.readings and not self.layout.serializes
        if alone and event.metadata.keys() <= set(self.key.metadata_names):  # the row would have no cell
            raise BadData(Reason.NO_READINGS, "the event has no readings, and no metadata outside the row key")
        if not self.metrics.exhaustive:
            _check_rules(self.metrics, event.readings, "metric")
        if not self.metadata.exhaustive and not self.layout.serializes:
            _check_rules(self.metadata, event.metadata.keys() - set(self.key.metadata_names), "metadata")
        if self.layout.row_per_metric and len(event.readings) > _FEW_METRICS:
            self._check_growth(event)

    def _check_growth(self, event: Event) -> None:
        """Raises BadData if the rows would be too large. Estimates them by the longest, without making them all."""
        longest = max(event.readings, key=len)
        ((key, mutations, _),) = self.encoded_rows([event._replace(readings={longest: event.readings[longest]})])
        rows_bytes = len(event.readings) * (len(key) + len(mutations))
        own_bytes = len(serialized(event)) if event.message is None else event.message.ByteSize()
        if rows_bytes > MAX_GROWTH * own_bytes:
            raise BadData(
                Reason.ROWS_TOO_LARGE,
                f"{len(event.readings)} rows of {len(key) + len(mutations):,} bytes are more than {MAX_GROWTH} times "
                f"the event's {own_bytes:,}: the layout {self.layout.name} repeats its metadata for each metric",
            )

    def rows(self, event: Event) -> list[Row]:
        """Returns the raw rows of an event. The event must have passed :meth:`check`."""
        return self.layout.rows(self.layout_context, event)

    def encoded_rows(self, events: Iterable[Event]) -> list[EncodedRow]:
        return self.layout.encoded_rows(self.layout_context, events)

    # Validation

    def _check_families(self) -> None:
        named = [
            *(("metrics", family) for family in self.metrics.families),
            *(("metadata", family) for family in self.metadata.families),
            *(("tiers", tier.family) for tier in self.tiers),
            *(("latest", family) for family in self._latest_families),
            *(("rollups", family) for family in self._rollup_families),
        ]
        seen: dict[str, str] = {}
        for key, family in named:
            if not _FAMILY.fullmatch(family):
                raise SchemaError(key, f"{shown(family)} is not a family name: 1 to 64 of -_.A-Za-z0-9")
            if family == SCHEMA_FAMILY:
                raise SchemaError(key, f"family {family} is the table's own; choose another name")
            if family in seen:
                raise SchemaError(key, f"family {family} is already used by {seen[family]}; each needs its own")
            seen[family] = key
        if len(named) >= MAX_FAMILIES:
            raise SchemaError(
                "metrics", f"{len(named)} families and the table's own are more than Bigtable's {MAX_FAMILIES}"
            )
        if not self.metrics.globs:
            raise SchemaError("metrics", 'has no family; add one, like raw = ["*"]')

    def _check_layout(self) -> None:
        layout, key = self.layout, self.key
        if layout.row_per_metric and not key.has(MetricToken):
            raise SchemaError("key", f"{key} has no {{metric}}, and the layout {layout.name} has a row for each")
        if not layout.row_per_metric and key.has(MetricToken):
            raise SchemaError(
                "key", f"{key} has {{metric}}, but a row of the layout {layout.name} contains all metrics of an event"
            )
        if layout.bucketed and key.grain_us <= 1000:
            raise SchemaError("key", f"{key} has no bucket, and the layout {layout.name} needs one, like {{bucket:1h}}")
        if layout.bucketed and key.has(EventIdToken):
            raise SchemaError("key", f"{key} has {{event_id}}: a bucket would contain one event")
        if layout.serializes:
            if len(self.metrics.globs) > 1 or self.metrics.globs[0][1] != ("*",):
                raise SchemaError("metrics", f'the layout {layout.name} stores whole events in one family: raw = ["*"]')
            if self.metadata.globs:
                raise SchemaError("metadata", f"the layout {layout.name} stores metadata in the event; leave this out")
            if self.values is not Values.TEXT:
                raise SchemaError("values", f"the layout {layout.name} stores values in the event; leave this out")

    def _check_metadata_alone(self) -> None:
        layout = self.layout
        if self.metadata_alone and layout.row_per_metric:
            raise SchemaError(
                "metadata_alone", f"the layout {layout.name} has a row for each metric, and none for metadata alone"
            )
        if self.metadata_alone and not self.metadata.globs and not layout.serializes:
            raise SchemaError("metadata_alone", 'the table has no family of metadata; add one, like meta = ["*"]')

    def _check_tiers(self) -> None:
        if self.latest is not None and not self.tiers:
            raise SchemaError(
                "latest", "is written with aggregates, and the table has no tiers; add one, or leave it out"
            )
        if problem := tier_problem([tier.window for tier in self.tiers]):
            raise SchemaError("tiers", problem)

    def _check_statistics(self) -> None:
        if "coverage" in self.statistics.names and self.rate is None:
            raise SchemaError("statistics", 'coverage needs the rate that sensors are to have: [rate] every = "1m"')
        if not self.statistics.carries or not self.tiers:
            return
        name = self.statistics.carrying
        if not self.finds_sensors:
            raise SchemaError(
                "statistics",
                f"{name} needs the last reading before each window, and keys like {self.key} don't find those of a "
                "sensor: begin keys with {sensor_id}, or leave it out",
            )
        shortest = self.tiers[0].window
        for family in self.metrics.families:
            age = collected_after(self.policies[family])
            if age is not None and age < 2 * shortest.length:
                raise SchemaError(
                    "statistics",
                    f"{name} needs raw rows for two windows of {shortest.text}, and {family} is collected after "
                    f"{format_interval(age // timedelta(microseconds=1))}: keep it longer, or leave {name} out",
                )

    def _check_rollups(self) -> None:
        """Raises SchemaError for a roll-up that can't be computed. Notes its tiers as row keys name them."""
        windows = [tier.window for tier in self.tiers]
        for key, found in rollup_problems(self.rollups, windows, self.metrics):
            raise SchemaError(key, found)
        for rollup in self.rollups:
            for name in sorted(set(rollup.by) - self._always_kept):
                of_name = self.metadata.family_of(name)
                if lost := member_problem(name, of_name, self.policies, self.metrics.families):
                    raise SchemaError(f"rollups.{rollup.name}", lost)
        if self.rollups:
            object.__setattr__(self, "rollup_shards", self.shards_of_rollups)
            object.__setattr__(self, "rollups", tuple(rollup.with_tiers_of(windows) for rollup in self.rollups))

    def _check_declared(self) -> None:
        for metric, declared in self.declared.items():
            key = f"metrics.{metric}"
            if metric in self.metrics.families:
                raise SchemaError(key, "is a family; a metric of the same name can't be declared")
            if not is_name(metric):
                raise SchemaError(key, "is not a metric's name; each metric has a section of its own: [metrics.pm10]")
            if self.metrics.family_of(metric) is None:
                raise SchemaError(key, "no family takes this metric; add it to one, or leave this out")
            for name, problem in declared.problems():
                raise SchemaError(f"{key}.{name}", problem)

    def _check_policies(self) -> None:
        for family, policy in self.policies.items():
            if family not in self.families:
                raise SchemaError(
                    f"policies.{family}", f"there is no such family; the families are {', '.join(self.families)}"
                )
            if family in self.reading_families and counts_versions(policy) and self.versions_are_events:
                instead = "use maxage"
                if not self.layout.bucketed:
                    every = format_interval(self.key.grain_us)
                    instead += f', or declare that a sensor sends no faster: [rate] every = "{every}", or longer'
                raise SchemaError(
                    f"policies.{family}",
                    f"maxversions would collect events: in the layout {self.layout.name}, with keys like {self.key}, "
                    f"each version of a cell is an event; {instead}",
                )


def _check_rules(rules: FamilyRules, names: Iterable[str], what: str) -> None:
    for name in names:
        if rules.family_of(name) is None:
            raise BadData(Reason.NO_FAMILY, f"{what} {name} matches none of the table's families")
