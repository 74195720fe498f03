"""Reads the backlog of a Pub/Sub subscription without removing messages."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from google.api_core import exceptions

from pipeline.cloud.connection.emulators import PUBSUB, check_emulator
from pipeline.cloud.connection.errors import explained
from pipeline.cloud.connection.names import subscription_path
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.events.message import Message

LEASE_SECONDS = 60

_EXTEND_EVERY_SECONDS = 20.0
_REQUEST_SECONDS = 10.0
_MAX_IN_REQUEST = 1000  # messages in a pull, or ids in the other requests, which are limited to 512 KB
_IDLE_SECONDS = 0.1


class Backlog:
    """Pulls the messages that wait on a subscription, each once.

    Use it as ``with Backlog(subscription) as backlog:`` and iterate over :meth:`pages`. Pulled messages stay leased
    until the block ends, and a thread extends the leases. At the end, messages that were not acknowledged are
    returned. If that fails, or after a KeyboardInterrupt, they are redelivered when their one-minute lease expires.

    To Pub/Sub, a returned message is a failed delivery: it counts towards a dead-letter policy of the subscription,
    and a retry policy delays its redelivery.

    Attributes:
        topic: the full path of the subscription's topic; empty if this account may not read the subscription.
        max_attempts: the deliveries that the subscription's own dead-letter policy allows; 0 if it has none.
        acknowledged: the number of messages acknowledged so far.
        backoff_seconds: the shortest and longest delay of the subscription's retry policy; None if it has none.
    """

    def __init__(self, subscription: str) -> None:
        """Connects, and checks that the subscription exists if this account may read it.

        Args:
            subscription: the full path, ``projects/PROJECT/subscriptions/SUBSCRIPTION``.

        Raises:
            ValueError: the path is malformed.
            ServerError: the subscription does not exist, or the server is unavailable.
        """
        self._subscription = subscription_path(subscription)
        self.topic = ""
        self.max_attempts = 0
        self.acknowledged = 0
        self.backoff_seconds: tuple[float, float] | None = None
        self._leases: dict[str, str] = {}  # the latest ack id of each leased message, by message id
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._extender = threading.Thread(target=self._extend_leases, daemon=True)
        check_emulator(PUBSUB)
        with self._explained():
            self._client = subscriber_client()
            # An account may be allowed to receive messages but not to read the subscription.
            with suppress(exceptions.PermissionDenied):
                self._describe(
                    self._client.get_subscription(subscription=subscription, retry=None, timeout=_REQUEST_SECONDS)
                )

    def __enter__(self) -> Self:
        self._extender.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leaving.set()
        if kind is KeyboardInterrupt:  # exit at once
            return
        self._extender.join()
        with suppress(exceptions.GoogleAPIError):
            self._set_deadline(list(self._leases.values()), 0)
        self._client.close()

    def pages(
        self, limit: int, *, first: int, wait_seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[list[Message]]:
        """Yields the messages in pages, as they are pulled.

        Ends after ``limit`` messages, after ``wait_seconds`` without a new message, or when ``stopped`` returns True.
        Pub/Sub delivers a backlog in pieces and never reports its end, so a pause may precede another piece.

        Args:
            limit: the total number of messages.
            first: the size of the first page. Each page is twice as large as the one before: few messages are leased
                needlessly.
            wait_seconds: the length of a pause that counts as the end.
            stopped: a function, called between pulls, that ends the reading by returning True.

        Raises:
            ServerError: a pull failed.
        """
        size = first
        last_new = time.monotonic()
        while (left := limit - len(self._seen)) > 0 and not stopped():
            if messages := self._pull(min(size, left, _MAX_IN_REQUEST)):
                yield messages
                size *= 2
                last_new = time.monotonic()
            elif time.monotonic() - last_new >= wait_seconds:
                return
            else:
                time.sleep(_IDLE_SECONDS)

    def acknowledge(self, messages: Iterable[Message]) -> None:
        """Acknowledges these messages, which removes them from the subscription.

        Raises:
            ServerError: some may still be on the subscription.
        """
        ids = [message.message_id for message in messages]
        with self._explained():
            for chunk in _chunks(ids):
                self._acknowledge([self._leases[message_id] for message_id in chunk])
                with self._lock:
                    for message_id in chunk:
                        del self._leases[message_id]
                self.acknowledged += len(chunk)

    def forget(self, message: Message, seconds: int) -> None:
        """Counts a message as new when it comes again. If it was not acknowledged, it does, after the seconds.

        Raises:
            ServerError: it may come later.
        """
        self._seen.discard(message.message_id)
        with self._lock:
            lease = self._leases.pop(message.message_id, None)
        if lease:
            with self._explained():
                self._set_deadline([lease], seconds)

    def _pull(self, limit: int) -> list[Message]:
        """Pulls once and returns the new messages. Leases all pulled messages for a minute."""
        with self._explained():
            # Returns immediately: an interrupted pull that waits could still lease messages that nobody receives.
            received = self._client.pull(
                subscription=self._subscription, max_messages=limit, return_immediately=True
            ).received_messages
            if not received:
                return []
            stale = [each.ack_id for each in received if self._was_acknowledged(each.message.message_id)]
            kept = [each for each in received if not self._was_acknowledged(each.message.message_id)]
            if stale:
                self._acknowledge(stale)
            self._set_deadline([each.ack_id for each in kept], LEASE_SECONDS)
        with self._lock:
            self._leases |= {each.message.message_id: each.ack_id for each in kept}
        new = {each.message.message_id: each.message for each in kept if each.message.message_id not in self._seen}
        self._seen |= new.keys()
        return [message_of(message) for message in new.values()]

    def _was_acknowledged(self, message_id: str) -> bool:
        """Returns whether a redelivered message was acknowledged before."""
        return message_id in self._seen and message_id not in self._leases

    def _extend_leases(self) -> None:
        while not self._leaving.wait(_EXTEND_EVERY_SECONDS):
            with self._lock:
                ack_ids = list(self._leases.values())
            # A message whose lease is lost is redelivered, and recognised.
            with suppress(exceptions.GoogleAPIError):
                self._set_deadline(ack_ids, LEASE_SECONDS)

    def _set_deadline(self, ack_ids: Sequence[str], seconds: int) -> None:
        for chunk in _chunks(ack_ids):
            self._client.modify_ack_deadline(
                subscription=self._subscription,
                ack_ids=chunk,
                ack_deadline_seconds=seconds,
                timeout=_REQUEST_SECONDS,
            )

    def _acknowledge(self, ack_ids: list[str]) -> None:
        self._client.acknowledge(subscription=self._subscription, ack_ids=ack_ids)

    def _describe(self, subscription: Any) -> None:
        self.topic = subscription.topic
        self.max_attempts = subscription.dead_letter_policy.max_delivery_attempts
        if subscription.retry_policy:
            backoff = subscription.retry_policy
            self.backoff_seconds = (backoff.minimum_backoff.total_seconds(), backoff.maximum_backoff.total_seconds())

    def _explained(self) -> Any:
        return explained(f"subscription {self._subscription}")


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _MAX_IN_REQUEST] for start in range(0, len(ids), _MAX_IN_REQUEST))


def message_of(message: Any) -> Message:
    """Returns a message of Google's client."""
    return Message(
        message.data, dict(message.attributes), message.message_id, message.publish_time, message.ordering_key
    )
