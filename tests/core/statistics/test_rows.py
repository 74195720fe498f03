"""The statistics of rows, from readings in any order, in any batches, however often they are delivered."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.cloud.reading.frames import AggregateRecords
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.audit import Audited, Extent, Recomputed, StoredRow, audit
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import parse_aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.sketch import RELATIVE_ERROR, Sketch
from tests.support.courses import deliver
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, LATENESS, MIDNIGHT, MINUTE, Group, event, rows_of

SCHEMA = """
[policies]
raw = "never"

[tiers]
1h = "hours"
1d = "days"

[statistics]
t = ["first", "last", "p50", "p99", "min", "max"]
time_t = ["first"]
other = ["count", "sum"]
"""
READINGS = st.dictionaries(
    st.integers(0, 5 * HOUR - 1),
    st.dictionaries(st.sampled_from(["t", "time_t", "u"]), st.floats(-1e9, 1e9), min_size=1),
    min_size=1,
    max_size=12,
)


def expected_of(events, metric):
    """Returns the statistics of one metric of events by time, computed plainly."""
    readings = sorted((time_us, of_event[metric]) for time_us, of_event in events.items() if metric in of_event)
    return readings and {
        "first": readings[0][1],
        "first_time": readings[0][0],
        "last": readings[-1][1],
        "last_time": readings[-1][0],
        "values": [value for _, value in readings],
    }


@settings(max_examples=examples(60), phases=[Phase.generate])
@given(READINGS, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_rows(readings, chance):
    """Rows have the statistics of all readings, whatever the order, the batches and the restarts."""
    readings = {MIDNIGHT + time_us: of_event for time_us, of_event in readings.items()}
    group = deliver(Group(parse_schema(SCHEMA), MIDNIGHT + 2 * DAY), readings, chance)
    group.watermark(MIDNIGHT + 2 * DAY + LATENESS)
    group.pass_time(2 * MINUTE)
    rows = rows_of(group)
    for (window, start_us), record in rows.items():
        length_us = HOUR if window == "1h" else DAY
        events = {at: of_event for at, of_event in readings.items() if start_us <= at < start_us + length_us}
        of_t = record.metrics.get("t")
        if expected := expected_of(events, "t"):
            found = of_t.statistics()
            assert {*found} == {"count", "min", "max", "first", "first_time", "last", "last_time", "p50", "p99"}
            for name in ("first", "first_time", "last", "last_time"):
                assert found[name] == expected[name], (window, name)
            assert of_t.sketch == Sketch.of(expected["values"])
            exact = np.quantile(expected["values"], 0.5, method="lower")
            assert found["p50"] == pytest.approx(exact, rel=RELATIVE_ERROR)
        if expected := expected_of(events, "time_t"):
            found = record.metrics["time_t"].statistics()
            assert found == {
                "count": len(expected["values"]),
                "first": expected["first"],
                "first_time": expected["first_time"],
            }
        if expected := expected_of(events, "u"):
            assert {*record.metrics["u"].statistics()} == {"count", "sum"}
    starts = {("1h", at - at % HOUR) for at in readings} | {("1d", MIDNIGHT)}
    assert rows.keys() == starts
    audited(group, readings)


def audited(group, readings, start_us=MIDNIGHT):
    """Checks that an audit from the readings finds nothing wrong."""
    shortest = {}
    for time_us, of_event in readings.items():
        shortest.setdefault(time_us - time_us % HOUR, WindowReadings()).add(time_us, of_event)
    tiers = group.schema.tiers
    recomputed = {at: Recomputed.of(each, tiers[0].statistics) for at, each in shortest.items()}
    rows, stored = {row.key: row for row in group.written}, {}
    for tier in tiers:
        for row in rows.values():
            if row.cells[0].family == tier.family:
                record = parse_aggregate_row(tier.window, row, tier.statistics)
                stored[tier, record.start_us] = StoredRow.of(row)
    extents = [Extent(tier, start_us, start_us + DAY) for tier in tiers]
    found = list(audit("s", extents, recomputed, stored))
    assert found
    assert all(isinstance(each, Audited) and each.finding is None for each in found), found


def test_rows_of_a_metric_that_is_not_declared_are_those_of_today():
    """A declared metric has its own statistics alone; any other has the usual six."""
    group = Group(parse_schema('[statistics]\nt = ["last"]\n'), MIDNIGHT + 2 * DAY)
    group.receive(event("s", MIDNIGHT, {"t": 1.0, "u": 2.0}))
    group.watermark(MIDNIGHT + 2 * DAY)
    (row,) = group.written
    names = [cell.qualifier.decode() for cell in row.cells]
    of_u = [f"{name}_u" for name in ("count", "sum", "min", "max", "avg", "stddev")]
    assert names == ["reading_count", "count_t", "last_t", "last_time_t", *of_u]
    assert parse_aggregate_row(group.schema.tiers[0].window, Row(row.key, row.cells), group.schema.statistics)


def test_coverage_of_a_day_of_25_hours():
    """The expected readings are those of the day's own length, for an audit too."""
    schema = parse_schema(
        '[tiers]\n1h = "hours"\n"1d@Europe/Berlin" = "days"\n[statistics]\nt = ["coverage"]\n[rate]\nevery = "30m"\n'
    )
    start_us = parse_time("2026-10-24T22:00:00Z")
    readings = {start_us + n * HOUR: {"t": 1.0} for n in range(20)}
    group = Group(schema, start_us + 3 * DAY)
    group.receive(*(event("s", time_us, of_event) for time_us, of_event in readings.items()))
    group.watermark(start_us + 2 * DAY)
    rows = rows_of(group)
    assert rows["1h", start_us].metrics["t"].more == {"coverage": 0.5}
    assert rows["1d@Europe/Berlin", start_us].metrics["t"].more == {"coverage": 20 / 50}
    audited(group, readings, start_us)


