"""Statistics that depend on the last reading before a window."""

from itertools import islice

import pytest

from pipeline.core.panes.firing import RollupRules
from pipeline.core.rollups.due import read_written
from pipeline.core.rows.rows import Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from tests.support.courses import SCHEMA, check
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, event, rows_of
from tests.support.memory import Memory


def without_raw_rows(table):
    return Memory(Row(key, list(cells.values())) for key, cells in table._cells.items() if key.startswith(b"agg#"))


def test_the_reading_before_where_raw_rows_are_gone():
    """Aggregate rows tell it, as long as they are kept: that of the window before."""
    schema = parse_schema('[policies]\nraw = "maxage=30d"\nstats = "never"\n[statistics]\nt = ["increase"]\n')
    group = Group(schema, MIDNIGHT + 90 * DAY, before_us=MIDNIGHT + 90 * DAY)
    old = Group(schema, MIDNIGHT, table=group.table)
    old.receive(event("s", MIDNIGHT, {"t": 4.0}), event("s", MIDNIGHT + MINUTE, {"t": 5.0}))
    old.watermark(MIDNIGHT + DAY)
    group.table = without_raw_rows(old.table)
    now_us = MIDNIGHT + 89 * DAY
    group.receive(event("s", now_us, {"t": 7.0}))
    group.watermark(now_us + DAY)
    assert rows_of(group)["1h", now_us].metrics["t"].more["increase"] == 2


def test_a_late_reading_corrects_its_window_and_the_next_one():
    """In one firing, with a read of each: no other window is computed anew."""
    group = Group(parse_schema(SCHEMA), MIDNIGHT + 2 * DAY)
    group.receive(*(event("s", MIDNIGHT + n * HOUR, {"t": float(n)}) for n in range(8)))
    group.watermark(MIDNIGHT + 2 * DAY)
    group.pass_time(30 * MINUTE)
    group.watermark(MIDNIGHT + 2 * DAY + MINUTE)
    group.written.clear()
    group.receive(event("s", MIDNIGHT + 3 * HOUR + MINUTE, {"t": 40.0}))
    group.pass_time()
    found = {key: record.metrics["t"].more["increase"] for key, record in rows_of(group).items()}
    assert found == {("1h", MIDNIGHT + 3 * HOUR): 38, ("1h", MIDNIGHT + 4 * HOUR): 4, ("1d", MIDNIGHT): 3 + 37 + 4 + 3}


class Requests:
    """A table that counts requests as RowReader sends them: one for each page."""

    def __init__(self, table):
        self.table, self.write, self.sent = table, table.write, 0

    def __call__(self, selection):
        rows = self.table(selection)
        page_rows = min(selection.page_rows or 1000, 1000)
        while True:
            self.sent += 1
            page = list(islice(rows, page_rows))
            yield from page
            if len(page) < page_rows:
                return


