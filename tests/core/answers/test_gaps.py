"""Windows without a row."""

from dataclasses import replace
from functools import partial

import pytest

from pipeline.core.answers.gaps import MAX_WINDOWS, Fill, check_fill, filled
from pipeline.core.events.event import LATEST_US
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.records import AggregateRecord, summary_of
from pipeline.core.windows import HOURLY, CalendarWindow, parse_window

HOUR = 3_600_000_000
START = parse_time("2026-03-01")


def record(hour, metric="t", **statistics):
    found = {"count": 4, "sum": 80.0, **statistics}
    return AggregateRecord("s", START + hour * HOUR, HOURLY, 4, {metric: summary_of(found)})


RECORDS = [record(1, avg=10.0, p95=20.0, increase=3.0), record(4, avg=40.0, p95=50.0, increase=5.0)]
EMPTY = AggregateRecord("s", 0, HOURLY, 0, {}, filled=True)
hours = partial(filled, empty=EMPTY, start_us=START, end_us=START + 6 * HOUR)


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (Fill.NULL, [None, None, None, None]),
        (Fill.PREVIOUS, [None, (10.0, 20.0), (10.0, 20.0), (40.0, 50.0)]),
        (Fill.LINEAR, [None, (20.0, 30.0), (30.0, 40.0), None]),
    ],
)
def test_gaps(fill, expected):
    """Every window without a row is filled as asked: with nothing, as the row before, or between its neighbours."""
    found = list(hours(RECORDS, fill=fill))
    assert [each.start_us for each in found] == [START + n * HOUR for n in range(6)]
    assert [found[1], found[4]] == RECORDS
    gaps = [found[n] for n in (0, 2, 3, 5)]
    assert all(each.filled and each.reading_count == 0 and each.sensor_id == "s" for each in gaps)
    values = [each.metrics["t"].statistics() if each.metrics else None for each in gaps]
    assert values == [
        each and {"count": 0, "avg": pytest.approx(each[0]), "p95": pytest.approx(each[1])} for each in expected
    ]


def test_a_sensor_without_a_row():
    """Nothing is carried into the windows of a sensor that has no row."""
    assert [each.metrics for each in hours([], fill=Fill.PREVIOUS)] == [{}] * 6


def test_a_metric_that_only_one_neighbour_has():
    """No line can be drawn for it, so the filled window lacks the metric."""
    found = list(hours([record(0, "u", avg=1.0), record(2, avg=2.0)], fill=Fill.LINEAR))
    assert found[1].metrics == {}


def test_days_of_a_zone():
    """A zone's days are filled with their own starts, also across a change of clocks."""
    window = parse_window("1d@Europe/Berlin")
    start_us, end_us = parse_time("2026-03-28T23:00"), parse_time("2026-03-30T22:00")
    found = list(filled([], replace(EMPTY, window=window), start_us, end_us, Fill.NULL))
    assert [window.shown(each.start_us) for each in found] == ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]


def test_a_range_of_too_many_windows():
    """More than 100,000 windows are refused."""
    check_fill(HOURLY, START, START + MAX_WINDOWS * HOUR)
    with pytest.raises(ValueError, match="more than 100,000 windows of 1h"):
        check_fill(HOURLY, START, START + MAX_WINDOWS * HOUR + 1)


def test_windows_of_a_calendar_are_not_counted_in_vain(monkeypatch):
    """A range that is too long by its length alone is refused without a look at the calendar."""
    monkeypatch.setattr(CalendarWindow, "starts", None)
    with pytest.raises(ValueError, match="more than 100,000 windows of 1d@Asia/Tokyo"):
        check_fill(parse_window("1d@Asia/Tokyo"), 0, LATEST_US + 1)
