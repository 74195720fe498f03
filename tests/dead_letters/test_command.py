"""``list`` and ``show`` report dead letters and leave them on the subscription."""

import base64
import csv
import io
import json
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.events.dead_letter import dead_letter
from pipeline.core.events.message import Message, decode, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from tests.dead_letters.letters import NOW, T, command, of_sensor, publish, refused, waiting
from tests.support.preloaded import TIDETABLE
from tests.support.pubsub import Inbox
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)
NOWHERE = "projects/test-project/subscriptions/nowhere"
FOREIGN = Message(b"hello \x1b[31m", {"colour": "red"})


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


def lines(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_list_groups_by_reason_and_sensor(inbox: Inbox) -> None:
    """The most frequent reason and its largest group are first; each has a count, its times and an example."""
    publish(inbox, [of_sensor("a", when=NOW - HOUR), of_sensor("a"), of_sensor("b"), FOREIGN])
    publish(inbox, refused(Message(b"\xff", {})))
    first, *others = lines(command("list", inbox, "--format=json"))
    assert first == {
        "reason": "NO_READINGS",
        "sensor_id": "a",
        "count": 2,
        "oldest": "2026-02-17T09:30:00Z",
        "newest": "2026-02-17T10:30:00Z",
        "detail": "no good: a",
    }
    assert [(group["reason"], group["sensor_id"], group["count"]) for group in others] == [
        ("NO_READINGS", "b", 1),
        (None, None, 1),
        ("UNPARSEABLE", None, 1),
    ]
    assert len(waiting(inbox, 5)) == 5


def test_list_as_a_table(inbox: Inbox) -> None:
    """The count of each reason, then a row per group; foreign messages have the reason none."""
    publish(inbox, [of_sensor("a"), of_sensor("a"), of_sensor("[red]b\x1b"), FOREIGN])
    result = command("list", inbox)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["NO_READINGS", "a", "2", "2026-02-17T10:30:00Z", "2026-02-17T10:30:00Z", "no", "good:", "a"] in rows
    assert ["none", "–", "1", "–", "–"] in rows
    assert "'[red]b\\x1b'" in result.stdout
    assert result.stdout.startswith("4 dead letters by reason:\n  3  NO_READINGS of 2 known sensors\n  1  none\n")


@pytest.mark.parametrize(
    ("filters", "sensors"),
    [
        (["--reason", "NO_READINGS"], ["a", "b"]),
        (["--reason", "NO_READINGS", "--reason", "UNPARSEABLE"], ["a", "b", "c"]),
        (["--sensor", "a", "--sensor", "c", "--sensor", "d"], ["a", "c"]),
        (["--from", "2026-02-17T10:30"], ["b", "c"]),
        (["--from", "2026-02-17T09:30", "--to", "2026-02-17T10:30"], ["a"]),
    ],
)
def test_filters(inbox: Inbox, filters: list[str], sensors: list[str]) -> None:
    """Every command selects by reason, sensor and time."""
    publish(inbox, [of_sensor("a", when=NOW - HOUR), of_sensor("b"), of_sensor("c", Reason.UNPARSEABLE)])
    assert [group["sensor_id"] for group in lines(command("list", inbox, "--format=json", *filters))] == sensors
    assert (
        sorted(one["events"][0]["sensor_id"] for one in lines(command("show", inbox, "--format=json", *filters)))
        == sensors
    )


def test_show_prints_everything(inbox: Inbox) -> None:
    """What was wrong, which message it was, with its own attributes, and the event in it."""
    event = sensor_event("a", T + 1, {"x": float("nan"), "y": 1.5}, {"location": "north"}, "e-1")
    data = event.SerializeToString()
    attributes = {"site": "x", "topic": "weather", "dead_letter_replays": "2"}
    publish(inbox, refused(Message(data, attributes, "4711", ordering_key="key")))
    [letter] = lines(command("show", inbox, "--format=json"))
    assert letter == {
        "reason": "EVENT_TIME_IN_FUTURE",
        "detail": "event_time 2026-02-17T10:00:00.000001Z is after 2026-02-17T10:00:00Z",
        "step": "DecodeMessages",
        "time": "2026-02-17T10:30:00Z",
        "message_id": "4711",
        "publish_time": "2026-02-17T10:30:00Z",
        "ordering_key": "key",
        "replays": 2,
        "attributes": attributes,
        "events": [
            {
                "sensor_id": "a",
                "event_time": "2026-02-17T10:00:00.000001Z",
                "event_id": "e-1",
                "readings": {"x": "nan", "y": 1.5},
                "metadata": {"location": "north"},
            }
        ],
        "data": base64.b64encode(data).decode(),
    }
    text = command("show", inbox).stdout
    assert text.startswith("EVENT_TIME_IN_FUTURE, 2026-02-17T10:30:00Z\n")
    for line in ("message       4711, published 2026-02-17T10:30:00Z", "readings      x=nan, y=1.5", "replays       2"):
        assert f"\n  {line}\n" in text
    assert len(waiting(inbox, 1)) == 1


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xff\x00" * 40, f"80: {' '.join(['ff', '00'] * 32)} …"),
        (b'{"sensor": "\n"}', """15: '{"sensor": "\\n"}'"""),
        (b"", "none"),
    ],
)
def test_show_dumps_what_it_cannot_decode(inbox: Inbox, data: bytes, shown: str) -> None:
    """Prints the beginning, as text if it is text, otherwise in hexadecimal."""
    publish(inbox, refused(Message(data, {"message_type": "other"})))
    assert f"\n  bytes         {shown}\n" in command("show", inbox).stdout


