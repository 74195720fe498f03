"""Which events Bigtable would collect soon after they are written, being older than their family keeps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.policies import Policy, collected_after
from pipeline.core.schema.table_schema import TableSchema

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Expiry:
    """How long the families of readings keep what is in them. Made by :meth:`of`.

    Attributes:
        ages: of the families that collect by age.
        metrics: which family takes which metric.
    """

    ages: Mapping[str, timedelta]
    metrics: FamilyRules

    @classmethod
    def of(cls, schema: TableSchema, policies: Mapping[str, Policy]) -> "Expiry":
        """What the policies mean for readings.

        Args:
            schema: of the table.
            policies: of its families, as they are in the table.
        """
        ages = {
            family: age
            for family in schema.metrics.families
            if family in policies and (age := collected_after(policies[family])) is not None
        }
        return cls(ages, schema.metrics)

    @property
    def shortest(self) -> timedelta | None:
        """The least age beyond which readings are collected; None where they never are."""
        return min(self.ages.values(), default=None)

    def expires(self, time_us: int, metrics: Iterable[str], now_us: int) -> bool:
        """Whether a reading of that time is too old for its family."""
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
