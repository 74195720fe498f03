"""A dead letter that is replayed is the original message again, and is on the subscription until it is that."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from google.api_core import exceptions
from google.cloud.pubsub_v1 import SubscriberClient
from google.protobuf import json_format

from pipeline.cli.root import main
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.publisher import Pacer, Publisher, UnacceptableMessage
from pipeline.core.events import Reason, decode, sensor_event
from pipeline.core.messages import ENCODING, Message
from pipeline.core.outgoing import message_of
from pipeline.dead_letters.backlog import Backlog
from tests.cloud.pubsub import Inbox
from tests.dead_letters.letters import T, command, of_sensor, publish, refused, waiting

NO_TOPIC = "projects/test-project/topics/nowhere"
FOREIGN = Message(b"hello", {"colour": "red"})


@pytest.fixture
def letters(pubsub: str) -> Inbox:
    """Where dead letters go and wait."""
    return Inbox()


@pytest.fixture
def job(pubsub: str) -> Inbox:
    """What the job reads."""
    return Inbox(ordered=True)


def replay(letters: Inbox, job: Inbox, *arguments: str, code: int = 0) -> dict:
    result = command("replay", letters, "--topic", job.topic, "--json", *arguments)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_a_full_circle(letters: Inbox, job: Inbox) -> None:
    """What was refused, of every kind, is listed, and arrives as what it was; nothing is left."""
    event = sensor_event("a", T + 1, {"x": 1.5}, {"location": "north"}, "e-1")
    others = [sensor_event("b", T, {"x": 1.0}, {}), sensor_event("b", T + 2, {"x": 2.0}, {})]
    messages = [
        message_of([event])._replace(ordering_key="cellar"),
        Message(json_format.MessageToJson(event).encode(), {ENCODING: "JSON", "site": "x"}),
        Message(b"\xff\x00", {"topic": "weather", "googclient_x": "y"}, ordering_key="attic"),
        message_of(others),
    ]
    publish(letters, [letter for message in messages for letter in refused(message)])
    counts = [json.loads(line)["count"] for line in command("list", letters, "--json").stdout.splitlines()]
    assert sum(counts) == 4

    assert replay(letters, job)["replayed"] == 4
    arrived = {message.data: message for message in job.take(4)}
    assert arrived[messages[0].data] == messages[0]._replace(
        attributes={**messages[0].attributes, "dead_letter_replays": "1"}
    )
    as_json = arrived[messages[1].data]
    assert list(decode(as_json)) == [event]
    assert as_json.attributes == {
        "site": "x",
        "dead_letter_googclient_schemaencoding": "JSON",
        "dead_letter_replays": "1",
    }
    assert arrived[b"\xff\x00"] == Message(
        b"\xff\x00",
        {"topic": "weather", "dead_letter_googclient_x": "y", "dead_letter_replays": "1"},
        ordering_key="attic",
    )
    assert list(decode(arrived[others[1].SerializeToString(deterministic=True)])) == [others[1]]
    assert waiting(letters, 0) == []


def test_a_message_is_replayed_so_often_and_no_more(letters: Inbox, job: Inbox) -> None:
    """A message that is refused again and again is replayed three times, or as often as it is said, and then stays."""
    publish(letters, refused(Message(b"\xff", {"site": "x"})))
    for replays in ("1", "2", "3"):
        assert replay(letters, job)["replayed"] == 1
        [message] = job.take(1)
        assert message.attributes == {"site": "x", "dead_letter_replays": replays}
        publish(letters, refused(message))
    summary = replay(letters, job)
    assert (summary["replayed"], summary["had_their_replays"]) == (0, 1)
    assert len(waiting(letters, 1)) == 1
    result = command("replay", letters, "--topic", job.topic)
    assert "0 dead letters replayed" in result.stdout
    assert "left where they are: 1 replayed 3 times already" in result.stdout
    assert replay(letters, job, "--at-most", "4")["replayed"] == 1


def test_others_messages_are_left(letters: Inbox, job: Inbox) -> None:
    """What is no dead letter of ours is counted, told, and stays."""
    publish(letters, [FOREIGN, of_sensor("a")])
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 0
    assert result.stdout.startswith(
        f"1 dead letter replayed to {job.topic}; left where they are: 1 no dead letters of Tidetable's; "
    )
    assert [message.data for message in waiting(letters, 1)] == [b"hello"]


def test_filters_and_a_limit(letters: Inbox, job: Inbox) -> None:
    """What is not wanted stays, and so does what is beyond the limit."""
    publish(letters, [*(of_sensor("a") for _ in range(3)), of_sensor("b"), of_sensor("a", Reason.UNPARSEABLE)])
    summary = replay(letters, job, "--sensor", "a", "--reason", "NO_READINGS", "--limit", "2")
    assert summary["replayed"] == 2
    assert {event.sensor_id for message in job.take(2) for event in decode(message)} == {"a"}
    assert len(waiting(letters, 3)) == 3
    summary = replay(letters, job, "--sensor", "a")
    assert (summary["replayed"], summary["not_wanted"]) == (2, 1)


def test_a_dry_run_changes_nothing(letters: Inbox, job: Inbox) -> None:
    """It says what would be replayed, by reason and sensor."""
    publish(letters, [of_sensor("a"), of_sensor("a"), of_sensor("b"), FOREIGN])
    assert replay(letters, job, "--dry-run", "--sensor", "a")["replayed"] == 2
    result = command("replay", letters, "--topic", job.topic, "--dry-run")
    assert result.exit_code == 0
    assert ["NO_READINGS", "a", "2"] in [line.split()[:3] for line in result.stdout.splitlines()]
    assert f"3 dead letters would be replayed to {job.topic}; left where they are: 1 no dead" in result.stdout
    assert waiting(job, 0) == []
    assert len(waiting(letters, 4)) == 4


def test_many_in_a_few_requests(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands are replayed once each, those of an ordering key in a request of their own."""
    requests = []
    send = Publisher.send_batch

    def counted(publisher: Publisher, messages: list[Message]) -> None:
        requests.append(listed := list(messages))
        send(publisher, listed)

    monkeypatch.setattr(Publisher, "send_batch", counted)
    publish(letters, [refused(Message(b"%d\xff" % n, {}, ordering_key=f"k-{n % 2}"))[0] for n in range(2500)])
    assert replay(letters, job)["replayed"] == 2500
    assert all(len({message.ordering_key for message in request}) == 1 for request in requests)
    assert len(requests) < 100
    assert len({message.data for message in job.take(2500)}) == 2500


