"""Completing a window whose raw rows may have been collected."""

import pytest

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.memory import Memory

T = parse_time("2026-02-17T10:00:00Z")
MINUTE = 60_000_000
HOUR = 60 * MINUTE
TIERS = "tiers = { 1h = 'hours', 6h = 'shifts' }"
SCHEMA = parse_schema(f"{TIERS}\npolicies = {{ raw = 'maxage=2d', shifts = 'never' }}")
HOURS, SHIFTS = SCHEMA.tiers
SHIFT = SHIFTS.window.start_of(T)
LONG_AFTER = T + 5 * 24 * HOUR  # by then, raw rows of T may be gone


def event(minutes, metric="t"):
    return Event("a", T + minutes * MINUTE, {metric: 1.0}, {})


def counted(tier, *events, start_us=T):
    stats = WindowStats()
    for each in events:
        stats.add(each.readings)
    return aggregate_row(tier.window, "a", tier.window.start_of(start_us), stats, tier.family)


def shift(hours):
    """Returns the row of a shift that tells how many events of each hour it counts."""
    stats = WindowStats()
    for _ in range(sum(hours.values())):
        stats.add({"t": 1.0})
    stats.sizes = {start_us: 2 * events for start_us, events in hours.items()}
    return aggregate_row(SHIFTS.window, "a", SHIFT, stats, SHIFTS.family)


def readings(*events):
    found = WindowReadings()
    for each in events:
        found.add(each.event_time_us, each.readings)
    return found


def completed(fresh, rows, raw=(), added=None):
    """Returns how many events the completed hour counts; None if it cannot be completed."""
    table = Memory([*rows, *(row for each in raw for row in SCHEMA.rows(each))])
    completion = Completion(SCHEMA, Retention.of(SCHEMA, added=added or {}), table)
    found = completion.tiers[HOURS].completed("a", T, LONG_AFTER, fresh)
    return found and found.stats.events


@pytest.mark.parametrize(
    ("rows", "events"),
    [
        ([counted(HOURS, event(1))], 2),  # exactly the remaining events, without the fresh one
        ([counted(HOURS, event(1), event(2))], None),  # all known events, or others with the same values
        ([counted(HOURS, event(3))], 2),  # another event with the same value, which cannot be recognized
        ([counted(HOURS, event(2), event(3))], None),  # as many as are known, but one of them is gone
        ([counted(HOURS, event(1), event(2), event(3))], None),  # more than are known: one is gone
        ([counted(HOURS, event(1, "h"))], None),
    ],
)
def test_a_row_that_counts_what_is_known(rows, events):
    """A row may be replaced only if everything that it counts is known."""
    assert completed(readings(event(2)), rows, [event(1), event(2)]) == events


def test_a_missing_row():
    """A missing row shows that nothing was counted, unless the tier was added later."""
    assert completed(readings(event(2)), [], [event(2)]) == 1
    assert completed(readings(event(2)), [], [event(2)], added={"hours": T}) == 1
    assert completed(readings(event(2)), [], [event(2)], added={"hours": T + HOUR}) is None


@pytest.mark.parametrize(
    ("rows", "added", "events"),
    [
        ([], {}, 1),
        ([], {"hours": T + HOUR}, 1),
        ([], {"shifts": T + HOUR}, 1),  # the hours are all there
        ([], {"hours": T + HOUR, "shifts": T + HOUR}, None),
        ([counted(SHIFTS, event(1), event(70))], {}, 1),  # all hours are kept: a row that counts more stays by itself
        ([counted(SHIFTS, event(1))], {"hours": T + HOUR}, None),  # it does not tell which hours it counts
        ([shift({T: 1})], {"hours": T + HOUR}, 1),
        ([shift({T: 2})], {"hours": T + HOUR}, None),
        ([shift({T: 1, T + HOUR: 1})], {"hours": T + HOUR}, None),
        ([shift({T: 1, T + HOUR: 1}), counted(HOURS, event(70), start_us=T + HOUR)], {"hours": T + HOUR}, 2),
        ([counted(SHIFTS, event(1)), counted(HOURS, event(70), start_us=T + HOUR)], {}, 2),
    ],
)
def test_a_longer_window(rows, added, events):
    """A longer window is completed if its hours are kept, or if these include all that its row counts."""
    fresh = WindowStats()
    fresh.add({"t": 1.0})
    completion = Completion(SCHEMA, Retention.of(SCHEMA, added=added or {}), Memory(rows))
    start_us = SHIFTS.window.start_of(T)
    found = completion.tiers[SHIFTS].completed("a", start_us, LONG_AFTER, {T: fresh})
    assert (found and found.stats.events) == events


@pytest.mark.parametrize(("hours", "events"), [({T: 1}, 2), ({T: 1, T + HOUR: 1}, None)])
def test_a_longer_window_whose_raw_rows_are_not_found(hours, events):
    """Its row may count an hour of which there are only raw rows: a backfill finds them, and a job does not."""
    schema = parse_schema(f"key = '{{reverse_us}}#{{sensor_id}}'\n{TIERS}\npolicies = {{ shifts = 'never' }}")
    fresh = WindowStats()
    for _ in range(2):
        fresh.add({"t": 1.0})
    completion = Completion(schema, Retention.of(schema), Memory([shift(hours)]))
    found = completion.tiers[schema.tiers[1]].completed("a", SHIFT, T + HOUR, {T: fresh})
    assert (found and found.stats.events) == events


