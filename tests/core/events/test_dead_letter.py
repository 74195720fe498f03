"""A dead letter keeps everything about the message, can be replayed, and always fits Pub/Sub's limits."""

from datetime import UTC, datetime

import pytest
from google.protobuf import json_format
from google.pubsub_v1.types import PublishRequest, PubsubMessage
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.dead_letter import (
    MAX_MESSAGE_BYTES,
    MAX_RETURNS,
    ORDERING_KEY,
    PUBLISH_TIME,
    REASON,
    RENAMED_ENCODING,
    RENAMED_REVISION,
    REPLAYS,
    RefusedRow,
    dead_letter,
    event_alone,
    original_of,
    published_at,
    refused_row_letter,
    replay_of,
    replays_of,
    returns_too_often,
)
from pipeline.core.events.message import (
    BATCH_TYPE,
    ENCODING,
    EVENT_TYPE,
    MESSAGE_TYPE,
    SCHEMA_REVISION,
    Message,
    decode,
    sensor_event,
)
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import format_time, from_datetime
from pipeline.proto.sensor_event_pb2 import SensorEventBatch

NOW = datetime(2026, 2, 17, 10, 30, 0, 250_000, tzinfo=UTC)
PUBLISHED = datetime(2026, 2, 17, 10, 29, 59, tzinfo=UTC)
TOPIC = "projects/" + "p" * 30 + "/topics/" + "t" * 255
T = 1_771_324_200_123_456

attribute_names = st.text(min_size=1, max_size=30) | st.sampled_from(
    ["message_type", "event_time", "event_id", "googclient_x", "topic", "data", "retry", "self", "k" * 256, "goog" * 64]
)
attributes = st.dictionaries(attribute_names, st.text(max_size=60) | st.just("v" * 1024), max_size=100)


def refused(message, detail="no good", reason=Reason.UNPARSEABLE):
    return dead_letter(message, BadData(reason, detail), "DecodeMessages", NOW)


def assert_publishable(letter):
    """Asserts that the letter fits Pub/Sub's limits on a message and on the publish request."""
    assert len(letter.attributes) <= 100
    assert all(0 < len(name.encode()) <= 256 for name in letter.attributes)
    assert all(len(value.encode()) <= 1024 for value in letter.attributes.values())
    assert not any(name.startswith("goog") for name in letter.attributes)
    assert not letter.attributes.keys() & {"self", "topic", "data", "ordering_key", "retry", "timeout"}
    request = PublishRequest(
        topic=TOPIC, messages=[PubsubMessage(data=letter.data, attributes=dict(letter.attributes))]
    )
    assert PublishRequest.pb(request).ByteSize() <= 10_000_000


def test_contents():
    """A dead letter has the original bytes and attributes, and why, where and when which message was refused."""
    letter = refused(Message(b"\xff", {"site": "north"}, "4711", PUBLISHED))
    assert letter.data == b"\xff"
    assert letter.attributes == {
        "site": "north",
        "dead_letter_reason": "UNPARSEABLE",
        "dead_letter_detail": "no good",
        "dead_letter_step": "DecodeMessages",
        "dead_letter_time": "2026-02-17T10:30:00.250Z",
        "dead_letter_message_id": "4711",
        "dead_letter_publish_time": "2026-02-17T10:29:59Z",
    }


def test_refused_again():
    """A dead letter that was published unchanged and refused again describes the latest refusal."""
    first = refused(Message(b"\xff", {"site": "north"}, "1", ordering_key="key"))
    second = refused(first._replace(message_id="2"), "still no good")
    assert first.ordering_key == ""  # Beam's writer refuses messages with an ordering key
    assert first.attributes[ORDERING_KEY] == second.attributes[ORDERING_KEY] == "key"
    assert second.attributes["dead_letter_message_id"] == "2"
    assert second.attributes["dead_letter_detail"] == "still no good"
    assert second.attributes["site"] == "north"


@pytest.mark.parametrize("text", ["", "many", "-1", "٣", "1" * 1000])
def test_an_invalid_number_of_replays_counts_as_none(text):
    """A publisher that uses the attribute for something else does not prevent replays."""
    assert replays_of(Message(b"", {REPLAYS: text})) == 0
    assert REPLAYS not in refused(Message(b"", {REPLAYS: text})).attributes


def test_the_encoding_that_pubsub_sets_wins():
    """A message replayed to a topic with a schema has its encoding under both names. Pub/Sub's name wins."""
    letter = refused(Message(b"", {RENAMED_ENCODING: "BINARY", ENCODING: "JSON"}))
    assert letter.attributes[RENAMED_ENCODING] == "JSON"
    letter = refused(Message(b"", {ENCODING: "JSON", RENAMED_ENCODING: "BINARY"}))
    assert letter.attributes[RENAMED_ENCODING] == "JSON"


