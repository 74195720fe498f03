"""Averages and quantiles lie between the least and the greatest reading, wherever they are shown."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.answers.group_answers import merged_windows
from pipeline.core.completion.audit import Recomputed, differences
from pipeline.core.rollups.comparison import stored_value, wrong_columns
from pipeline.core.rollups.sums import Sums, merge, moments_of, window_stats_of
from pipeline.core.rows.aggregate_rows import aggregate_row, parse_aggregate_row, parse_window_stats
from pipeline.core.rows.rollup_rows import Versioned, parse_rollup_row, rollup_key, rollup_texts, versioned_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.rollups import set_cells
from tests.support.tables import HOUR, T

SCHEMA = parse_schema(
    '[tiers]\n1h = "hours"\n1d = "days"\n[statistics]\n'
    'other = ["sum", "min", "max", "avg", "stddev", "p1", "p50", "p95", "p99.9", "time_weighted_mean"]'
)
HOURS, DAYS = SCHEMA.tiers
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def finite_above(value):
    """Returns the next double, or the value if that is infinite."""
    above = math.nextafter(value, math.inf)
    return above if math.isfinite(above) else value


def values_like(value):
    """Returns values that are equal, nearly equal, or of a sensor that reads in steps near this one."""
    near = [value, finite_above(value), -finite_above(-value), value * (1 - 1e-12), value / 2]
    return st.lists(st.just(value) | st.sampled_from(near), min_size=1, max_size=30)


WINDOWS = st.lists(FINITE.flatmap(values_like) | st.lists(FINITE, min_size=1, max_size=30), min_size=1, max_size=4)


def window_of(values, start_us=T):
    """Returns the statistics of a window with these readings."""
    readings = WindowReadings()
    for number, value in enumerate(values):
        readings.add(start_us + number * 1_000_000, {"t": value})
    return readings.pane(HOURS.statistics).stats


def check(summary, values):
    """Checks that a summary of these values is in their range, also quantiles that its row does not contain."""
    assert (summary.min, summary.max) == (min(values), max(values))
    shown = {**summary.statistics(), **{name: summary.value(name) for name in ("p33", "p99")}}
    for name, value in shown.items():
        if name in ("avg", "time_weighted_mean") or name[0] == "p":
            assert min(values) <= value <= max(values), name
        assert not math.isnan(value)


@example([[30.0] * 60, [30.0]])  # p95 was 29.885
@example([[88.0, 90.0, 90.0]])  # p95 was 90.44
@example([[5e-324], [1.7e308, 1.7e308], [-1.7e308]])
@given(WINDOWS)
def test_in_rows_of_windows_and_of_groups(windows):
    """In a window, in a longer one of windows that are computed or read, in a group's row, and in several of them."""
    values = [value for each in windows for value in each]
    merged, restored, sums, records = WindowStats(), WindowStats(), [], []
    for number, of_window in enumerate(windows):
        start_us = T + number * HOUR
        stats = window_of(of_window, start_us)
        row = aggregate_row(HOURS.window, "s", start_us, stats, "hours", HOURS.statistics)
        check(parse_aggregate_row(HOURS.window, row, HOURS.statistics).metrics["t"], of_window)
        merged.merge(stats)
        restored.merge(parse_window_stats(HOURS.window, row, HOURS.statistics)[1])
        parts = {"sketch": stats.metrics["t"].parts["sketch"]}
        sums.append(Sums(1, stats.events, ("t",), moments_of(stats.metrics["t"]), {"t": parts}))
        record = group_record(sums[-1:], start_us)
        check(record.metrics["t"], of_window)
        records.append(record)
    for stats in (merged, restored):
        row = aggregate_row(DAYS.window, "s", DAYS.window.start_of(T), stats, "days", DAYS.statistics)
        check(parse_aggregate_row(DAYS.window, row, DAYS.statistics).metrics["t"], values)
    check(group_record(sums, T).metrics["t"], values)
    check(merged_windows(records).metrics["t"], values)


def group_record(sums, start_us):
    """Returns what the row of a group with these sensors tells."""
    texts = rollup_texts(HOURS.window, start_us, window_stats_of(merge(sums)), len(sums), HOURS.statistics)
    cells = [(column.encode(), Versioned(1, text)) for column, text in texts.items()]
    row = versioned_row(rollup_key(HOURS.window, "all", "", start_us), start_us, cells)
    return parse_rollup_row(HOURS.window, set_cells(row))


def test_rows_of_an_earlier_release():
    """What an earlier release wrote outside the range is read within it, and repair takes it for right."""
    stats = window_of([30.0] * 10)
    row = aggregate_row(HOURS.window, "s", T, stats, "hours", HOURS.statistics)
    earlier = {b"p95_t": b"29.885", b"p50_t": b"30.1", b"avg_t": b"30.000000000000004"}
    row = Row(row.key, [each._replace(value=earlier.get(each.qualifier, each.value)) for each in row.cells])
    check(parse_aggregate_row(HOURS.window, row, HOURS.statistics).metrics["t"], [30.0])
    assert parse_window_stats(HOURS.window, row, HOURS.statistics)[1].metrics["t"].average == 30
    stored = {each.qualifier.decode(): each.value for each in row.cells}
    recomputed = Recomputed(window_of([30.0] * 10), {"t": 300.0})
    assert list(differences(recomputed, stored, HOURS, T)) == []
    wrong = stored | {"max_t": b"31"}
    assert [each.column for each in differences(recomputed, wrong, HOURS, T)] == ["max_t", "p50_t"]
    wrong = stored | {"p95_t": b"20"}
    assert [each.column for each in differences(recomputed, wrong, HOURS, T)] == ["p95_t"]
    texts = rollup_texts(HOURS.window, T, stats, 1, HOURS.statistics)
    values = {name: stored_value(name, text) for name, text in texts.items()}
    assert list(wrong_columns(texts | {"p95_t": b"29.885"}, values, stats)) == []


@pytest.mark.parametrize("names", ['["p95"]', '["avg", "p95"]'])
def test_rows_without_extremes(names):
    """Where a row has no extremes, its writer knows them; a quantile that an earlier release wrote is repaired."""
    tier = parse_schema(f"[statistics]\nother = {names}").tiers[0]
    readings = WindowReadings()
    readings.add(T, {"t": 30.0})
    recomputed = Recomputed.of(readings, tier.statistics)
    row = aggregate_row(tier.window, "s", T, recomputed.stats, tier.family, tier.statistics)
    stored = {each.qualifier.decode(): each.value for each in row.cells}
    assert stored["p95_t"] == b"30"
    assert list(differences(recomputed, stored, tier, T)) == []
    earlier = stored | {"p95_t": b"29.885"}
    assert [each.column for each in differences(recomputed, earlier, tier, T)] == ["p95_t"]
