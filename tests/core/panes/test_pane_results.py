"""The results that panes publish: of each window, the greatest is the window's row."""

from operator import attrgetter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.notation.times import parse_time
from pipeline.core.panes.firing import END_US
from pipeline.core.results.window_results import ResultRules
from pipeline.core.rows.aggregate_rows import version_us
from pipeline.core.schema.toml import parse_schema
from tests.support.courses import READINGS, SCHEMA, deliver
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, event, rows_of
from tests.support.results import newest_of

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


@settings(max_examples=examples(60), phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False), st.sampled_from([FINAL, ALL]))
def test_the_greatest_result_is_the_row(readings, chance, rules):
    """In any batches, with second values, late readings of any age, readings before others, drains and restarts.

    No two results of a window have the same id. The version of the greatest is the timestamp of the row's cells.
    """
    group = Group(parse_schema(SCHEMA), MIDNIGHT + chance.choice([0, 10 * HOUR, 2 * DAY]), results=rules)
    second = [(time_us, {"t": 77.0}) for time_us in readings if chance.random() < 0.2]
    group = deliver(group, readings, chance, second)
    group.watermark(END_US)
    ids = [result.event_id for result in group.published]
    assert len(set(ids)) == len(ids)
    assert newest_of(group.published) == of_rows(group)
    newest = {
        result.event_id.partition("/")[0]: result for result in sorted(group.published, key=attrgetter("event_id"))
    }
    assert {key: version_us(parse_time(each.window_start), each.version) for key, each in newest.items()} == {
        row.key.decode(): row.cells[0].timestamp_us for row in group.written
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
