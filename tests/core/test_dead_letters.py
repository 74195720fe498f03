"""Dead letters are parsed from their attributes, selected, grouped and batched, and converted to JSON and back."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.dead_letters import (
    LETTER_COLUMNS,
    DeadLetter,
    LetterGroups,
    Selection,
    letter_json,
    replay_batches,
    replay_of_json,
)
from pipeline.core.decoding.dry_decode import Trials
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.dead_letter import REPLAYS, dead_letter, replay_of
from pipeline.core.events.message import (
    BATCH_TYPE,
    ENCODING,
    EVENT_ID,
    EVENT_TIME,
    EVENT_TYPE,
    MESSAGE_TYPE,
    Message,
    decode,
    sensor_event,
)
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import json_line
from pipeline.core.notation.times import from_datetime
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


def test_parsed_attributes():
    """A dead letter has its reason, detail, step, time, replays, and the decoded original."""
    message = Message(EVENT.SerializeToString(), {"site": "north", REPLAYS: "2"}, "4711", NOW - HOUR, "key")
    letter = letter_of(message)
    assert letter.original == message
    assert letter[2:] == ("NO_READINGS", "no good", "DecodeMessages", NOW_US, 2, (EVENT,), None)
    assert letter.sensor_id == "balloon-7"


def test_mapped_messages():
    """With a mapping, a letter has the events that the mapping makes now, or the reason why it makes none."""
    mapping = 'message = "json"\nsensor = "id"\ntime = "at"\n[readings]\nt = "t"'
    trials = Trials([MappedType("any.toml", mapping)])

    def mapped(data):
        message = Message(data, {MESSAGE_TYPE: "json"}, "4711")
        return DeadLetter.of(dead_letter(message, BadData(Reason.UNKNOWN_MESSAGE_TYPE, "x"), "s", NOW), trials)

    good = mapped(b'{"id": "a", "at": "2026-02-17T10:30:00Z", "t": 1}')
    assert (good.events, good.sensor_id) == ((sensor_event("a", NOW_US, {"t": 1.0}, {}),), "a")
    assert good in Selection(sensors=frozenset("a"))
    document = letter_json(good)
    assert (document["events"], document["mapped"]["events"][0]["sensor_id"]) == ([], "a")
    assert again(good) == (replay_of(good.message), ())
    bad = mapped(b'{"id": "a", "t": 1}')
    assert (bad.events, letter_json(bad)["mapped"]["refused"][0]["reason"]) == ((), "MISSING_EVENT_TIME")


def test_mappings_leave_other_types_alone():
    """A message of the built-in type is decoded as ever, and so is one of no known type."""
    trials = Trials([MappedType("any.toml", 'message = "json"\nsensor = "i"\ntime = "a"\nreadings = {}')])
    for attributes in ({MESSAGE_TYPE: EVENT_TYPE}, {MESSAGE_TYPE: "acme.Unknown"}):
        letter = letter_of(Message(EVENT.SerializeToString(), attributes))
        assert DeadLetter.of(letter.message, trials) == letter


def test_the_sensor_of_a_batch():
    """A batch has a sensor if all its events have the same; what can't be decoded has none. JSON is read as JSON."""
    assert letter_of(Message(b'{"sensor_id": "a"}', {ENCODING: "JSON"})).sensor_id == "a"
    assert letter_of(Message(b"\xff", {})).sensor_id == ""
    for sensors, expected in ((("a", "a"), "a"), (("a", "b"), "")):
        batch = SensorEventBatch(events=[sensor_event(sensor, NOW_US, {}, {}) for sensor in sensors])
        assert letter_of(Message(batch.SerializeToString(), {MESSAGE_TYPE: BATCH_TYPE})).sensor_id == expected


def test_a_message_that_is_no_dead_letter():
    """A message without a reason is not a dead letter: it is its own original, whatever its other attributes."""
    message = Message(b"hello", {"dead_letter_time": "soon", "dead_letter_googx": "1"}, "12", NOW)
    letter = DeadLetter.of(message)
    assert (letter.reason, letter.time_us, letter.original) == ("", None, message)
    assert letter in Selection()
    for selection in (Selection(since_us=0), Selection(until_us=NOW_US), Selection(reasons=frozenset(Reason))):
        assert letter not in selection


