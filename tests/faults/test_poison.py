"""A flood of broken messages among valid ones."""

import math
from collections import Counter

import pytest

from pipeline.core.events.message import Message, message_of, sensor_event
from pipeline.local.fleet import Simulated
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.faults import judge
from tests.faults.feed import HOUR_US, now_us
from tests.job.running import running_job

BATCHES, GOOD, BAD, WHOLE = 1000, 100, 97, 3  # a batch's valid and broken events, and broken messages beside it
KINDS = ("MISSING_SENSOR_ID", "INVALID_SENSOR_ID", "EVENT_TIME_TOO_EARLY", "NO_READINGS", "INVALID_READING")


def broken(kind: str, time_us: int) -> SensorEvent:
    event = sensor_event("bad", time_us, {"t": 1.0}, {})
    match kind:
        case "MISSING_SENSOR_ID":
            event.sensor_id = ""
        case "INVALID_SENSOR_ID":
            event.sensor_id = "a#b"
        case "EVENT_TIME_TOO_EARLY":
            event.event_time.seconds = 12
        case "NO_READINGS":
            event.readings.clear()
        case "INVALID_READING":
            event.readings["t"] = math.nan
    return event


def flood():
    """Yields 100,000 valid events and as many broken events and messages, well mixed."""
    start_us = now_us() - 5 * HOUR_US
    for batch in range(BATCHES):
        time_us = start_us + batch * 15_000_000
        good = [sensor_event(f"s{batch % 10}", time_us + i * 100_000, {"t": batch + i / 7}, {}) for i in range(GOOD)]
        kinds = [KINDS[(batch + i) % len(KINDS)] for i in range(BAD)]
        bad = [broken(kind, time_us + i) for i, kind in enumerate(kinds)]
        mixed = [event for pair in zip(good, bad, strict=False) for event in pair] + good[BAD:]
        yield Simulated(message_of(mixed), good, kinds)
        for i in range(WHOLE):
            yield Simulated(Message(b"\xff\xff", {"event_id": f"whole-{batch}-{i}"}), [], ["UNPARSEABLE"])


@pytest.mark.timeout(420)
def test_poison_flood(resources, log, feed):
    """100,000 broken among 100,000 valid events: every valid one is written, and each broken one is one dead letter."""
    messages = list(flood())
    letters: dict[str, str] = {}
    count = 0
    with running_job(resources.flags(), log) as job:
        feed.publish(messages)
        while count < feed.broken.total():
            letter = resources.dead_letters(1)
            count += len(letter)
            letters |= {each.attributes["event_id"]: each.attributes["dead_letter_reason"] for each in letter}
        feed.wait_counted(90)
        assert job.stop() == 0
    assert (len(feed.events), feed.broken.total(), count, len(letters)) == (100_000,) * 4
    assert Counter(letters.values()) == Counter(reason for one in messages for reason in one.reasons)
    assert judge.differences(resources.table, feed.events) == []
