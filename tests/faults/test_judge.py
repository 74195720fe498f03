"""Tests of the judge, on a table written by hand."""

from datetime import UTC, datetime, timedelta

import google.cloud.bigtable
import pytest

from pipeline.core.events.message import sensor_event
from tests.faults import judge
from tests.job.running import PROJECT

TIME = datetime(2026, 2, 17, 10, 30, 0, 1999, UTC)
HOUR = TIME.replace(minute=0, microsecond=0)
VERSION = HOUR + timedelta(milliseconds=2)
RAW = "a#8228675799998000"
AGGREGATE = "agg#hourly#a#2026-02-17T10"
EVENT = sensor_event("a", 1_771_324_200_001_999, {"t": 20.0}, {"room": "7"})
STATS = {"reading_count": "1", "count_t": "1"} | {f"{name}_t": "20" for name in ("sum", "min", "max", "avg")}


@pytest.fixture
def put(resources):
    """Writes a row of one family. The correct table is already there."""
    table = google.cloud.bigtable.Client(project=PROJECT).instance("instance").table(resources.table.table)

    def put(key, family, cells, timestamp):
        row = table.direct_row(key)
        for qualifier, text in cells.items():
            row.set_cell(family, qualifier, text, timestamp)
        row.commit()

    put(RAW, "raw", {"t": "20"}, TIME)
    put(RAW, "meta", {"room": "7"}, TIME)
    put(AGGREGATE, "stats", STATS | {"stddev_t": "0"}, VERSION)
    put("latest#a", "latest", {"t": "20"}, TIME)
    return put


def test_a_correct_table(resources, put):
    """A correct table has no differences, however often events were published and whatever the work list contains."""
    put("repair#hourly#b#2026-02-17T10", "stats", {"late": "1"}, HOUR)
    put(AGGREGATE, "stats", {"sum_t": "7"}, HOUR + timedelta(milliseconds=1))  # of an earlier pane
    assert judge.differences(resources.table, [EVENT, EVENT]) == []
    assert judge.work_list(resources.table) == {"repair#hourly#b#2026-02-17T10"}
    assert judge.is_written(resources.table, EVENT)
    assert judge.counts(resources.table) == {AGGREGATE: 1}


@pytest.mark.parametrize(
    ("wrong", "difference"),
    [
        ((RAW, "raw", {"t": "20.0"}, TIME), "20.0 is not the shortest text"),
        ((RAW, "raw", {"t": "21"}, TIME), "published 20"),
        ((RAW, "raw", {"t": "20"}, TIME - timedelta(seconds=1)), "cells of the times"),
        ((AGGREGATE, "stats", {"sum_t": "40"}, VERSION), "computed 20"),
        ((AGGREGATE, "stats", STATS, HOUR + timedelta(seconds=1)), "cells of the times"),
        (("agg#hourly#b#2026-02-17T10", "stats", STATS, HOUR), "not published"),
        (("latest#a", "latest", {"t": "21"}, TIME + timedelta(seconds=1)), "published 20"),
        (("latest#b", "latest", {"t": "20"}, TIME), "not published"),
        (("a#8228675799998009", "raw", {"t": "1"}, TIME), "not published"),
    ],
)
def test_every_kind_of_difference(resources, put, wrong, difference):
    """A wrong text, value, time, version or row is reported."""
    put(*wrong)
    assert any(difference in line for line in judge.differences(resources.table, [EVENT]))


def test_a_missing_row(resources, put):
    """A published event without its row, and a raw row without its aggregate, are reported."""
    other = sensor_event("b", 1_771_324_200_000_000, {"t": 1.0}, {})
    assert any(line.startswith("b#") for line in judge.differences(resources.table, [EVENT, other]))
    put("b#8228675799999999", "raw", {"t": "1"}, TIME.replace(microsecond=0))
    assert any(line.startswith("agg#hourly#b#") for line in judge.differences(resources.table, [EVENT, other]))
