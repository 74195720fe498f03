"""Leaves out what windows tell of too few readings."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from pipeline.core.rows.records import AggregateRecord
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import coverage


class LeastData(NamedTuple):
    """The data that a metric needs in a window. The default needs none.

    Attributes:
        coverage: the least share of the readings that ``[rate]`` expects, from 0 to 1.
        readings: the least number of readings.
    """

    coverage: float = 0.0
    readings: int = 0


ANY_DATA = LeastData()


def check_least(tier: Tier, least: LeastData) -> None:
    """Raises ValueError for what is no share or number, or if the schema does not tell how many readings to expect."""
    if not 0 <= least.coverage <= 1:
        raise ValueError(f"the least coverage is a share from 0 to 1, not {least.coverage:g}")
    if least.readings < 0:
        raise ValueError(f"the least count is a number of readings, not {least.readings}")
    if least.coverage and tier.statistics.every_us is None:
        raise ValueError(
            "coverage needs the expected rate, and the table's schema has no [rate]; declare there how often sensors "
            'send, such as every = "1m", or ask for a least count instead'
        )


def with_enough(records: Iterator[AggregateRecord], tier: Tier, least: LeastData) -> Iterator[AggregateRecord]:
    """Returns the windows of a tier with the metrics that have enough data, and none without any metric left."""
    return _with_enough(records, tier, least) if any(least) else records


def _with_enough(records: Iterable[AggregateRecord], tier: Tier, least: LeastData) -> Iterator[AggregateRecord]:
    for record in records:
        span = tier.statistics.span(tier.window, record.start_us)
        metrics = {
            metric: summary
            for metric, summary in record.metrics.items()
            if summary.count >= least.readings and (coverage(summary.count, span) or 0.0) >= least.coverage
        }
        if metrics:
            yield record if len(metrics) == len(record.metrics) else replace(record, metrics=metrics)
