"""``tidetable mapping`` checks, tries and drafts mappings."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.root import main
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.events.dead_letter import dead_letter
from pipeline.core.events.message import ENCODING, MESSAGE_TYPE, Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import to_datetime
from tests.core.decoding.mapping.protos import descriptor_set
from tests.dead_letters.letters import waiting
from tests.support.pubsub import Inbox

REPORT = descriptor_set(
    "package acme; message Report { string serial = 1; int64 at_ms = 2; double celsius = 3; string site = 4; }"
)
TEXT = 'message = "acme.Report"\nsensor = "serial"\ntime = {path = "at_ms", unit = "ms"}\nreadings.c = "celsius"\n'
JSON = """\
message = "json"
sensor = "id"
time = "$publish_time"
readings = {"*" = "data.*"}
metadata = {line = "@line"}
"""
AT_MS = 1_771_324_200_123
TIME = "2026-02-17T10:30:00.123Z"
NOWHERE = "projects/test-project/subscriptions/nowhere"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Works in a folder with mappings and descriptors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.binpb").write_bytes(REPORT)
    (tmp_path / "report.toml").write_text(TEXT)
    (tmp_path / "any.toml").write_text(JSON)
    (tmp_path / "file.toml").write_text(JSON.replace('"id"', '"$file.stem"').replace("@line", "$file.folder"))
    return tmp_path


def payload(**fields) -> bytes:
    return Descriptors(REPORT).message_class("acme.Report")(**fields).SerializeToString()


GOOD = payload(serial="a", at_ms=AT_MS, celsius=21.5, site="north")


def mapping(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["mapping", *arguments])


def documents(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_check():
    """Prints what each mapping reads and leaves out. JSON has the same."""
    result = mapping(
        "check", "--message-mapping=report.toml", "--message-mapping=any.toml", "--message-descriptors=report.binpb"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["report.toml:", "acme.Report,", "one", "event", "a", "message"],
        ["reads:"],
        ["sensor", "serial", "string"],
        ["time", "at_ms", "int64"],
        ["readings.c", "celsius", "double"],
        ["leaves", "out:"],
        ["site", "string"],
        [],
        ["any.toml:", "json,", "one", "event", "a", "message"],
        ["reads:"],
        ["sensor", "id", "any", "value"],
        ["time", "$publish_time", "of", "the", "message"],
        ["readings.*", "data.*", "numbers", "and", "booleans"],
        ["metadata.line", "@line", "attribute"],
        ["reads", "in", "part:"],
        ["the", "message", "any", "value", "only", "id,", "numbers", "and", "booleans", "of", "data.*"],
        [],
    ]
    (document,) = documents(
        mapping("check", "--message-mapping=report.toml", "--message-descriptors=report.binpb", "--format=json")
    )
    assert document == {
        "file": "report.toml",
        "message": "acme.Report",
        "each": [],
        "entries": [
            {"key": "sensor", "path": "serial", "type": "string"},
            {"key": "time", "path": "at_ms", "type": "int64"},
            {"key": "readings.c", "path": "celsius", "type": "double"},
        ],
        "twice": [],
        "same_name": [],
        "partly": [],
        "unmapped": [{"path": "site", "type": "string", "note": ""}],
        "problems": [],
    }


def test_check_of_mappings_that_do_not_hold(folder: Path):
    """Each problem is a line with the file and the key; the exit code is 1; mappings that hold are still printed."""
    (folder / "bad.toml").write_text(TEXT.replace('"celsius"', '"celcius"').replace('"serial"', '"serail"'))
    (folder / "worse.toml").write_text("sensor = 1")
    arguments = ["check", "--message-descriptors=report.binpb"]
    arguments += [f"--message-mapping={name}.toml" for name in ("bad", "absent", "worse", "report")]
    result = mapping(*arguments)
    problems = [
        "bad.toml:2: sensor: serail: acme.Report has no field 'serail'; did you mean serial?",
        "bad.toml:4: readings.c: celcius: acme.Report has no field 'celcius'; did you mean celsius?",
        "absent.toml: No such file or directory",
        "worse.toml: message: it is missing",
    ]
    assert (result.exit_code, result.stderr.splitlines()) == (1, problems)
    assert result.stdout.startswith("report.toml: acme.Report")
    printed = [json.loads(line) for line in mapping(*arguments, "--format=json").stdout.splitlines()]
    without_lines = [re.sub(r":\d+:", ":", problem) for problem in problems]
    assert [f"{each['file']}: {problem}" for each in printed for problem in each["problems"]] == without_lines


def test_try_files(folder: Path):
    """Shows each payload as JSON beside its events, or the reason for none."""
    (folder / "good").write_bytes(GOOD)
    (folder / "bad").write_bytes(payload(at_ms=AT_MS, celsius=1))
    (folder / "worse").write_bytes(b"\xff")
    arguments = ["good", "bad", "worse", "--message-mapping=report.toml", "--message-descriptors=report.binpb"]
    good, bad, worse = documents(mapping("try", *arguments, "--format=json", f"--attribute={MESSAGE_TYPE}=acme.Report"))
    assert good == {
        "source": "good",
        "attributes": {MESSAGE_TYPE: "acme.Report"},
        "type": "acme.Report",
        "message": {"serial": "a", "at_ms": str(AT_MS), "celsius": 21.5, "site": "north"},
        "events": [{"sensor_id": "a", "event_time": TIME, "readings": {"c": 21.5}, "metadata": {}}],
        "refused": [],
        "skipped": 0,
    }
    assert (bad["message"]["celsius"], bad["events"]) == (1, [])
    detail = "the mapping finds no sensor: none of its paths is set"
    assert bad["refused"] == [{"reason": "MISSING_SENSOR_ID", "detail": detail}]
    assert (worse["message"], worse["refused"][0]["reason"]) == (None, "UNPARSEABLE")

    result = mapping("try", *arguments)
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[:8] == [
        "good: acme.Report, 1 event",
        "{",
        '"serial": "a",',
        f'"at_ms": "{AT_MS}",',
        '"celsius": 21.5,',
        '"site": "north"',
        "}",
        f"a  {TIME}",
    ]
    assert f"refused  MISSING_SENSOR_ID: {detail}" in lines
    assert "1 byte: ff" in lines
    assert result.stderr == (
        "3 messages without the attribute message_type: a job refuses such a message, unless the mapping has "
        "unmarked = true or --default-message-type names its type\n"
    )


def test_try_the_name_of_a_file(folder: Path):
    """A file of records and the payload of one message are tried with their names, and with the options' values."""
    (folder / "north").mkdir()
    line = '{"data": {"t": 1}}'
    (folder / "north/s-1.ndjson").write_text(line)
    (folder / "s-2.json").write_text(line)
    options = ["--message-mapping=file.toml", "--attribute=line=1=2", f"--publish-time={TIME}", "--format=json"]
    trials = documents(mapping("try", "north/s-1.ndjson", "s-2.json", *options))
    assert [(each["events"][0]["sensor_id"], each["events"][0]["metadata"]) for each in trials] == [
        ("s-1", {"line": "north"}),
        ("s-2", {"line": folder.name}),
    ]
    named = {"file_path": "s-2.json", "file_stem": "s-2", "file_folder": folder.name}
    assert trials[1]["attributes"] == {"line": "1=2", **named}
    assert trials[1]["events"][0]["event_time"] == TIME


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


