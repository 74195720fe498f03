"""Messages of other types through the whole job: exact rows, dead letters and counts; and what the launch refuses."""

import random
import time

from pipeline.core.messages import Message
from pipeline.core.outgoing import message_of
from tests.faults.judge import differences
from tests.job import foreign
from tests.job.running import running_job
from tests.waiting import eventually

HOUR_US = 3_600_000_000


def test_foreign_and_built_in_messages_on_one_topic(resources, tmp_path):
    """With duplicates and late events, raw rows and aggregates are those of the events that the messages contain."""
    chance = random.Random(15)
    now_us = time.time_ns() // 1000
    # From hours whose windows are closed, and from this one; each time once, so no two events are at the same time.
    times_us = [now_us - chance.randrange(5 * HOUR_US) // 1000 * 1000 - index for index in range(400)]
    reports = foreign.report_events(chance, times_us[:100])
    single = foreign.gateway_events(chance, times_us[100:200])
    in_lines = foreign.line_events(chance, times_us[200:300])
    own = foreign.gateway_events(chance, times_us[300:])
    messages = {
        "plant.v1.Report": [foreign.report_of(reports[i : i + 5]) for i in range(0, 100, 5)],
        "json": [foreign.gateway_of(event) for event in single],
        "tests.job.foreign.read_lines": [foreign.lines_of(in_lines[i : i + 10]) for i in range(0, 100, 10)],
        "built-in": [message_of(own[i : i + 10]) for i in range(0, 100, 10)],
    }
    refused = {
        b"\xff": ("UNPARSEABLE", {"message_type": foreign.REPORT, "site": "north"}),
        b"{}": ("MISSING_SENSOR_ID", {"source": "gateway"}),
        b"?": ("REFUSED_BY_DECODER", {"message_type": "riddle"}),
    }
    published = [message for of_type in messages.values() for message in of_type]
    published += chance.choices(published, k=40)
    chance.shuffle(published)
    published += [Message(data, attributes) for data, (_, attributes) in refused.items()]
    with running_job(resources.flags(**foreign.flags(tmp_path)), tmp_path / "job.log") as job:
        resources.publish(published)
        letters = resources.dead_letters(len(refused))
        expected = [*reports, *single, *in_lines, *own]
        eventually(lambda: not differences(resources.table, expected), seconds=60)
        assert job.stop() == 0
    assert differences(resources.table, expected) == []
    for letter in letters:
        reason, attributes = refused[letter.data]
        assert letter.attributes["dead_letter_reason"] == reason
        assert attributes.items() <= dict(letter.attributes).items()
    counters = job.counters()
    assert counters["messages"] == len(published)
    assert counters["dead_letters"] == len(refused)
    sizes = {"plant.v1.Report": 5, "json": 1, "tests.job.foreign.read_lines": 10}
    for name, size in sizes.items():
        count = sum(message in messages[name] for message in published)
        assert counters[f"messages_of_{name}"] == count + 1
        assert counters[f"events_of_{name}"] == size * count
        assert counters[f"refused_of_{name}"] == 1
    assert counters["skipped_of_plant.v1.Report"] == counters["messages_of_plant.v1.Report"] - 1
