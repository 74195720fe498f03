"""Windows that lack data."""

import pytest

from pipeline.core.answers.enough_data import LeastData, check_least, with_enough
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.records import AggregateRecord, MetricSummary
from pipeline.core.schema.toml import parse_schema

SCHEMA = parse_schema('[rate]\nevery = "1h"\n[tiers]\n1h = "hours"\n"1d@Europe/Berlin" = "days"\n')
HOURS, DAYS = SCHEMA.tiers


def kept(tier, least, *windows):
    """Returns the start and metrics of the windows that are left, of windows given as start and counts."""
    records = [
        AggregateRecord("s", parse_time(start), tier.window, 99, {m: MetricSummary(n) for m, n in counts.items()})
        for start, counts in windows
    ]
    return [(tier.window.shown(each.start_us)[:10], *each.metrics) for each in with_enough(iter(records), tier, least)]


def test_days_of_a_time_zone():
    """A day of 23 hours needs fewer readings than one of 25. More readings than expected are enough."""
    short, long = ("2026-03-28T23:00:00Z", {"t": 23}), ("2026-10-24T22:00:00Z", {"t": 23})
    assert kept(DAYS, LeastData(0.92), short, long) == [("2026-03-29", "t"), ("2026-10-25", "t")]
    assert kept(DAYS, LeastData(0.93), short, long) == [("2026-03-29", "t")]
    assert kept(DAYS, LeastData(1.0), short, (long[0], {"t": 26})) == [("2026-03-29", "t"), ("2026-10-25", "t")]


def test_each_metric_for_itself():
    """A metric that lacks data is left out, and a window with it if there is no other."""
    windows = ("2026-02-17T10:00:00Z", {"t": 3, "u": 2}), ("2026-02-18T10:00:00Z", {"u": 2})
    assert kept(HOURS, LeastData(readings=3), *windows) == [("2026-02-17", "t")]
    assert kept(HOURS, LeastData(1.0, 2), *windows) == [("2026-02-17", "t", "u"), ("2026-02-18", "u")]


@pytest.mark.parametrize(
    ("schema", "least", "problem"),
    [
        ("", LeastData(0.5), r"the table's schema has no \[rate\]"),
        ('[rate]\nevery = "1h"', LeastData(float("nan")), "a share from 0 to 1, not nan"),
        ('[rate]\nevery = "1h"', LeastData(1.5), "a share from 0 to 1, not 1.5"),
        ("", LeastData(readings=-1), "a number of readings, not -1"),
    ],
)
def test_what_can_not_be_answered(schema, least, problem):
    """A share of readings that nobody declared, and what is no share or number; a number needs no rate."""
    (tier,) = parse_schema(schema).tiers
    check_least(tier, LeastData(readings=3))
    with pytest.raises(ValueError, match=problem):
        check_least(tier, least)
