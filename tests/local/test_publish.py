import json
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.root import main
from pipeline.cloud.tables import tables
from pipeline.core.dead_letters import DeadLetter, letter_json
from pipeline.core.events.dead_letter import REPLAYS, dead_letter
from pipeline.core.events.event import Event, validate
from pipeline.core.events.message import Message, decode, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import json_line
from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.local.publish import batches
from tests.support.preloaded import TIDETABLE
from tests.support.pubsub import Inbox, serving
from tests.support.tables import unused_name
from tests.support.waiting import eventually

COMMAND = [*TIDETABLE, "publish"]
START_US = parse_time("2024-05-01T08:00:00Z")
NO_TOPIC = "projects/test-project/topics/never-created"
HEADER = "sensor_id,event_time,n\n"


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


@pytest.fixture
def numbered(tmp_path: Path) -> Callable[[int], Path]:
    """Returns a function that writes a file of numbered records, one second apart."""

    def write(count: int) -> Path:
        file = tmp_path / "readings.csv"
        file.write_text(HEADER + "".join(f"A-1,{START_US // 1_000_000 + n},{n}\n" for n in range(count)))
        return file

    return write


def publish(file: Path, topic: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["publish", str(file), "--topic", topic, "--time-unit", "s", *options])


def events(message: Message) -> list[Event]:
    return [validate(event, START_US * 2)._replace(message=None) for event in decode(message)]


def numbers(messages: list[Message]) -> list[list[int]]:
    """Returns the readings of each message, in order."""
    return sorted([int(event.readings["n"]) for event in events(message)] for message in messages)


def test_a_file_is_published_as_the_events_of_its_records(inbox: Inbox, tmp_path: Path) -> None:
    """Every record arrives as its own event, with the documented attributes, and the summary counts them."""
    file = tmp_path / "readings.csv"
    file.write_text("when,device,a,b,room\n1714550400.25,A-1,1.5,NA,attic\n1714550400.250001,A-2,-2,3,\n")
    result = publish(file, inbox.topic, "--sensor-column", "device", "--time-column", "when")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"2 events in 2 messages published to {inbox.topic}, 0 lines refused; ")

    one, two = sorted(inbox.take(2), key=events)
    assert events(one) == [Event("A-1", START_US + 250_000, {"a": 1.5}, {"room": "attic"})]
    assert events(two) == [Event("A-2", START_US + 250_001, {"a": -2.0, "b": 3.0}, {})]
    assert one.attributes["message_type"] == "tidetable.v1.SensorEvent"
    assert two.attributes["event_time"] == "2024-05-01T08:00:00.250001Z"
    assert one.attributes["event_id"] != two.attributes["event_id"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [[0]]),
        (4, [[0, 1, 2, 3]]),
        (5, [[0, 1, 2, 3], [4]]),
        (8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_events_are_batched_in_their_order(
    inbox: Inbox, numbered: Callable[[int], Path], count: int, expected: list[list[int]]
) -> None:
    """Every message but the last contains --batch events; --format json prints one line."""
    result = publish(numbered(count), inbox.topic, "--batch", "4", "--format=json")
    assert result.exit_code == 0, result.output
    [line] = result.stdout.splitlines()
    summary = json.loads(line)
    assert summary.pop("seconds") > 0
    assert (summary.pop("events_per_second") > 0) == bool(count)
    assert summary == {
        "topic": inbox.topic,
        "events": count,
        "messages": len(expected),
        "skipped": 0,
        "refused": 0,
        "interrupted": False,
    }
    assert numbers(inbox.take(len(expected))) == expected


def test_a_batch_is_closed_before_it_is_too_large_for_pubsub(inbox: Inbox, tmp_path: Path) -> None:
    """Forty events of 411 KB, more than 10 MB in all, are split into messages that Pub/Sub accepts."""
    names = ",".join(f"m{n}" for n in range(100))
    texts = ",".join(["x" * 4096] * 100)
    file = tmp_path / "readings.csv"
    with file.open("w") as csv:
        csv.write(f"sensor_id,event_time,n,{names}\n")
        csv.writelines(f"A-1,{START_US // 1_000_000 + n},{n},{texts}\n" for n in range(40))
    result = publish(file, inbox.topic, "--batch", "10000", "--format=json")
    assert result.exit_code == 0, result.output
    assert [len(message) for message in numbers(inbox.take(2))] == [21, 19]


def test_a_batch_never_exceeds_its_bytes() -> None:
    """A batch is closed before an event that would exceed the limit; a single event is always accepted."""
    one = Event("A-1", START_US, {"n": 1.0}, {})
    large = Event("A-1", START_US, {"n": 1.0}, {"text": "x" * 4000})
    sizes = [len(batch) for batch in batches([one] * 5 + [large] * 2 + [one], size=4, max_bytes=2000)]
    assert sizes == [4, 1, 1, 1, 1]


def test_refused_lines_are_told_and_the_others_published(inbox: Inbox, tmp_path: Path) -> None:
    """A bad line costs itself alone: it is told with file, line and reason, and the exit code is 1."""
    file = tmp_path / "readings [1] of :smile:.csv"
    file.write_text(f"{HEADER}A-1,1714550400,0\nA-1,soon,1\n\nA#1,1714550401,2\nA-1,1714550402,3\n")
    result = publish(file, inbox.topic, "--batch", "10")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"{file}:3: 'event_time' 'soon' is not a number of seconds since the epoch (--time-unit)",
        f"{file}:5: INVALID_SENSOR_ID: sensor_id 'A#1' contains '#', and only printable ASCII "
        "without '#' and spaces is allowed",
    ]
    assert result.stdout.startswith(f"2 events in 1 message published to {inbox.topic}, 2 lines refused; ")
    assert numbers(inbox.take(1)) == [[0, 3]]