def test_an_hour_that_an_interrupted_backfill_left_without_a_row():
    """Raw rows of it are gone and rows of hours are kept: the longer row, which counts it, stays as it is."""
    schema = parse_schema(f"{TIERS}\npolicies = {{ raw = 'maxage=2d', hours = 'never', shifts = 'never' }}")
    fresh = WindowStats()
    for _ in range(2):
        fresh.add({"t": 1.0})
    for hours, events in (({T: 1, T + HOUR: 1}, None), ({T: 1}, 2)):
        completion = Completion(schema, Retention.of(schema), Memory([shift(hours)]))
        found = completion.tiers[schema.tiers[1]].completed("a", SHIFT, LONG_AFTER, {T: fresh})
        assert (found and found.stats.events) == events


@pytest.mark.parametrize(
    ("row", "right", "events"),
    [
        (shift({T: 2, T + HOUR: 1}), {T: None}, 2),  # the first hour's row counts one event: that is right now
        (shift({T: 2, T + HOUR: 1}), {T: WindowStats()}, 1),  # a dry run would delete it
        (shift({T: 2, T + HOUR: 1}), {}, None),
        (shift({T: 1, T + HOUR: 2}), {T: None}, None),  # another hour lacks something
        (shift({T: 1, T + HOUR: 1, T + HOUR + 30 * MINUTE: 1}), {T: None}, None),  # from before there were hours
        (counted(SHIFTS, event(1), event(2), event(70)), {T: None}, None),  # it does not tell which hours it counts
    ],
)
def test_hours_that_a_repair_puts_right(row, right, events):
    """They count whatever the longer window's own row counted of them; all others must not count less."""
    rows = [row, counted(HOURS, event(1)), counted(HOURS, event(70), start_us=T + HOUR)]
    schema = parse_schema(f"{TIERS}\npolicies = {{ raw = 'maxage=2d', hours = 'never', shifts = 'never' }}")
    completion = Completion(schema, Retention.of(schema), Memory(rows))
    found = completion.tiers[schema.tiers[1]].completed("a", SHIFT, LONG_AFTER, {}, right)
    assert (found and found.stats.events) == events


THREE = parse_schema(
    "tiers = { 1h = 'hours', 6h = 'shifts', 1d = 'days' }\n"
    "policies = { raw = 'maxage=2d', shifts = 'never', days = 'never' }"
)
DAYS = THREE.tiers[2]
DAY = DAYS.window.start_of(T)
INSERTED = {"shifts": T + 24 * HOUR}


def test_a_day_from_before_a_tier_was_inserted():
    """While raw rows are complete, it is computed, although its row tells of hours and its source is longer now."""
    events = [event(1), event(70)]
    rows = [counted(DAYS, *events)]
    rows += [counted(HOURS, each, start_us=each.event_time_us) for each in events]
    table = Memory([*rows, *(row for each in events for row in THREE.rows(each))])
    day = Completion(THREE, Retention.of(THREE, added=INSERTED), table).tiers[DAYS]
    fresh = WindowStats()
    for each in [*events, event(90)]:
        fresh.add(each.readings)
    assert day.completed("a", DAY, T + 4 * HOUR, {SHIFT: fresh}).stats.events == 3


def test_what_is_being_written_stays_as_it_is():
    """A longer window continues hours without a row from earlier readings, and leaves fresh panes as they are."""
    schema = parse_schema(f"{TIERS}\nstatistics = {{ t = ['increase'] }}")
    hours, shifts = schema.tiers
    fresh = schema.statistics.stats_of([T + MINUTE], {"t": [3.0]})
    pane = aggregate_row(hours.window, "a", T, fresh, hours.family, hours.statistics)
    before = schema.statistics.stats_of([T - 24 * HOUR], {"t": [1.0]})
    row = aggregate_row(hours.window, "a", T - 24 * HOUR, before, hours.family, hours.statistics)
    table = Memory([row, *schema.rows(event(-60))])
    completion = Completion(schema, Retention.of(schema), table).tiers[shifts]
    found = completion.completed("a", SHIFT, T + HOUR, {T: fresh})
    assert found.stats.metrics["t"].parts["rises"].before.value == 1
    assert aggregate_row(hours.window, "a", T, fresh, hours.family, hours.statistics) == pane


@pytest.mark.parametrize(
    ("metrics", "right", "events"),
    [
        ("t", {}, 1),
        ("h", {}, None),
        ("h", {T: None}, None),
        ("tt", {T: None}, 1),  # the repair takes a reading away that was counted twice
        ("th", {T: None}, 1),
    ],
)
def test_an_hour_that_counts_as_much_of_other_readings(metrics, right, events):
    """The hour's former row is gone, and the longer row keeps what it counts of it."""
    stats = WindowStats()
    for metric in metrics:
        stats.add({metric: 1.0})
    stats.sizes = {T: 2 * len(metrics)}
    row = aggregate_row(SHIFTS.window, "a", SHIFT, stats, SHIFTS.family)
    completion = Completion(
        SCHEMA, Retention.of(SCHEMA, added={"hours": T + HOUR}), Memory([row, counted(HOURS, event(2))])
    )
    found = completion.longer[SHIFTS].completed("a", SHIFT, LONG_AFTER, {}, right)
    assert (found and found.stats.events) == events
