from pipeline.core.events import Event
from pipeline.core.pre_aggregation import Gatherer
from pipeline.core.schema.identity import Identity
from pipeline.core.windows import HOURLY

HOUR_US = HOURLY.length_us


def event(sensor_id, time_us, value=1.0):
    return Event(sensor_id, time_us, {"t": value}, {})


def taken(gatherer):
    return {
        (each.sensor_id, HOURLY.start_of(each.time_us)): each.readings.pane().stats.events for each in gatherer.take()
    }


def test_by_sensor_and_window():
    """Events come out by sensor and window, at a time within it, each once; and then they are gone."""
    gatherer = Gatherer(HOURLY)
    gatherer.add([event("a", 5), event("a", 6), event("a", 5), event("a", HOUR_US), event("b", 5)])
    gatherer.add([event("a", HOUR_US - 1)])
    assert taken(gatherer) == {("a", 0): 3, ("a", HOUR_US): 1, ("b", 0): 1}
    assert taken(gatherer) == {}


def test_times_of_a_coarser_grain():
    """Where the table can't tell events apart, they are one."""
    gatherer = Gatherer(HOURLY, Identity(1000))
    gatherer.add([event("a", 1001), event("a", 1999), event("a", 2000)])
    assert taken(gatherer) == {("a", 0): 2}


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
        gatherer = Gatherer(HOURLY, identity)
        gatherer.add([*events, *events])
        assert taken(gatherer) == {("a", 0): count}


def test_without_deduplication():
    """They count as often as they come."""
    gatherer = Gatherer(HOURLY, deduplicate=False)
    gatherer.add([event("a", 5), event("a", 5)])
    assert taken(gatherer) == {("a", 0): 2}


def test_a_bundle_that_failed():
    """What it had gathered is not there in the next one."""
    gatherer = Gatherer(HOURLY)
    gatherer.add([event("a", 5)])
    gatherer.start()
    gatherer.add([event("b", 5)])
    assert taken(gatherer) == {("b", 0): 1}
