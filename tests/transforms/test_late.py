from datetime import timedelta

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from pipeline.core.events import validate
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms.late import LateWindows
from tests.streams import HOUR, NOON, event_at

DAY = timedelta(days=1)
SHORT = '[policies]\nraw = "maxage=2h || maxversions=9"\n[tiers]\n15m = "quarters"\n1h = "hours"'


def recorded(schema, *hours, lateness=DAY, now=NOON, ahead=timedelta(0)):
    """Returns the keys of the work list rows for events so many hours after noon, and the counters."""
    events = [validate(event_at(hour * HOUR), 10**16) for hour in hours]
    with TestPipeline(runner="BundleBasedDirectRunner") as pipeline:
        late = LateWindows(parse_schema(schema), lateness, ahead)
        rows = pipeline | beam.Create([events]) | beam.FlatMap(_rows, late, now * 1_000_000)
        assert_that(rows | beam.Map(lambda row: row.key.decode()), equal_to(expected_keys))
    counters = pipeline.result.metrics().query(MetricsFilter().with_namespace("tidetable"))["counters"]
    return {counter.key.metric.name: counter.committed for counter in counters}


def _rows(events, late, now_us):
    for _ in range(2):
        late.inspect(events, now_us)
    return late.take()


expected_keys: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_expected():
    expected_keys.clear()


def test_windows_whose_lateness_is_over():
    """Closed windows are recorded once in a bundle, under the shortest tier; open ones are not."""
    expected_keys.append("repair#15m#a#2026-02-16T11:15:00")
    counters = recorded(SHORT, -24.75, -24.6, -17.7, -1)
    assert counters["late_events"] == 4


def test_windows_whose_lateness_is_nearly_over():
    """Windows about to close are recorded too: an event may reach them too late. It does not count as late."""
    expected_keys.append("repair#15m#a#2026-02-16T11:45:00")
    assert "late_events" not in recorded(SHORT, -24.2)


def test_the_margin_for_late_events():
    """With a day of lateness the margin is an hour: behind a backlog events may still be too late."""
    expected_keys.append("repair#15m#a#2026-02-16T12:30:00")
    assert "late_events" not in recorded(SHORT, -23.4, -23.2)


def test_a_watermark_that_is_ahead():
    """If the watermark may be ahead of the clock, windows may close that much sooner."""
    expected_keys.append("repair#15m#a#2026-02-16T13:30:00")
    recorded(SHORT, -22.4, -22.2, ahead=timedelta(hours=1))


def test_expired_events_are_counted():
    """An event older than its family's policy counts as expired, whatever the lateness."""
    counters = recorded(SHORT, -2.1, -1.9, 0, lateness=100 * DAY)
    assert counters == {"expired_events": 2}


def test_a_table_without_aggregates():
    """Without tiers, no event is late."""
    assert recorded("[tiers]", -1000, lateness=timedelta(0)) == {}
