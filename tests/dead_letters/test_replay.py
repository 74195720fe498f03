"""A replayed dead letter is the original message again. It stays on the subscription until it is published."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from google.api_core import exceptions
from google.cloud.pubsub_v1 import SubscriberClient
from google.protobuf import json_format

from pipeline.cli.root import main
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.cloud.pubsub.publisher import Pacer, Publisher, UnacceptableMessage
from pipeline.core.events.message import ENCODING, Message, decode, message_of, sensor_event
from pipeline.core.events.reasons import Reason
from tests.dead_letters.letters import T, command, of_sensor, publish, refused, waiting
from tests.support.preloaded import TIDETABLE
from tests.support.pubsub import Inbox

NO_TOPIC = "projects/test-project/topics/nowhere"
FOREIGN = Message(b"hello", {"colour": "red"})


@pytest.fixture
def letters(pubsub: str) -> Inbox:
    """The dead-letter topic and its subscription."""
    return Inbox()


@pytest.fixture
def job(pubsub: str) -> Inbox:
    """The job's input."""
    return Inbox(ordered=True)


REPLAYED = {"dead_letter_replays": "1", "dead_letter_publish_time": "2026-02-17T10:30:00Z"}


def replay(letters: Inbox, job: Inbox, *arguments: str, code: int = 0) -> dict:
    result = command("replay", letters, "--topic", job.topic, "--format=json", *arguments)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_a_full_circle(letters: Inbox, job: Inbox) -> None:
    """Refused messages of every kind are listed and arrive as their originals; nothing is left."""
    event = sensor_event("a", T + 1, {"x": 1.5}, {"location": "north"}, "e-1")
    others = [sensor_event("b", T, {"x": 1.0}, {}), sensor_event("b", T + 2, {"x": 2.0}, {})]
    messages = [
        message_of([event])._replace(ordering_key="cellar"),
        Message(json_format.MessageToJson(event).encode(), {ENCODING: "JSON", "site": "x"}),
        Message(b"\xff\x00", {"topic": "weather", "googclient_x": "y"}, ordering_key="attic"),
        message_of(others),
    ]
    publish(letters, [letter for message in messages for letter in refused(message)])
    counts = [json.loads(line)["count"] for line in command("list", letters, "--format=json").stdout.splitlines()]
    assert sum(counts) == 4

    assert replay(letters, job)["replayed"] == 4
    arrived = {message.data: message for message in job.take(4)}
    assert arrived[messages[0].data] == messages[0]._replace(attributes={**messages[0].attributes, **REPLAYED})
    as_json = arrived[messages[1].data]
    assert list(decode(as_json)) == [event]
    assert as_json.attributes == {
        "site": "x",
        "dead_letter_googclient_schemaencoding": "JSON",
        **REPLAYED,
    }
    assert arrived[b"\xff\x00"] == Message(
        b"\xff\x00",
        {"topic": "weather", "dead_letter_googclient_x": "y", **REPLAYED},
        ordering_key="attic",
    )
    assert list(decode(arrived[others[1].SerializeToString(deterministic=True)])) == [others[1]]
    assert waiting(letters, 0) == []


def test_at_most(letters: Inbox, job: Inbox) -> None:
    """A message that is refused repeatedly is replayed --max-replays times, by default three, and then stays."""
    publish(letters, refused(Message(b"\xff", {"site": "x"})))
    for replays in ("1", "2", "3"):
        assert replay(letters, job)["replayed"] == 1
        [message] = job.take(1)
        assert message.attributes == {"site": "x", **REPLAYED, "dead_letter_replays": replays}
        publish(letters, refused(message))
    summary = replay(letters, job)
    assert (summary["replayed"], summary["had_their_replays"]) == (0, 1)
    assert len(waiting(letters, 1)) == 1
    result = command("replay", letters, "--topic", job.topic)
    assert "0 dead letters replayed" in result.stdout
    assert "left on the subscription: 1 already replayed 3 times" in result.stdout
    assert replay(letters, job, "--max-replays", "4")["replayed"] == 1


def test_foreign_messages_stay(letters: Inbox, job: Inbox) -> None:
    """Messages that are not dead letters of Tidetable are counted, reported, and stay."""
    publish(letters, [FOREIGN, of_sensor("a")])
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 0
    assert result.stdout.startswith(
        f"1 dead letter replayed to {job.topic}; left on the subscription: 1 not dead letters of Tidetable; "
    )
    assert [message.data for message in waiting(letters, 1)] == [b"hello"]


