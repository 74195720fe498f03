"""An audit by columns suspects every window that an audit finds wrong, and hardly any other."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.audit import Audited, Extent, Recomputed, StoredRow, audit
from pipeline.core.completion.column_audit import Columns, Places, audits_columns, compared
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.exhaustive import examples

SCHEMA = parse_schema("tiers = { 1h = 'hours', 1d = 'days', '1w@Europe/Berlin' = 'weeks' }")
T = parse_time("2026-03-23T00:00:00Z")
HOUR_US, DAY_US = 3_600_000_000, 24 * 3_600_000_000
FROM, TO = T - 14 * DAY_US, T + 21 * DAY_US
EXTENTS = [Extent(tier, tier.window.first_start(FROM), tier.window.start_of(TO)) for tier in SCHEMA.tiers]

numbers = st.one_of(
    st.floats(-1e3, 1e3),
    st.integers(-5, 5).map(float),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.1, 20.1, 65.2, 5e-324, 1.7e308, -1.7e308]),
)
measured = st.integers(-(10**9), 10**9).map(lambda thousandths: thousandths / 1000)
times = st.one_of(st.integers(T, T + 2 * DAY_US), st.integers(0, 40).map(lambda n: T + n * HOUR_US // 2))
readings = st.dictionaries(st.sampled_from(["t", "wind", "p"]), numbers, min_size=1)


@st.composite
def spoilt(draw, row):
    """A row with one cell gone, another value or another time."""
    cells = list(row.cells)
    index = draw(st.integers(0, len(cells) - 1))
    cell = cells[index]
    shifted = repr(float(cell.value) * (1 + draw(st.sampled_from([1e-12, -4e-10, 9e-10, -3e-9])))).encode()
    other = draw(
        st.sampled_from(
            [
                None,
                cell._replace(value=shifted),
                cell._replace(value=b"-" + cell.value.lstrip(b"-")),
                cell._replace(value=b"x"),
                cell._replace(value=b""),
                cell._replace(qualifier=b"sum_ghost"),
                cell._replace(timestamp_us=cell.timestamp_us + 1_000_000),
                cell._replace(timestamp_us=cell.timestamp_us - 1000),
            ]
        )
    )
    cells[index : index + 1] = [] if other is None else [other]
    return Row(row.key, cells)


@st.composite
def tables(draw):
    """The events of a sensor, and aggregate rows of them, by tier and start, of which some are wrong."""
    of_time = draw(st.dictionaries(times, readings, max_size=25))
    rows = {}
    for tier in SCHEMA.tiers:
        windows = {}
        for time_us, each in of_time.items():
            windows.setdefault(tier.window.start_of(time_us), WindowStats()).add(each)
        rows |= {
            (tier, start_us): aggregate_row(tier.window, "a", start_us, stats, tier.family)
            for start_us, stats in windows.items()
        }
    for key in draw(st.lists(st.sampled_from(sorted(rows, key=str)), max_size=3, unique=True)) if rows else ():
        rows[key] = draw(st.one_of(st.none(), spoilt(rows[key])))
    if draw(st.booleans()):
        tier, start_us = SCHEMA.tiers[0], T - HOUR_US
        stats = WindowStats()
        stats.add({"t": 1.0})
        rows[tier, start_us] = aggregate_row(tier.window, "a", start_us, stats, tier.family)
    return of_time, {key: row for key, row in rows.items() if row is not None and row.cells}


def found_wrong(of_time, rows):
    """The windows that an audit checks, and those that it finds wrong."""
    shortest = {}
    for time_us, each in of_time.items():
        shortest.setdefault(SCHEMA.tiers[0].window.start_of(time_us), WindowReadings()).add(time_us, each)
    recomputed = {start_us: Recomputed.of(of_window) for start_us, of_window in shortest.items()}
    stored = {key: StoredRow.of(row) for key, row in rows.items()}
    audited = list(audit("a", EXTENTS, recomputed, stored))
    assert all(isinstance(each, Audited) for each in audited)
    wrong = {(each.tier, each.finding.start_us) for each in audited if each.finding is not None}
    return len(audited), wrong


def suspected(of_time, rows):
    """The windows that an audit by columns checks and suspects; all those of a tier with a row that is none.

    The same sensor comes twice: both are judged alike.
    """
    places, checked, suspects = Places(FROM - 7 * DAY_US, TO - FROM + 14 * DAY_US), set(), set()
    events = Columns(places)
    for number in range(2):
        for time_us in sorted(of_time, reverse=True):
            [row] = SCHEMA.rows(Event("a", time_us, of_time[time_us], {}))
            events.add_events(SCHEMA, number, row)
    for extent in EXTENTS:
        of_tier, starts = Columns(places), sorted(start_us for tier, start_us in rows if tier == extent.tier)
        try:
            for number in range(2):
                for start_us in starts:
                    row = rows[extent.tier, start_us]
                    of_tier.add_windows(extent.tier.window, number, row._replace(cells=sorted(row.cells)))
        except ValueError:
            windows = {*starts, *map(extent.tier.window.start_of, of_time)}
            every = wrong = [(number, start_us) for number in range(2) for start_us in windows]
        else:
            found = compared(extent, places, events.series(), of_tier.series())
            every, wrong = ([divmod(int(place), places.length_us) for place in each] for each in found)
            every, wrong = ([(number, at + places.start_us) for number, at in each] for each in (every, wrong))
        for of, found in ((every, checked), (wrong, suspects)):
            first, second = ({start_us for number, start_us in of if number == each} for each in range(2))
            assert first == second
            found |= {(extent.tier, start_us) for start_us in first}
    return checked, suspects


@given(tables())
@settings(max_examples=examples(300))
def test_what_is_wrong_is_suspected(table):
    """Whatever the readings and the rows: no window that an audit finds wrong passes, and both check the same."""
    windows, wrong = found_wrong(*table)
    checked, suspects = suspected(*table)
    assert wrong <= suspects
    assert windows == len(checked)


@given(st.dictionaries(times, st.dictionaries(st.sampled_from(["t", "wind"]), measured, min_size=1)))
@settings(max_examples=examples(100))
def test_what_is_right_is_not(of_time):
    """Rows that were added in another order, and those of a job that counted less before, are not suspected."""
    rows = {}
    for tier in SCHEMA.tiers:
        windows = {}
        for time_us in reversed(of_time):
            windows.setdefault(tier.window.start_of(time_us), WindowStats()).add(of_time[time_us])
        rows |= {(tier, each): aggregate_row(tier.window, "a", each, of, tier.family) for each, of in windows.items()}
    older = {key: row._replace(cells=[_at_start(cell, key[1]) for cell in row.cells]) for key, row in rows.items()}
    assert suspected(of_time, rows)[1] == suspected(of_time, older)[1] == set()


def _at_start(cell: Cell, start_us: int) -> Cell:
    return cell._replace(timestamp_us=start_us)


def test_a_window_with_too_many_metrics():
    """It has no right row, and is suspected."""
    few = replace(SCHEMA.tiers[0].statistics, globs=())
    readings = {f"m{number}": 1.0 for number in range(few.most_metrics + 1)}
    places = Places(T, DAY_US)
    events = Columns(places)
    for row in SCHEMA.rows(Event("a", T, readings, {})):
        events.add_events(SCHEMA, 3, row)
    every, wrong = compared(EXTENTS[0], places, events.series(), {})
    assert every.tolist() == [*wrong] == [3 * DAY_US]


@pytest.mark.parametrize(
    ("text", "audits"),
    [
        ("", True),
        ("latest = 'latest'", True),
        ("values = 'float64'", True),
        ("key = '{metadata.location}#{sensor_id}#{reverse_us}'", False),
        ("key = '{reverse_us}#{sensor_id}'", False),
        ("key = '{sensor_id}#{iso_s}'", False),
        ("key = '{salt:2}#{sensor_id}#{reverse_us}'", False),
        ("key = '{sensor_id}#{reverse_us}#{event_id}'", False),
        ("layout = 'serialized'", False),
        ("[statistics]\n'*' = ['avg', 'p95']", False),
    ],
)
def test_which_schemas(text, audits):
    """Those whose raw rows and aggregate rows are in the same order, with plain numbers."""
    assert audits_columns(parse_schema(text)) == audits
    assert audits_columns(TableSchema.default())