def test_show_decodes_by_mappings(inbox: Inbox, tmp_path: Path) -> None:
    """With a mapping, letters of its type have the events that it makes now, or the reason for none."""
    mapping = tmp_path / "any.toml"
    mapping.write_text('message = "json"\nsensor = "id"\ntime = "at"\n[readings]\nt = "t"\n')
    unknown = BadData(Reason.UNKNOWN_MESSAGE_TYPE, "x")
    for data in (b'{"id": "a", "at": "2026-02-17T10:30:00Z", "t": 1}', b'{"id": "a"}'):
        publish(inbox, [dead_letter(Message(data, {"message_type": "json"}, data.hex(), NOW), unknown, "s", NOW)])
    shown = lines(command("show", inbox, f"--message-mapping={mapping}", "--format=json"))
    assert sorted((letter["mapped"]["events"] for letter in shown), key=len) == [
        [],
        [{"sensor_id": "a", "event_time": "2026-02-17T10:30:00Z", "readings": {"t": 1}, "metadata": {}}],
    ]
    assert len(lines(command("show", inbox, f"--message-mapping={mapping}", "--sensor=a", "--format=json"))) == 1
    text = command("show", inbox, f"--message-mapping={mapping}").stdout
    assert "  mapped        json: 1 event\n" in text
    assert "  event time    2026-02-17T10:30:00Z\n" in text
    assert "  mapped        json: refused: MISSING_EVENT_TIME: the mapping finds no time" in text
    assert "mapped" not in lines(command("show", inbox, "--format=json"))[0]
    table = command("show", inbox, f"--message-mapping={mapping}", "--format=csv").stdout
    assert next(csv.reader(io.StringIO(table)))[-1] == "mapped"


def test_every_command_finds_the_sensors_of_other_types(inbox: Inbox, tmp_path: Path) -> None:
    """With their mapping or a decoder, letters of other types have a sensor, and what is exported can be mended."""
    mapping, job = tmp_path / "any.toml", Inbox()
    mapping.write_text('message = "json"\nsensor = "id"\ntime = "at"\n[readings]\nt = "t"\n')
    late = BadData(Reason.EVENT_TIME_IN_FUTURE, "late")
    for sensor in ("a", "b"):
        data = json.dumps({"id": sensor, "at": "2026-02-17T10:30:00Z", "t": 1}).encode()
        publish(inbox, [dead_letter(Message(data, {"message_type": "json"}, sensor, NOW), late, "s", NOW)])
    with_mapping = ("--message-mapping", str(mapping), "--sensor", "a")
    assert [group["sensor_id"] for group in lines(command("list", inbox, "--format=json", *with_mapping))] == ["a"]
    dry = command("replay", inbox, "--topic", job.topic, "--dry-run", "--format=json", *with_mapping)
    assert lines(dry)[0]["replayed"] == 1
    exported = tmp_path / "letters.ndjson"
    assert command("export", inbox, str(exported), *with_mapping).exit_code == 0
    letter = json.loads(exported.read_text())
    letter["events"] = [{**event, "sensor_id": "mended"} for event in letter["mapped"]["events"]]
    exported.write_text(json.dumps(letter))
    sent = CliRunner().invoke(main, ["publish", str(exported), "--topic", job.topic])
    assert sent.exit_code == 0, sent.output
    [message] = waiting(job, 1)
    assert [event.sensor_id for event in decode(message)] == ["mended"]
    letter["events"], letter["data"] = [], base64.b64encode(b'{"id": "json"}').decode()
    exported.write_text(json.dumps(letter))
    refused_again = CliRunner().invoke(
        main, ["publish", str(exported), "--topic", job.topic, "--message-mapping", str(mapping)]
    )
    assert refused_again.exit_code == 1
    assert "letters.ndjson:1: MISSING_EVENT_TIME" in refused_again.output


def test_a_mapping_that_does_not_hold(inbox: Inbox, tmp_path: Path) -> None:
    """A mapping that does not hold is one line, before anything is read."""
    path = tmp_path / "bad.toml"
    path.write_text("sensor = 1")
    result = command("show", inbox, f"--message-mapping={path}")
    assert (result.exit_code, result.stderr) == (1, f"Error: {path}: message: it is missing\n")


