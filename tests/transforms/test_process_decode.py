import json
import math
from datetime import UTC, datetime, timedelta

import apache_beam as beam
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from pipeline.core.decoding.message_types import MappedType, MessageTypes
from pipeline.core.events.event import Event
from pipeline.core.events.message import BATCH_TYPE, message_of, sensor_event
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.proto.sensor_event_pb2 import SensorEventBatch
from pipeline.transforms import metrics
from pipeline.transforms.process import CheckedEvents, DecodeMessages, Decoder
from tests.support.exhaustive import cases
from tests.support.streams import NOON, clock, event_at, pubsub_message

DEFAULT = [TableSchema.default()]


def run(messages, events, dead_letters, schemas=DEFAULT, types=None):
    """Decodes on the FnApiRunner, checks both outputs, and returns the counters and distributions."""
    pipeline = TestPipeline(runner="FnApiRunner")
    decoded = (
        pipeline | beam.Create(messages) | "DecodeMessages" >> DecodeMessages(timedelta(hours=1), schemas, clock, types)
    )
    timed = decoded.events | beam.Map(lambda event, at=beam.DoFn.TimestampParam: (event.sensor_id, at.micros))
    assert_that(timed, equal_to(events), label="Events")
    assert_that(decoded.dead_letters | beam.Map(lambda letter: letter.attributes), equal_to(dead_letters), label="Dead")
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(metrics.NAMESPACE))
    return {each.key.metric.name: each.committed for kind in ("counters", "distributions") for each in found[kind]}


def test_events_at_their_own_time():
    """Each event of a batch is one element, at its own event time."""
    batch = message_of([event_at(0.25), event_at(-60, sensor_id="b")])
    run([pubsub_message(batch)], [("a", (NOON * 4 + 1) * 250_000), ("b", (NOON - 60) * 1_000_000)], [])


MAPPING = """
message = "json"
skip_if = { path = "test", is = true }
sensor = "@zone"
time = { path = "at", unit = "s" }
readings.x = "x"
"""


def test_messages_of_another_type():
    """They are read through their mapping and counted; a dead letter keeps what the mapping reads of a full message."""
    full = {f"a{i:03}": "v" for i in range(98)} | {"message_type": "json", "zone": "north"}
    contents = [{"at": NOON, "x": 1}, {"at": NOON, "x": "one"}, {"test": True}]
    found = run(
        [PubsubMessage(json.dumps(content).encode(), full, str(i)) for i, content in enumerate(contents)],
        [("north", NOON * 1_000_000)],
        [
            {f"a{i:03}": "v" for i in range(92)}
            | {
                "message_type": "json",
                "zone": "north",
                "dead_letter_reason": "NOT_A_NUMBER",
                "dead_letter_detail": "readings.x is 'one', not a number (6 attributes left out: "
                "a092, a093, a094, a095, a096, a097)",
                "dead_letter_step": "DecodeMessages",
                "dead_letter_time": "2026-02-17T16:00:00Z",
                "dead_letter_message_id": "1",
                "dead_letter_publish_time": "",
            }
        ],
        types=MessageTypes([MappedType("m.toml", MAPPING)], default=None),
    )
    assert {name: count for name, count in found.items() if "_json" in name} == {
        "messages_of_json": 3,
        "events_of_json": 1,
        "skipped_of_json": 1,
        "refused_of_json": 1,
    }
    assert "empty_batches" not in found


def test_unknown_fields():
    """Fields that SensorEvent does not have are counted, or refuse their event."""
    newer = event_at(0).SerializeToString() + b"\x78\x01\x7a\x00"  # two of fields 15
    message = PubsubMessage(newer, {}, "1")
    assert run([message], [("a", NOON * 1_000_000)], [])["unknown_fields"] == 2
    types = MessageTypes(unknown_fields="refuse")
    pipeline = TestPipeline(runner="FnApiRunner")
    decoded = pipeline | beam.Create([message]) | DecodeMessages(timedelta(hours=1), DEFAULT, clock, types)
    reasons = decoded.dead_letters | beam.Map(lambda letter: letter.attributes["dead_letter_reason"])
    assert_that(reasons, equal_to(["UNKNOWN_FIELDS"]))
    pipeline.run().wait_until_finish()


