"""An export contains complete dead letters, and acknowledges them only once the file is complete."""

import base64
import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.core.events.message import Message
from pipeline.dead_letters import export as dead_letters_export
from tests.dead_letters.letters import command, of_sensor, publish, refused, waiting
from tests.support.pubsub import Inbox

FOREIGN = Message(b"hello", {"colour": "küche"})


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


def test_an_export_contains_everything(inbox: Inbox, tmp_path: Path) -> None:
    """One line per message, with payload, attributes, reason and event; the messages stay."""
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


def test_a_gz_file_is_compressed(inbox: Inbox, tmp_path: Path) -> None:
    """The extension decides, in any case."""
    publish(inbox, [of_sensor("a")])
    file = tmp_path / "letters.ndjson.GZ"
    assert command("export", inbox, str(file)).exit_code == 0
    assert json.loads(gzip.decompress(file.read_bytes()))["reason"] == "NO_READINGS"


def test_ack(inbox: Inbox, tmp_path: Path) -> None:
    """--ack acknowledges what is in the file, and nothing else."""
    publish(inbox, [of_sensor("a"), of_sensor("a"), of_sensor("b")])
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file), "--ack", "--sensor", "a")
    assert result.output == f"2 dead letters written to {file}, 2 of them acknowledged\n"
    assert len(file.read_text().splitlines()) == 2
    assert [b"b" in message.data for message in waiting(inbox, 1)] == [True]


def test_to_standard_output(inbox: Inbox) -> None:
    """Standard output has only JSON lines; the summary is on standard error."""
    publish(inbox, [of_sensor("a"), of_sensor("b")])
    result = command("export", inbox, "-", "--ack", "--limit", "1")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert json.loads(result.stdout)["reason"] == "NO_READINGS"
    assert result.stderr == "1 dead letter written to standard output, 1 of them acknowledged\n"
    assert len(waiting(inbox, 1)) == 1


def test_a_file_is_not_overwritten(inbox: Inbox, tmp_path: Path) -> None:
    """--force replaces a file once the new one is complete."""
    publish(inbox, [of_sensor("a")])
    file = tmp_path / "letters.ndjson"
    file.write_text("precious")
    result = command("export", inbox, str(file), "--ack")
    assert result.exit_code == 2
    assert f"{file} exists; set --force to replace it" in result.stderr
    assert file.read_text() == "precious"
    assert command("export", inbox, str(file), "--force").exit_code == 0
    assert json.loads(file.read_text())["reason"] == "NO_READINGS"


def test_without_a_complete_file_nothing_is_acknowledged(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves no new file, the old one unchanged, and every message on the subscription."""
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


def test_failed_acknowledgements_are_reported(inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file exists, and the summary counts the acknowledged messages."""

    def fail(*_: object) -> None:
        raise ServerError("subscription s: away")

    publish(inbox, [of_sensor("a")])
    monkeypatch.setattr(Backlog, "acknowledge", fail)
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file), "--ack")
    assert result.exit_code == 1
    assert result.stdout == f"1 dead letter written to {file}, 0 of them acknowledged\n"
    assert result.stderr == "Error: subscription s: away\n"


def test_nothing_to_export(inbox: Inbox, tmp_path: Path) -> None:
    """The file is empty, and one line says why."""
    file = tmp_path / "letters.ndjson"
    result = command("export", inbox, str(file))
    assert result.exit_code == 0
    assert result.stdout == f"0 dead letters written to {file}\n"
    assert result.stderr == f"no message from {inbox.subscription} within 1s\n"
    assert file.read_bytes() == b""


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("/dev/null", "is not a regular file"),
        ("nowhere/a.ndjson", "nowhere is not a directory"),
        ("/", "is a dir"),
    ],
)
def test_an_impossible_path(file: str, message: str) -> None:
    """The exit code is 2, even with --force."""
    subscription = "projects/test-project/subscriptions/letters"
    result = CliRunner().invoke(main, ["dead-letters", "export", file, "--force", "--subscription", subscription])
    assert result.exit_code == 2
    assert message in result.stderr
