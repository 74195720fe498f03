"""An export holds everything of the dead letters, and takes them away only once it does."""

import base64
import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.cloud.errors import ServerProblem
from pipeline.core.messages import Message
from pipeline.dead_letters import export as dead_letters_export
from pipeline.dead_letters.backlog import Backlog
from tests.cloud.pubsub import Inbox
from tests.dead_letters.letters import command, of_sensor, publish, refused, waiting

FOREIGN = Message(b"hello", {"colour": "küche"})


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


def test_an_export_holds_everything(inbox: Inbox, tmp_path: Path) -> None:
    """A line a message, with its payload, attributes, reason, and event; and they stay where they are."""
    publish(inbox, [of_sensor("a"), *refused(Message(b"\xff", {"site": "x"})), FOREIGN])
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file))
    assert (result.exit_code, result.output) == (0, f"3 dead letters written to {file}\n")
    found = {record["reason"]: record for record in map(json.loads, file.read_text().splitlines())}
    assert found["NO_READINGS"]["events"][0]["sensor_id"] == "a"
    assert base64.b64decode(found["UNPARSEABLE"]["data"]) == b"\xff"
    assert found["UNPARSEABLE"]["attributes"] == {"site": "x"}
    assert found[None]["attributes"] == FOREIGN.attributes
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert len(waiting(inbox, 3)) == 3


def test_it_is_gzipped_where_its_name_says_so(inbox: Inbox, tmp_path: Path) -> None:
    """By the extension, as publish reads it."""
    publish(inbox, [of_sensor("a")])
    file = tmp_path / "letters.ndjson.GZ"
    assert command("export", inbox, str(file)).exit_code == 0
    assert json.loads(gzip.decompress(file.read_bytes()))["reason"] == "NO_READINGS"


def test_acknowledged_where_that_is_said(inbox: Inbox, tmp_path: Path) -> None:
    """What is in the file is taken off the subscription, and nothing else is."""
    publish(inbox, [of_sensor("a"), of_sensor("a"), of_sensor("b")])
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file), "--ack", "--sensor", "a")
    assert result.output == f"2 dead letters written to {file}, 2 of them acknowledged\n"
    assert len(file.read_text().splitlines()) == 2
    assert [b"b" in message.data for message in waiting(inbox, 1)] == [True]


def test_to_standard_output(inbox: Inbox) -> None:
    """There are lines of JSON alone; what else there is to say is on standard error."""
    publish(inbox, [of_sensor("a"), of_sensor("b")])
    result = command("export", inbox, "-", "--ack", "--limit", "1")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert json.loads(result.stdout)["reason"] == "NO_READINGS"
    assert result.stderr == "1 dead letter written to standard output, 1 of them acknowledged\n"
    assert len(waiting(inbox, 1)) == 1


def test_a_file_is_not_overwritten(inbox: Inbox, tmp_path: Path) -> None:
    """Unless --force says so; then the old one is there until the new one is complete."""
    publish(inbox, [of_sensor("a")])
    file = tmp_path / "letters.ndjson"
    file.write_text("precious")
    result = command("export", inbox, str(file), "--ack")
    assert result.exit_code == 2
    assert f"{file} is there already; --force replaces it" in result.stderr
    assert file.read_text() == "precious"
    assert command("export", inbox, str(file), "--force").exit_code == 0
    assert json.loads(file.read_text())["reason"] == "NO_READINGS"


def test_without_a_complete_file_nothing_is_acknowledged(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full leaves no file, the old one as it was, and every message where it is."""
    publish(inbox, [of_sensor("a")])
    file = tmp_path / "letters.ndjson"
    file.write_text("precious")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dead_letters_export.os, "fsync", fail)
    result = command("export", inbox, str(file), "--ack", "--force")
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {file}: No space left on device; nothing was acknowledged\n",
    )
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert len(waiting(inbox, 1)) == 1


def test_what_could_not_be_acknowledged_is_told(inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is there; how many are off the subscription is said."""

    def fail(*_: object) -> None:
        raise ServerProblem("subscription s: away")

    publish(inbox, [of_sensor("a")])
    monkeypatch.setattr(Backlog, "acknowledge", fail)
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file), "--ack")
    assert result.exit_code == 1
    assert result.stdout == f"1 dead letter written to {file}, 0 of them acknowledged\n"
    assert result.stderr == "Error: subscription s: away\n"


def test_nothing_to_export(inbox: Inbox, tmp_path: Path) -> None:
    """An empty file, and a line that says why."""
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file))
    assert result.exit_code == 0
    assert result.stdout == f"0 dead letters written to {file}\n"
    assert result.stderr == f"nothing came from {inbox.subscription} in 1s\n"
    assert file.read_bytes() == b""


@pytest.mark.parametrize(
    ("file", "says"),
    [("/dev/null", "is no regular file"), ("nowhere/letters.ndjson", "nowhere is no directory"), ("/", "is a dir")],
)
def test_a_place_where_no_file_can_be(file: str, says: str) -> None:
    """Exit code 2 says that nothing was tried, whatever is forced."""
    subscription = "projects/test-project/subscriptions/s"
    result = CliRunner().invoke(main, ["dead-letters", "export", file, "--force", "--subscription", subscription])
    assert result.exit_code == 2
    assert says in result.stderr