def test_dead_letter_says_where_and_when():
    """A dead letter has its reason, the transform's label, the clock's time and the message's own attributes."""
    message = PubsubMessage(
        b"\xff", {"site": "north"}, "4711", datetime(2026, 2, 17, 11, tzinfo=UTC), ordering_key="key"
    )
    run(
        [message],
        [],
        [
            {
                "site": "north",
                "dead_letter_reason": "UNPARSEABLE",
                "dead_letter_detail": "not a tidetable.v1.SensorEvent in protobuf: Error parsing message with type "
                "'tidetable.v1.SensorEvent'",
                "dead_letter_step": "DecodeMessages",
                "dead_letter_time": "2026-02-17T16:00:00Z",
                "dead_letter_message_id": "4711",
                "dead_letter_publish_time": "2026-02-17T11:00:00Z",
                "dead_letter_ordering_key": "key",
            }
        ],
    )


UNFIT = {
    "MISSING_KEY_FIELD": ({}, "metadata place is missing or empty, but part of the table's row keys"),
    "INVALID_KEY_FIELD": ({"place": "a#b"}, "metadata place is 'a#b'; a field of row keys can't contain '#'"),
    "KEY_TOO_LONG": ({"place": "x" * 4096}, "the row key has 4115 bytes, at most 4096"),
    "RESERVED_KEY": ({"place": "agg"}, "the row key begins with the reserved prefix agg#"),
    "NO_FAMILY": ({"place": "north", "owner": "me"}, "metadata owner matches none of the table's families"),
}


@pytest.mark.parametrize("reason", cases(list(UNFIT), ["MISSING_KEY_FIELD", "NO_FAMILY"]))
def test_an_event_that_a_table_cannot_store(reason):
    """A valid event that one of the tables cannot store is a dead letter, and the rest of its batch is not."""
    by_place = parse_schema('key = "{metadata.place}#{sensor_id}#{reverse_us}"\n[metadata]\nmeta = ["model"]')
    metadata, detail = UNFIT[reason]
    good, bad = event_at(0), event_at(1)
    good.metadata.update({"place": "north", "model": "m"})
    bad.metadata.update(metadata)
    batch = message_of([good, bad])
    counters = run(
        [pubsub_message(batch)],
        [("a", NOON * 1_000_000)],
        [
            {
                "message_type": "tidetable.v1.SensorEvent",
                "event_id": f"{batch.attributes['event_id']}/1",
                "event_time": "2026-02-17T12:00:01Z",
                "dead_letter_reason": reason,
                "dead_letter_detail": detail,
                "dead_letter_step": "DecodeMessages",
                "dead_letter_time": "2026-02-17T16:00:00Z",
                "dead_letter_message_id": "",
                "dead_letter_publish_time": "",
            }
        ],
        [*DEFAULT, by_place],
    )
    assert (counters["events"], counters["dead_letters"], counters[f"dead_letters_{reason}"]) == (1, 1, 1)


def test_message_without_attributes():
    """A message whose attributes are None is a single event."""
    run([PubsubMessage(event_at(0).SerializeToString(), None)], [("a", NOON * 1_000_000)], [])


def test_counts():
    """Messages, events, empty batches, dead letters in all and by reason, and the delay of every event."""
    bad = event_at(1)
    bad.readings.clear()
    messages = [
        message_of([event_at(0), event_at(-3600), bad]),
        message_of([bad])._replace(attributes={"message_type": "nonsense"}),
    ]
    empty = PubsubMessage(SensorEventBatch().SerializeToString(), {"message_type": BATCH_TYPE})
    pipeline = TestPipeline(runner="FnApiRunner")
    _ = (
        pipeline
        | beam.Create([*map(pubsub_message, messages), empty])
        | "DecodeMessages" >> DecodeMessages(timedelta(hours=1), DEFAULT, clock)
    )
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(metrics.NAMESPACE))
    counters = {each.key.metric.name: each.committed for each in found["counters"] if each.committed}
    assert counters == {
        "messages": 3,
        "events": 2,
        "empty_batches": 1,
        "dead_letters": 2,
        "dead_letters_NO_READINGS": 1,
        "dead_letters_UNKNOWN_MESSAGE_TYPE": 1,
    }
    (delay,) = found["distributions"]
    assert (delay.key.metric.name, delay.committed.min, delay.committed.max) == (
        "event_delay_ms",
        4 * 3_600_000,
        5 * 3_600_000,
    )