def test_filters_and_a_limit(letters: Inbox, job: Inbox) -> None:
    """Messages that are not selected, or beyond the limit, stay."""
    publish(letters, [*(of_sensor("a") for _ in range(3)), of_sensor("b"), of_sensor("a", Reason.UNPARSEABLE)])
    summary = replay(letters, job, "--sensor", "a", "--reason", "NO_READINGS", "--limit", "2")
    assert summary["replayed"] == 2
    assert {event.sensor_id for message in job.take(2) for event in decode(message)} == {"a"}
    assert len(waiting(letters, 3)) == 3
    summary = replay(letters, job, "--sensor", "a")
    assert (summary["replayed"], summary["not_wanted"]) == (2, 1)


def test_what_is_refused_again_is_not_replayed_twice(letters: Inbox, job: Inbox) -> None:
    """A letter that a job refuses again while the command runs stays on the subscription."""
    later = of_sensor("a", when=datetime.now(UTC) + timedelta(minutes=1))
    publish(letters, [of_sensor("b"), later._replace(attributes={**later.attributes, "dead_letter_replays": "1"})])
    summary = replay(letters, job)
    assert (summary["replayed"], summary["refused_again"]) == (1, 1)
    assert len(waiting(letters, 1)) == 1


def test_a_dry_run_changes_nothing(letters: Inbox, job: Inbox) -> None:
    """A dry run reports what would be replayed, by reason and sensor."""
    publish(letters, [of_sensor("a"), of_sensor("a"), of_sensor("b"), FOREIGN])
    assert replay(letters, job, "--dry-run", "--sensor", "a")["replayed"] == 2
    result = command("replay", letters, "--topic", job.topic, "--dry-run")
    assert result.exit_code == 0
    assert ["NO_READINGS", "a", "2"] in [line.split()[:3] for line in result.stdout.splitlines()]
    assert f"3 dead letters would be replayed to {job.topic}; left on the subscription: 1 not dead" in result.stdout
    assert waiting(job, 0) == []
    assert len(waiting(letters, 4)) == 4


