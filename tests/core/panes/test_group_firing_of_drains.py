"""Panes that may be on their way to the table: at a drain, and when a backfill writes the same row."""

import pytest

from pipeline.core.completion.backfill_runs import RUNS_KEY, run_text
from pipeline.core.events.event import Event
from pipeline.core.panes.firing import END_US
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import SCHEMA_FAMILY
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, event
from tests.support.memory import Memory

FOR_EVER = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
FOR_A_DAY = parse_schema('[policies]\nraw = "maxage=1d"\n[tiers]\n1h = "hours"')


@pytest.mark.parametrize("schema", [FOR_A_DAY])
def test_a_pane_that_has_not_arrived(schema):
    """A window of statistics is not computed from raw rows that may count less than its pane: it is listed."""
    group = Group(schema, MIDNIGHT + DAY, before_us=MIDNIGHT + HOUR)
    first, second = (Event("a", MIDNIGHT + minute * MINUTE, {"t": 1.0}, {}) for minute in (5, 6))
    group.receive(first, second, stored=False)
    group.watermark(MIDNIGHT + 2 * HOUR)
    assert group.row(schema.tiers[0], "a", MIDNIGHT) == (2, 2)
    group.table = Memory(schema.rows(first))
    group.listed.clear()
    group.watermark(END_US)
    assert group.row(schema.tiers[0], "a", MIDNIGHT) is None
    assert group.listed == [("a", MIDNIGHT)]
    assert not group.chunks


def test_a_repeated_reading_while_a_pane_is_on_its_way():
    """It changes nothing, and the window is still read once more when it has closed: a backfill may have more."""
    group = Group(FOR_EVER, MIDNIGHT + 5 * DAY, before_us=MIDNIGHT + 5 * DAY)
    for _ in range(2):
        group.receive(event("a", MIDNIGHT, {"t": 1.0}))
        group.pass_time()
    group.watermark(MIDNIGHT + 2 * HOUR)
    group.store(event("a", MIDNIGHT + MINUTE, {"t": 1.0}))
    group.pass_time_to(group.now_us + HOUR)
    assert group.row(FOR_EVER.tiers[0], "a", MIDNIGHT) == (2, 2)


@pytest.mark.parametrize("backfilled", [True, False])
def test_a_backfill_while_a_pane_was_on_its_way(backfilled):
    """If raw rows may be gone, nothing tells whether the pane replaced a row of the backfill: the window is listed."""
    group = Group(FOR_A_DAY, MIDNIGHT + 5 * DAY, before_us=MIDNIGHT + 5 * DAY)
    group.table.write(Row(b"schema#current", [Cell(SCHEMA_FAMILY, b"schema.toml", 0, b"")]))
    group.receive(event("a", group.now_us, {"t": 1.0}))
    group.watermark(group.now_us)
    group.receive(event("a", MIDNIGHT, {"t": 1.0}))
    for _ in range(3):
        group.pass_time()
    assert group.row(FOR_A_DAY.tiers[0], "a", MIDNIGHT) == (1, 1)
    if backfilled:
        run = run_text(group.now_us - HOUR, group.now_us)
        group.table.write(Row(RUNS_KEY, [Cell(SCHEMA_FAMILY, b"a-run", 0, run)]))
    assert not group.listed
    group.pass_time_to(group.now_us + HOUR)
    assert group.listed == [("a", MIDNIGHT)] * backfilled