@pytest.mark.parametrize(
    ("selection", "expected"),
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
def test_a_selection_combines_its_conditions(selection, expected):
    """A letter must meet all conditions. Each may list several values; the end of a span of time is exclusive."""
    letters = [
        sensors_letter("a", when=NOW - HOUR),
        sensors_letter("b"),
        sensors_letter("c", Reason.UNPARSEABLE, NOW + HOUR),
    ]
    assert "".join(letter.sensor_id for letter in letters if letter in selection) == expected


def test_groups():
    """A group has its count, its oldest and newest time, and the first detail. The most frequent reason comes first."""
    groups = LetterGroups()
    groups.add(sensors_letter("a", Reason.UNPARSEABLE))
    groups.add(sensors_letter("b", when=NOW, detail="first"))
    groups.add(sensors_letter("c"))
    groups.add(sensors_letter("b", when=NOW - HOUR, detail="second"))
    groups.add(sensors_letter("b", when=NOW + HOUR, detail="third"))
    groups.add(DeadLetter.of(Message(b"\xff", {})))
    hour_us = HOUR // timedelta(microseconds=1)
    found = [(each.reason, each.sensor_id, each.count, each.oldest_us, each.newest_us) for each in groups.by_reason()]
    assert found == [
        ("NO_READINGS", "b", 3, NOW_US - hour_us, NOW_US + hour_us),
        ("NO_READINGS", "c", 1, NOW_US, NOW_US),
        ("", "", 1, None, None),
        ("UNPARSEABLE", "a", 1, NOW_US, NOW_US),
    ]
    assert groups.by_reason()[0].detail == "first"


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 3000)), max_size=30),
    st.integers(1, 5),
)
def test_replay_batches(keys_and_sizes, max_letters):
    """A batch has one ordering key and stays within its limits. Every letter is in one, in its key's order."""
    letters = [letter_of(Message(b"x" * size, {}, str(n), None, key)) for n, (key, size) in enumerate(keys_and_sizes)]
    batches = replay_batches(letters, max_letters, 4000)
    for key in ("", "a", "b"):
        sent = [letter for batch in batches for letter in batch if letter.original.ordering_key == key]
        assert sent == [letter for letter in letters if letter.original.ordering_key == key]
    for batch in batches:
        assert 1 <= len(batch) <= max_letters
        assert len({letter.original.ordering_key for letter in batch}) == 1
        assert len(batch) == 1 or sum(len(letter.message.data) for letter in batch) <= 4000


def again(letter, **edited):
    """Returns the replay of a dead letter's JSON, with these values replaced; None removes one."""
    document = json.loads(json_line(letter_json(letter))) | edited
    return replay_of_json({name: value for name, value in document.items() if value is not None})


@given(
    st.binary(max_size=20) | st.just(EVENT.SerializeToString()),
    st.dictionaries(st.sampled_from(["site", "topic", EVENT_ID, REPLAYS, "googx"]), st.text(max_size=4)),
    st.sampled_from(["", "key"]),
)
def test_an_unedited_letter_is_replayed(data, attributes, ordering_key):
    """Its JSON stands for the message that ``dead-letters replay`` publishes, if that can be decoded."""
    letter = letter_of(Message(data, attributes, "4711", NOW, ordering_key))
    if not letter.events:
        with pytest.raises(BadData):
            again(letter)
        return
    assert again(letter) == (replay_of(letter.message), letter.events)


def test_edited_events_become_the_payload():
    """Their message has its own id and event time; other attributes, the ordering key and the replays stay."""
    attributes = {"site": "north", EVENT_ID: "e1", EVENT_TIME: "soon", ENCODING: "JSON", REPLAYS: "1"}
    letter = letter_of(Message(b'{"sensor_id": "a b"}', attributes, ordering_key="key"))
    fixed = {"sensor_id": "a-b", "event_time": "2026-02-17T10:30:00Z", "readings": {"x": 1}}
    message, events = again(letter, events=[fixed])
    assert [event.sensor_id for event in events] == ["a-b"]
    assert tuple(decode(message)) == events
    assert message.attributes[EVENT_ID] not in ("", "e1")
    assert message.attributes | {EVENT_ID: ""} == {
        "site": "north",
        MESSAGE_TYPE: EVENT_TYPE,
        EVENT_TIME: "2026-02-17T10:30:00Z",
        EVENT_ID: "",
        REPLAYS: "2",
    }
    assert message.ordering_key == "key"
    several, _ = again(letter, events=[fixed, fixed | {"sensor_id": "c"}], data=None)
    assert [event.sensor_id for event in decode(several)] == ["a-b", "c"]


def test_an_edited_payload_or_attribute():
    """Without events, the payload counts as it is; so do edited attributes."""
    letter = letter_of(Message(EVENT.SerializeToString(), {MESSAGE_TYPE: "unknown"}))
    message, events = again(letter, attributes={MESSAGE_TYPE: EVENT_TYPE})
    assert (message.data, events) == (EVENT.SerializeToString(), (EVENT,))
    other = sensor_event("other", NOW_US, {"x": 2.0}, {})
    data = base64.b64encode(other.SerializeToString()).decode()
    assert again(letter_of(Message(EVENT.SerializeToString(), {})), events=None, data=data).events == (other,)


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        ({"data": "%"}, "data is not base64"),
        ({"data": 7}, "data is not base64"),
        ({"attributes": {"site": 1}}, "attributes, ordering_key and publish_time must be text"),
        ({"attributes": {"\ud800": ""}}, "attributes, ordering_key and publish_time must be text"),
        ({"ordering_key": "\udc00"}, "attributes, ordering_key and publish_time must be text"),
        ({"events": 7}, "events is not a list"),
        ({"events": [{"sensor": "a"}]}, "there is no field 'sensor'"),
        ({"events": [{"readings": {"x": "inf"}}]}, "'x' is 'inf', not a number"),
        ({"reason": "ROW_REFUSED"}, "a table row that Bigtable refused, not a message"),
    ],
)
def test_a_letter_that_cannot_be_published(edited, message):
    """The error says what is wrong with the object."""
    with pytest.raises(ValueError, match=message):
        again(letter_of(Message(EVENT.SerializeToString(), {})), **edited)


def test_the_names_of_the_columns():
    """CSV and Parquet have a column for every name of the JSON."""
    assert tuple(letter_json(letter_of(Message(b"", {})))) == LETTER_COLUMNS
