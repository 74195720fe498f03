"""The schema of a table as one value: how rows are keyed and laid out, where they go, and how long they stay."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from pipeline.core.durations import format_interval
from pipeline.core.events import BadData, Event, Reason, serialized, shown
from pipeline.core.rows import EncodedRow, Row
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.identity import Identity
from pipeline.core.schema.layouts import LAYOUTS, Layout, LayoutContext
from pipeline.core.schema.policies import Policy, collected_after, counts_versions, parse_policy
from pipeline.core.schema.scans import KeyBindings, KeySpace
from pipeline.core.schema.template import KeyTemplate
from pipeline.core.schema.tokens import EventIdToken, MetricToken
from pipeline.core.values import Values
from pipeline.core.windows import DAILY, HOURLY, Window

SCHEMA_FAMILY = "tidetable"
"""The family of the table's own rows; never collected."""

MAX_FAMILIES = 100  # of Bigtable

MAX_GROWTH = 128
"""How many times its own bytes an event's rows may take where the key and the metadata are repeated for each metric."""

_FEW_METRICS = 8  # for which nothing is repeated so often
_FAMILY = re.compile(r"[-_.A-Za-z0-9]{1,64}")
_READINGS_POLICY = parse_policy("maxage=90d")
_AGGREGATES_POLICY = parse_policy("maxage=730d")


