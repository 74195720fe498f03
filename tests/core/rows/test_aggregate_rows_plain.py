"""Rows that are parsed together are parsed as column by column."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core.rows import aggregate_rows
from pipeline.core.rows.aggregate_rows import aggregate_row, parse_window_stats
from pipeline.core.rows.rows import Cell
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.exhaustive import examples

HOURS, _ = parse_schema('[tiers]\n1h = "hours"\n1d = "days"').tiers
T = 1_771_286_400_000_000
ODD = [b"", b"0", b"-1", b"1.5", b"nan", b"inf", b"-inf", b" 1", b"1_0", b"1e400", b"9007199254740994", b"7", b"text"]


def outcome(row):
    """Returns all that is parsed of a row, or what is wrong with it."""
    try:
        start_us, stats = parse_window_stats(HOURS.window, row)
    except ValueError as error:
        return str(error)
    of_metrics = {
        metric: [getattr(each, name) for name in each.__slots__] for metric, each in sorted(stats.metrics.items())
    }
    return start_us, stats.events, stats.sizes, list(stats.metrics), repr(of_metrics)


readings = st.dictionaries(st.sampled_from(["t", "sum", "time_t"]), st.floats(-1e9, 1e9) | st.just(1e308), min_size=1)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(readings, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([*ODD, None])), max_size=2),
    st.sampled_from([[], [Cell("hours", b"other", T, b"1")], [Cell("hours", b"p50_t", T, b"1")]]),
)
@example([{"t": 1e308, "sum": 1e308}], [(13, b"0")], [])
def test_the_same_result(events, changes, more):
    """Of rows that a job writes, and of others, with the same errors."""
    stats = WindowStats()
    for each in events:
        stats.add(each)
    stats.sizes = {T: 3}
    row = aggregate_row(HOURS.window, "s", T, stats, HOURS.family)
    cells = [*row.cells, *more]
    for index, value in changes:
        if value is None and cells:
            cells = cells[: index % len(cells)] + cells[index % len(cells) + 1 :]
        elif cells:
            cells[index % len(cells)] = cells[index % len(cells)]._replace(value=value)
    row = row._replace(cells=cells)
    found = outcome(row)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aggregate_rows, "_plain_stats", lambda *_: None)
        assert outcome(row) == found


def test_rows_of_a_job_are_plain():
    """What a job writes by default takes the fast way."""
    stats = WindowStats()
    stats.add({"t": 1.0, "u": 2.0})
    row = aggregate_row(HOURS.window, "s", T, stats, HOURS.family)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aggregate_rows, "parse_aggregate_row", None)
        assert parse_window_stats(HOURS.window, row)[1].events == 1