@pytest.mark.parametrize("hours", [10, 200])
@pytest.mark.slow
def test_a_metric_that_a_sensor_never_sent_before(hours):
    """However many windows the sensor has without the metric, few requests look for it before and after a window."""
    group = Group(parse_schema(SCHEMA), MIDNIGHT)
    group.receive(*(event("s", MIDNIGHT + n * HOUR, {"t": 1.0}) for n in range(hours) if n != hours // 2))
    group.watermark(MIDNIGHT + (hours + 1) * HOUR)
    group.pass_time(30 * MINUTE)
    group.watermark(MIDNIGHT + (hours + 2) * HOUR)
    group.table = requests = Requests(group.table)
    group.receive(event("s", MIDNIGHT + hours // 2 * HOUR, {"u": 1.0}))
    group.pass_time()
    assert rows_of(group)["1h", MIDNIGHT + hours // 2 * HOUR].metrics["u"].more["increase"] == 0
    assert requests.sent <= 12


def test_old_raw_rows_that_come_again_do_not_hide_later_ones():
    """Raw rows of later readings are collected, and an earlier one is delivered again: aggregate rows know better."""
    schema = parse_schema('[policies]\nraw = "maxage=3d"\nstats = "never"\n[statistics]\nt = ["increase"]\n')
    old = Group(schema, MIDNIGHT)
    old.receive(event("s", MIDNIGHT, {"t": 50.0}), event("s", MIDNIGHT + 5 * HOUR, {"t": 60.0}))
    old.watermark(MIDNIGHT + 2 * DAY)
    group = Group(schema, MIDNIGHT + 9 * DAY, table=without_raw_rows(old.table), before_us=MIDNIGHT + 9 * DAY)
    group.store(event("s", MIDNIGHT, {"t": 50.0}))
    group.receive(event("s", MIDNIGHT + 8 * DAY, {"t": 63.0}))
    group.watermark(MIDNIGHT + 10 * DAY)
    assert rows_of(group)["1h", MIDNIGHT + 8 * DAY].metrics["t"].more["increase"] == 3


def test_a_row_that_was_written_before_the_latest_reading_came():
    """The window's own row tells the reading before it only if nothing tells a later one."""
    schema = parse_schema('[policies]\nraw = "maxage=3d"\nstats = "never"\n[statistics]\nt = ["increase"]\n')
    group = Group(schema, MIDNIGHT + 9 * DAY, before_us=MIDNIGHT + 30 * DAY)
    for n, (hour, value) in enumerate([(0, 1.0), (9, 20.0), (4, 5.0)]):  # the last one comes late
        group.receive(event("s", MIDNIGHT + hour * HOUR, {"t": value}))
        group.watermark(MIDNIGHT + 2 * DAY + n)
        group.pass_time(30 * MINUTE)
        group.watermark(MIDNIGHT + 2 * DAY + n + 1)
    assert rows_of(group)["1h", MIDNIGHT + 9 * HOUR].metrics["t"].more["increase"] == 15


def test_a_row_from_before_the_statistic_was_declared():
    """It gets the statistic as soon as a reading before it arrives: the day, which reads raw rows, has it too."""
    text = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n'
    old = Group(parse_schema(text), MIDNIGHT + 2 * DAY)
    old.receive(event("s", MIDNIGHT + 10 * HOUR, {"t": 5.0}))
    old.watermark(MIDNIGHT + 2 * DAY)
    group = Group(
        parse_schema(text + '[statistics]\nt = ["increase"]\n'), MIDNIGHT + 2 * DAY, MIDNIGHT + 9 * DAY, old.table
    )
    group.watermark(MIDNIGHT + 2 * DAY)
    group.receive(event("s", MIDNIGHT + 7 * HOUR, {"t": 2.0}))
    group.pass_time()
    rows = rows_of(group)
    windows = ("1h", MIDNIGHT + 10 * HOUR), ("1d", MIDNIGHT)
    assert [rows[window].metrics["t"].more["increase"] for window in windows] == [3, 3]


def test_a_window_that_another_writer_is_ahead_with():
    """A group that got nothing for long learns timer by timer how far the watermark is. A backfill asks the clock."""
    group = Group(parse_schema(SCHEMA), MIDNIGHT + 2 * DAY, before_us=MIDNIGHT)
    backfill = Group(group.schema, group.now_us, table=group.table)
    given = {MIDNIGHT + hour * HOUR: {"t": value} for hour, value in ((16, 0.5), (10, -20.0))}
    for writer, (time_us, readings) in zip((backfill, group), given.items(), strict=True):
        writer.receive(event("s", time_us, readings))
        writer.watermark(MIDNIGHT + 2 * DAY)
    check(rows_of(group), given)
    assert not group.listed


def test_a_backlog_of_closed_windows():
    """If many closed windows fire at once, the number of requests grows with theirs, not with its square."""
    group = Group(parse_schema(SCHEMA), MIDNIGHT + 9 * DAY, before_us=MIDNIGHT + 9 * DAY)
    given = {MIDNIGHT + n * HOUR: {"t": float(n % 7)} for n in range(120)}
    group.watermark(MIDNIGHT + 9 * DAY)
    group.table = requests = Requests(group.table)
    group.receive(*(event("s", time_us, readings) for time_us, readings in given.items()))
    group.pass_time()
    check(rows_of(group), given)
    assert requests.sent <= 8 * len(given)


@pytest.mark.parametrize("is_known", [True, False], ids=["", "raw rows may be collected"])
def test_a_firing_that_is_repeated_tells_as_much(is_known):
    """Its rows were written, and the runner refused its commit: the next window contributes to roll-ups again."""
    schema = parse_schema('[policies]\nraw = "never"\n[statistics]\nt = ["increase"]\n[rollups]\nall = { by = [] }\n')
    old = Group(schema, MIDNIGHT + DAY)
    old.receive(*(event("s", MIDNIGHT + hour * HOUR, {"t": 1.0}) for hour in (1, 3, 5)))
    old.watermark(MIDNIGHT + 12 * HOUR)
    group = Group(schema, MIDNIGHT + DAY, MIDNIGHT + 9 * DAY, old.table, rollups=RollupRules.of(schema))
    group.retention = group.retention if is_known else Retention.unknown(schema)
    group.receive(event("s", MIDNIGHT + HOUR + MINUTE, {"t": 4.0}))
    told = []
    before = group.schedule, [list(bag) for bag in group.bags]
    for wait in (MINUTE, 0):
        group.schedule, group.contributed = before[0], []
        for bag, values in zip(group.bags, before[1], strict=True):
            bag[:] = values
        group.pass_time(wait)
        told.append({row.key for data in group.contributed for row in read_written(data).rows})
    assert told[0] == told[1]
    assert len(told[0]) == 2  # not of the third window, which continues from the second