class SchemaError(ValueError):
    """A schema that can't be. ``str()`` is one line that begins with the key at fault."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key if key.isprintable() else shown(key)}: {problem}")


@dataclass(frozen=True)
class Tier:
    """Aggregates of one window, and the family that holds them."""

    window: Window
    family: str


def canonical(window: Window) -> Window:
    """The window as row keys call it: an hour and a day are one, however they were written; others go by their text."""
    return next((known for known in (HOURLY, DAILY) if known.length == window.length), window)


@dataclass(frozen=True)
class Rate:
    """What is expected of one sensor: what sizes are reckoned by.

    Args:
        every_us: microseconds from one event to the next.
        metrics: readings of an event.
        metadata: metadata fields of an event.
        event_bytes: an event serialized; None to reckon it from the others.
    """

    every_us: int
    metrics: int = 1
    metadata: int = 0
    event_bytes: int | None = None


@dataclass(frozen=True)
class TableSchema:
    """A table's schema, sound in itself: one that could not work is a :class:`SchemaError` when it is made.

    Args:
        key: the template of raw rows' keys.
        layout: how events become rows and cells.
        values: how readings are written.
        metrics: the families of readings; of a serializing layout the one family of events.
        metadata: the families of metadata; none in a serializing layout.
        tiers: windows of aggregates, the shortest first; each divides the next.
        policies: the garbage collection of families; one that is not named has the default of its kind.
        rate: what is expected of a sensor, where that is known.
    """

    key: KeyTemplate
    layout: Layout
    values: Values
    metrics: FamilyRules
    metadata: FamilyRules
    tiers: tuple[Tier, ...]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    rate: Rate | None = None

    @classmethod
    def default(
        cls, raw: str = "raw", stats: str = "stats", meta: str = "meta", window: Window = HOURLY
    ) -> "TableSchema":
        """The schema of the contract, with these families and this window."""
        return cls(
            KeyTemplate.parse("{sensor_id}#{reverse_us}"),
            LAYOUTS["wide"],
            Values.TEXT,
            metrics=FamilyRules(((raw, ("*",)),)),
            metadata=FamilyRules(((meta, ("*",)),)),
            tiers=(Tier(window, stats),),
        )

    def __post_init__(self) -> None:
        tiers = (Tier(canonical(tier.window), tier.family) for tier in self.tiers)
        object.__setattr__(self, "tiers", tuple(sorted(tiers, key=lambda tier: tier.window.length)))
        self._check_families()
        self._check_layout()
        self._check_tiers()
        self._check_policies()
        defaults = dict.fromkeys(self.reading_families, _READINGS_POLICY)
        defaults |= dict.fromkeys((tier.family for tier in self.tiers), _AGGREGATES_POLICY)
        object.__setattr__(self, "policies", defaults | dict(self.policies))

    @property
    def reading_families(self) -> tuple[str, ...]:
        """The families of raw rows: of readings, then of metadata."""
        return self.metrics.families + self.metadata.families

    @property
    def families(self) -> tuple[str, ...]:
        """Every family but the table's own."""
        return self.reading_families + tuple(tier.family for tier in self.tiers)

    @cached_property
    def layout_context(self) -> LayoutContext:
        """What the layout has to know."""
        return LayoutContext(self.key, self.values, self.metrics, self.metadata)

    @cached_property
    def keys(self) -> KeySpace:
        """Where its raw rows lie."""
        return KeySpace(self.key)

    @cached_property
    def grain_us(self) -> int:
        """How far apart two events of a sensor have to be for its rows to hold both, in microseconds."""
        return self.layout.grain_us(self.layout_context)

    @cached_property
    def identity(self) -> Identity:
        """What its rows tell the events of a sensor apart by; its aggregates count the same events."""
        return self.layout.identity(self.layout_context)

    @property
    def versions_are_events(self) -> bool:
        """Whether a cell of raw rows may have a version for each of several events, at the declared rate.

        Where keys are as fine as the rate, or finer, a row that is not a bucket's holds one event.
        """
        if not self.layout.versions_are_events(self.layout_context):
            return False
        return self.layout.bucketed or self.rate is None or self.rate.every_us < self.key.grain_us

    @property
    def finds_sensors(self) -> bool:
        """Whether the events of a sensor's window are found by its id, without a look at those of others."""
        return not self.key.time_first and not self.keys.missing_metadata(KeyBindings("sensor"))

    @property
    def readings_stay(self) -> timedelta | None:
        """The least age beyond which readings are collected; None where they never are."""
        ages = (collected_after(self.policies[family]) for family in self.metrics.families)
        return min((age for age in ages if age is not None), default=None)

    def tier(self, length: Window) -> Tier | None:
        """The tier of windows of that length; None where there is none."""
        return next((tier for tier in self.tiers if tier.window.length == length.length), None)

    @cached_property
    def accepts_all_events(self) -> bool:
        """Whether it has a place for every valid event."""
        return (
            self.key.accepts_all_events
            and self.metrics.exhaustive
            and (self.metadata.exhaustive or self.layout.serializes)
            and not self.layout.row_per_metric
        )

    def check(self, event: Event) -> None:
        """Raises BadData for a valid event that this table can't hold."""
        self.key.check(event)
        if not self.metrics.exhaustive:
            _check_rules(self.metrics, event.readings, "metric")
        if not self.metadata.exhaustive and not self.layout.serializes:
            _check_rules(self.metadata, event.metadata.keys() - set(self.key.metadata_names), "metadata")
        if self.layout.row_per_metric and len(event.readings) > _FEW_METRICS:
            self._check_growth(event)

    def _check_growth(self, event: Event) -> None:
        """Without making the rows, which are what is to be kept small: all are taken to be as long as the longest."""
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
        """The raw rows of an event that has passed :meth:`check`."""
        return self.layout.rows(self.layout_context, event)

    def encoded_rows(self, events: Iterable[Event]) -> list[EncodedRow]:
        """The rows of all of these, encoded."""
        return self.layout.encoded_rows(self.layout_context, events)

    # What makes it sound

    def _check_families(self) -> None:
        named = [("metrics", family) for family in self.metrics.families]
        named += [("metadata", family) for family in self.metadata.families]
        named += [("tiers", tier.family) for tier in self.tiers]
        seen: dict[str, str] = {}
        for key, family in named:
            if not _FAMILY.fullmatch(family):
                raise SchemaError(key, f"{shown(family)} is not a family's name: 1 to 64 of -_.A-Za-z0-9")
            if family == SCHEMA_FAMILY:
                raise SchemaError(key, f"family {family} is the table's own; take another name")
            if family in seen:
                raise SchemaError(key, f"family {family} is one of {seen[family]} already; each needs one of its own")
            seen[family] = key
        if len(named) >= MAX_FAMILIES:
            raise SchemaError(
                "metrics", f"{len(named)} families and the table's own are more than Bigtable's {MAX_FAMILIES}"
            )
        if not self.metrics.globs:
            raise SchemaError("metrics", 'names no family; give one, like raw = ["*"]')

    def _check_layout(self) -> None:
        layout, key = self.layout, self.key
        if layout.row_per_metric and not key.has(MetricToken):
            raise SchemaError("key", f"{key} has no {{metric}}, and the layout {layout.name} has a row for each")
        if not layout.row_per_metric and key.has(MetricToken):
            raise SchemaError(
                "key", f"{key} has {{metric}}, but a row of the layout {layout.name} holds all of an event's metrics"
            )
        if layout.bucketed and key.grain_us <= 1000:
            raise SchemaError("key", f"{key} has no bucket, and the layout {layout.name} needs one, like {{bucket:1h}}")
        if layout.bucketed and key.has(EventIdToken):
            raise SchemaError("key", f"{key} has {{event_id}}: a bucket would hold one event")
        if layout.serializes:
            if len(self.metrics.globs) > 1 or self.metrics.globs[0][1] != ("*",):
                raise SchemaError("metrics", f'the layout {layout.name} keeps events whole, in one family: raw = ["*"]')
            if self.metadata.globs:
                raise SchemaError("metadata", f"the layout {layout.name} keeps it with the event; leave this out")
            if self.values is not Values.TEXT:
                raise SchemaError("values", f"the layout {layout.name} keeps values in the event; leave this out")

    def _check_tiers(self) -> None:
        for shorter, longer in zip(self.tiers, self.tiers[1:], strict=False):
            if shorter.window.length == longer.window.length:
                raise SchemaError("tiers", f"two of them are the same window, {shorter.window.text}")
            if longer.window.length % shorter.window.length:
                raise SchemaError(
                    "tiers",
                    f"{shorter.window.text} does not divide {longer.window.text}, which is computed from it",
                )

    def _check_policies(self) -> None:
        for family, policy in self.policies.items():
            if family not in self.families:
                raise SchemaError(
                    f"policies.{family}", f"there is no such family; there are {', '.join(self.families)}"
                )
            if family in self.reading_families and counts_versions(policy) and self.versions_are_events:
                instead = "take maxage"
                if not self.layout.bucketed:
                    every = format_interval(self.key.grain_us)
                    instead += f', or declare that a sensor sends no faster: [rate] every = "{every}", or longer'
                raise SchemaError(
                    f"policies.{family}",
                    f"maxversions would collect events: in the layout {self.layout.name}, under keys like {self.key}, "
                    f"each version of a cell is one; {instead}",
                )


def _check_rules(rules: FamilyRules, names: Iterable[str], what: str) -> None:
    for name in names:
        if rules.family_of(name) is None:
            raise BadData(Reason.NO_FAMILY, f"{what} {name} is taken by none of the table's families")
