from pipeline.core.events.message import BATCH_TYPE, EVENT_TYPE, decode, message_of, sensor_event

T = 1_771_324_200_123_456


def test_single_event():
    """One event becomes a SensorEvent message with its time and an id."""
    event = sensor_event("a", T, {"x": 1.0}, {"k": "v"})
    message = message_of([event])
    assert message.attributes["message_type"] == EVENT_TYPE
    assert message.attributes["event_time"] == "2026-02-17T10:30:00.123456Z"
    assert list(decode(message)) == [event]


def test_a_batch_has_its_earliest_time():
    """Several events become a batch whose time is the earliest of them, whatever their order."""
    events = [sensor_event("a", T + offset, {"x": 1.0}, {}) for offset in (5_000_000, 0, 7)]
    message = message_of(events)
    assert message.attributes["message_type"] == BATCH_TYPE
    assert message.attributes["event_time"] == "2026-02-17T10:30:00.123456Z"
    assert list(decode(message)) == events


def test_same_events_same_id():
    """The id depends on the payload: an event published again has the same, another event has another."""
    one, again, other = (message_of([sensor_event("a", T, {"x": value}, {})]) for value in (1.0, 1.0, 2.0))
    assert one.attributes["event_id"] == again.attributes["event_id"] != other.attributes["event_id"]


def test_no_valid_time():
    """A message has no event_time attribute if the event time is invalid or not set."""
    event = sensor_event("a", T, {"x": 1.0}, {})
    event.event_time.nanos = -1
    assert "event_time" not in message_of([event]).attributes
    event.ClearField("event_time")
    assert "event_time" not in message_of([event]).attributes
