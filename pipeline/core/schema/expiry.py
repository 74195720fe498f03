"""Expiry: finds events that are older than their family keeps cells. Bigtable would collect them at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, collected_after
from pipeline.core.schema.table_schema import TableSchema

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Expiry:
    """The ages at which the families of readings lose cells. Made by :meth:`of`.

    Attributes:
        ages: the age of each family that collects by age.
        metrics: the families of metrics.
    """

    ages: Mapping[str, timedelta]
    metrics: FamilyRules

    @classmethod
    def of(cls, schema: TableSchema, policies: Mapping[str, Policy]) -> "Expiry":
        """Returns the expiry of readings under a table's schema and its policies by family."""
        ages = {
            family: age
            for family in schema.metrics.families
            if family in policies and (age := collected_after(policies[family])) is not None
        }
        return cls(ages, schema.metrics)

    @property
    def shortest(self) -> timedelta | None:
        """The least age at which readings are collected; None if they never are."""
        return min(self.ages.values(), default=None)

    def expires(self, time_us: int, metrics: Iterable[str], now_us: int) -> bool:
        """Whether an event of that time has a reading that is too old for its family."""
        age_us = now_us - time_us
        if self.shortest_us is None or age_us <= self.shortest_us:
            return False
        families = {self.metrics.family_of(metric) for metric in metrics}
        return any(age_us > age // _MICROSECOND for family, age in self.ages.items() if family in families)

    @cached_property
    def shortest_us(self) -> int | None:
        """:attr:`shortest` in microseconds."""
        shortest = self.shortest
        return None if shortest is None else shortest // _MICROSECOND