def test_frames_of_declared_statistics():
    """Each statistic is a column; times of readings are instants, and what a window lacks is null."""
    group = Group(parse_schema('[statistics]\nt = ["last", "p50"]\n'), MIDNIGHT + 2 * DAY)
    group.receive(event("s", MIDNIGHT, {"t": 8.0}), event("s", MIDNIGHT + HOUR, {"u": 2.0}))
    group.watermark(MIDNIGHT + 2 * DAY)
    rows = sorted(rows_of(group).values(), key=lambda record: record.start_us)
    table = AggregateRecords(rows).to_arrow()
    assert [name for name in table.column_names if name.endswith("_t")] == ["count_t", "last_t", "last_time_t", "p50_t"]
    assert table["last_t"].to_pylist() == [8.0, None]
    assert table["last_time_t"].cast("int64").to_pylist() == [MIDNIGHT, None]
    assert table["p50_t"].to_pylist() == [pytest.approx(8, RELATIVE_ERROR), None]


@pytest.mark.slow
def test_more_statistics_leave_room_for_fewer_metrics():
    """A row has as many cells at most, whatever its statistics; wider windows are listed instead."""
    schema = parse_schema('[statistics]\nother = ["first", "last", "p1", "p50", "p99"]\n')
    most = schema.statistics.most_metrics
    assert schema.statistics.of("t")[0].name == "count"
    assert most * len(schema.statistics.of("t")) <= 60_000
    group = Group(schema, MIDNIGHT + 2 * DAY)
    group.receive(*(event("s", MIDNIGHT + n, {f"m{n}_{k}": 1.0 for k in range(1000)}) for n in range(most // 1000)))
    group.watermark(MIDNIGHT + 2 * MINUTE)
    group.pass_time()
    assert group.written
    assert sum(len(row.cells) for row in group.written[-1:]) <= 60_000
    group.written.clear()
    group.receive(event("s", MIDNIGHT + 100, {f"more_{k}": 1.0 for k in range(1000)}))
    group.pass_time()
    assert (group.written, group.listed) == ([], [("s", MIDNIGHT)])
