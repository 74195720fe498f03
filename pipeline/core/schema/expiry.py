"""Expiry: finds events that are older than their family keeps cells. Bigtable would collect them at once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, collected_after
from pipeline.core.schema.table_schema import TableSchema

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Expiry:
    """The ages at which the families of events lose cells. Made by :meth:`of`.

    Attributes:
        ages: the age of each family that collects by age: of those of readings, and of metadata that comes alone.
        metrics: the families of metrics.
        alone: the families of metadata that comes without readings.
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

    @property
    def shortest(self) -> timedelta | None:
        """The least age at which cells of events are collected; None if they never are."""
        return min(self.ages.values(), default=None)

    def expires(self, time_us: int, metrics: Collection[str], now_us: int, metadata: Collection[str] = ()) -> bool:
        """Whether an event has a reading that is too old for its family; without readings, whether metadata is.

        Args:
            time_us: the event time.
            metrics: the names of its readings.
            now_us: the current time.
            metadata: the names of its metadata.
        """
        age_us = now_us - time_us
        if self.shortest_us is None or age_us <= self.shortest_us:
            return False
        rules, names = (self.metrics, metrics) if metrics else (self.alone, metadata)
        families = {rules.family_of(name) for name in names}
        return any(age_us > age // _MICROSECOND for family, age in self.ages.items() if family in families)

    @cached_property
    def shortest_us(self) -> int | None:
        """:attr:`shortest` in microseconds."""
        shortest = self.shortest
        return None if shortest is None else shortest // _MICROSECOND
