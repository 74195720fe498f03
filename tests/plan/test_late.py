"""What late events cost, against the job's own windows and by hand."""

from dataclasses import replace

import pytest

from pipeline.core.events.event import Event
from pipeline.core.schema.toml import parse_schema
from pipeline.plan.estimate import estimate_of
from pipeline.plan.late import RAW_ROW_US, SHORTER_ROW_US, late_of
from pipeline.plan.workload import Workload, names
from tests.support.groups import DAY, HOUR, MINUTE, SECOND, Group

START = 1_771_286_400_000_000
FLEET = Workload(parse_schema(""), 1_000_000, MINUTE, names("metric", 3), late=0.01)
DAYS = parse_schema('tiers = { 1h = "hours", 1d = "days" }')


def a_day(schema, late):
    """Returns the group of a sensor that sends every ten minutes of a day, with or without late events as well: they
    are late by an hour to a day."""
    group = Group(schema, START, early_us=5 * MINUTE)
    for number in range(144):
        group.pass_time_to(START + DAY + number * 10 * MINUTE)
        events = [Event("s", group.now_us, {"t": 1.0}, {})]
        events += [Event("s", group.now_us - (1 + 5 * number % 24) * HOUR, {"t": 1.0}, {})] * late
        group.receive(*events)
    group.pass_time_to(START + 4 * DAY)
    return group


@pytest.mark.parametrize("schema", [parse_schema(""), DAYS])
def test_late_panes_are_those_of_the_jobs_windows(schema):
    """A late event makes a row of its hour, and one of its day. It reads both."""
    some, none = a_day(schema, late=True), a_day(schema, late=False)
    workload = Workload(schema, 144, DAY, ("t",), late=1.0)
    for tier, prefix in zip(schema.tiers, (b"agg#hourly", b"agg#daily"), strict=False):
        counts = [sum(row.key.startswith(prefix) for row in group.written) for group in (some, none)]
        rows = [estimate_of(replace(workload, late=late)).tiers[tier.window.text].rows for late in (1.0, 0.0)]
        assert (rows[0] - rows[1]) * 86_400 == pytest.approx(counts[0] - counts[1], rel=0.15), tier
    reads = late_of(workload).reads_per_second * 86_400
    assert reads == pytest.approx(some.table.reads - none.table.reads, rel=0.25)


def test_by_hand():
    """A late event reads the raw rows of its hour, and its day's hours.

    A run of a minute is one pane.
    """
    late = late_of(FLEET)
    panes = 1_000_000 / 60 * 0.01
    assert late.events_per_second == pytest.approx(panes)
    assert late.panes_per_second == pytest.approx(panes)
    assert late.vcpus == pytest.approx(panes * (2500 + 60 * RAW_ROW_US) / 1e6)
    assert late.reads_per_second == pytest.approx(panes)
    days = late_of(replace(FLEET, schema=DAYS))
    assert days.vcpus == pytest.approx(late.vcpus + panes * (2500 + 24 * SHORTER_ROW_US) / 1e6)
    assert days.reads_per_second == pytest.approx(2 * panes)
    only_days = late_of(replace(FLEET, schema=parse_schema('tiers = { 1d = "days" }')))
    assert only_days.vcpus == pytest.approx(panes * (2500 + 1440 * RAW_ROW_US) / 1e6)
    dense = late_of(replace(FLEET, every_us=SECOND))
    assert dense.events_per_second == pytest.approx(60 * panes)
    assert dense.panes_per_second == pytest.approx(panes)


def test_the_estimate_contains_them():
    """Rows, vCPUs, nodes and state grow with late events; a table without windows has none."""
    fleet = replace(FLEET, sensors=10_000_000)
    some, none = estimate_of(replace(fleet, late=0.1)), estimate_of(replace(fleet, late=0.0))
    panes = some.late.panes_per_second
    assert some.tiers["1h"].rows == pytest.approx(none.tiers["1h"].rows + panes)
    assert some.vcpus > none.vcpus + 2 * some.late.vcpus
    assert some.nodes_for_writes > none.nodes_for_writes
    traffic = some.late.traffic_per_second
    assert some.state_traffic_per_second == pytest.approx(none.state_traffic_per_second + traffic)
    assert some.streaming_bytes_per_second > none.streaming_bytes_per_second + traffic
    final = [estimate_of(replace(fleet, late=share, results="final")).results.per_second for share in (0.1, 0)]
    assert final[0] == pytest.approx(final[1] + panes)
    assert late_of(replace(FLEET, schema=parse_schema("tiers = {}"))).vcpus == 0
