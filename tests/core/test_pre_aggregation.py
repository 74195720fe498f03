from pipeline.core.events import Event
from pipeline.core.pre_aggregation import BundlePreAggregator
from pipeline.core.schema.identity import Identity
from pipeline.core.windows import HOURLY

HOUR_US = HOURLY.length_us


def event(sensor_id, time_us, value=1.0):
    return Event(sensor_id, time_us, {"t": value}, {})


def taken(pre_aggregator):
    return {
        (each.sensor_id, HOURLY.start_of(each.time_us)): each.readings.pane().stats.events
        for each in pre_aggregator.take()
    }


def test_by_sensor_and_window():
    """Events come out by sensor and window, at a time within it, each once; and then they are gone."""
    pre_aggregator = BundlePreAggregator(HOURLY)
    pre_aggregator.add([event("a", 5), event("a", 6), event("a", 5), event("a", HOUR_US), event("b", 5)])
    pre_aggregator.add([event("a", HOUR_US - 1)])
    assert taken(pre_aggregator) == {("a", 0): 3, ("a", HOUR_US): 1, ("b", 0): 1}
    assert taken(pre_aggregator) == {}


def test_times_of_a_coarser_grain():
    """Where the table can't tell events apart, they are one."""
    pre_aggregator = BundlePreAggregator(HOURLY, Identity(1000))
    pre_aggregator.add([event("a", 1001), event("a", 1999), event("a", 2000)])
    assert taken(pre_aggregator) == {("a", 0): 2}


def test_events_of_one_time():
    """Where the table tells them apart by their place or their id, so do aggregates; by anything else, nobody does."""
    events = [
        Event("a", 5, {"t": 1.0}, {"place": place, "model": model}, event_id)
        for place, model, event_id in (("n", "x", "1"), ("s", "x", "1"), ("n", "y", "1"), ("n", "x", "2"))
    ]
    for identity, count in (
        (Identity(), 1),
        (Identity(metadata=("place",)), 2),
        (Identity(event_id=True), 2),
        (Identity(metadata=("model", "place"), event_id=True), 4),
    ):
        pre_aggregator = BundlePreAggregator(HOURLY, identity)
        pre_aggregator.add([*events, *events])
        assert taken(pre_aggregator) == {("a", 0): count}


def test_without_deduplication():
    """They count as often as they come."""
    pre_aggregator = BundlePreAggregator(HOURLY, deduplicate=False)
    pre_aggregator.add([event("a", 5), event("a", 5)])
    assert taken(pre_aggregator) == {("a", 0): 2}


def test_a_bundle_that_failed():
    """What it had gathered is not there in the next one."""
    pre_aggregator = BundlePreAggregator(HOURLY)
    pre_aggregator.add([event("a", 5)])
    pre_aggregator.start()
    pre_aggregator.add([event("b", 5)])
    assert taken(pre_aggregator) == {("b", 0): 1}