@pytest.mark.parametrize(("bad", "more"), [(20, []), (21, ["and 1 more"]), (1520, ["and 1,500 more"])])
def test_only_the_first_refusals_are_printed(inbox: Inbox, tmp_path: Path, bad: int, more: list[str]) -> None:
    """Twenty refusals are printed; the rest are counted."""
    file = tmp_path / "readings.csv"
    file.write_text(HEADER + "A-1,1714550400,0\n" + "A-1,never,0\n" * bad)
    result = publish(file, inbox.topic, "--format=json")
    assert result.exit_code == 1
    printed = result.stderr.splitlines()
    assert [line.split(":")[1] for line in printed[:20]] == [str(n) for n in range(3, 23)]
    assert printed[20:] == more
    assert json.loads(result.stdout)["refused"] == bad


def test_a_file_without_the_columns_is_an_error_before_anything_is_published(
    inbox: Inbox, numbered: Callable[[int], Path]
) -> None:
    """The error is one line with the missing column and the existing ones."""
    file = numbered(3)
    result = publish(file, inbox.topic, "--time-column", "when")
    assert result.exit_code == 1
    assert (
        result.output
        == f"Error: {file}: no column 'when' (--time-column); the columns are 'sensor_id', 'event_time', 'n'\n"
    )
    assert publish(file, inbox.topic, "--batch", "3").exit_code == 0
    assert numbers(inbox.take(1)) == [[0, 1, 2]]