def test_try_a_subscription(inbox: Inbox, monkeypatch: pytest.MonkeyPatch):
    """Messages are tried by their types, dead letters as what they were; all of them stay."""
    refused = Message(GOOD, {MESSAGE_TYPE: "acme.Report"}, "7", to_datetime(AT_MS * 1000))
    messages = [
        Message(GOOD, {MESSAGE_TYPE: "acme.Report"}),
        Message(b'{"id": "b", "data": {"t": 1}}', {MESSAGE_TYPE: "json"}),
        Message(b'{"sensor_id": "c"}', {MESSAGE_TYPE: "tidetable.v1.SensorEvent", ENCODING: "JSON"}),
        Message(b"?", {MESSAGE_TYPE: "acme.Unknown"}),
        dead_letter(refused, BadData(Reason.NO_READINGS, "x"), "s", to_datetime(AT_MS * 1000)),
    ]
    with Publisher(inbox.topic) as publisher:
        for message in messages:
            attributes = {name: value for name, value in message.attributes.items() if not name.startswith("goog")}
            publisher.send(message._replace(attributes=attributes))
    monkeypatch.setenv("TIDETABLE_SUBSCRIPTION", inbox.subscription)
    options = ["--message-mapping=report.toml", "--message-mapping=any.toml", "--message-descriptors=report.binpb"]
    trials = documents(mapping("try", *options, "--wait=1s", "--format=json"))
    found = sorted((trial["type"] or "", [event["sensor_id"] for event in trial["events"]]) for trial in trials)
    assert found == [
        ("", []),
        ("acme.Report", ["a"]),
        ("acme.Report", ["a"]),
        ("json", ["b"]),
        ("tidetable.v1.SensorEvent", []),
    ]
    assert "message 7" in {trial["source"] for trial in trials}
    assert len(waiting(inbox, 5)) == 5
    assert len(documents(mapping("try", *options, "--wait=1s", "--format=json", "--limit=2"))) == 2