def test_many_in_a_few_requests(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands are replayed once each; a request has a single ordering key."""
    requests = []
    send = Publisher.send_batch

    def recorded(publisher: Publisher, messages: list[Message]) -> None:
        requests.append(listed := list(messages))
        send(publisher, listed)

    monkeypatch.setattr(Publisher, "send_batch", recorded)
    publish(letters, [refused(Message(b"%d\xff" % n, {}, ordering_key=f"k-{n % 2}"))[0] for n in range(2500)])
    assert replay(letters, job)["replayed"] == 2500
    assert all(len({message.ordering_key for message in request}) == 1 for request in requests)
    assert len(requests) < 100
    assert len({message.data for message in job.take(2500)}) == 2500


def refusing(monkeypatch: pytest.MonkeyPatch, bad: Callable[[Message], bool], problem: type[ServerError]) -> None:
    """Makes every request with a bad message fail, as if the topic had refused it."""
    send = Publisher.send_batch

    def send_batch(publisher: Publisher, messages: list[Message]) -> None:
        listed = list(messages)
        if any(map(bad, listed)):
            raise problem(f"topic {publisher.topic}: no good")
        send(publisher, listed)

    monkeypatch.setattr(Publisher, "send_batch", send_batch)


def test_a_message_refused_by_the_topic_stays(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other messages of its request are replayed; standard error says why, and the exit code is 1."""
    publish(letters, [of_sensor("a"), of_sensor("bad"), of_sensor("c")])
    refusing(monkeypatch, lambda message: b"bad" in message.data, UnacceptableMessage)
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 1
    assert result.stdout.startswith(
        f"2 dead letters replayed to {job.topic}; left on the subscription: 1 refused by the"
    )
    assert f"refused: topic {job.topic}: no good\n" in result.stderr
    assert len(job.take(2)) == 2
    [left] = waiting(letters, 1)
    assert b"bad" in left.data


def test_a_failing_server_ends_with_counts(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only published messages are acknowledged; the rest stay, and the exit code is 1."""
    publish(letters, [of_sensor(sensor) for sensor in "abcde"])
    sent: list[Message] = []
    refusing(monkeypatch, lambda message: len(sent) >= 2 or sent.append(message) is not None, ServerError)
    result = command("replay", letters, "--topic", job.topic, "--rate", "10", "--format=json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["replayed"] == 2
    assert result.stderr == f"Error: topic {job.topic}: no good\n"
    assert len(job.take(2)) == 2
    assert len(waiting(letters, 3)) == 3


def test_failed_acknowledgements_are_reported(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error warns that a published message may be replayed again."""

    def fail(*_: object) -> None:
        raise ServerError("subscription s: away")

    publish(letters, [of_sensor("a")])
    monkeypatch.setattr(Backlog, "acknowledge", fail)
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 1
    assert result.stdout.startswith("1 dead letter replayed")
    assert "acknowledging failed: 1 dead letter was published and may still be on the subscription\n" in result.stderr
    assert result.stderr.endswith("Error: subscription s: away\n")


def test_messages_that_dataflow_would_drop_are_reported(letters: Inbox, job: Inbox) -> None:
    """A job with --id_attribute drops an id seen in the last ten minutes."""
    message = message_of([sensor_event("a", T, {}, {})])
    publish(letters, [*refused(message, datetime.now(UTC)), *refused(message), *refused(Message(b"\xff", {}))])
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 0
    assert result.stderr.startswith("1 dead letter with an event_id, refused less than ten minutes ago: ")


def test_the_rate_limits_events(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are small, and each waits for all its events."""
    waited = []
    monkeypatch.setattr(Pacer, "wait", lambda pacer, events: waited.append((pacer._rate, events)))
    publish(letters, [of_sensor("a") for _ in range(10)])
    assert replay(letters, job, "--rate", "30")["replayed"] == 10
    assert {rate for rate, _ in waited} == {30}
    assert sum(events for _, events in waited) == 10
    assert max(events for _, events in waited) == 3


def test_the_topic_of_the_dead_letters_is_refused(letters: Inbox) -> None:
    """They would circulate, and lose their reason."""
    publish(letters, [of_sensor("a")])
    result = command("replay", letters, "--topic", letters.topic)
    assert result.exit_code == 2
    assert f"--topic is {letters.topic}, the dead-letter topic itself" in result.stderr
    assert len(waiting(letters, 1)) == 1


def test_an_unknown_topic_is_reported(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that may only receive can replay; standard error asks to check the topic."""

    def refuse(*_: object, **__: object) -> None:
        raise exceptions.PermissionDenied("not for you to see")

    monkeypatch.setattr(SubscriberClient, "get_subscription", refuse)
    publish(letters, [of_sensor("a")])
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"no permission to read {letters.subscription}; make sure that its topic is not ")


def test_a_missing_topic_removes_nothing(letters: Inbox) -> None:
    """The error is one line, with exit code 1."""
    publish(letters, [of_sensor("a")])
    result = command("replay", letters, "--topic", NO_TOPIC)
    assert (result.exit_code, result.output) == (1, f"Error: topic {NO_TOPIC} does not exist\n")
    assert len(waiting(letters, 1)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--topic'"),
        (["--topic", "events"], "write projects/PROJECT/topics/TOPIC"),
        (["--topic", NO_TOPIC, "--max-replays", "0"], "0 is not in the range 1<=x<=1000"),
        (["--topic", NO_TOPIC, "--rate", "0"], "0.0 is not in the range x>0"),
        (["--topic", NO_TOPIC, "--limit", "0"], "0 is not in the range 1<=x<=1000000000"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], message: str) -> None:
    """The exit code is 2."""
    subscription = "projects/test-project/subscriptions/letters"
    result = CliRunner().invoke(main, ["dead-letters", "replay", "--subscription", subscription, *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_interrupt_leaves_the_rest(letters: Inbox, job: Inbox) -> None:
    """Ctrl-C exits with 130: what the summary counts has arrived, and everything else stays."""
    publish(letters, [of_sensor("a") for _ in range(100)])
    process = subprocess.Popen(
        [
            *[*TIDETABLE, "dead-letters", "replay"],
            *["--subscription", letters.subscription, "--topic", job.topic, "--rate", "10", "--format=json"],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    arrived = len(job.take(3))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, b"interrupted after 100 dead letters\n")
    summary = json.loads(stdout)
    assert summary["interrupted"]
    assert arrived + len(job.take(summary["replayed"] - arrived)) == summary["replayed"] < 100
    assert len(waiting(letters, 100 - summary["replayed"])) == 100 - summary["replayed"]
