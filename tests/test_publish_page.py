"""Runs the programs of the page for publishers as they stand, and decodes their messages as the job does."""

import os
import re
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.utils.timestamp import Timestamp

from pipeline.core.events.message import BATCH_TYPE, ENCODING, EVENT_ID, EVENT_TIME, EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.core.notation.times import parse_time
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms.process import Decoder
from tests.support.pubsub import Inbox

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/publish.md").read_text()
TOPIC = "projects/my-project/topics/events"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def decoded(messages: list[Message]):
    """Returns the events of messages, as the job decodes them now; there must be no dead letter."""
    decoder = Decoder("test", timedelta(hours=1), [TableSchema.default()])
    decoder.start()
    events = []
    for message in messages:
        element = PubsubMessage(message.data, dict(message.attributes))
        of_message, dead_letters = decoder.decode([element], int(time.time() * 1_000_000))
        assert not dead_letters, dead_letters[0].attributes
        events.append(of_message)
    decoder.finish()
    return events


@pytest.fixture(scope="module")
def published(pubsub, tmp_path_factory) -> list[Message]:
    """What the page's Python programs publish, from a project that has nothing but ``protos/``."""
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "protos", project / "protos")
    install, generate, *_ = blocks("sh")
    assert install.startswith("python -m pip install ")  # this environment has both packages
    (project / "publish.py").write_text("".join(blocks("python")))
    inbox = Inbox(topic=TOPIC)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        ["bash", "-ec", f"{generate}\npython publish.py"],
        cwd=project,
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[1] == "published 1440 events in 15 messages"
    return sorted(inbox.take(16), key=lambda message: message.is_batch)


def test_python_publishes_what_the_job_reads(published):
    """The job decodes the page's single event and its batches, whole and without a dead letter."""
    (single,), *batches = decoded(published)
    assert single[:4] == ("balloon-7", single.event_time_us, {"temperature": 23.5}, {"location": "north"})
    assert abs(single.event_time_us / 1e6 - time.time()) < 3600
    assert len({event.event_time_us for batch in batches for event in batch}) == 24 * 60


def test_attributes_fit_the_flags(published):
    """Each message has the three attributes: its type, its earliest time as Beam parses it, and an id of its own."""
    assert [message.attributes[MESSAGE_TYPE] for message in published] == [EVENT_TYPE] + 15 * [BATCH_TYPE]
    assert len({message.attributes[EVENT_ID] for message in published}) == 16
    for message, events in zip(published, decoded(published), strict=True):
        assert message.attributes.keys() == {MESSAGE_TYPE, EVENT_TIME, EVENT_ID}
        time_us = Timestamp.from_rfc3339(message.attributes[EVENT_TIME]).micros
        assert time_us == min(event.event_time_us for event in events)


def test_the_message_to_compare_with():
    """The page's bytes and its JSON are one event, as the page says."""
    (quoted,) = re.findall(r"<!-- quoted: message -->\n```\n(.*?)```", PAGE, re.DOTALL)
    attributes, data = quoted.split("data, in hex")
    (json,) = blocks("json")
    ((event,), (same,)) = decoded(
        [
            Message(bytes.fromhex(data), dict(line.split() for line in attributes.splitlines())),
            Message(json.encode(), {ENCODING: "JSON"}),
        ]
    )
    assert event[:4] == same[:4]
    assert event.event_time_us == parse_time("2026-02-17T10:30:00.5Z")
