import math
import threading
import time
from collections.abc import Iterable, Iterator

import grpc
import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.pubsub import publisher
from pipeline.cloud.pubsub.publisher import Pacer, Publisher, UnacceptableMessage
from pipeline.core.events import dead_letter as dead_letters
from pipeline.core.events.message import Message
from tests.support.pubsub import Inbox, Server, serving


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as (server, address):
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield server


TOPIC = "projects/test-project/topics/unseen"


def texts(count: int) -> list[Message]:
    return [Message(str(n).encode(), {}) for n in range(count)]


def publish(topic: str, messages: Iterable[Message]) -> Publisher:
    with Publisher(topic) as publisher:
        for message in messages:
            publisher.send(message)
    return publisher


def test_what_is_sent_arrives(inbox: Inbox) -> None:
    """The end of the block waits until payload and attributes of every message are stored."""
    messages = [
        Message(b"\x00\xff", {"message_type": "tidetable.v1.SensorEvent", "event_time": "2026-02-17T08:00:00Z"}),
        Message(b"", {"küche": "\N{SNOWMAN}", "message_id": "7", "timestamp": "8"}),
    ]
    publisher = publish(inbox.topic, messages)
    assert (publisher.sent, publisher.confirmed) == (2, 2)
    assert sorted(inbox.take(2)) == sorted(messages)


def test_more_than_a_request_takes_arrives_once(inbox: Inbox) -> None:
    """Thousands of messages take several requests, and none arrives twice."""
    assert publish(inbox.topic, texts(2500)).confirmed == 2500
    assert sorted(int(message.data) for message in inbox.take(2500)) == list(range(2500))


def test_messages_with_an_ordering_key_keep_key_and_order(pubsub: str) -> None:
    """Messages with one key arrive in the order of sending, between others without a key."""
    inbox = Inbox(ordered=True)
    messages = [Message(str(n).encode(), {}, ordering_key="cellar" if n % 3 else "") for n in range(1500)]
    assert publish(inbox.topic, messages).confirmed == 1500
    ordered = [int(message.data) for message in inbox.take(1500) if message.ordering_key == "cellar"]
    assert ordered == [n for n in range(1500) if n % 3]


def test_confirm_waits_in_the_middle(inbox: Inbox) -> None:
    """A publisher can wait for confirmations and go on."""
    with Publisher(inbox.topic) as publisher:
        publisher.send(Message(b"1", {}))
        publisher.confirm()
        assert publisher.confirmed == 1
        publisher.send(Message(b"2", {}))
    assert publisher.confirmed == 2


def test_an_error_in_the_block_loses_no_message(inbox: Inbox) -> None:
    """Messages sent before the error are stored, and the error is raised."""

    def messages() -> Iterator[Message]:
        yield Message(b"1", {})
        raise KeyError

    with pytest.raises(KeyError):
        publish(inbox.topic, messages())
    assert [message.data for message in inbox.take(1)] == [b"1"]


def test_a_failure_counts_the_confirmed_messages(inbox: Inbox) -> None:
    """If the topic disappears, the error has the number of messages stored before."""
    publisher = publish(inbox.topic, texts(3))
    inbox.delete_topic()
    for message in texts(2):
        publisher.send(message)
    with pytest.raises(ServerError) as raised:
        publisher.confirm()
    assert str(raised.value) == f"topic {inbox.topic} does not exist; 3 of 5 messages are confirmed"


def test_sending_stops_after_a_failure(inbox: Inbox) -> None:
    """A publisher that keeps sending to a deleted topic gets the error before its end."""
    deadline = time.monotonic() + 30

    def messages() -> Iterator[Message]:
        inbox.delete_topic()
        while time.monotonic() < deadline:
            yield Message(b"", {})

    with pytest.raises(ServerError, match="does not exist; 0 of "):
        publish(inbox.topic, messages())
    assert time.monotonic() < deadline


@pytest.mark.parametrize("name", ["data", "topic", "ordering_key", "retry", "timeout", "self"])
def test_an_attribute_named_like_a_parameter_is_refused(inbox: Inbox, name: str) -> None:
    """Attributes are keyword arguments of the client: one named like a parameter is an error."""
    with Publisher(inbox.topic) as publisher:
        with pytest.raises(ValueError, match=f"cannot publish attributes with these names: {name}$"):
            publisher.send(Message(b"", {name: "1", "event_id": "2"}))
        publisher.send(Message(b"good", {}))
    assert [message.data for message in inbox.take(1)] == [b"good"]
    assert publisher.sent == 1


def test_a_message_beyond_ten_megabytes_is_refused(inbox: Inbox) -> None:
    """It is an error, and costs no other message."""
    with Publisher(inbox.topic) as publisher:
        publisher.send(Message(b"x" * 9_900_000, {}))
        with pytest.raises(ValueError, match="maximum allowed size"):
            publisher.send(Message(b"x" * 10_000_000, {}))
    assert [len(message.data) for message in inbox.take(1)] == [9_900_000]


def test_a_batch_publishes_every_attribute(pubsub: str) -> None:
    """A batch may have attributes of any name and an ordering key; it returns when all messages are stored."""
    inbox = Inbox(ordered=True)
    names = {"data": "1", "topic": "2", "ordering_key": "3", "retry": "4", "timeout": "5", "self": "6"}
    messages = [Message(b"a", names, ordering_key="cellar"), Message(b"b", {"x": "y"}, ordering_key="cellar")]
    with Publisher(inbox.topic) as publisher:
        publisher.send_batch(messages)
        assert inbox.take(2) == messages


