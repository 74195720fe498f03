"""Garbage collection: the times from which a table still contains all that was written, and events that are too old."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, collected_after, counts_versions
from pipeline.core.schema.table_schema import TableSchema, Tier

FOR_EVER_US = 1 << 62
"""A time after any event."""

_MICROSECOND = timedelta(microseconds=1)
_MARGIN = timedelta(days=1)  # a run that relies on it may take hours, and clocks differ
_MARGIN_OF_ANSWERS = timedelta(minutes=10)


@dataclass(frozen=True)
class Retention:
    """Which cells of a table Bigtable may have collected. Made by :meth:`of` or :meth:`unknown`.

    Attributes:
        ages: the least age at which each family loses cells; None for a family that keeps them for ever.
        readings: the families of readings.
        members: the families of metadata that roll-ups group by, which have to be there where windows are computed.
        since: the time from which a family has kept its cells, if later than its age implies.
        loses_events: whether a family of readings loses events to newer ones, whatever their age.
        known: whether the table's own policies were read.
        added: the start of the first windows with rows, for each family of a tier that was added to a table with rows.
        lateness: the longest allowed lateness, and late firing interval, by which jobs may still write windows.
        newest_every: the longest time by which a sensor's row of newest readings may be behind its raw rows.
    """

    ages: Mapping[str, timedelta | None]
    readings: tuple[str, ...]
    members: tuple[str, ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)
    loses_events: bool = False
    known: bool = True
    added: Mapping[str, int] = field(default_factory=dict)
    lateness: tuple[timedelta, timedelta] = (timedelta(0), timedelta(0))
    newest_every: timedelta = timedelta(0)

    @classmethod
    def of(cls, schema: TableSchema, *policies: Mapping[str, Policy], **noted: Any) -> "Retention":
        """Returns the retention under several sets of policies, such as those of the stored schema and of the table.

        The shortest wins: extending a policy does not restore what the shorter one collected.

        Args:
            schema: the table's schema.
            policies: policies by family; the schema's own if empty.
            noted: the attributes ``since``, ``added``, ``lateness`` and ``newest_every``.
        """
        every = policies or (schema.policies,)
        ages: dict[str, timedelta | None] = {}
        for family in schema.families:
            of_family = [collected_after(each[family]) for each in every if family in each]
            ages[family] = min((age for age in of_family if age is not None), default=None)
        readings, members = schema.metrics.families, schema.member_families
        loses_events = schema.versions_are_events and any(
            counts_versions(each[family]) for each in every for family in readings + members if family in each
        )
        return cls(ages, readings, members, loses_events=loses_events, **noted)

    @classmethod
    def unknown(cls, schema: TableSchema) -> "Retention":
        """Returns the retention of a table that was not read: raw rows may be gone, aggregates follow the schema."""
        return cls(cls.of(schema).ages, schema.metrics.families, known=False)

    def readings_from_us(self, now_us: int) -> int:
        """Returns the event time from which raw rows certainly contain all that windows are computed from."""
        if not self.known or self.loses_events:
            return FOR_EVER_US
        return max(self._from_us(family, now_us) for family in self.readings + self.members)

    def aggregates_from_us(self, tier: Tier, now_us: int) -> int:
        """Returns the window start from which the tier's aggregate rows certainly still exist."""
        return self._from_us(tier.family, now_us)

    def has_events_from_us(self, now_us: int, family: str | None = None) -> int:
        """Returns the event time from which an answer given now has all readings: of a family, or of all."""
        if not self.known or self.loses_events:
            return FOR_EVER_US
        return max(self._from_us(each, now_us, _MARGIN_OF_ANSWERS) for each in ([family] if family else self.readings))

    def has_windows_from_us(self, tier: Tier, now_us: int) -> int:
        """Returns the start from which an answer given now has the tier's rows: kept, and written by a job."""
        if not self.known:
            return FOR_EVER_US
        return max(self._from_us(tier.family, now_us, _MARGIN_OF_ANSWERS), self.added.get(tier.family, 0))

    def aggregates_stay_from_us(self, tier: Tier, now_us: int) -> int:
        """Returns the least start of a window whose aggregate row is not collected as soon as it is written."""
        return self.cells_stay_from_us(tier.family, now_us)

    def cells_stay_from_us(self, family: str, now_us: int) -> int:
        """Returns the least timestamp of a cell of the family that is not collected as soon as it is written."""
        age = self.ages.get(family)
        return 0 if age is None else now_us - age // _MICROSECOND

    def counts(self, tier: Tier, start_us: int) -> bool:
        """Whether the tier already existed when windows with that start were first counted."""
        return self.added.get(tier.family, 0) <= start_us

    def lateness_of_jobs(self, allowed: timedelta, late_firing: timedelta) -> tuple[timedelta, timedelta]:
        """Returns the longer of the running job's lateness and the lateness that was noted of jobs.

        Args:
            allowed: the allowed lateness of the job that writes the table; zero if no job runs, and then the result.
            late_firing: the late firing interval of that job.
        """
        noted_allowed, noted_late_firing = self.lateness
        if not allowed:
            return allowed, late_firing
        return max(allowed, noted_allowed), max(late_firing, noted_late_firing)

    def losses_under(self, after: "Retention", now_us: int) -> dict[str, int]:
        """Returns, by family, the time before which cells may be lost, if the retention ``after`` does not imply it."""
        found = {
            family: self._from_us(family, now_us)
            for family in self.ages
            if self._from_us(family, now_us) > after._from_us(family, now_us)
        }
        if self.loses_events and not after.loses_events:
            found |= dict.fromkeys(self.readings, now_us)
        return found

    def _from_us(self, family: str, now_us: int, margin: timedelta = _MARGIN) -> int:
        since_us = self.since.get(family, 0)
        age = self.ages.get(family)
        return since_us if age is None else max(now_us - (age - margin) // _MICROSECOND, since_us)


@dataclass(frozen=True)
class Expiry:
    """Finds events that are older than their family keeps cells: Bigtable would collect them immediately.

    Attributes:
        ages: the age of each family that collects by age, among families of readings and of metadata without readings.
        metrics: the families of readings.
        alone: the families of metadata without readings.
    """

    ages: Mapping[str, timedelta]
    metrics: FamilyRules
    alone: FamilyRules

    @classmethod
    def of(cls, schema: TableSchema, policies: Mapping[str, Policy]) -> "Expiry":
        """Returns the expiry of events under a table's schema and its policies by family."""
        alone = schema.metadata if schema.metadata_alone else FamilyRules()
        if schema.layout.serializes:
            alone = schema.metrics
        ages = {
            family: age
            for family in schema.metrics.families + alone.families
            if family in policies and (age := collected_after(policies[family])) is not None
        }
        return cls(ages, schema.metrics, alone)

    @cached_property
    def shortest_us(self) -> int | None:
        """The least age, in µs, at which cells of events are collected; None if they never are."""
        shortest = min(self.ages.values(), default=None)
        return None if shortest is None else shortest // _MICROSECOND

    def expires(self, time_us: int, metrics: Collection[str], now_us: int, metadata: Collection[str] = ()) -> bool:
        """Whether an event has a reading that is too old for its family; without readings, whether metadata is."""
        age_us = now_us - time_us
        if self.shortest_us is None or age_us <= self.shortest_us:
            return False
        rules, names = (self.metrics, metrics) if metrics else (self.alone, metadata)
        families = {rules.family_of(name) for name in names}
        return any(age_us > age // _MICROSECOND for family, age in self.ages.items() if family in families)