def test_hundred_attributes():
    """If the publisher set 100 attributes, the last by name are dropped, and the detail lists them."""
    original = {f"a{i:03}": "v" for i in range(98)} | {"message_type": "x", "event_time": "y"}
    letter = refused(Message(b"\xff", original))
    assert_publishable(letter)
    assert letter.attributes["message_type"] == "x"
    assert letter.attributes["event_time"] == "y"
    dropped = sorted(original.keys() - letter.attributes.keys())
    assert dropped == [f"a{i:03}" for i in range(92, 98)]
    assert letter.attributes["dead_letter_detail"] == f"no good (6 attributes left out: {', '.join(dropped)})"


def test_attributes_that_a_mapping_reads():
    """What a mapping reads is kept before what nothing reads, under whatever name the dead letter has it."""
    original = {f"a{i:03}": "v" for i in range(97)} | {"zone": "7", "topic": "weather", SCHEMA_REVISION: "0a1b2c3d"}
    letter = dead_letter(Message(b"", original), BadData(Reason.UNPARSEABLE, ""), "step", NOW, {"zone", "topic"})
    assert letter.attributes["zone"] == "7"
    assert letter.attributes["dead_letter_attribute_topic"] == "weather"
    assert letter.attributes[RENAMED_REVISION] == "0a1b2c3d"
    assert "a096" not in letter.attributes
    assert_publishable(letter)


def test_the_first_publish_time():
    """Replays and further refusals keep when the message was published first, whatever their own publish times are."""
    first = Message(b"", {}, "1", PUBLISHED)
    replayed = replay_of(refused(first))._replace(publish_time=NOW)
    unchanged = refused(first)._replace(publish_time=NOW)
    for message in (first, replayed, unchanged, refused(replayed)._replace(publish_time=NOW)):
        assert published_at(message) == PUBLISHED
        assert original_of(refused(message)).publish_time == PUBLISHED
    assert published_at(Message(b"", {PUBLISH_TIME: "yesterday"}, publish_time=NOW)) == NOW


@pytest.mark.parametrize("size", [9_990_000, 9_999_000, 10_000_000])
def test_near_ten_megabytes(size):
    """A message near Pub/Sub's limit loses attributes first, then the end of its payload. The detail lists both."""
    letter = refused(Message(b"x" * size, {f"a{i:02}": "v" * 1024 for i in range(9)}))
    assert_publishable(letter)
    assert len(letter.data) >= 9_990_000
    assert "attributes left out" in letter.attributes["dead_letter_detail"]
    assert ("payload cut from" in letter.attributes["dead_letter_detail"]) == (len(letter.data) < size)


@given(
    st.binary(max_size=50),
    attributes,
    st.text(max_size=2000),
    st.text(max_size=300) | st.just("k" * 1024),
    st.booleans(),
)
def test_always_publishable(data, names, detail, ordering_key, huge):
    """The dead letter of any message can be published, with all of Tidetable's attributes, and so can its replay."""
    message = Message(data * 200_000 if huge else data, names, "1", PUBLISHED, ordering_key)
    letter = refused(message, detail)
    assert_publishable(letter)
    assert letter.attributes["dead_letter_reason"] == "UNPARSEABLE"
    assert letter.attributes["dead_letter_message_id"] == "1"
    replay = replay_of(letter)  # which may use names that the client's publish reserves
    assert len(replay.attributes) <= 100
    assert all(0 < len(name.encode()) <= 256 and not name.startswith("goog") for name in replay.attributes)
    assert all(len(value.encode()) <= 1024 for value in replay.attributes.values())
    published = PubsubMessage(data=replay.data, attributes=replay.attributes, ordering_key=replay.ordering_key)
    assert PublishRequest.pb(PublishRequest(topic=TOPIC, messages=[published])).ByteSize() <= 10_000_000


events = st.builds(
    sensor_event,
    st.text(min_size=1, max_size=10),
    st.integers(-(10**15), 10**16),
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)


@given(events, attributes, st.sampled_from(["BINARY", "JSON", None]))
def test_replays_to_the_same_event(event, names, encoding):
    """A dead letter that is published unchanged decodes to the refused event, and so does its replay."""
    message_names = {name: value for name, value in names.items() if not name.startswith(("goog", "dead_letter_"))}
    message_names[MESSAGE_TYPE] = EVENT_TYPE
    if encoding:
        message_names[ENCODING] = encoding
    data = json_format.MessageToJson(event).encode() if encoding == "JSON" else event.SerializeToString()
    letter = refused(Message(data, message_names))
    assert list(decode(letter)) == list(decode(replay_of(letter))) == [event]
    assert event_alone(letter, 0, event) is letter