def test_a_batch_with_a_bad_message(inbox: Inbox) -> None:
    """The error for a bad message differs from that for a server."""
    with Publisher(inbox.topic) as publisher:
        with pytest.raises(UnacceptableMessage, match=f"^topic {inbox.topic}: "):
            publisher.send_batch([Message(b"good", {}), Message(b"", {})])
        publisher.send_batch([Message(b"good", {})])
        assert [message.data for message in inbox.take(1)] == [b"good"]
        inbox.delete_topic()
        with pytest.raises(ServerError, match=r"does not exist$") as raised:
            publisher.send_batch([Message(b"late", {})])
    assert not isinstance(raised.value, UnacceptableMessage)


def test_an_account_that_may_only_publish_publishes(server: Server) -> None:
    """Publishing works without the permission to read the topic."""
    publisher = publish(TOPIC, texts(1))
    assert (server.received, publisher.confirmed) == (1, 1)


def test_a_transient_failure_is_retried(server: Server) -> None:
    """A server that is away for a moment costs no message and raises nothing."""
    failures = iter([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
    server.on_publish = lambda context: context.abort(code, "later") if (code := next(failures, None)) else None
    publisher = publish(TOPIC, texts(1))
    assert (server.received, publisher.confirmed) == (3, 1)


def test_a_refusal_is_not_retried(server: Server) -> None:
    """The error of the first attempt is raised."""
    server.on_publish = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "not from you")
    with pytest.raises(ServerError) as raised:
        publish(TOPIC, texts(1))
    assert str(raised.value) == (f"topic {TOPIC}: permission denied: not from you; 0 of 1 messages are confirmed")
    assert server.received == 1


@pytest.mark.parametrize("ordering_key", ["", "cellar"])
def test_a_server_that_never_responds(server: Server, monkeypatch: pytest.MonkeyPatch, ordering_key: str) -> None:
    """The publisher gives up, with ordering keys too, and reports how many messages are confirmed."""
    end = threading.Event()
    server.on_publish = lambda _: end.wait(30) and None
    monkeypatch.setattr("pipeline.cloud.pubsub.publisher._PATIENCE_SECONDS", 0.5)
    messages = [message._replace(ordering_key=ordering_key) for message in texts(3)]
    with pytest.raises(ServerError, match=r"no response for .*; 0 of 3 messages are confirmed$"):
        publish(TOPIC, messages)
    end.set()


@pytest.mark.parametrize(("size", "most"), [(0, 10_000), (1_000_000, 17)])
def test_unconfirmed_messages_are_bounded(server: Server, size: int, most: int) -> None:
    """A sender faster than the server waits at ten thousand messages, or at the first message past 16 MB."""
    may_answer = threading.Event()
    server.on_publish = lambda _: may_answer.wait(30) and None
    message = Message(b"x" * size, {})

    with Publisher(TOPIC) as publisher:

        def send() -> None:
            for _ in range(2 * most):
                publisher.send(message)

        sender = threading.Thread(target=send)
        sender.start()
        deadline = time.monotonic() + 30
        while publisher.sent < most and time.monotonic() < deadline:
            sender.join(timeout=0.01)
        sender.join(timeout=0.3)  # it would be through by then, if it did not wait
        assert publisher.sent == most
        may_answer.set()
        sender.join()
    assert publisher.confirmed == server.received == 2 * most


class Clock:
    """A clock that only ``sleep`` advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("rate", "batch"), [(10, 1), (10, 5), (0.5, 1), (50_000, 100)])
def test_a_pacer_holds_the_rate(rate: float, batch: int) -> None:
    """The first events are due at once, the others at the rate, however many a message has."""
    clock = Clock()
    pacer = Pacer(rate, clock=clock, sleep=clock.sleep)
    for _ in range(21):
        pacer.wait(batch)
    assert clock.now - 1000 == pytest.approx(20 * batch / rate)


def test_a_pacer_catches_up_a_second_and_no_more() -> None:
    """A long delay causes no burst of all events that were due."""
    clock = Clock()
    pacer = Pacer(10, clock=clock, sleep=clock.sleep)
    pacer.wait(1)
    clock.now += 60
    for _ in range(11):
        pacer.wait(1)
    assert clock.now == pytest.approx(1060)
    pacer.wait(1)
    assert clock.now == pytest.approx(1060.1)


def test_a_pacer_without_a_rate_never_waits() -> None:
    """An infinite rate is no limit."""
    clock = Clock()
    pacer = Pacer(math.inf, clock=clock, sleep=clock.sleep)
    for _ in range(1000):
        pacer.wait(10_000)
    assert clock.now == 1000


def test_a_pacer_stops_on_request() -> None:
    """A stop ends even a long wait within a moment."""
    clock = Clock()
    pacer = Pacer(0.001, lambda: clock.now >= 1003, clock=clock, sleep=clock.sleep)
    pacer.wait(1)
    pacer.wait(1)
    assert clock.now == pytest.approx(1003, abs=0.2)


def test_dead_letters_avoid_the_same_names() -> None:
    """Dead letters rename exactly the attributes that Google's client would take for parameters."""
    assert dead_letters._PUBLISH_ARGUMENTS == publisher._UNPUBLISHABLE_ATTRIBUTES