def test_try_an_empty_subscription(inbox: Inbox):
    """An empty subscription is said to be so; one that does not exist is an error."""
    arguments = ["try", "--message-mapping=any.toml", "--wait=0s", "--subscription"]
    result = mapping(*arguments, inbox.subscription)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no message from {inbox.subscription} at once\n"
    result = mapping(*arguments, NOWHERE)
    assert (result.exit_code, result.stderr) == (1, f"Error: subscription {NOWHERE} does not exist\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["try", "--message-mapping=any.toml"], "pass either payload files or --subscription"),
        (["try", "any.toml", f"--subscription={NOWHERE}"], "pass either payload files or --subscription"),
        (["try", "any.toml"],
         "--message-mapping is missing: pass the file of a mapping, --message-decoder or --file-decoder"),
        (["try", "any.toml", "--file-decoder=posixpath:join", "--message-mapping=any.toml"],
         "--file-decoder reads whole files: pass no --message-mapping or --message-decoder"),
        (["try", f"--subscription={NOWHERE}", "--file-decoder=posixpath:join"],
         "--file-decoder reads files, not messages: pass a FILE"),
        (["try", "any.toml", "--message-mapping=any.toml", "--attribute=x"],
         "Invalid value for '--attribute': 'x' is not NAME=VALUE, such as device=N-1"),
        (["try", f"--subscription={NOWHERE}", "--message-mapping=any.toml", "--attribute=x=y"],
         "--attribute is for payload files; messages of a subscription have their own"),
        (["try", f"--subscription={NOWHERE}", "--message-mapping=file.toml"],
         "file.toml: $file.stem: messages of a subscription have no file; try the mapping on a FILE"),
        (["draft", "--message=acme.Report"],
         "--message-descriptors is missing: pass the file that defines the message type"),
        (["draft", "--message=acme.Report", "--message-descriptors=report.binpb", "--output=report.toml"],
         "report.toml exists; pass --force to replace it"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments: list[str], problem: str):
    """Wrong usage has the exit code 2."""
    result = mapping(*arguments)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {problem}")


def test_draft(folder: Path):
    """A draft is printed or written to a file, and passes the check."""
    arguments = ["draft", "--message=acme.Report", "--message-descriptors=report.binpb"]
    printed = mapping(*arguments)
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert 'celsius = "celsius" # double\n' in printed.stdout
    written = mapping(*arguments, "--output=report.toml", "--force")
    assert (written.exit_code, written.stdout) == (0, "")
    assert (folder / "report.toml").read_text() == printed.stdout
    assert mapping("check", "--message-mapping=report.toml", "--message-descriptors=report.binpb").exit_code == 0


def test_draft_of_an_unknown_type():
    """The nearest name is suggested."""
    result = mapping("draft", "--message=acme.v1.Report", "--message-descriptors=report.binpb")
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: message: there is no message type 'acme.v1.Report' in the descriptors; did you mean acme.Report?\n",
    )


def test_a_draft_of_a_sample_and_its_records(folder: Path, inbox: Inbox):
    """The draft is on standard output, the events beside the records on standard error. ``try`` reads records."""
    (folder / "a.csv").write_text("id;Zeit;Temp (C)\na;17.02.2026 11:30;21,5\na;29.03.2026 02:30;1\nb;soon;2\n")
    drafted = mapping("draft", "a.csv", "--time-zone=Europe/Berlin")
    assert drafted.exit_code == 0
    (folder / "a.toml").write_text(drafted.stdout)
    assert "3 records of the sample: 1 event, 2 refused, such as INVALID_EVENT_TIME" in drafted.stderr
    (folder / "a.csv").write_text("id;Zeit;Temp (C)\na;17.02.2026 11:30;21,5\na;29.03.2026 02:30;1\n")
    assert mapping("draft", "a.csv", "--output=a.toml", "--force").exit_code == 0
    first, second = documents(mapping("try", "a.csv", "--message-mapping=a.toml", "--format=json"))
    assert (first["source"], first["events"][0]["readings"]) == ("a.csv:2", {"temp_c": 21.5})
    assert "clocks skip in Europe/Berlin" in second["refused"][0]["detail"]
    assert len(documents(mapping("try", "a.csv", "--message-mapping=a.toml", "--format=json", "--limit=1"))) == 1
    with Publisher(inbox.topic) as publisher:
        publisher.send(Message(b'{"id": "a", "ts": 1771324200123, "v": 2}', {}))
    drafted = mapping("draft", "--subscription", inbox.subscription)
    assert 'time = { path = "ts", unit = "ms" }' in drafted.stdout
    assert "1 record of the sample: 1 event" in drafted.stderr
