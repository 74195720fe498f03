"""Runs the commands of the pages that are tasks, as they are on the page, against the emulators."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from google.api_core.exceptions import AlreadyExists
from google.cloud.pubsub_v1 import PublisherClient

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables import tables
from pipeline.core.decoding.dry_decode import Trials
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.dead_letter import REPLAYS, dead_letter
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message, decode, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import format_time, from_datetime, parse_time
from pipeline.core.schema.table_schema import TableSchema
from tests.quotes import rows_of_the_event
from tests.support.lasting import lasting
from tests.support.preloaded import link_environment
from tests.support.tables import write

ROOT = Path(__file__).parent.parent
PROJECT = "projects/my-project"
T = parse_time("2026-02-17T10:00:00Z")


def run(page: str, folder: Path, **dates: str) -> str:
    """Runs the page's commands in a folder, and returns what they print; the first that fails ends them.

    Dates replace those of the page, whose events Bigtable would collect because of their age.
    """
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE))
    commands = commands.replace("2026-02-01", dates.get("start", "")).replace("2026-03-01", dates.get("end", ""))
    link_environment(folder)
    done = subprocess.run(
        ["bash", "-e"], input=commands, cwd=folder, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def create_topic(name: str) -> str:
    topic = f"{PROJECT}/topics/{name}"
    with suppress(AlreadyExists):  # other pages use the same names
        PublisherClient().create_topic(name=topic)
    subscriber_client().create_subscription({"name": f"{PROJECT}/subscriptions/{name}", "topic": topic})
    return topic


@pytest.mark.usefixtures("bigtable", "in_checkout")
def test_mend_a_message(pubsub: str, tmp_path: Path) -> None:
    """The corrected event arrives on the job's input with its attributes, and in the table."""
    letters = create_topic("dead-letters")
    create_topic("events")
    if tables.find(name := TableName("my-project", "my-instance", "sensors")) is None:  # the other page uses it too
        tables.create(name, lasting(TableSchema.default()))
    event = sensor_event("hall#2", T, {"temperature": 21.5}, {"serial": "0012"})
    problem = BadData(Reason.INVALID_SENSOR_ID, "no good")
    with Publisher(letters) as publisher:
        message = Message(event.SerializeToString(), {"site": "north", "event_id": "e1"})
        publisher.send(dead_letter(message, problem, "DecodeMessages", datetime.now(UTC)))
    printed = run("mend-a-message.md", tmp_path)
    assert "1 dead letter written to letters.ndjson, 1 of them acknowledged" in printed
    assert "1 event in 1 message published" in printed
    [received] = (
        subscriber_client().pull(subscription=f"{PROJECT}/subscriptions/events", max_messages=10).received_messages
    )
    sent = Message(received.message.data, dict(received.message.attributes))
    assert list(decode(sent)) == [sensor_event("hall-2", T, {"temperature": 21.5}, {"serial": "0012"})]
    assert (sent.attributes["site"], sent.attributes[REPLAYS]) == ("north", "1")
    assert sent.attributes["event_id"] != "e1"
    with SensorTable.open("my-project", "my-instance", "sensors") as table:
        assert table.latest_events("hall-2").metadata == {"serial": "0012"}


def on_path() -> dict[str, str]:
    """Returns the environment after ``source .venv/bin/activate``."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def test_the_readme_maps() -> None:
    """The README's mapping makes an event of the message that it names."""
    section = (ROOT / "README.md").read_text().split("**Your own messages**")[1]
    (message,) = re.findall(r"^`(\{.*\})`", section, re.MULTILINE)
    (mapping,) = re.findall(r"^```toml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    trials = Trials([MappedType("report.toml", mapping)], None)
    trial = trials.of(Message(message.encode(), {}, "", datetime.now(UTC)), 10**16)
    assert [(event.sensor_id, format_time(event.event_time_us), event.readings) for event in trial.events] == [
        ("balloon-7", "2026-02-17T10:30:00.500Z", {"temperature": 23.5})
    ]


@pytest.mark.usefixtures("in_checkout")
def test_the_readme_reads(bigtable: str, tmp_path: Path) -> None:
    """The README's reads of the event that it shows, from the command line and from Python, print what it quotes."""
    name = TableName("my-project", "my-instance", "sensors")
    if tables.find(name) is None:  # the other pages use it too
        tables.create(name, lasting(TableSchema.default()))
    write(name, [row for row in rows_of_the_event() if not row.key.startswith(b"latest#")])
    link_environment(tmp_path)
    section = (ROOT / "README.md").read_text().split("\n## Read the table\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert [language for language, _ in blocks] == ["sh", "", "python", ""]
    for (language, code), (_, printed) in pairwise(blocks):
        if language:
            command = ["bash", "-e"] if language == "sh" else [sys.executable]
            done = subprocess.run(
                command, input=code, cwd=tmp_path, env=on_path(), capture_output=True, text=True, timeout=60, check=True
            )
            assert [line.rstrip() for line in done.stdout.splitlines() if line.strip()] == printed.splitlines()


@pytest.mark.usefixtures("in_checkout")
def test_move_a_table(bigtable: str, tmp_path: Path) -> None:
    """Every event is in the new table, the audit finds nothing wrong, and both tables print the same."""
    name = TableName("my-project", "my-instance", "sensors")
    schema = TableSchema.default()
    if tables.find(name) is None:  # the other page uses the name too
        tables.create(name, lasting(schema))
    now = datetime.now(UTC)
    start_us = from_datetime(now - timedelta(days=3)) // 3_600_000_000 * 3_600_000_000
    events = [
        Event(
            f"balloon-{n}",
            start_us + i * 60_000_000,
            {"temperature": 20 + i / 7},
            {"location": "north", "serial": "007"},
        )
        for n in (7, 8)
        for i in range(90)
    ]
    write(name, [row for event in events for row in schema.rows(event)])
    dates = {"start": f"{now - timedelta(days=9):%F}", "end": f"{now:%F}"}
    printed = run("move-a-table.md", tmp_path, **dates)
    assert "180 events: 180 raw rows" in printed
    lines = [json.loads(line) for line in (tmp_path / "events.ndjson").read_text().splitlines()]
    assert {line["sensor_id"] for line in lines} >= {"balloon-7", "balloon-8"}
    assert (tmp_path / "new.csv").read_text().count("\n") == 91
    with SensorTable.open("my-project", "my-instance", "by-location") as table:
        assert len(list(table.events("balloon-8", start_us, start_us + 10**10, metadata={"location": "north"}))) == 90
