"""What waits on a Pub/Sub subscription, looked at without taking it away."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from google.api_core import exceptions

from pipeline.cloud.errors import explained
from pipeline.cloud.names import subscription_path
from pipeline.cloud.subscriber import subscriber_client
from pipeline.core.messages import Message

LEASE_SECONDS = 60

_EXTEND_EVERY_SECONDS = 20.0
_REQUEST_SECONDS = 10.0
_MOST_IN_REQUEST = 1000  # messages of a pull; ids of the other requests, which may have 512 KB of them
_IDLE_SECONDS = 0.1


class Backlog:
    """The messages that wait on a subscription, each of them once.

    ``with Backlog(subscription) as backlog:`` and then :meth:`pages`. What was pulled is leased until the block is
    left, so that it does not come again, and given back then; a thread extends the leases. What could not be given
    back, and what a KeyboardInterrupt leaves, comes back by itself when its lease of a minute ends.

    To Pub/Sub, a message given back is a delivery that failed: it counts for a dead-letter policy of the subscription,
    and a retry policy holds the message back for a while.

    Attributes:
        topic: the subscription's, as a full path; empty where this account may not look.
        most_attempts: how many deliveries the subscription's own dead-letter policy allows; 0 without one.
        acknowledged: messages that were taken off it.
        backoff_seconds: the shortest and the longest time for which its retry policy holds back what was given back.
    """

    def __init__(self, subscription: str) -> None:
        """Connects, and makes sure that the subscription is there as far as this account may see.

        Args:
            subscription: its full path, ``projects/PROJECT/subscriptions/SUBSCRIPTION``.

        Raises:
            ValueError: it is no such path.
            ServerProblem: there is no such subscription, or no server to ask.
        """
        self._subscription = subscription_path(subscription)
        self.topic = ""
        self.most_attempts = 0
        self.acknowledged = 0
        self.backoff_seconds: tuple[float, float] | None = None
        self._leases: dict[str, str] = {}  # the latest ack id of each message held, by the message's id
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._extender = threading.Thread(target=self._extend_leases, daemon=True)
        with self._explained():
            self._client = subscriber_client()
            # Accounts that may only receive may not look.
            with suppress(exceptions.PermissionDenied):
                self._describe(
                    self._client.get_subscription(subscription=subscription, retry=None, timeout=_REQUEST_SECONDS)
                )

    def __enter__(self) -> Self:
        self._extender.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leaving.set()
        if kind is KeyboardInterrupt:  # who interrupts does not want to wait
            return
        self._extender.join()
        with suppress(exceptions.GoogleAPIError):
            self._set_deadline(list(self._leases.values()), 0)
        self._client.close()

    def pages(
        self, most: int, *, first: int, wait_seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[list[Message]]:
        """The messages as they are pulled, some at a time.

        Ends when ``most`` were pulled, when nothing new came for some seconds, or when it is to stop. Pub/Sub hands out
        a backlog piece by piece and does not tell its end: a moment without anything may be one before the next piece.

        Args:
            most: messages in all.
            first: messages in the first page; then twice as many in each, so that little is leased for nothing.
            wait_seconds: how long nothing new is taken for the end.
            stopped: asked between pulls.

        Raises:
            ServerProblem: a pull failed.
        """
        size = first
        last_new = time.monotonic()
        while (left := most - len(self._seen)) > 0 and not stopped():
            if messages := self._pull(min(size, left, _MOST_IN_REQUEST)):
                yield messages
                size *= 2
                last_new = time.monotonic()
            elif time.monotonic() - last_new >= wait_seconds:
                return
            else:
                time.sleep(_IDLE_SECONDS)

    def acknowledge(self, messages: Iterable[Message]) -> None:
        """Takes these messages off the subscription.

        Raises:
            ServerProblem: not all of them are known to be off it.
        """
        ids = [message.message_id for message in messages]
        with self._explained():
            for some in _parts(ids):
                self._acknowledge([self._leases[message_id] for message_id in some])
                with self._lock:
                    for message_id in some:
                        del self._leases[message_id]
                self.acknowledged += len(some)

    def _pull(self, most: int) -> list[Message]:
        """What is new among what waits; leased for a minute, like what is not new."""
        with self._explained():
            # Breaking off a pull that waits leaves what it would have brought leased to nobody.
            received = self._client.pull(
                subscription=self._subscription, max_messages=most, return_immediately=True
            ).received_messages
            if not received:
                return []
            gone = [each.ack_id for each in received if self._is_gone(each.message.message_id)]
            kept = [each for each in received if not self._is_gone(each.message.message_id)]
            if gone:
                self._acknowledge(gone)
            self._set_deadline([each.ack_id for each in kept], LEASE_SECONDS)
        with self._lock:
            self._leases |= {each.message.message_id: each.ack_id for each in kept}
        new = {each.message.message_id: each.message for each in kept if each.message.message_id not in self._seen}
        self._seen |= new.keys()
        return [_plain(message) for message in new.values()]

    def _is_gone(self, message_id: str) -> bool:
        """Whether this was acknowledged, and Pub/Sub delivers it once more all the same."""
        return message_id in self._seen and message_id not in self._leases

    def _extend_leases(self) -> None:
        while not self._leaving.wait(_EXTEND_EVERY_SECONDS):
            with self._lock:
                ack_ids = list(self._leases.values())
            # A lease that is lost means that the message comes again, and is known.
            with suppress(exceptions.GoogleAPIError):
                self._set_deadline(ack_ids, LEASE_SECONDS)

    def _set_deadline(self, ack_ids: Sequence[str], seconds: int) -> None:
        for some in _parts(ack_ids):
            self._client.modify_ack_deadline(
                subscription=self._subscription,
                ack_ids=some,
                ack_deadline_seconds=seconds,
                timeout=_REQUEST_SECONDS,
            )

    def _acknowledge(self, ack_ids: list[str]) -> None:
        self._client.acknowledge(subscription=self._subscription, ack_ids=ack_ids)

    def _describe(self, subscription: Any) -> None:
        self.topic = subscription.topic
        self.most_attempts = subscription.dead_letter_policy.max_delivery_attempts
        if subscription.retry_policy:
            backoff = subscription.retry_policy
            self.backoff_seconds = (backoff.minimum_backoff.total_seconds(), backoff.maximum_backoff.total_seconds())

    def _explained(self) -> Any:
        return explained(f"subscription {self._subscription}")


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _MOST_IN_REQUEST] for start in range(0, len(ids), _MOST_IN_REQUEST))


def _plain(message: Any) -> Message:
    return Message(
        message.data, dict(message.attributes), message.message_id, message.publish_time, message.ordering_key
    )
