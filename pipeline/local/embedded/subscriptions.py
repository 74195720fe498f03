"""Subscriptions in memory: which messages wait, which are delivered, and which are delivered again."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from sortedcontainers import SortedSet

from pipeline.local.embedded.refusals import invalid

_SECOND_US = 1_000_000
_MAX_DELIVERED_BYTES = 4_000_000  # in a response; a larger message comes alone


class Delivery(NamedTuple):
    """A message that was delivered and is not acknowledged.

    Attributes:
        number: the message's number within the subscription.
        until_us: the time from which it is delivered again.
    """

    number: int
    until_us: int


class MemorySubscription:
    """The messages of a subscription.

    Args:
        declared: the subscription as Pub/Sub's API describes it.
        now_us: the clock, by which acknowledgement deadlines pass.
        forward: publishes a message to the subscription's dead-letter topic.
    """

    def __init__(self, declared: Any, now_us: Callable[[], int], forward: Callable[[Any], None]) -> None:
        self.declared = declared
        self._now_us = now_us
        self._forward = forward
        self._attempts: Counter[int] = Counter()
        self._numbers, self._deliveries = count(), count(1)
        self._messages: dict[int, Any] = {}  # those not acknowledged, and those retained
        self._waiting: SortedSet = SortedSet()  # numbers of messages
        self._delivered: dict[str, Delivery] = {}  # by the id that acknowledges it
        self._ends: list[tuple[int, str]] = []  # a heap of deadlines; some have changed since
        self._locked: Counter[str] = Counter()  # ordering keys: the next message waits for those delivered
        self._wakers: set[asyncio.Event] = set()

    def publish(self, message: Any) -> None:
        """Adds a message."""
        number = next(self._numbers)
        self._messages[number] = message
        self._wait_again([number])

    def take(self, most: int, deadline_s: int = 0) -> list[tuple[str, Any]]:
        """Delivers messages that wait, the oldest first.

        Args:
            most: their maximal number.
            deadline_s: seconds until a message is delivered again; 0 for the subscription's own deadline.

        Returns:
            The id that acknowledges a message, and the message.
        """
        self._expire()
        until_us = self._now_us() + (deadline_s or self.declared.ack_deadline_seconds) * _SECOND_US
        taken: list[tuple[str, Any]] = []
        size = 0
        for number in list(self._takeable(most)):
            message = self._messages[number]
            size += message.ByteSize()
            if taken and size > _MAX_DELIVERED_BYTES:
                break
            ack_id = f"{self.declared.name}:{next(self._deliveries)}"
            self._waiting.remove(number)
            self._attempts[number] += 1
            self._deliver(ack_id, Delivery(number, until_us))
            taken.append((ack_id, message))
        for _, message in taken:
            self._lock(message, 1)
        return taken

    def acknowledge(self, ack_ids: Iterable[str]) -> None:
        """Ends the deliveries with these ids. An id of a delivery that has ended already is ignored."""
        for delivery in self._ended(ack_ids):
            if not self.declared.retain_acked_messages:
                del self._messages[delivery.number]

    def extend(self, ack_ids: Iterable[str], seconds: int) -> None:
        """Sets the deadline of deliveries to that many seconds from now; 0 delivers their messages again."""
        until_us = self._now_us() + seconds * _SECOND_US
        ids = list(ack_ids)
        if seconds:
            for ack_id in self._known(ids):
                self._deliver(ack_id, self._delivered[ack_id]._replace(until_us=until_us))
        else:
            self._refuse(self._ended(ids))

    def seek(self, time_us: int) -> None:
        """Acknowledges the messages that were published before a time, and delivers the others again."""
        self._delivered.clear()
        self._locked.clear()
        for number, message in list(self._messages.items()):
            if message.publish_time.ToMicroseconds() < time_us:
                self._waiting.discard(number)
                if not self.declared.retain_acked_messages:
                    del self._messages[number]
            else:
                self._wait_again([number])

    async def wait(self, seconds: float) -> None:
        """Waits until a message may be there, or for so many seconds."""
        if self._ends:
            seconds = min(seconds, max(0.01, (self._ends[0][0] - self._now_us()) / _SECOND_US))
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            await asyncio.wait_for(waker.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            self._wakers.discard(waker)

    def _takeable(self, most: int) -> Iterator[int]:
        left = most
        for number in self._waiting:
            if not left:
                return
            if self._key(self._messages[number]) not in self._locked:
                yield number
                left -= 1

    def _key(self, message: Any) -> str | None:
        return message.ordering_key or None if self.declared.enable_message_ordering else None

    def _lock(self, message: Any, change: int) -> None:
        if (key := self._key(message)) is not None:
            self._locked[key] += change
            if not self._locked[key]:
                del self._locked[key]

    def _deliver(self, ack_id: str, delivery: Delivery) -> None:
        self._delivered[ack_id] = delivery
        heappush(self._ends, (delivery.until_us, ack_id))

    def _expire(self) -> None:
        now_us = self._now_us()
        while self._ends and self._ends[0][0] <= now_us:
            until_us, ack_id = heappop(self._ends)
            if (delivery := self._delivered.get(ack_id)) is not None and delivery.until_us == until_us:
                self._refuse(self._ended([ack_id]))

    def _refuse(self, deliveries: Iterable[Delivery]) -> None:
        """Delivers messages again that were not acknowledged; after too many attempts, to the dead-letter topic."""
        most = self.declared.dead_letter_policy.max_delivery_attempts
        for number in [delivery.number for delivery in deliveries]:
            if most and self._attempts[number] >= most:
                self._forward(type(self._messages[number]).FromString(self._messages.pop(number).SerializeToString()))
            else:
                self._wait_again([number])

    def _known(self, ack_ids: Iterable[str]) -> Iterator[str]:
        for ack_id in ack_ids:
            name, _, number = ack_id.rpartition(":")
            if name != self.declared.name or not number.isdecimal():
                raise invalid(f"Invalid ack id (ack_id={ack_id})")
            if ack_id in self._delivered:
                yield ack_id

    def _ended(self, ack_ids: Iterable[str]) -> Iterator[Delivery]:
        for ack_id in list(self._known(ack_ids)):
            delivery = self._delivered.pop(ack_id)
            self._lock(self._messages[delivery.number], -1)
            yield delivery

    def _wait_again(self, numbers: Iterable[int]) -> None:
        self._waiting.update(numbers)
        for waker in self._wakers:
            waker.set()