def test_a_missing_topic(pubsub: str, numbered: Callable[[int], Path]) -> None:
    """The error is one line, with exit code 1."""
    result = publish(numbered(1), NO_TOPIC)
    assert (result.exit_code, result.output) == (1, f"Error: topic {NO_TOPIC} does not exist\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--topic", "events"], "topic 'events' is not a full path; write projects/PROJECT/topics/TOPIC"),
        (["--topic", NO_TOPIC, "--batch", "0"], "0 is not in the range 1<=x<=10000"),
        (["--topic", NO_TOPIC, "--batch", "10001"], "10001 is not in the range 1<=x<=10000"),
        (["--topic", NO_TOPIC, "--rate", "0"], "0.0 is not in the range x>0"),
        (["--topic", NO_TOPIC, "--time-unit", "ns"], "'ns' is not one of 'iso', 's', 'ms', 'us'"),
        ([], "Missing option '--topic'"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(
    numbered: Callable[[int], Path], options: list[str], problem: str
) -> None:
    """The exit code is 2."""
    result = CliRunner().invoke(main, ["publish", str(numbered(1)), *options])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_the_rate_limits_events(inbox: Inbox, numbered: Callable[[int], Path]) -> None:
    """Eleven events at fifty a second take a fifth of a second, batched or not."""
    for batch in ("1", "5"):
        result = publish(numbered(11), inbox.topic, "--rate", "50", "--batch", batch, "--format=json")
        assert json.loads(result.stdout)["seconds"] >= 0.2


def test_an_interrupt_counts_what_was_sent(inbox: Inbox, numbered: Callable[[int], Path]) -> None:
    """Ctrl-C exits with 130, and the summary counts exactly the events that arrived."""
    options = ["--topic", inbox.topic, "--time-unit", "s", "--rate", "10", "--format=json"]
    command = subprocess.Popen(
        [*COMMAND, str(numbered(10_000)), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    messages = inbox.take(3)
    command.send_signal(signal.SIGINT)
    stdout, stderr = command.communicate(timeout=30)
    assert (command.returncode, stderr) == (130, b"")
    summary = json.loads(stdout)
    assert summary["interrupted"]
    messages += inbox.take(summary["events"] - len(messages))
    assert numbers(messages) == [[n] for n in range(summary["events"])]


def test_a_second_interrupt_does_not_wait(numbered: Callable[[int], Path]) -> None:
    """If the server does not answer, a second Ctrl-C ends the command, which reports that."""
    end = threading.Event()
    with serving() as (server, address):
        server.on_publish = lambda _: end.wait(60) and None
        command = subprocess.Popen(
            [*COMMAND, str(numbered(10)), "--topic", NO_TOPIC, "--time-unit", "s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PUBSUB_EMULATOR_HOST": address},
        )
        eventually(lambda: server.received)

        command.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):  # two signals at once could count as one
            command.wait(timeout=1)
        command.send_signal(signal.SIGINT)
        stdout, stderr = command.communicate(timeout=30)
        end.set()
    assert (command.returncode, stdout) == (130, b"")
    assert stderr.splitlines() == [b"Interrupted twice: some messages may not have been published"]


def test_progress_is_shown_only_on_a_terminal(inbox: Inbox, numbered: Callable[[int], Path]) -> None:
    """A terminal on standard error shows a progress bar; standard output has only the summary."""
    ours, theirs = pty.openpty()
    options = ["--topic", inbox.topic, "--time-unit", "s", "--rate", "100"]
    command = subprocess.Popen(
        [*COMMAND, str(numbered(50)), *options],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )
    stdout, _ = command.communicate(timeout=30)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "publishing" in shown
    assert len(stdout.splitlines()) == 1


def test_events_too_old_for_a_table(bigtable: str, inbox: Inbox, tmp_path: Path) -> None:
    """With a table, they are counted before anything is published; without one, they are not checked."""
    table = unused_name()
    tables.create(table, TableSchema.default())
    of_table = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    file = tmp_path / "readings.csv"
    file.write_text(HEADER + f"A-1,{START_US // 1_000_000},1\nA-1,soon,1\nA-1,{int(time.time())},2\n")

    result = publish(file, NO_TOPIC, *of_table)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: 1 of 2 events are too old for table {table} (raw: maxage=90d): Bigtable would collect them soon, and "
        "their windows would count only what is left; nothing was published. Keep readings longer with "
        f"{table.apply_command} --gc raw=POLICY, or pass --accept-expired to have them published anyway\n"
    )
    result = publish(file, inbox.topic, *of_table, "--accept-expired")
    assert result.stdout.startswith("2 events in 2 messages published")
    result = publish(file, inbox.topic)
    assert result.stdout.startswith("2 events in 2 messages published")


def test_metadata_alone(bigtable: str, inbox: Inbox, tmp_path: Path) -> None:
    """An event without readings is published for a table that keeps it, also through a mapping."""
    table = unused_name()
    tables.create(table, parse_schema("metadata_alone = true"))
    of_table = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    file, mapping = tmp_path / "events.ndjson", tmp_path / "mapping.toml"
    now = format_time(int(time.time()) * 1_000_000)
    file.write_text(json.dumps({"sensor_id": "A-1", "event_time": now, "status": "on"}))
    head = 'message = "json"\nsensor = "sensor_id"\ntime = "event_time"\n'
    mapping.write_text(head + '[readings]\nt = "t"\n[metadata]\nstatus = "status"\n')
    for more in ([], ["--message-mapping", str(mapping)]):
        arguments = ["publish", str(file), "--topic", inbox.topic, *more]
        assert "no readings" in CliRunner().invoke(main, arguments).stderr
        result = CliRunner().invoke(main, [*arguments, *of_table])
        assert (result.exit_code, result.stdout[:30]) == (0, "1 event in 1 message published"), result.output


def test_a_table_is_named_completely(tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial table name is a usage error, but a project in a variable names no table."""
    (tmp_path / "a.csv").write_text(HEADER)
    monkeypatch.setenv("TIDETABLE_PROJECT", "my-project")
    assert publish(tmp_path / "a.csv", inbox.topic).exit_code == 0
    result = publish(tmp_path / "a.csv", NO_TOPIC, "--table", "t")
    assert result.exit_code == 2
    assert "--project, --instance and --table name a table together: set all three or none" in result.stderr


def test_exported_dead_letters(pubsub: str, tmp_path: Path) -> None:
    """They are sent with their attributes and ordering key, and the lines that are still invalid are refused."""
    inbox = Inbox(ordered=True)
    event = sensor_event("A-1", START_US, {"n": 1.0}, {})
    attributes = {"topic": "mine", "event_id": "e-1"}  # Google's client can't send an attribute named topic
    message = Message(event.SerializeToString(), attributes, "4711", ordering_key="key")
    when = datetime(2024, 5, 1, tzinfo=UTC)
    letter = letter_json(DeadLetter.of(dead_letter(message, BadData(Reason.MISSING_KEY_FIELD, "no good"), "x", when)))
    broken = letter | {"events": [letter["events"][0] | {"readings": {}}]}
    file = tmp_path / "letters.ndjson"
    file.write_text(
        "".join(json_line(line) + "\n" for line in (letter, broken, letter | {"events": [], "data": "/w=="}))
    )
    result = CliRunner().invoke(main, ["publish", str(file), "--topic", inbox.topic])
    assert result.exit_code == 1, result.output
    assert f"{file}:2: NO_READINGS: the event has no readings" in result.stderr
    assert f"{file}:3: still not readable: UNPARSEABLE" in result.stderr
    assert result.stdout.startswith(f"1 event in 1 message published to {inbox.topic}, 2 lines refused")
    assert inbox.take(1) == [Message(message.data, attributes | {REPLAYS: "1"}, ordering_key="key")]


def test_messages_of_a_mapping_are_published_as_they_are(inbox: Inbox, tmp_path: Path) -> None:
    """Lines of JSON as they are; rows of CSV as events, in batches. The summary counts what the mapping skips."""
    mapping = tmp_path / "m.toml"
    mapping.write_text(
        'message = "json"\nsensor = "id"\ntime = "at"\n'
        'skip_if = { path = "n", is = [0, "0"] }\nreadings = { n = "n" }\n'
    )
    (tmp_path / "a.ndjson").write_text(
        "".join(f'{{"id": "a", "at": "2024-05-01T08:00:0{n}Z", "n": {n}}}\n' for n in range(3)) + '{"id": "a"}\n'
    )
    (tmp_path / "a.csv").write_text("id,at,n\n" + "".join(f"a,2024-05-01T08:00:0{n}Z,{n}\n" for n in range(3)))
    lines = publish(tmp_path / "a.ndjson", inbox.topic, "--message-mapping", str(mapping), "--format=json")
    summary = json.loads(lines.stdout)
    assert (lines.exit_code, summary["events"], summary["skipped"], summary["refused"]) == (1, 2, 1, 1)
    problem = "MISSING_EVENT_TIME: the mapping finds no time: none of its paths is set"
    assert lines.stderr == f"{tmp_path}/a.ndjson:4: {problem}\n"
    messages = inbox.take(2)
    assert sorted((json.loads(one.data)["n"], one.attributes["message_type"]) for one in messages) == [
        (1, "json"),
        (2, "json"),
    ]
    rows = publish(tmp_path / "a.csv", inbox.topic, "--message-mapping", str(mapping), "--batch", "10")
    assert (rows.exit_code, rows.stderr) == (0, "")
    assert "2 events in 1 message published" in rows.stdout
    assert "1 skipped by the mapping" in rows.stdout
    assert numbers(inbox.take(1)) == [[1, 2]]


def test_a_file_that_a_decoder_reads(inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events are published, in batches; a refused record is reported by its number."""
    (tmp_path / "of_numbers.py").write_text(
        "from pipeline import RefusedMessageError, SensorEvent\n"
        "def read(file, name):\n"
        f"    event = SensorEvent(sensor_id='A-1', event_time={{'seconds': {START_US // 1_000_000}}})\n"
        "    for line in file:\n"
        "        event.readings['n'] = int(line)\n"
        "        yield event if int(line) else RefusedMessageError('it is 0')\n"
    )
    (tmp_path / "in.dat").write_text("1\n0\n2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = publish(tmp_path / "in.dat", inbox.topic, "--file-decoder", "of_numbers:read", "--batch", "10")
    assert (found.exit_code, found.stderr) == (1, f"{tmp_path}/in.dat:2: it is 0\n")
    assert found.stdout.startswith(f"2 events in 1 message published to {inbox.topic}, 1 line refused")
    assert numbers(inbox.take(1)) == [[1, 2]]
