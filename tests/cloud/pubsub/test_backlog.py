import time
from collections.abc import Callable

import pytest

from pipeline.cloud.pubsub import backlog
from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.events.message import Message
from tests.support.pubsub import Inbox
from tests.support.waiting import eventually


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    return Inbox()


def publish(inbox: Inbox, count: int) -> None:
    with Publisher(inbox.topic) as publisher:
        for n in range(count):
            publisher.send(Message(str(n).encode(), {"n": str(n)}))


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.data) for message in messages)


def pull_all(inbox: Inbox, limit: int = 10_000, first: int = 1000, wait: float = 0.5) -> list[Message]:
    """Returns all waiting messages and gives them back at once."""
    with Backlog(inbox.subscription) as one:
        return [message for page in one.pages(limit, first=first, wait_seconds=wait) for message in page]


def test_every_message_once_and_all_are_given_back(inbox: Inbox) -> None:
    """Reading removes nothing: the next read finds the same messages at once."""
    publish(inbox, 2500)
    first = pull_all(inbox)
    assert numbers(first) == list(range(2500))
    assert {message.attributes["n"] for message in first} == {str(n) for n in range(2500)}
    assert all(message.message_id and message.publish_time for message in first)
    assert {message.message_id for message in pull_all(inbox)} == {message.message_id for message in first}


def test_acknowledged_messages_are_removed(inbox: Inbox) -> None:
    """Only acknowledged messages leave the subscription."""
    publish(inbox, 10)
    with Backlog(inbox.subscription) as one:
        [page] = one.pages(10, first=10, wait_seconds=5)
        one.acknowledge(message for message in page if int(message.data) < 4)
        assert one.acknowledged == 4
    assert numbers(pull_all(inbox)) == [4, 5, 6, 7, 8, 9]


def test_forgotten_messages_come_again(inbox: Inbox) -> None:
    """A message that is forgotten leaves its lease, and is new when it comes again."""
    publish(inbox, 2)
    with Backlog(inbox.subscription) as one:
        (_,) = one.pages(1, first=1, wait_seconds=5)
        (page,) = one.pages(2, first=1, wait_seconds=5)
        one.forget(page[0], 0)
        (again,) = one.pages(2, first=1, wait_seconds=5)
        assert again[0].message_id == page[0].message_id
        one.acknowledge(again)
        one.forget(again[0], 0)
    assert len(pull_all(inbox)) == 1


def test_page_sizes(inbox: Inbox) -> None:
    """The limit is exact. Pages start small and grow, so that few messages are leased needlessly."""
    publish(inbox, 100)
    with Backlog(inbox.subscription) as one:
        sizes = [len(page) for page in one.pages(50, first=8, wait_seconds=5)]
        assert sum(sizes) == 50
        assert sizes[0] <= 8
        assert len(pull_all(inbox)) == 50


def test_a_pause_is_the_end(inbox: Inbox) -> None:
    """The wait is counted from the last new message."""
    started = time.monotonic()
    assert pull_all(inbox, wait=0.4) == []
    assert time.monotonic() - started >= 0.4
    with Backlog(inbox.subscription) as one:
        pages = one.pages(1000, first=1000, wait_seconds=20)
        publish(inbox, 1)
        assert numbers(next(pages)) == [0]
        publish(inbox, 1)
        assert numbers(next(pages)) == [0]


def test_stopping(inbox: Inbox) -> None:
    """Stops between pulls and while waiting."""
    publish(inbox, 3)
    came: list[Message] = []
    with Backlog(inbox.subscription) as one:
        pages = one.pages(1000, first=1000, wait_seconds=60, stopped=lambda: bool(came))
        came += next(pages)
        assert list(pages) == []


def leased(inbox: Inbox) -> Callable[[], bool]:
    """Returns a function that tells whether another subscriber receives nothing."""
    client = subscriber_client()
    return lambda: (
        not client.pull(subscription=inbox.subscription, max_messages=10, return_immediately=True).received_messages
    )


def test_leases_are_held_until_the_end(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other subscriber receives a message while the backlog is open."""
    monkeypatch.setattr(backlog, "LEASE_SECONDS", 2)
    monkeypatch.setattr(backlog, "_EXTEND_EVERY_SECONDS", 0.3)
    publish(inbox, 3)
    is_leased = leased(inbox)
    with Backlog(inbox.subscription) as one:
        assert len(next(one.pages(3, first=3, wait_seconds=5))) == 3
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            assert is_leased()
            time.sleep(0.1)
    eventually(lambda: not is_leased())


def test_a_redelivered_message_counts_once(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose lease was lost is recognised, and acknowledged by its new lease."""
    monkeypatch.setattr(backlog, "LEASE_SECONDS", 1)
    publish(inbox, 3)
    with Backlog(inbox.subscription) as one:
        messages = [message for page in one.pages(1000, first=3, wait_seconds=2) for message in page]
        assert numbers(messages) == [0, 1, 2]
        monkeypatch.setattr(backlog, "LEASE_SECONDS", 60)
        one.acknowledge(messages)
    assert pull_all(inbox) == []


def test_a_redelivered_message_is_acknowledged_again(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pub/Sub may redeliver an acknowledged message; it is not a new one."""
    publish(inbox, 3)
    with Backlog(inbox.subscription) as one:
        with monkeypatch.context() as lost:
            lost.setattr(one, "_acknowledge", lambda ack_ids: None)
            [page] = one.pages(3, first=3, wait_seconds=5)
            ack_ids = list(one._leases.values())
            one.acknowledge(page)
        one._set_deadline(ack_ids, 0)
        assert list(one.pages(1000, first=10, wait_seconds=2)) == []
    assert pull_all(inbox) == []


def test_an_interrupt_does_not_wait(inbox: Inbox) -> None:
    """An interrupt does not wait for the server: the leases expire by themselves."""
    publish(inbox, 1)
    is_leased = leased(inbox)

    def interrupted() -> None:
        with Backlog(inbox.subscription) as one:
            next(one.pages(1, first=1, wait_seconds=5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_leased()
