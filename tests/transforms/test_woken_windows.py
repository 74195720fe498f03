"""A process wakes the windows that the process before it noted in the table."""

import time

import pytest

from pipeline.cloud.tables import tables
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.panes.grouped_readings import read_group_readings, start_of_readings
from pipeline.core.panes.woken_windows import NotedWindows, noted_row
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms.woken_windows import NOTES_HERE, NotingTable, _WakeFn
from tests.support.tables import unused_name

HOUR_US = 3_600_000_000
SCHEMA = parse_schema('[policies]\nraw = "never"\n[tiers]\n30m = "halves"\n1h = "hours"')


@pytest.fixture
def name(bigtable):
    name = unused_name()
    tables.create_bare(name, dict.fromkeys(("raw", "meta", "halves", "hours"), Never()))
    return name


def test_notes_from_before_a_shorter_tier(name):
    """They are in the family of the tier that was the shortest."""
    now_us = time.time_ns() // 1000
    start_us = now_us - now_us % HOUR_US
    table = NotingTable(name, SCHEMA, Retention.of(SCHEMA, SCHEMA.policies), SCHEMA.tiers, "s", HOUR_US, HOUR_US)
    key = NotedWindows(SCHEMA.tiers, "s", HOUR_US, HOUR_US).range.start + b"%016d#%016d" % (now_us + HOUR_US, now_us)
    with Rewriter.open(name) as rewriter:
        rewriter.add([noted_row(key, "hours", {start_us: ["a"]})])
    wake_fn = _WakeFn(table, time.time)
    wake_fn.setup()
    woken = [data for _, data in wake_fn.process(None)]
    wake_fn.teardown()
    NOTES_HERE.clear()
    assert [start_of_readings(data) for data in woken] == [start_us, start_us + HOUR_US // 2]
    assert {each.sensor_id for data in woken for each in read_group_readings(data)} == {"a"}
