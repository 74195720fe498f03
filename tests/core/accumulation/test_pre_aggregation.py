from pipeline.core.accumulation.pre_aggregation import BundlePreAggregator
from pipeline.core.events.event import Event
from pipeline.core.schema.identity import Identity
from pipeline.core.windows.fixed import HOURLY

HOUR_US = HOURLY.length_us


def event(sensor_id, time_us, value=1.0):
    return Event(sensor_id, time_us, {"t": value}, {})


def taken(pre_aggregator):
    return {
        (each.sensor_id, HOURLY.start_of(each.time_us)): each.readings.pane().stats.events
        for each in pre_aggregator.take()
    }


def test_by_sensor_and_window():
    """Events are accumulated by sensor and window, each once. Taking them empties the pre-aggregator."""
    pre_aggregator = BundlePreAggregator(HOURLY)
    pre_aggregator.add([event("a", 5), event("a", 6), event("a", 5), event("a", HOUR_US), event("b", 5)])
    pre_aggregator.add([event("a", HOUR_US - 1)])
    assert taken(pre_aggregator) == {("a", 0): 3, ("a", HOUR_US): 1, ("b", 0): 1}
    assert taken(pre_aggregator) == {}


def test_times_of_a_coarser_grain():
    """Events that the table cannot distinguish count once."""
    pre_aggregator = BundlePreAggregator(HOURLY, Identity(1000))
    pre_aggregator.add([event("a", 1001), event("a", 1999), event("a", 2000)])
    assert taken(pre_aggregator) == {("a", 0): 2}


def test_events_of_one_time():
    """Events with the same time count separately if the table's identity distinguishes them."""
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
    """Without deduplication, redelivered events count again."""
    pre_aggregator = BundlePreAggregator(HOURLY, deduplicate=False)
    pre_aggregator.add([event("a", 5), event("a", 5)])
    assert taken(pre_aggregator) == {("a", 0): 2}


def test_a_bundle_that_failed():
    """A failed bundle's content does not reach the next bundle."""
    pre_aggregator = BundlePreAggregator(HOURLY)
    pre_aggregator.add([event("a", 5)])
    pre_aggregator.start()
    pre_aggregator.add([event("b", 5)])
    assert taken(pre_aggregator) == {("b", 0): 1}
