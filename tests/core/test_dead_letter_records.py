"""A dead letter says of itself what it is, and dead letters are selected, counted and sent on by that."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.dead_letter_records import DeadLetter, Groups, Selection, replay_batches
from pipeline.core.dead_letters import REPLAYS, dead_letter
from pipeline.core.events import BadData, Reason, sensor_event
from pipeline.core.messages import BATCH_TYPE, ENCODING, MESSAGE_TYPE, Message
from pipeline.core.times import from_datetime
from pipeline.proto.sensor_event_pb2 import SensorEventBatch

NOW = datetime(2026, 2, 17, 10, 30, tzinfo=UTC)
NOW_US = from_datetime(NOW)
HOUR = timedelta(hours=1)
EVENT = sensor_event("balloon-7", NOW_US, {"x": 1.0}, {})


def letter_of(message, reason=Reason.NO_READINGS, when=NOW, detail="no good"):
    return DeadLetter.of(dead_letter(message, BadData(reason, detail), "DecodeMessages", when))


def sensors_letter(sensor, reason=Reason.NO_READINGS, when=NOW, detail="no good"):
    event = sensor_event(sensor, NOW_US, {}, {})
    return letter_of(Message(event.SerializeToString(), {}), reason, when, detail)


def test_what_it_says_of_itself():
    """Reason, detail, step, time and replays; and the original, decoded."""
    message = Message(EVENT.SerializeToString(), {"site": "north", REPLAYS: "2"}, "4711", NOW - HOUR, "key")
    letter = letter_of(message)
    assert letter.original == message
    assert letter[2:] == ("NO_READINGS", "no good", "DecodeMessages", NOW_US, 2, (EVENT,))
    assert letter.sensor_id == "balloon-7"


def test_one_that_cannot_be_decoded():
    """There are no events then, and no sensor."""
    letter = letter_of(Message(b"\xff", {}))
    assert (letter.events, letter.sensor_id) == ((), "")


def test_json_is_decoded_as_json():
    """The encoding that Pub/Sub said is known by its other name."""
    assert letter_of(Message(b'{"sensor_id": "a"}', {ENCODING: "JSON"})).sensor_id == "a"


def test_a_batch_has_a_sensor_where_it_has_one():
    """The events of a batch that decodes meanwhile may be of one sensor, or of several."""
    for sensors, expected in ((("a", "a"), "a"), (("a", "b"), "")):
        batch = SensorEventBatch(events=[sensor_event(sensor, NOW_US, {}, {}) for sensor in sensors])
        assert letter_of(Message(batch.SerializeToString(), {MESSAGE_TYPE: BATCH_TYPE})).sensor_id == expected


def test_somebody_elses_message():
    """Without a reason it is no dead letter of ours: it is its own original, whatever its attributes are."""
    message = Message(b"hello", {"dead_letter_time": "soon", "dead_letter_googx": "1"}, "12", NOW)
    letter = DeadLetter.of(message)
    assert (letter.reason, letter.time_us, letter.original) == ("", None, message)


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (Selection(), "abc"),
        (Selection(reasons=frozenset({Reason.UNPARSEABLE})), "c"),
        (Selection(reasons=frozenset({Reason.UNPARSEABLE, Reason.NO_READINGS})), "abc"),
        (Selection(sensors=frozenset({"a", "z"})), "a"),
        (Selection(since_us=NOW_US), "bc"),
        (Selection(until_us=NOW_US), "a"),
        (Selection(since_us=NOW_US, until_us=NOW_US + 1), "b"),
        (Selection(reasons=frozenset({Reason.NO_READINGS}), sensors=frozenset("bc")), "b"),
    ],
)
def test_a_selection_wants_what_all_its_filters_want(selection, wanted):
    """Each filter may name several; a time is wanted from since, inclusive, to until, exclusive."""
    letters = [
        sensors_letter("a", when=NOW - HOUR),
        sensors_letter("b"),
        sensors_letter("c", Reason.UNPARSEABLE, NOW + HOUR),
    ]
    assert "".join(letter.sensor_id for letter in letters if letter in selection) == wanted


def test_without_a_time_no_time_is_right():
    """Somebody else's message is wanted by no filter of reason or time."""
    letter = DeadLetter.of(Message(b"", {}))
    assert letter in Selection()
    assert letter not in Selection(since_us=0)
    assert letter not in Selection(until_us=NOW_US)
    assert letter not in Selection(reasons=frozenset(Reason))


def test_groups():
    """Counts, oldest and newest, and the first detail as an example; the biggest group first."""
    groups = Groups()
    groups.add(sensors_letter("a", Reason.UNPARSEABLE))
    groups.add(sensors_letter("b", when=NOW, detail="first"))
    groups.add(sensors_letter("b", when=NOW - HOUR, detail="second"))
    groups.add(sensors_letter("b", when=NOW + HOUR, detail="third"))
    groups.add(DeadLetter.of(Message(b"\xff", {})))
    hour_us = HOUR // timedelta(microseconds=1)
    assert [(one.reason, one.sensor_id, one.count, one.oldest_us, one.newest_us) for one in groups.by_size()] == [
        ("NO_READINGS", "b", 3, NOW_US - hour_us, NOW_US + hour_us),
        ("", "", 1, None, None),
        ("UNPARSEABLE", "a", 1, NOW_US, NOW_US),
    ]
    assert groups.by_size()[0].detail == "first"


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 3000)), max_size=30),
    st.integers(1, 5),
)
def test_what_goes_out_together(keys_and_sizes, most):
    """All of one ordering key, no more than so many, nor larger; all are in it, those of a key in their order."""
    letters = [letter_of(Message(b"x" * size, {}, str(n), None, key)) for n, (key, size) in enumerate(keys_and_sizes)]
    lists = replay_batches(letters, most, 4000)
    for key in ("", "a", "b"):
        sent = [letter for one in lists for letter in one if letter.original.ordering_key == key]
        assert sent == [letter for letter in letters if letter.original.ordering_key == key]
    for one in lists:
        assert 1 <= len(one) <= most
        assert len({letter.original.ordering_key for letter in one}) == 1
        assert len(one) == 1 or sum(len(letter.message.data) for letter in one) <= 4000
