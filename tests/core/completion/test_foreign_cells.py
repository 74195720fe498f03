"""An audit reports every cell of an aggregate row that readers refuse, and its row has none of them."""

import pytest

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.audit import Audited, Extent, Recomputed, StoredRow, audit
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import MEMBER, READING_COUNT, WINDOW_SIZES, parse_window_stats
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.member import Member
from pipeline.core.statistics.window_stats import Statistics
from pipeline.core.windows import DAILY, HOURLY

HOUR_US = HOURLY.length_us
T = parse_time("2026-02-17T00:00:00Z")
NAMES = (
    "count", "sum", "min", "max", "avg", "stddev", "first", "last", "increase", "rate", "time_weighted_mean:locf",
    "coverage", "p50", "p99.9",
)  # fmt: skip
STATISTICS = Statistics((("linear", ("time_weighted_mean:linear",)), ("*", NAMES)), every_us=60_000_000)
HOURS, DAYS = Tier(HOURLY, "hours", STATISTICS), Tier(DAILY, "days", STATISTICS)
HOSTILE = (b"", b"junk", b"\xff\x00", b"nan", b"1e999", b"-1", b" 1", b"0x1", b"[1,{}", b"9" * 40, b"\x01")


def recomputed_hours():
    found = {}
    for hour in range(3):
        readings = WindowReadings()
        for minute in range(3):
            at_us = T + hour * HOUR_US + minute * 60_000_000
            readings.add(at_us, {"t": 20.0 + minute, "linear": 1.0 * minute})
            readings.note(Member(at_us, '{"site":"north"}'))
        found[T + hour * HOUR_US] = Recomputed.of(readings, STATISTICS)
    return found


def audited(row=None):
    """Returns the finding of the day, whose row is this one."""
    extents = [Extent(HOURS, T, T), Extent(DAYS, T, T + DAILY.length_us)]
    stored = {} if row is None else {(DAYS, T): StoredRow.of(row)}
    (found,) = (each for each in audit("a", extents, recomputed_hours(), stored) if isinstance(each, Audited))
    return found.finding


RIGHT = Row(b"agg#daily#a#2026-02-17", list(audited().cells))
COLUMNS = [cell.qualifier.decode() for cell in RIGHT.cells]


def refused(row):
    try:
        parse_window_stats(DAILY, row, STATISTICS)
    except ValueError:
        return True
    return False


def with_cell(column, **changes):
    return RIGHT._replace(
        cells=[cell._replace(**changes) if cell.qualifier.decode() == column else cell for cell in RIGHT.cells]
    )


def test_the_right_row():
    """The row has a column of every kind, and no reader refuses it, nor does an audit."""
    kinds = {name.partition(":")[0] for name in NAMES} | {"sketch", "rises", "held", "sloped", "first_time"}
    assert {f"{kind}_t" for kind in kinds - {"sloped"}} | {"sloped_linear", READING_COUNT, WINDOW_SIZES, MEMBER} <= {
        *COLUMNS
    }
    assert not refused(RIGHT)
    assert audited(RIGHT) is None


@pytest.mark.parametrize("column", COLUMNS)
def test_a_hostile_value(column):
    """Of every column: what a reader refuses, an audit reports, with the right row to write."""
    rows = [row for value in HOSTILE if refused(row := with_cell(column, value=value))]
    assert rows
    for row in rows:
        finding = audited(row)
        assert column in {each.column for each in finding.differences}
        assert list(finding.cells) == RIGHT.cells


@pytest.mark.parametrize("column", COLUMNS)
def test_a_cell_of_another_time(column):
    """A cell that another program wrote, with the time of its clock, would hide later ones: the row is wrong."""
    finding = audited(with_cell(column, timestamp_us=parse_time("2026-11-26T18:00:00Z")))
    assert list(finding.cells) == RIGHT.cells


@pytest.mark.parametrize(
    "column", [b"", b"x", b"p100_t", b"sum_", b"sum_ghost#", b"\xff", b"count", b"MEMBER", b"x" * 300]
)
def test_an_unknown_column(column):
    """A column that no schema writes makes readers refuse the row, and an audit report it."""
    row = RIGHT._replace(cells=[*RIGHT.cells, RIGHT.cells[0]._replace(qualifier=column)])
    assert refused(row)
    assert list(audited(row).cells) == RIGHT.cells


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column(column):
    """Without a column that readers need, an audit reports the row."""
    row = RIGHT._replace(cells=[cell for cell in RIGHT.cells if cell.qualifier.decode() != column])
    if refused(row):
        assert list(audited(row).cells) == RIGHT.cells
