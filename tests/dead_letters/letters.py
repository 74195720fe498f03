"""Creates dead letters for the tests of ``tidetable dead-letters``, as the pipeline does."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import count

from click.testing import CliRunner, Result

from pipeline.cli.root import main
from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.core.events.dead_letter import dead_letter, event_alone
from pipeline.core.events.event import validate
from pipeline.core.events.message import Message, decode, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
from tests.support.pubsub import Inbox

NOW = datetime(2026, 2, 17, 10, 30, tzinfo=UTC)
T = parse_time("2026-02-17T10:00:00Z")

_ids = count(1)


def command(name: str, inbox: Inbox, *arguments: str) -> Result:
    """Runs ``tidetable dead-letters NAME`` on the inbox's subscription."""
    return CliRunner().invoke(
        main, ["dead-letters", name, *arguments, "--subscription", inbox.subscription, "--wait", "1s"]
    )


def refused(message: Message, when: datetime = NOW) -> list[Message]:
    """Returns the dead letters that a message becomes."""
    message = message._replace(message_id=message.message_id or str(next(_ids)), publish_time=NOW)
    try:
        events = decode(message)
    except BadData as problem:
        return [dead_letter(message, problem, "DecodeMessages", when)]
    letters = []
    for index, event in enumerate(events):
        try:
            validate(event, T)
        except BadData as problem:
            letters.append(dead_letter(event_alone(message, index, event), problem, "DecodeMessages", when))
    return letters


def of_sensor(sensor: str, reason: Reason = Reason.NO_READINGS, when: datetime = NOW) -> Message:
    """Returns a dead letter whose event can be decoded."""
    event = sensor_event(sensor, T, {}, {"location": "north"})
    message = Message(event.SerializeToString(), {"site": "x"}, str(next(_ids)), NOW)
    return dead_letter(message, BadData(reason, f"no good: {sensor}"), "DecodeMessages", when)


def publish(inbox: Inbox, messages: Iterable[Message]) -> None:
    """Publishes to the inbox's topic."""
    with Publisher(inbox.topic) as publisher:
        for message in messages:
            publisher.send(message)


def waiting(inbox: Inbox, expected: int) -> Sequence[Message]:
    """Returns the messages that wait on the inbox's subscription without removing them.

    Waits another second after the expected number.
    """
    with Backlog(inbox.subscription) as backlog:
        found: list[Message] = []
        for page in backlog.pages(expected + 1, first=1000, wait_seconds=1):
            found += page
    return found
