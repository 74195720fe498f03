"""Windows: what is known to be missing of them, and those that are still open."""

from datetime import timedelta
from time import time_ns

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.answers.window_answers import FreshWindows, WindowQuery, incomplete_before
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.queries.reads import raise_foreign
from pipeline.core.schema.gc_policies import MaxAge, Never
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY, Window
from tests.support.courses import SCHEMA as COURSES
from tests.support.courses import check
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, LATENESS, MIDNIGHT, MINUTE, Group, event, rows_of
from tests.support.memory import Memory

NOW = time_ns() // 1000
END = NOW - NOW % HOUR
SCHEMA = parse_schema("")
KEPT = Never()

OPEN_FOR = timedelta(minutes=15)
SCHEMAS = {
    "default": "",
    "quantiles": '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n[statistics]\n'
    't = ["first", "last", "p50", "min", "max"]\n',
    "courses": COURSES,
    "calendars": '[policies]\nraw = "never"\n[tiers]\n15m = "quarters"\n"1d@Europe/Berlin" = "days"\n'
    '"1mo@Europe/Berlin" = "months"\n',
    "time first": 'key = "{iso_us}#{sensor_id}"\n[tiers]\n1h = "hours"\n1d = "days"\n',
    "metadata": 'key = "{metadata.site}#{sensor_id}#{reverse_us}"\n',
    "buckets": 'key = "{sensor_id}#{bucket:1h}"\nlayout = "bucket_cells"\n',
}
READINGS = st.dictionaries(
    st.integers(0, 30 * 60 - 1).map(lambda minute: MIDNIGHT + minute * MINUTE),
    st.dictionaries(st.sampled_from(["t", "u"]), st.integers(-50, 50).map(float), min_size=1),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize(
    ("retention", "fresh", "expected"),
    [
        (Retention.of(SCHEMA, {"stats": KEPT}), False, None),
        (Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": END - 2 * HOUR}), False, END - 2 * HOUR),
        (Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": END - 20 * HOUR}), False, None),
        (Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": FOR_EVER_US}), False, END + HOUR),
        (Retention.of(SCHEMA, {"stats": KEPT}, since={"stats": END - 2 * HOUR}), False, END - 2 * HOUR),
        (Retention.unknown(SCHEMA), True, END + HOUR),
    ],
)
def test_windows_before_this_time_may_be_missing(retention, fresh, expected):
    """The tier was added later, or its policy was shorter; nothing is certain of a table that was not asked."""
    query = WindowQuery(None, END - 10 * HOUR, END + HOUR, fresh=fresh)
    assert incomplete_before(SCHEMA, retention, query) == expected


def test_the_policy_of_a_tier():
    """Rows that the policy may have collected by now may be missing, but for some minutes by which clocks differ."""
    retention = Retention.of(SCHEMA, {"stats": MaxAge(timedelta(hours=5))})
    now_us = time_ns() // 1000
    found = incomplete_before(SCHEMA, retention, WindowQuery(None, END - 10 * HOUR, END))
    assert now_us <= found + 5 * HOUR - 10 * MINUTE < now_us + 10 * MINUTE


def test_an_open_window_of_a_fresh_answer():
    """Raw rows answer for it, whether or not a job has written the tier, if they are kept."""
    never = Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": FOR_EVER_US})
    query = WindowQuery(None, END - 10 * HOUR, END + HOUR, fresh=True)
    assert incomplete_before(SCHEMA, never, query) in (END - HOUR, END)
    assert incomplete_before(SCHEMA, never, query._replace(start_us=END)) in (None, END)
    gone = Retention.of(SCHEMA, {"raw": MaxAge(timedelta(minutes=1))}, added={"stats": FOR_EVER_US})
    assert incomplete_before(SCHEMA, gone, query) > END


def fresh(schema, table, now_us, *, sensor_id="s", window=None, metrics=None, start_us=0):
    """Returns a sensor's windows: tier, start and record."""
    windows = FreshWindows(schema, Retention.of(schema), table, now_us, OPEN_FOR, raise_foreign)
    return {
        (tier.window.text, record.start_us): record
        for tier in schema.tiers
        if window in (None, tier.window)
        for record in windows.of(tier, sensor_id, start_us, now_us + DAY, metrics)
    }


@pytest.mark.parametrize("text", SCHEMAS.values(), ids=SCHEMAS)
@settings(max_examples=examples(25), phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False), st.integers(0, 15))
def test_fresh_windows_are_as_their_final_panes(text, readings, chance, behind):
    """Whenever one looks, whatever the job has written of open windows, and however far its watermark is behind."""
    schema = parse_schema(text)
    group = Group(schema, MIDNIGHT, early_us=chance.choice([0, MINUTE]))
    # The job itself can't compute a window anew if the sensor's id does not find its raw rows.
    delays = [0, 0, 8 * MINUTE, 5 * HOUR] if schema.finds_sensors else [0]
    deliveries = sorted(readings.items(), key=lambda each: each[0] + chance.choice(delays))
    for time_us, of_event in deliveries:
        group.now_us = max(group.now_us, time_us)
        group.receive(Event("s", time_us, of_event, {"site": "north"}))
        if chance.random() < 0.5:
            group.watermark(group.now_us - behind * MINUTE)
            group.pass_time()
    now_us = group.now_us + chance.choice([0, MINUTE, 40 * MINUTE, 9 * HOUR])
    group.watermark(now_us - behind * MINUTE)
    group.pass_time()  # late events of closed windows have fired
    found = fresh(schema, group.table, now_us)
    group.watermark(MIDNIGHT + 70 * DAY)
    group.pass_time(2 * MINUTE)
    final = rows_of(group)
    assert found.keys() == final.keys()
    for key, record in final.items():
        assert found[key].reading_count == record.reading_count
        for metric, summary in record.metrics.items():
            assert found[key].metrics[metric].statistics() == pytest.approx(summary.statistics(), rel=1e-9, abs=1e-9), (
                key,
                metric,
            )
    if text is COURSES:
        check(found, readings)


def test_a_row_that_counts_more_than_its_raw_rows_stays():
    """Raw rows were collected."""
    schema = parse_schema("")
    group = Group(schema, MIDNIGHT + MINUTE)
    events = [event("s", MIDNIGHT + n, {"t": float(n)}) for n in range(3)]
    group.receive(*events)
    group.pass_time()
    kept = Memory(group.written)
    for row in schema.rows(events[0]):
        kept.write(row)
    (record,) = fresh(schema, kept, group.now_us).values()
    assert record.metrics["t"].sum == 3
    for row in schema.rows(event("s", MIDNIGHT + 9, {"t": 9.0, "u": 1.0})):
        group.table.write(row)
    (record,) = fresh(schema, group.table, group.now_us).values()
    assert (record.reading_count, record.metrics["t"].sum) == (4, 12)


def test_closed_windows_cost_no_raw_rows():
    """Raw rows are read for open windows alone; the others are their aggregate rows."""
    schema = parse_schema("")
    group = Group(schema, MIDNIGHT)
    group.receive(*(event("s", MIDNIGHT + n * MINUTE, {"t": 1.0}) for n in range(20 * 60)))
    group.watermark(MIDNIGHT + 20 * HOUR)
    group.table.rows = 0
    now_us = MIDNIGHT + 20 * HOUR + LATENESS
    assert len(fresh(schema, group.table, now_us)) == 20
    assert group.table.rows == 20 + 60  # the last hour is still open


def test_metrics():
    """Only the requested metrics are returned, and no window without any of them."""
    schema = parse_schema("")
    group = Group(schema, MIDNIGHT + MINUTE)
    group.receive(event("s", MIDNIGHT, {"t": 1.0, "u": 2.0}), event("s", MIDNIGHT + 1, {"u": 2.0}))
    (record,) = fresh(schema, group.table, group.now_us, metrics=("u",)).values()
    assert list(record.metrics) == ["u"]
    assert not fresh(schema, group.table, group.now_us, metrics=("v",), window=HOURLY)


def test_raw_rows_without_readings():
    """A raw row that has only metadata left adds no window."""
    schema = parse_schema("")
    (row,) = schema.rows(Event("s", MIDNIGHT, {"t": 1.0}, {"place": "roof"}))
    table = Memory([row._replace(cells=[cell for cell in row.cells if cell.family == "meta"])])
    assert not fresh(schema, table, MIDNIGHT + MINUTE)


def test_no_window_is_listed_that_may_be_empty(monkeypatch):
    """A range up to the last time of keys costs what its rows cost, however short the windows are."""
    schema = parse_schema(
        '[policies]\nraw = "never"\n[tiers]\n1m = "minutes"\n1h = "hours"\n"1d@Asia/Tokyo" = "days"\n1mo = "months"\n'
    )
    group = Group(schema, MIDNIGHT + MINUTE)
    group.receive(event("s", MIDNIGHT, {"t": 1.0}), event("s", MIDNIGHT + 400 * DAY, {"t": 2.0}))
    monkeypatch.setattr(Window, "starts", None)
    windows = FreshWindows(schema, Retention.of(schema), group.table, group.now_us, OPEN_FOR, raise_foreign)
    for tier in schema.tiers:
        found = windows.of(tier, "s", MIDNIGHT - 40 * DAY, LATEST_US + 1, None)
        assert [(record.start_us, record.metrics["t"].sum) for record in found] == [
            (tier.window.start_of(time_us), value) for time_us, value in ((MIDNIGHT, 1.0), (MIDNIGHT + 400 * DAY, 2.0))
        ]
