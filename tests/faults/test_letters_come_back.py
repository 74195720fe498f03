"""Another process copies every dead letter back to the job's input, which launch checks can't detect."""

import threading
from collections import Counter
from contextlib import contextmanager

from pipeline.core.events.dead_letter import MAX_RETURNS, replays_of
from pipeline.core.events.message import Message, message_of, sensor_event
from tests.faults.feed import now_us
from tests.job import foreign as types
from tests.job.running import running_job
from tests.support.waiting import eventually

REASONS = (
    "UNPARSEABLE",
    "NO_READINGS",
    "INVALID_SENSOR_ID",
    "MISSING_SENSOR_ID",
    "REFUSED_BY_DECODER",
    "DECODER_FAILED",
)


@contextmanager
def forwarding(resources):
    """Publishes each dead letter to the input unchanged, and yields those seen so far."""
    met: list[Message] = []
    stop = threading.Event()

    def forward():
        while not stop.wait(0.05):
            letters = [each.message for each in resources.pull(resources.dead_letter_subscription)]
            messages = [Message(each.data, dict(each.attributes), each.message_id) for each in letters]
            met.extend(messages)
            resources.publish(messages)

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield met
    finally:
        stop.set()
        thread.join()


def test_letters_come_back(resources, log, tmp_path):
    """Each invalid message and event, of any type, returns ten times; then it is dropped, counted and logged."""
    good, bad, other = (sensor_event("a", now_us() - i, {"t": 1.0}, {}) for i in range(3))
    bad.readings.clear()
    other.sensor_id = "b#"
    foreign = Message(
        b"\xff",
        {
            "message_type": "tidetable.v1.SensorEvent",
            "event_id": "whole",
            "dead_letter_replays": "99999999999999999999",
        },
    )
    of_types = [Message(b"{}", {"source": "gateway"}), Message(b"?", {"message_type": "riddle"})]
    of_types.append(Message(b"no line", {"message_type": "lines"}))
    with running_job(resources.flags(**types.flags(tmp_path)), log) as job, forwarding(resources) as met:
        resources.publish([foreign, message_of([good, bad, other]), *of_types])
        eventually(lambda: job.log.count(" is dropped: ") == len(REASONS), seconds=90)
        assert job.stop() == 0
    expected = Counter(range(MAX_RETURNS + 1))
    for reason in REASONS:
        assert Counter(replays_of(each) for each in met if each.attributes["dead_letter_reason"] == reason) == expected
    counters = job.counters()
    assert counters["dead_letters"] == len(met) == len(REASONS) * (MAX_RETURNS + 1)
    assert (counters["letters_dropped"], counters["events"]) == (len(REASONS), 1)
