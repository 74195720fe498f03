"""What panes publish, and contribute to roll-ups: of each window, the newest is the window's row."""

from operator import attrgetter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.notation.times import parse_time
from pipeline.core.panes.firing import END_US, RollupRules
from pipeline.core.results.window_results import ResultRules
from pipeline.core.rollups.due import read_written
from pipeline.core.rollups.levels import Members
from pipeline.core.rollups.sums import read_sums, window_stats_of
from pipeline.core.rows.aggregate_rows import version_us
from pipeline.core.rows.rollup_rows import MEMBERS, parse_members_key
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.toml import parse_schema
from tests.support.courses import READINGS, SCHEMA, check, deliver
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, event, rows_of
from tests.support.results import newest_of
from tests.support.rollups import set_cells
from tests.support.versioned_table import VersionedTable

TIERS = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n'
HOURS = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
FINAL, ALL = (ResultRules(MIDNIGHT, early) for early in (False, True))


def of_rows(group):
    """Returns the rows as results tell them: by window, the number of events and each metric's statistics."""
    return {
        (text, record.sensor_id, start_us): (
            record.reading_count,
            {metric: dict(summary.statistics()) for metric, summary in record.metrics.items()},
        )
        for (text, start_us), record in rows_of(group).items()
    }


def newest_contributions(group):
    """Returns what rows of members have by tier, start and sensor, in the order of panes."""
    table, found = VersionedTable(), {}
    rows = [row for batch in group.contributed for row in read_written(batch).rows]
    for row in rows:  # of equal versions, the last counts
        table.apply(row)
    for tier in group.schema.tiers:
        for row in table.rows(f"{MEMBERS}#{tier.window.label}#".encode()):
            _, start_us = parse_members_key(tier.window, row.key)
            for sensor, cell in Members.of(row, start_us).cells.items():
                stats = window_stats_of(read_sums(cell.value))
                found[tier.window.text, start_us, sensor.decode()] = stats
    return found


@settings(max_examples=examples(120), phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False), st.sampled_from([FINAL, ALL]))
def test_every_output_follows_the_rows(readings, chance, rules):
    """In any batches, with second values, late readings of any age, readings before others, drains and restarts.

    Rows are those of the readings. No two results of a window have the same id; the version of the greatest is the
    timestamp of the row's cells, and its content is the row. So is that of the newest contribution.
    """
    schema = parse_schema(f"{SCHEMA}\n[rollups]\nfleet = {{ by = [] }}")
    begin_us = MIDNIGHT + chance.choice([0, 10 * HOUR, 2 * DAY])
    group = Group(schema, begin_us, results=rules, rollups=RollupRules.of(schema))
    second = [(time_us, {"t": 77.0}) for time_us in readings if chance.random() < 0.2] if chance.randrange(2) else []
    group = deliver(group, readings, chance, second)
    group.watermark(END_US)
    rows = rows_of(group)
    if not second:
        check(rows, readings)
    ids = [result.event_id for result in group.published]
    assert len(set(ids)) == len(ids)
    assert newest_of(group.published) == of_rows(group)
    newest = {
        result.event_id.partition("/")[0]: result for result in sorted(group.published, key=attrgetter("event_id"))
    }
    assert {key: version_us(parse_time(each.window_start), each.version) for key, each in newest.items()} == {
        row.key.decode(): row.cells[0].timestamp_us for row in group.written
    }
    found = {}
    for key, stats in newest_contributions(group).items():
        increases = {metric: (each.parts or {}).get("risen") for metric, each in stats.metrics.items()}
        found[key] = stats.events, {metric: risen and risen.increase for metric, risen in increases.items()}
    assert found == {
        (text, start_us, "s"): (
            record.reading_count,
            {metric: summary.statistics().get("increase") for metric, summary in record.metrics.items()},
        )
        for (text, start_us), record in rows.items()
    }


def kinds(group):
    return [(result.kind, result.reading_count) for result in group.published]


def test_kinds():
    """A pane is early, on time, or late. At its end a window is published even if nothing came since the last pane."""
    group = Group(HOURS, MIDNIGHT + DAY, results=ALL)
    group.receive(event("s", MIDNIGHT, {"t": 1.0}))
    group.pass_time()
    group.watermark(MIDNIGHT + HOUR - 1)
    assert kinds(group) == [("early", 1)]
    group.watermark(MIDNIGHT + HOUR)
    assert kinds(group)[1:] == [("on_time", 1)]
    group.receive(event("s", MIDNIGHT + 1, {"t": 1.0}))
    group.pass_time()
    group.watermark(MIDNIGHT + DAY)
    group.receive(event("s", MIDNIGHT + 2, {"t": 1.0}))
    group.pass_time()
    assert kinds(group)[2:] == [("late", 2), ("late", 3)]


def test_final_results():
    """Early panes are not published, what follows is; and nothing more fires without results."""
    group, without = Group(HOURS, MIDNIGHT + DAY, results=FINAL), Group(HOURS, MIDNIGHT + DAY)
    for each in (group, without):
        each.receive(event("s", MIDNIGHT, {"t": 1.0}))
        each.pass_time()
        each.watermark(MIDNIGHT + HOUR)
    assert kinds(group) == [("on_time", 1)]
    assert (len(group.written), len(without.written)) == (2, 1)
    assert without.published == []


def test_a_drain_within_a_window():
    """What is in progress is published as early, since the next job may get nothing more; what is over is on time."""
    group = Group(HOURS, MIDNIGHT + 90 * MINUTE, results=FINAL)
    group.receive(*(event("s", MIDNIGHT + hour * HOUR, {"t": 1.0}) for hour in range(2)))
    group.pass_time()
    assert kinds(group) == []
    group.watermark(END_US)
    assert [(result.kind, result.window_start[11:13]) for result in group.published] == [
        ("on_time", "00"),
        ("early", "01"),
    ]


def test_tiers_metrics_and_shards():
    """Only tiers and metrics of roll-ups contribute, and each sensor to its shard."""
    schema = parse_schema(f'{TIERS}[rollups]\nshards = 4\na = {{ by = [], tiers = ["1d"], metrics = ["t"] }}')
    group = Group(schema, MIDNIGHT, rollups=RollupRules.of(schema))
    names = [f"s{number}" for number in range(20)]
    group.receive(*(event(name, MIDNIGHT, {"t": 1.0, "u": 2.0}) for name in names))
    group.pass_time(2 * MINUTE)
    assert {key: list(stats.metrics) for key, stats in newest_contributions(group).items()} == {
        ("1d", MIDNIGHT, name): ["t"] for name in names
    }
    for written in map(read_written, group.contributed):
        shards = {parse_members_key(schema.tiers[1].window, row.key)[0]: row for row in written.rows}
        assert {shard for shard, _ in written.due} == shards.keys()
        for shard, row in shards.items():
            assert {group_of(cell.qualifier, 4) for cell in set_cells(row).cells} == {shard}