@given(st.lists(events, min_size=1, max_size=4), attributes, st.sampled_from(["BINARY", "JSON"]), st.data())
def test_one_of_a_batch_replays_alone(batch, names, encoding, data):
    """One bad event of a batch, in either encoding, becomes its own message that decodes to that event."""
    index = data.draw(st.integers(0, len(batch) - 1))
    proto = SensorEventBatch(events=batch)
    payload = json_format.MessageToJson(proto).encode() if encoding == "JSON" else proto.SerializeToString()
    names = {name: value for name, value in names.items() if not name.startswith("dead_letter_")}
    message = Message(payload, names | {MESSAGE_TYPE: BATCH_TYPE, ENCODING: encoding})
    event = decode(message)[index]
    letter = refused(event_alone(message, index, event))
    assert_publishable(letter)
    assert list(decode(letter)) == [event]


def test_one_of_a_batch_has_its_own_attributes():
    """Type, time and id are the event's; all other attributes are the batch's."""
    first, second = (sensor_event("a", T + offset, {"x": 1.0}, {}) for offset in (0, 1_000_000))
    message = Message(
        SensorEventBatch(events=[first, second]).SerializeToString(),
        {MESSAGE_TYPE: BATCH_TYPE, "event_time": "2026-02-17T10:30:00.123456Z", "event_id": "b-9", "site": "north"},
        "4711",
        PUBLISHED,
        "key",
    )
    alone = event_alone(message, 1, second)
    assert alone.attributes == {
        "message_type": EVENT_TYPE,
        "event_time": "2026-02-17T10:30:01.123456Z",
        "event_id": "b-9/1",
        "site": "north",
    }
    assert (alone.message_id, alone.publish_time, alone.ordering_key) == ("4711", PUBLISHED, "key")


def test_one_of_a_batch_without_a_time():
    """An event without a time does not inherit the batch's, and gets no id if the batch has none."""
    event = sensor_event("a", T, {"x": 1.0}, {})
    event.ClearField("event_time")
    message = Message(b"", {MESSAGE_TYPE: BATCH_TYPE, "event_time": "2026-02-17T10:30:00Z"})
    assert event_alone(message, 0, event).attributes == {"message_type": EVENT_TYPE}


def test_a_lone_surrogate():
    """A lone surrogate, which JSON allows but UTF-8 does not, is escaped in the detail."""
    message = Message(b'{"readings": {"t": "\\ud800"}}', {ENCODING: "JSON"})
    with pytest.raises(BadData) as caught:
        decode(message)
    letter = refused(message, caught.value.detail)
    assert_publishable(letter)
    assert "\\ud800" in letter.attributes["dead_letter_detail"]


OURS = {f"dead_letter_{name}" for name in ("reason", "detail", "step", "time", "message_id", "publish_time")}
RENAMED = ("dead_letter_goog", "dead_letter_attribute_")
# Received messages that reach no limit and use none of the names that Tidetable sets.
received = st.builds(
    Message,
    st.binary(max_size=50),
    st.dictionaries(
        st.text(min_size=1, max_size=30)
        | st.sampled_from(["googclient_x", "topic", "data", "self", "dead_letter_x", "goog", "attribute_topic"]),
        st.text(max_size=60),
        max_size=90,
    ).map(lambda names: {n: x for n, x in names.items() if n not in {*OURS, REPLAYS} and not n.startswith(RENAMED)}),
    st.text(max_size=20),
    st.none() | st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.text(max_size=200),
)


@given(received, st.integers(0, 10**9 - 1))
def test_the_original_comes_back(message, replays):
    """A dead letter that no limit cut restores the complete original message."""
    if replays:
        message = message._replace(attributes={**message.attributes, REPLAYS: str(replays)})
    assert original_of(refused(message)) == message


@given(received)
def test_a_replay_is_the_original_and_a_count(message):
    """A replay is the original, but for unpublishable names, its first publish time, and a count of the replays."""
    letter = refused(message)
    first = replay_of(letter)
    published = letter.attributes[PUBLISH_TIME]
    assert bool(published) == (message.publish_time is not None)
    assert (first.data, first.ordering_key) == (message.data, message.ordering_key)
    assert first.attributes == {
        REPLAYS: "1",
        **({PUBLISH_TIME: published} if published else {}),
        **{f"dead_letter_{n}" if n.startswith("goog") else n: value for n, value in message.attributes.items()},
    }
    second = replay_of(refused(first._replace(publish_time=NOW)))
    if not published:
        assert second.attributes.pop(PUBLISH_TIME) == format_time(from_datetime(NOW))
    assert second == first._replace(attributes={**first.attributes, REPLAYS: "2"})


