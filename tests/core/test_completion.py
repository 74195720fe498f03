"""How a window is completed where raw rows may be gone."""

import pytest

from pipeline.core.aggregates import aggregate_row
from pipeline.core.completion import Completion
from pipeline.core.events import Event
from pipeline.core.readings import WindowReadings
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


def completed(fresh, rows, raw=()):
    """How many events the hour comes to; None where it is left as it is."""
    table = Memory([*rows, *(row for each in raw for row in SCHEMA.rows(each))])
    completion = Completion(SCHEMA, Retention.of(SCHEMA), table)
    whole = completion.completed(HOURS, "a", T, LONG_AFTER, fresh)
    return whole and whole.pane().stats.events


@pytest.mark.parametrize(
    ("rows", "events"),
    [
        ([counted(HOURS, event(1))], 2),  # what is left, without what is fresh
        ([counted(HOURS, event(1), event(2))], 2),
        ([counted(HOURS, event(2))], 2),  # what is fresh alone
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
    assert completed(readings(*written), [counted(HOURS, *written)], [*written, others]) == 3


@pytest.mark.parametrize(
    ("rows", "events"),
    [
        ([], 1),
        ([counted(SHIFTS, event(70)), counted(HOURS, event(70), start_us=T + HOUR)], 1),
        ([counted(SHIFTS, event(1), event(70)), counted(HOURS, event(70), start_us=T + HOUR)], None),
        ([counted(SHIFTS, event(1))], None),
    ],
)
def test_a_row_that_is_not_there(rows, events):
    """It counted nothing, unless a longer window counts what no hour does: hours were not there yet."""
    assert completed(readings(event(2)), rows, [event(2)]) == events


@pytest.mark.parametrize(
    ("rows", "complete"),
    [
        ([], False),  # both tiers may have been added, when the window had begun
        ([counted(HOURS, event(1))], False),
        ([counted(HOURS, event(1)), counted(SHIFTS, event(1))], True),  # all that was there
        ([counted(HOURS, event(1), event(2)), counted(SHIFTS, event(1))], False),
        ([counted(HOURS, event(1), start_us=SHIFT + n * HOUR) for n in range(5)], True),
    ],
)
def test_shorter_windows_without_rows(rows, complete):
    """Where raw rows can't tell what was in them, nobody knows."""
    now_us = SHIFT + 5 * HOUR + 1  # in its last hour
    schema = parse_schema(f"key = '{{metadata.place}}#{{sensor_id}}#{{reverse_us}}'\n{TIERS}")
    held = Completion(schema, Retention.of(schema), Memory(rows)).held_windows(schema.tiers, "a", SHIFT, now_us)
    assert held.complete is complete
