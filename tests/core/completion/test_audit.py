"""An audit reports wrong aggregates, accepts those within the tolerance, and proposes the correct rows."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.audit import (
    TOO_WIDE,
    Audited,
    Extent,
    Recomputed,
    StoredRow,
    Untouched,
    audit,
    differences,
)
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.times import parse_time
from pipeline.core.rollups.comparison import WrongColumn
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import DEFAULT, Statistics, WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.support.exact_stats import GREATEST, LEAST, lists
from tests.support.exhaustive import examples

HOURS, DAYS = Tier(HOURLY, "hours"), Tier(DAILY, "days")
HOUR_US, DAY_US = HOURLY.length_us, DAILY.length_us
T = parse_time("2026-02-17T00:00:00Z")
EXTENTS = [Extent(HOURS, T, T + DAY_US), Extent(DAYS, T, T + DAY_US)]

values = st.floats(allow_nan=False, allow_infinity=False)
hours_of_values = st.dictionaries(st.integers(0, 23), lists(max_size=8), max_size=5)


def recomputed_of(given_values):
    readings = WindowReadings()
    for number, value in enumerate(given_values):
        readings.add(T + number, {"t": value})
    return Recomputed.of(readings)


def stats_from(given_values):
    stats = WindowStats()
    for value in given_values:
        stats.add({"t": value})
    return stats


def stored_of(given_values, tier=HOURS):
    return stored_of_stats(stats_from(given_values), tier)


def stored_of_stats(stats, tier=HOURS):
    return StoredRow.of(aggregate_row(tier.window, "a", T, stats, "s"))


@settings(max_examples=examples(300))
@given(lists(max_size=50), st.randoms(use_true_random=False))
def test_the_order_of_addition_is_no_difference(given_values, rng: random.Random):
    """A row is correct in whatever order its readings were added, whatever doubles they are."""
    shuffled = list(given_values)
    rng.shuffle(shuffled)
    cut = rng.randrange(len(shuffled))
    stats = stats_from(shuffled[:cut])
    stats.merge(stats_from(shuffled[cut:]))
    for stored in (stored_of(shuffled), stored_of_stats(stats)):
        assert list(differences(recomputed_of(given_values), stored, HOURS, T)) == []


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=20))
def test_a_reading_too_many_is_a_difference(given_values):
    """A reading that was counted twice or not at all shows at least in the counts."""
    for wrong in ([*given_values, given_values[0]], given_values[1:]):
        found = {each.column: each for each in differences(recomputed_of(given_values), stored_of(wrong), HOURS, T)}
        assert found["reading_count"] == WrongColumn("reading_count", len(wrong), len(given_values))
        assert found["count_t"] == WrongColumn("count_t", len(wrong), len(given_values))


@pytest.mark.parametrize("statistic", DEFAULT)
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_tolerance(statistic, share):
    """Counts and extremes are exact. A sum may be off by 1e-9 of the sum of magnitudes, the others by that per reading.

    The tolerance of a sum near zero is relative to its readings.
    """
    given_values = [1e6, -1e6 + 0.25, 3.0, 5.0]
    tolerance = 1e-9 * sum(map(abs, given_values)) / (1 if statistic == "sum" else 4)
    stored = stored_of(given_values)
    name = f"{statistic}_t"
    stored[name] = format_value(float(stored[name]) + share * tolerance)
    agrees = share < 1 and statistic in ("sum", "avg", "stddev")
    assert [each.column for each in differences(recomputed_of(given_values), stored, HOURS, T)] == [name][agrees:]


def test_columns_that_should_not_be_there():
    """A metric without raw readings and an invalid value are differences."""
    stored = stored_of([1.0, 2.0]) | {"sum_ghost": b"7", "max_t": b"two", "min_t": b"nan", "odd": b"\xff"}
    found = list(differences(recomputed_of([1.0, 2.0]), stored, HOURS, T))
    assert found[:2] == [WrongColumn("max_t", "two", 2.0), WrongColumn("min_t", "nan", 1.0)]
    assert found[2:] == [WrongColumn("odd", "\\xff", None), WrongColumn("sum_ghost", 7.0, None)]


SMALLEST = [number % 7 * LEAST for number in range(1000)]


@pytest.mark.parametrize(
    ("given_values", "stored"),
    [
        pytest.param([GREATEST, 1.0, -1.0], stored_of([GREATEST, 1.0, -1.0]) | {"sum_t": b"inf"}, id="one is infinite"),
        pytest.param(SMALLEST, stored_of(sorted(SMALLEST)), id="a deviation that is rounded at every step"),
    ],
)
def test_what_depends_on_the_order_at_the_edges(given_values, stored):
    """Near the greatest and the smallest double, any order of addition is correct."""
    assert stored != stored_of_stats(recomputed_of(given_values).stats)
    assert list(differences(recomputed_of(given_values), stored, HOURS, T)) == []


def test_a_mean_over_time_of_the_smallest_doubles():
    """The mean over time of the smallest doubles depends on the windows that were merged, and is still accepted."""
    tier = Tier(HOURLY, "s", Statistics((("*", ("time_weighted_mean",)),)))
    readings = WindowReadings()
    for number in range(4):
        readings.add(T + number * 1_000_000, {"t": number * LEAST})
    recomputed = Recomputed.of(readings, tier.statistics)
    row = aggregate_row(tier.window, "a", T, recomputed.stats, "s", tier.statistics)
    stored = {cell.qualifier.decode(): cell.value for cell in row.cells}
    mean = float(stored["time_weighted_mean_t"])
    for value, agrees in ((mean + LEAST, True), (mean + 100 * LEAST, False)):
        changed = stored | {"time_weighted_mean_t": format_value(value)}
        assert (list(differences(recomputed, changed, tier, T)) == []) is agrees


@pytest.mark.parametrize(
    ("given_values", "wrong"),
    [
        pytest.param([GREATEST, -GREATEST, 1e308], {"sum_t": b"0"}, id="a sum whose magnitudes overflow"),
        pytest.param([GREATEST, -GREATEST, 1e308], {"sum_t": b"inf"}, id="an overflow on the way"),
        pytest.param([GREATEST, GREATEST], {"sum_t": b"-inf"}, id="an overflow to the other side"),
        pytest.param([GREATEST, GREATEST], {"avg_t": b"1.7e308"}, id="an average where the sum overflows"),
        pytest.param([2e154, -2e154], {"stddev_t": b"inf"}, id="a deviation whose square overflows"),
        pytest.param([2e-200, 4e-200], {"stddev_t": b"0"}, id="a deviation whose square vanishes"),
    ],
)
def test_a_wrong_value_at_the_edges(given_values, wrong):
    """The tolerance does not become infinite through an overflow: wrong values are reported."""
    stored = stored_of(given_values) | wrong
    assert [each.column for each in differences(recomputed_of(given_values), stored, HOURS, T)] == list(wrong)


@given(hours_of_values)
def test_a_day_is_made_of_its_hours(by_hour):
    """The proposed row of a day counts all the readings of its hours."""
    shortest = {T + hour * HOUR_US: recomputed_of(of_hour) for hour, of_hour in by_hour.items()}
    audited = list(audit("a", EXTENTS, shortest, {}))
    assert [each.tier for each in audited] == [HOURS] * len(by_hour) + [DAYS] * bool(by_hour)
    if not by_hour:
        return
    day = audited[-1].finding
    assert day.problem == "no aggregate row"
    everything = [value for of_hour in by_hour.values() for value in of_hour]
    stored = {cell.qualifier.decode(): cell.value for cell in day.cells}
    assert list(differences(recomputed_of(everything), stored, DAYS, T)) == []


@given(hours_of_values, st.sets(st.integers(0, 23)), st.sets(st.integers(0, 23)))
def test_after_its_own_repair_an_audit_finds_nothing(by_hour, lost, ghosts):
    """Missing and superfluous rows are reported, and after the proposed repair nothing is."""
    shortest = {T + hour * HOUR_US: recomputed_of(of_hour) for hour, of_hour in by_hour.items()}
    stored = {
        (HOURS, T + hour * HOUR_US): stored_of(by_hour.get(hour, [1.0])) for hour in (by_hour.keys() - lost) | ghosts
    }
    audited = list(audit("a", EXTENTS, shortest, stored))
    findings = [each.finding for each in audited if each.finding]
    wrong_hours = {(finding.start_us - T) // HOUR_US for finding in findings if finding.tier == HOURS}
    assert wrong_hours == ((by_hour.keys() & lost) - ghosts) | (ghosts - by_hour.keys())
    for finding in findings:
        stored[finding.tier, finding.start_us] = StoredRow.of(Row(finding.key, list(finding.cells)))
    stored = {where: row for where, row in stored.items() if row}
    assert [each for each in audit("a", EXTENTS, shortest, stored) if each.finding] == []


def test_windows_outside_the_extents_are_not_audited():
    """An hour after the extent is not audited, nor a day that is only partly in it."""
    shortest = {T: recomputed_of([1.0]), T + HOUR_US: recomputed_of([2.0])}
    extents = [Extent(HOURS, T, T + HOUR_US), Extent(DAYS, T + DAY_US, T + DAY_US)]
    (audited,) = audit("a", extents, shortest, {(HOURS, T + 2 * HOUR_US): stored_of([1.0])})
    assert audited.finding.start_us == T


def test_the_record():
    """A record contains the window, its problem, and both values of each wrong statistic. Infinity is text."""
    shortest = {T: recomputed_of([1.7e308, 1.7e308])}
    stored = {(HOURS, T): stored_of([1.7e308]), (HOURS, T + HOUR_US): StoredRow({"count_t": b"1"})}
    del stored[HOURS, T]["sum_t"]
    hour, nothing = (each.finding for each in audit("a", EXTENTS[:1], shortest, stored))
    record = json.loads(json.dumps(hour.record(), allow_nan=False))
    assert list(record) == ["sensor_id", "window", "start", "problem", "differences"]
    assert record["start"] == "2026-02-17T00:00:00Z"
    assert record["differences"] == {
        "reading_count": {"stored": 1.0, "recomputed": 2.0},
        "count_t": {"stored": 1.0, "recomputed": 2.0},
        "sum_t": {"stored": None, "recomputed": "inf"},
    }
    assert nothing.record() == {
        "sensor_id": "a",
        "window": "1h",
        "start": "2026-02-17T01:00:00Z",
        "problem": "no raw rows",
        "differences": {"count_t": {"stored": 1.0, "recomputed": None}},
    }
    assert (nothing.key, nothing.cells) == (b"agg#hourly#a#2026-02-17T01", ())


@pytest.mark.parametrize(
    ("stored", "later_us", "deletes"),
    [
        ([], 0, False),
        ([1.0], 0, False),
        ([1.0, 2.0, 4.0], 0, False),
        ([1.0, 2.0, 3.0, 4.0], 0, True),
        ([1.0], 3_000_000, True),
    ],
)
def test_what_the_right_row_would_not_hide(stored, later_us, deletes):
    """A row goes before the right one is written if it counts more, or has later cells or other columns."""
    row = Row(b"", []) if not stored else aggregate_row(HOURLY, "a", T, stats_from(stored), "s")
    row = Row(row.key, [cell._replace(timestamp_us=cell.timestamp_us + later_us) for cell in row.cells])
    for more in ([], [Cell("s", b"sum_ghost", T, b"1")]):
        found = {(HOURS, T): StoredRow.of(Row(row.key, row.cells + more))}
        (audited,) = audit("a", EXTENTS[:1], {T: recomputed_of([1.0, 2.0, 3.0])}, found)
        assert audited.finding.deletes is (deletes or bool(more))


def test_windows_of_foreign_rows_are_left():
    """A window that may contain foreign raw rows is untouched, and so is a longer window that contains it."""
    shortest = {T + hour * HOUR_US: recomputed_of([1.0]) for hour in (0, 1, 24)}
    stored = {(DAYS, T): stored_of([2.0])}
    foreign = [(T + HOUR_US, T + HOUR_US + 1), (T + 2 * HOUR_US, T + 4 * HOUR_US)]
    two_days = [extent._replace(end_us=T + 2 * DAY_US) for extent in EXTENTS]
    audited = list(audit("a", two_days, shortest, stored, foreign))
    untouched = [each for each in audited if isinstance(each, Untouched)]
    assert untouched == [
        *(Untouched(HOURS, "a", T + hour * HOUR_US) for hour in (1, 2, 3)),
        Untouched(DAYS, "a", T),
    ]
    assert untouched[0].record()["problem"] == "foreign raw rows"
    found = [each.finding for each in audited if isinstance(each, Audited)]
    assert [(each.tier, each.start_us) for each in found] == [
        (HOURS, T), (HOURS, T + 24 * HOUR_US), (DAYS, T + 24 * HOUR_US),
    ]  # fmt: skip


def test_foreign_rows_outside_the_extents():
    """Foreign rows outside the extents matter only if a longer audited window contains them; both are then reported."""
    days = [Extent(HOURS, T + 12 * HOUR_US, T + 24 * HOUR_US), Extent(DAYS, T, T + 24 * HOUR_US)]
    foreign = [(T + HOUR_US, T + HOUR_US + 1)]
    assert list(audit("a", days, {}, {}, foreign)) == [Untouched(HOURS, "a", T + HOUR_US), Untouched(DAYS, "a", T)]
    assert list(audit("a", days[:1], {}, {}, foreign)) == []


def test_too_many_metrics(monkeypatch):
    """A window with too many metrics for a row is untouched and reported; the windows next to it are audited."""
    monkeypatch.setattr(Statistics, "most_metrics", 3)
    shortest = {}
    for hour in range(4):
        readings = WindowReadings()
        readings.add(T + hour * HOUR_US, {f"m{hour}": 1.0})
        shortest[T + hour * HOUR_US] = Recomputed.of(readings)
    found = list(audit("a", EXTENTS, shortest, {}))
    assert [each.finding.start_us for each in found[:4]] == sorted(shortest)
    assert found[4:] == [Untouched(tier, "a", T, TOO_WIDE) for tier in (DAYS, HOURS)]
    assert found[4].record()["problem"] == "too many metrics"


def test_raw_rows_without_readings():
    """A window whose raw rows have only metadata left needs no aggregate row; one that is there is superfluous."""
    shortest = {T: Recomputed.of(WindowReadings())}
    assert not [each for each in audit("a", EXTENTS, shortest, {}) if each.finding]
    row = {(HOURS, T): {"reading_count": b"1"}}
    found = [each.finding for each in audit("a", EXTENTS, shortest, row) if each.finding]
    assert [(each.tier, each.start_us, each.cells) for each in found] == [(HOURS, T, ())]