def test_a_letter_published_unchanged_counts_as_a_replay():
    """A dead letter published unchanged adds one replay, up to a limit. ``replay_of`` has no limit."""
    letter = refused(Message(b"\xff", {"site": "north"}))
    assert replays_of(letter) == 0
    for times in range(1, MAX_RETURNS + 1):
        assert not returns_too_often(letter)
        letter = refused(letter)
        assert replays_of(letter) == times
    assert returns_too_often(letter)
    assert original_of(letter).attributes == {"site": "north", REPLAYS: str(MAX_RETURNS)}
    assert not returns_too_often(replay_of(letter))
    assert replays_of(refused(replay_of(letter))) == MAX_RETURNS + 1


@given(received, st.text(max_size=12) | st.integers().map(str) | st.just("9" * 5000) | st.just("٣"))
def test_a_letter_does_not_return_forever(message, count):
    """A dead letter that keeps returning reaches the limit, whatever its first count, and is publishable until then."""
    letter = refused(message._replace(attributes={**message.attributes, REPLAYS: count}))
    refusals = 0
    while not returns_too_often(letter):
        letter = refused(letter)
        assert_publishable(letter)
        refusals += 1
    assert refusals <= MAX_RETURNS


def test_a_returning_letter_with_a_hundred_attributes():
    """The number of replays takes the place of an original attribute."""
    first = refused(Message(b"\xff", {f"a{i:03}": "v" for i in range(100)}))
    second = refused(first)
    assert_publishable(second)
    assert replays_of(second) == 1
    assert second.attributes["dead_letter_detail"] == "no good (1 attributes left out: a093)"


def test_events_of_a_returning_batch():
    """If a returning batch can now be parsed, each of its refused events gets its number of replays."""
    event = sensor_event("a", T, {"x": 1.0}, {})
    batch = refused(Message(b"", {MESSAGE_TYPE: BATCH_TYPE, REPLAYS: "3"}))
    alone = [event_alone(batch, index, event) for index in range(2)]
    assert [replays_of(refused(each)) for each in alone] == [4, 4]
    assert REASON in alone[0].attributes


def test_a_returning_letter_of_a_refused_row():
    """The dead letter of a row cannot be decoded, and counts like any other returning letter."""
    row = refused_row_letter(RefusedRow(b"a#1", "NOT_FOUND", "no family", b"entry"), "t", "WriteRawRows", NOW)
    with pytest.raises(BadData, match="UNKNOWN_MESSAGE_TYPE"):
        decode(row)
    assert replays_of(refused(row)) == 1


TABLE = "projects/p/instances/i/tables/t"
NOON = datetime(2026, 2, 17, 12, tzinfo=UTC)


def test_a_refused_row():
    """The dead letter contains the entry, its type, the row key and the reason."""
    letter = refused_row_letter(RefusedRow(b"a#1", "NOT_FOUND", "no\nfamily", b"entry"), TABLE, "WriteRawRows", NOON)
    assert letter.data == b"entry"
    assert letter.attributes == {
        "message_type": "google.bigtable.v2.MutateRowsRequest.Entry",
        "row_key": "a#1",
        "dead_letter_reason": "ROW_REFUSED",
        "dead_letter_detail": f"table {TABLE}: row a#1: NOT_FOUND: no family",
        "dead_letter_step": "WriteRawRows",
        "dead_letter_time": "2026-02-17T12:00:00Z",
    }


def test_what_is_too_long():
    """Entry, key and detail are truncated to Pub/Sub's limits, and the detail notes that the entry was."""
    row = RefusedRow(b"\xff\x00" * 2048, "INVALID_ARGUMENT", "ä" * 5000, b"x" * 20_000_000)
    letter = refused_row_letter(row, TABLE, "WriteRawRows", NOON)
    assert all(len(value.encode()) <= 1024 for value in letter.attributes.values())
    assert letter.attributes["row_key"].startswith("\\xff\x00\\xff")
    size = len(letter.data) + sum(len(f"{name}{value}".encode()) + 20 for name, value in letter.attributes.items())
    assert MAX_MESSAGE_BYTES - 10_000 < size <= MAX_MESSAGE_BYTES
    detail = letter.attributes["dead_letter_detail"]
    assert ": INVALID_ARGUMENT: ä" in detail
    assert detail.endswith(f"… (entry cut from 20000000 to {len(letter.data)} bytes)")