def test_show_takes_no_more_than_the_limit(inbox: Inbox) -> None:
    """The limit is ten by default."""
    publish(inbox, [of_sensor(f"s-{n}") for n in range(30)])
    assert len(lines(command("show", inbox, "--format=json"))) == 10
    assert len(lines(command("show", inbox, "--format=json", "--limit", "3", "--reason", "NO_READINGS"))) == 3


def test_max_is_reported(inbox: Inbox) -> None:
    """If --scan-limit ends the scan, standard error says that there may be more."""
    publish(inbox, [of_sensor("a") for _ in range(5)])
    result = command("list", inbox, "--scan-limit", "3")
    assert result.exit_code == 0
    assert result.stderr == "read 3 dead letters, the --scan-limit; there may be more\n"


def test_nothing_waits(inbox: Inbox) -> None:
    """An empty backlog is not an error; one line reports it."""
    result = command("list", inbox)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no message from {inbox.subscription} within 1s\n"
    publish(inbox, [of_sensor("a")])
    assert command("show", inbox, "--sensor", "b").stderr == "none of 1 dead letter matches\n"


def test_policies_are_reported(inbox: Inbox) -> None:
    """Standard error warns of a dead-letter policy and of a retry policy."""
    inbox.subscription += "-strict"
    subscriber_client().create_subscription(
        {
            "name": inbox.subscription,
            "topic": inbox.topic,
            "dead_letter_policy": {"dead_letter_topic": Inbox().topic, "max_delivery_attempts": 5},
            "retry_policy": {"minimum_backoff": {"seconds": 10}, "maximum_backoff": {"seconds": 600}},
        }
    )
    first, second = command("list", inbox).stderr.splitlines()
    assert "counts as one of the 5 deliveries" in first
    assert second.endswith("its retry policy delays messages read before by 10s to 10m")


def test_a_missing_subscription(pubsub: str) -> None:
    """The error is one line, with exit code 1."""
    result = CliRunner().invoke(main, ["dead-letters", "list", "--subscription", NOWHERE])
    assert (result.exit_code, result.output) == (1, f"Error: subscription {NOWHERE} does not exist\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--subscription'"),
        (["--subscription", "s"], "write projects/PROJECT/subscriptions/SUBSCRIPTION"),
        (["--subscription", NOWHERE, "--reason", "BAD_MOOD"], "'BAD_MOOD' is not one of 'UNKNOWN_MESSAGE_TYPE'"),
        (["--subscription", NOWHERE, "--from", "tomorrow"], "'tomorrow' is not a time"),
        (["--subscription", NOWHERE, "--from", "2026-02-18", "--to", "2026-02-18"], "must be after --from"),
        (["--subscription", NOWHERE, "--scan-limit", "0"], "0 is not in the range 1<=x<=1000000000"),
        (["--subscription", NOWHERE, "--wait", "long"], "'long' is not a duration"),
    ],
)
@pytest.mark.parametrize("name", ["list", "show"])
def test_a_wrong_command_line_is_a_usage_error(name: str, arguments: list[str], message: str) -> None:
    """The exit code is 2."""
    result = CliRunner().invoke(main, ["dead-letters", name, *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_interrupt_prints_and_returns_messages(inbox: Inbox) -> None:
    """Ctrl-C exits with 130, and nothing stays leased."""
    publish(inbox, [of_sensor("a")])
    process = subprocess.Popen(
        [
            *[*TIDETABLE, "dead-letters", "list"],
            *["--subscription", inbox.subscription, "--wait", "60s", "--format=json"],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    eventually(lambda: not waiting(inbox, 1))  # the process has leased it
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, b"interrupted after 1 dead letter\n")
    assert json.loads(stdout)["count"] == 1
    assert len(waiting(inbox, 1)) == 1


def test_the_help_explains_failed_deliveries() -> None:
    """The help says that returning a message is a failed delivery, and what follows from that."""
    text = CliRunner().invoke(main, ["dead-letters", "--help"]).stdout
    for words in ("dead-letter policy", "retry policy", "ordering key", "failed delivery"):
        assert words in text


def test_csv_and_parquet(inbox: Inbox) -> None:
    """Groups and letters are flat: what JSON nests is JSON text."""
    publish(inbox, [of_sensor("a")])
    [group] = csv.DictReader(io.StringIO(command("list", inbox, "--format", "csv").stdout))
    assert (group["reason"], group["sensor_id"], group["count"]) == ("NO_READINGS", "a", "1")
    printed = command("show", inbox, "--format", "parquet").stdout_bytes
    [letter] = pyarrow.parquet.read_table(io.BytesIO(printed)).to_pylist()
    assert json.loads(letter["attributes"])["site"] == "x"
    assert json.loads(letter["events"])[0]["sensor_id"] == "a"
