from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.gathering import BundleReadings
from pipeline.core.events.event import Event
from pipeline.core.windows.fixed import HOURLY

HOUR_US = HOURLY.length_us


def event(sensor_id, time_us, value=1.0):
    return Event(sensor_id, time_us, {"t": value}, {})


def taken(gathered):
    return {key: WindowReadings.of(columns).pane().stats.events for key, columns in gathered.take().items()}


def test_by_sensor_and_window():
    """Events are gathered by sensor and window, and each counts once. Nothing is taken twice."""
    gathered = BundleReadings(HOURLY)
    gathered.add([event("a", 5), event("a", 6), event("a", 5), event("a", HOUR_US), event("b", 5)])
    gathered.add([event("a", HOUR_US - 1)])
    assert taken(gathered) == {("a", 0): 3, ("a", HOUR_US): 1, ("b", 0): 1}
    assert taken(gathered) == {}


def test_a_bundle_that_failed():
    """A failed bundle's content does not reach the next bundle."""
    gathered = BundleReadings(HOURLY)
    gathered.add([event("a", 5)])
    gathered.start()
    gathered.add([event("b", 5)])
    assert taken(gathered) == {("b", 0): 1}