def test_a_dead_letter_that_returns_too_often(caplog):
    """A dead letter that returned too often is dropped: counted, and logged event by event."""
    bad = event_at(1)
    bad.readings.clear()
    batch = message_of([event_at(0), bad, bad])
    came_back = {**batch.attributes, "dead_letter_reason": "UNPARSEABLE", "dead_letter_replays": "10"}
    message = PubsubMessage(batch.data, came_back, "4711")
    with caplog.at_level("WARNING"):
        counters = run([message], [("a", NOON * 1_000_000)], [])
    assert (counters["events"], counters["letters_dropped"], counters.get("dead_letters", 0)) == (1, 2, 0)
    (line,) = {record.getMessage() for record in caplog.records if "dropped" in record.getMessage()}
    assert line.startswith("message 4711 is dropped: it is a dead letter that was replayed 10 times")
    assert "NO_READINGS" in line


def test_a_bug_is_loud():
    """Anything but bad data stops the pipeline instead of becoming a dead letter."""

    def broken_clock() -> float:
        raise RuntimeError("the clock has stopped")

    pipeline = TestPipeline(runner="FnApiRunner")
    _ = (
        pipeline
        | beam.Create([pubsub_message(message_of([event_at(0)]))])
        | "DecodeMessages" >> DecodeMessages(timedelta(hours=1), DEFAULT, broken_clock)
    )
    with pytest.raises(RuntimeError, match="the clock has stopped"):
        pipeline.run().wait_until_finish()


def test_dropped_readings():
    """Dropped readings are counted; a letter a minute for each metric and reason has the message, of a file's too."""
    ranges = parse_schema("metrics.t.valid = [0, 60]")
    decoder = Decoder("Step", timedelta(hours=1), [*DEFAULT, ranges])
    nan = message_of([sensor_event("a", NOON * 1_000_000, {"t": 20.0, "u": math.nan, "v": 1.0}, {})])
    high = Event("b", NOON * 1_000_000, {"t": 85.0, "v": 1.0}, {})
    now_us, minute_us = NOON * 1_000_000, 60_000_000

    def letters(at_us):
        events, letters = decoder.decode([pubsub_message(nan), CheckedEvents({"file": "f.csv"}, [high])], at_us)
        assert [event.readings for event in events] == [{"t": 20.0, "v": 1.0}, {"v": 1.0}]
        return letters

    decoder.start()
    letters(now_us)
    decoder.start()  # the bundle failed
    of_nan, of_high = letters(now_us)
    assert of_nan.data == nan.data
    assert of_nan.attributes["dead_letter_reason"] == "READING_DROPPED"
    assert of_nan.attributes["dead_letter_detail"] == "reading u is nan; the event was kept without it"
    assert of_high.attributes["file"] == "f.csv"
    assert of_high.attributes["dead_letter_detail"] == "reading t is 85, not in [0, 60]; the event was kept without it"
    assert letters(now_us + 1) == []
    assert decoder._counts.of["readings_dropped"] == 4
    decoder.finish()
    decoder.start()
    assert letters(now_us + minute_us - 1) == []
    assert len(letters(now_us + minute_us)) == 2
    returned = PubsubMessage(nan.data, {"dead_letter_reason": "READING_DROPPED", "dead_letter_replays": "10"})
    assert decoder.decode([returned], now_us + 2 * minute_us)[1] == []


def test_a_table_that_refuses_events():
    """One table with `invalid = "refuse event"` decides for all."""
    decoder = Decoder("Step", timedelta(hours=1), [*DEFAULT, parse_schema('invalid = "refuse event"')])
    decoder.start()
    nan = message_of([sensor_event("a", NOON * 1_000_000, {"t": 20.0, "u": math.nan}, {})])
    events, (letter,) = decoder.decode([pubsub_message(nan)], NOON * 1_000_000)
    assert (events, letter.attributes["dead_letter_reason"]) == ([], "INVALID_READING")
