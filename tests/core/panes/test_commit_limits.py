"""What a firing commits is limited, whatever a group has read in an outage, and in the end every row is exact.

The group has read all of an outage, and the watermark is still where it began. Then it leaps, or the job is drained.
"""

from collections import Counter

import pytest

from pipeline.core.panes import group_firing
from pipeline.core.panes.firing import END_US, CommitLimits, RollupRules
from pipeline.core.panes.group_state import Bags
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.toml import parse_schema
from pipeline.proto.window_result_pb2 import WindowResult
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, SECOND, CountingBag, Group, event

TIERS = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n'
SCHEMA = parse_schema(TIERS)
WITH_ROLLUPS = parse_schema(TIERS + "[rollups]\nfleet = { by = [] }\n")
SENSORS = [f"sensor-{number:03}" for number in range(60)]
HOURS = 12
LIMITS = CommitLimits(50_000)
EARLY, HALFWAY = ResultRules(MIDNIGHT, early=True), MIDNIGHT + 6 * HOUR


class Measured(Group):
    """A group that notes the bytes of each commit."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.moved, self.commits = Counter(), []
        self.bags = Bags(*(CountingBag(name, self.moved) for name in Bags._fields))

    def _fire(self, schedule, due):
        self.moved.clear()
        before = self._put_out
        super()._fire(schedule, due)
        added = sum(size for (_, what), size in self.moved.items() if what == "added")
        self.commits.append(added + self._put_out - before)

    @property
    def _put_out(self):
        return sum(map(WindowResult.ByteSize, self.published)) + sum(map(len, self.contributed))


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    """Groups are small here, and so are the limits."""
    monkeypatch.setattr(group_firing, "MOST_WINDOWS", 10)


def after_an_outage(schema, **options):
    """Returns a group that has read all that came in an outage."""
    group = Measured(schema, MIDNIGHT + HOURS * HOUR, commit=LIMITS, **options)
    for minute in (5, 25, 45):
        for hour in range(HOURS):
            at_us = MIDNIGHT + hour * HOUR + minute * MINUTE
            group.receive(*(event(each, at_us, {"t": float(minute + hour)}) for each in SENSORS))
        group.pass_time()
    return group


def assert_exact(group):
    tiers = group.schema.tiers
    for sensor_id in SENSORS:
        for hour in range(HOURS):
            expected = 3, 75 + 3 * hour
            assert group.row(tiers[0], sensor_id, MIDNIGHT + hour * HOUR) == expected
        days = 3 * HOURS, sum(75 + 3 * hour for hour in range(HOURS))
        assert group.row(tiers[1], sensor_id, MIDNIGHT) == days


def test_windows_that_the_table_may_lack_stay_open():
    """Nothing closes, and nothing that closes waits, if raw rows may have been collected by then."""
    schema = parse_schema(TIERS.replace('"never"', '"maxage=1h"'))
    group = after_an_outage(schema, early_us=0)
    group.watermark(END_US)
    assert_exact(group)
    assert not group.listed
    assert max(group.commits) > LIMITS.bytes


@pytest.mark.parametrize(
    ("early_us", "schema", "results", "before_us", "drained"),
    [  # every pair of choices
        (0, SCHEMA, None, None, False),
        (0, SCHEMA, EARLY, HALFWAY, True),
        (0, WITH_ROLLUPS, None, HALFWAY, True),
        (0, WITH_ROLLUPS, EARLY, None, False),
        (MINUTE, SCHEMA, None, None, True),
        (MINUTE, SCHEMA, EARLY, HALFWAY, False),
        (MINUTE, WITH_ROLLUPS, None, HALFWAY, False),
        (MINUTE, WITH_ROLLUPS, EARLY, None, True),
    ],
)
def test_commits_after_an_outage(early_us, schema, results, before_us, drained):
    """Each commit is within the limit, with and without early panes, roll-ups, results and what the table may store."""
    rollups = RollupRules.of(schema)
    group = after_an_outage(schema, early_us=early_us, results=results, rollups=rollups, before_us=before_us)
    if not drained:
        group.watermark(MIDNIGHT + DAY + HOUR)
        for _ in range(100):
            group.pass_time(SECOND)
    group.watermark(END_US)
    assert not any(group.bags)
    assert_exact(group)
    assert max(group.commits) <= LIMITS.bytes