def refusing(monkeypatch: pytest.MonkeyPatch, bad: Callable[[Message], bool], problem: type[ServerProblem]) -> None:
    """Makes every request fail that has a bad message in it, as if the topic had refused it."""
    send = Publisher.send_batch

    def send_batch(publisher: Publisher, messages: list[Message]) -> None:
        listed = list(messages)
        if any(map(bad, listed)):
            raise problem(f"topic {publisher.topic}: no good")
        send(publisher, listed)

    monkeypatch.setattr(Publisher, "send_batch", send_batch)


def test_a_message_that_the_topic_refuses_stays_alone(
    letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its request are replayed all the same; it is told why, and the exit code is 1."""
    publish(letters, [of_sensor("a"), of_sensor("bad"), of_sensor("c")])
    refusing(monkeypatch, lambda message: b"bad" in message.data, UnacceptableMessage)
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"2 dead letters replayed to {job.topic}; left where they are: 1 refused by the")
    assert f"refused: topic {job.topic}: no good\n" in result.stderr
    assert len(job.take(2)) == 2
    [left] = waiting(letters, 1)
    assert b"bad" in left.data


def test_a_server_that_fails_ends_it_with_counts(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was published is acknowledged: the rest is still there, and the exit code is 1."""
    publish(letters, [of_sensor(sensor) for sensor in "abcde"])
    sent: list[Message] = []
    refusing(monkeypatch, lambda message: len(sent) >= 2 or sent.append(message) is not None, ServerProblem)
    result = command("replay", letters, "--topic", job.topic, "--rate", "10", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["replayed"] == 2
    assert result.stderr == f"Error: topic {job.topic}: no good\n"
    assert len(job.take(2)) == 2
    assert len(waiting(letters, 3)) == 3


def test_what_could_not_be_acknowledged_is_told(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was published and would be again: that is for a person to know."""

    def fail(*_: object) -> None:
        raise ServerProblem("subscription s: away")

    publish(letters, [of_sensor("a")])
    monkeypatch.setattr(Backlog, "acknowledge", fail)
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 1
    assert result.stdout.startswith("1 dead letter replayed")
    assert "1 dead letter was published and may still be on the subscription: acknowledging failed\n" in result.stderr
    assert result.stderr.endswith("Error: subscription s: away\n")


def test_what_dataflow_would_drop_is_told(letters: Inbox, job: Inbox) -> None:
    """An id that was seen in the last ten minutes is a duplicate to a job that removes them."""
    message = message_of([sensor_event("a", T, {}, {})])
    publish(letters, [*refused(message, datetime.now(UTC)), *refused(message), *refused(Message(b"\xff", {}))])
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 0
    assert result.stderr.startswith("1 dead letter with an event_id, refused less than ten minutes ago: ")


def test_the_rate_is_held(letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event waits its turn, a few in a request."""
    waited = []
    monkeypatch.setattr(Pacer, "wait", lambda pacer, events: waited.append((pacer._rate, events)))
    publish(letters, [of_sensor("a") for _ in range(10)])
    assert replay(letters, job, "--rate", "30")["replayed"] == 10
    assert {rate for rate, _ in waited} == {30}
    assert sum(events for _, events in waited) == 10
    assert max(events for _, events in waited) == 3


def test_the_topic_of_the_dead_letters_is_refused(letters: Inbox) -> None:
    """They would go in a circle, and lose the reason on the way."""
    publish(letters, [of_sensor("a")])
    result = command("replay", letters, "--topic", letters.topic)
    assert result.exit_code == 2
    assert f"{letters.topic} is where these dead letters come from" in result.stderr
    assert len(waiting(letters, 1)) == 1


def test_where_the_topic_cannot_be_known_it_is_told(
    letters: Inbox, job: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account that may only receive can replay; a person has to know where the dead letters come from."""

    def refuse(*_: object, **__: object) -> None:
        raise exceptions.PermissionDenied("not for you to see")

    monkeypatch.setattr(SubscriberClient, "get_subscription", refuse)
    publish(letters, [of_sensor("a")])
    result = command("replay", letters, "--topic", job.topic)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"{letters.subscription}: may not be looked at; make sure that its topic is not ")


def test_a_topic_that_is_not_there_takes_nothing_away(letters: Inbox) -> None:
    """One line, and exit code 1."""
    publish(letters, [of_sensor("a")])
    result = command("replay", letters, "--topic", NO_TOPIC)
    assert (result.exit_code, result.output) == (1, f"Error: topic {NO_TOPIC} does not exist\n")
    assert len(waiting(letters, 1)) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing option '--topic'"),
        (["--topic", "events"], "write projects/PROJECT/topics/TOPIC"),
        (["--topic", NO_TOPIC, "--at-most", "0"], "0 is not in the range x>=1"),
        (["--topic", NO_TOPIC, "--rate", "0"], "0.0 is not in the range x>0"),
        (["--topic", NO_TOPIC, "--limit", "0"], "0 is not in the range x>=1"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], says: str) -> None:
    """Exit code 2 says that nothing was tried."""
    subscription = "projects/test-project/subscriptions/s"
    result = CliRunner().invoke(main, ["dead-letters", "replay", "--subscription", subscription, *arguments])
    assert result.exit_code == 2
    assert says in result.stderr


def test_an_interrupt_leaves_the_rest(letters: Inbox, job: Inbox) -> None:
    """Ctrl-C ends it with 130: what the summary counts has arrived, and everything else is still there."""
    publish(letters, [of_sensor("a") for _ in range(100)])
    process = subprocess.Popen(
        [
            *[sys.executable, "-c", "from pipeline.cli.root import main; main()", "dead-letters", "replay"],
            *["--subscription", letters.subscription, "--topic", job.topic, "--rate", "10", "--json"],
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
