"""How a window is completed where raw rows may be gone."""

import pytest

from pipeline.core.accumulator import WindowReadings
from pipeline.core.aggregates import aggregate_row
from pipeline.core.completion import Completion
from pipeline.core.events import Event
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.stats import WindowStats
from pipeline.core.times import parse_time
from tests.core.schema.memory import Memory

T = parse_time("2026-02-17T10:00:00Z")
MINUTE = 60_000_000
HOUR = 60 * MINUTE
TIERS = "tiers = { 1h = 'hours', 6h = 'shifts' }"
SCHEMA = parse_schema(f"{TIERS}\npolicies = {{ raw = 'maxage=2d', shifts = 'never' }}")
HOURS, SHIFTS = SCHEMA.tiers
SHIFT = SHIFTS.window.start_of(T)
LONG_AFTER = T + 5 * 24 * HOUR  # raw rows of then may be gone


def event(minutes, metric="t"):
    return Event("a", T + minutes * MINUTE, {metric: 1.0}, {})


def counted(tier, *events, start_us=T):
    stats = WindowStats()
    for each in events:
        stats.add(each.readings)
    return aggregate_row(tier.window, "a", tier.window.start_of(start_us), stats, tier.family)


def readings(*events):
    found = WindowReadings()
    for each in events:
        found.add(each.event_time_us, each.readings)
    return found


def completed(fresh, rows, raw=(), added=None, **further):
    """How many events the hour comes to; None where it is left as it is."""
    table = Memory([*rows, *(row for each in raw for row in SCHEMA.rows(each))])
    completion = Completion(SCHEMA, Retention.of(SCHEMA, added=added), table)
    whole = completion.completed(HOURS, "a", T, LONG_AFTER, fresh, **further)
    return whole and whole.pane().stats.events


@pytest.mark.parametrize(
    ("rows", "events"),
    [
        ([counted(HOURS, event(1))], 2),  # what is left, without what is fresh
        ([counted(HOURS, event(1), event(2))], None),  # all that is known, or others of the same values
        ([counted(HOURS, event(3))], 2),  # as many as are left, of the same values: nobody can tell
        ([counted(HOURS, event(2), event(3))], None),  # as many as there are, though one of them is gone
        ([counted(HOURS, event(1), event(2), event(3))], None),  # of which one is gone
        ([counted(HOURS, event(1, "h"))], None),
    ],
)
def test_a_row_that_counts_what_is_known(rows, events):
    """It may be replaced by more where all that it counts is there, and only there."""
    assert completed(readings(event(2)), rows, [event(1), event(2)]) == events


def test_what_was_written_is_looked_at_again():
    """Who has written a row may replace it by more, whatever of it was not fresh: another's raw rows came meanwhile."""
    written, others = [event(1), event(2)], event(3)
    assert completed(readings(*written), [counted(HOURS, *written)], [*written, others], written=True) == 3
    assert completed(readings(*written), [counted(HOURS, *written, event(4))], [*written, others], written=True) is None


def test_a_row_that_is_not_there():
    """It has counted nothing; but of a tier that was added since, it only was not there yet."""
    assert completed(readings(event(2)), [], [event(2)]) == 1
    assert completed(readings(event(2)), [], [event(2)], added={"hours": T}) == 1
    assert completed(readings(event(2)), [], [event(2)], added={"hours": T + HOUR}) is None


@pytest.mark.parametrize(
    ("rows", "added", "events"),
    [
        ([], {}, 1),
        ([], {"hours": T + HOUR}, 1),
        ([], {"shifts": T + HOUR}, 1),  # of all the hours that there are
        ([], {"hours": T + HOUR, "shifts": T + HOUR}, None),
        ([counted(SHIFTS, event(70))], {}, 1),  # as many, and nobody knows that it is another
        ([counted(SHIFTS, event(70))], {"hours": T + HOUR}, None),
        ([counted(SHIFTS, event(70), event(71))], {}, None),
    ],
)
def test_a_longer_window(rows, added, events):
    """Hours that were not there yet are not what it counts."""
    fresh = WindowStats()
    fresh.add({"t": 1.0})
    completion = Completion(SCHEMA, Retention.of(SCHEMA, added=added), Memory(rows))
    start_us = SHIFTS.window.start_of(T)
    stats = completion.completed_longer((HOURS, SHIFTS), "a", start_us, LONG_AFTER, {T: fresh})
    assert (stats and stats.events) == events
