"""Subscriptions in memory: which messages wait, which are delivered, and which are delivered again."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, NamedTuple

from sortedcontainers import SortedSet

from pipeline.local.embedded.services import invalid

_SECOND_US = 1_000_000
_MAX_DELIVERED_BYTES = 4_000_000  # in a response; a larger message comes alone


class Delivery(NamedTuple):
    """A message that was delivered and is not acknowledged, or that waits for its retry.

    Attributes:
        number: the message's number within the subscription.
        until_us: the time from which it is delivered again.
        key: the ordering key that the delivery locks; empty if none.
        retried: whether the message waits for its retry.
    """

    number: int
    until_us: int
    key: str
    retried: bool = False


class Received(NamedTuple):
    """A message as a subscriber receives it.

    Attributes:
        ack_id: the id that acknowledges it.
        message: the message.
        attempt: the number of the delivery, from 1; 0 without a dead-letter policy.
    """

    ack_id: str
    message: Any
    attempt: int


class MemorySubscription:
    """The messages of a subscription.

    Args:
        declared: the subscription as Pub/Sub's API describes it.
        now_us: the clock, by which acknowledgement deadlines pass.
        forward: publishes a dead letter to the topic of that name; returns whether there is one.
    """

    def __init__(self, declared: Any, now_us: Callable[[], int], forward: Callable[[str, Any], bool]) -> None:
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

    def take(self, most: int, deadline_s: int = 0, most_bytes: int = _MAX_DELIVERED_BYTES) -> list[Received]:
        """Delivers messages that wait, the oldest first.

        Args:
            most: their maximal number.
            deadline_s: seconds until a message is delivered again; 0 for the subscription's own deadline.
            most_bytes: their maximal bytes; a larger message comes alone.
        """
        self._expire()
        until_us = self._now_us() + (deadline_s or self.declared.ack_deadline_seconds) * _SECOND_US
        limit, size = min(most_bytes, _MAX_DELIVERED_BYTES), 0
        taken: list[Received] = []
        for number in list(islice(self._takeable(), most)):
            message = self._messages[number]
            size += message.ByteSize()
            if taken and size > limit:
                break
            self._waiting.remove(number)
            self._attempts[number] += 1
            ack_id = f"{self.declared.name}:{next(self._deliveries)}"
            self._deliver(ack_id, Delivery(number, until_us, self._key(message)))
            attempt = self._attempts[number] if self.declared.HasField("dead_letter_policy") else 0
            taken.append(Received(ack_id, message, attempt))
        return taken

    def holds(self, ack_id: str) -> bool:
        """Returns whether the delivery with this id has not ended."""
        return ack_id in self._delivered

    def acknowledge(self, ack_ids: Sequence[str]) -> None:
        """Ends the deliveries with these ids. An id of a delivery that has ended already is ignored."""
        for delivery in self._ended(self._known(ack_ids)):
            self._acknowledged(delivery.number)

    def extend(self, ack_ids: Sequence[str], seconds: int) -> None:
        """Sets the deadline of deliveries to that many seconds from now; 0 delivers their messages again."""
        known = self._known(ack_ids)
        if not seconds:
            self._refuse(self._ended(known))
            return
        until_us = self._now_us() + seconds * _SECOND_US
        for ack_id in known:
            delivery = self._delivered[ack_id]._replace(until_us=until_us)
            self._delivered[ack_id] = delivery
            heappush(self._ends, (until_us, ack_id))

    def seek(self, time_us: int) -> None:
        """Acknowledges the messages that were published before a time, and delivers the others again."""
        self._delivered.clear()
        self._locked.clear()
        self._attempts.clear()
        for number, message in list(self._messages.items()):
            if message.publish_time.ToMicroseconds() < time_us:
                self._waiting.discard(number)
                self._acknowledged(number)
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

    def wake(self) -> None:
        """Ends all waits."""
        for waker in self._wakers:
            waker.set()

    def _takeable(self) -> Iterator[int]:
        if not self._locked:
            return iter(self._waiting)
        return (number for number in self._waiting if self._key(self._messages[number]) not in self._locked)

    def _key(self, message: Any) -> str:
        return message.ordering_key if self.declared.enable_message_ordering else ""

    def _deliver(self, ack_id: str, delivery: Delivery) -> None:
        self._delivered[ack_id] = delivery
        heappush(self._ends, (delivery.until_us, ack_id))
        if delivery.key:
            self._locked[delivery.key] += 1

    def _expire(self) -> None:
        now_us = self._now_us()
        while self._ends and self._ends[0][0] <= now_us:
            until_us, ack_id = heappop(self._ends)
            if (delivery := self._delivered.get(ack_id)) is not None and delivery.until_us == until_us:
                self._refuse(self._ended([ack_id]))
        oldest_us = now_us - self.declared.message_retention_duration.ToMicroseconds()
        while self._messages:
            number = next(iter(self._messages))
            if self._messages[number].publish_time.ToMicroseconds() >= oldest_us:
                return
            self._waiting.discard(number)
            self._drop(number)

    def _refuse(self, deliveries: Iterable[Delivery]) -> None:
        """Delivers messages again that were not acknowledged; after too many attempts, to the dead-letter topic."""
        policy = self.declared.dead_letter_policy
        for delivery in list(deliveries):
            number, most = delivery.number, policy.max_delivery_attempts
            if number not in self._messages:
                continue
            if delivery.retried:
                self._wait_again([number])
            elif 0 < most <= self._attempts[number] and self._forward(policy.dead_letter_topic, self._letter(number)):
                self._acknowledged(number)
            elif backoff_us := self._backoff_us(self._attempts[number]):
                retry = delivery._replace(until_us=self._now_us() + backoff_us, retried=True)
                self._deliver(str(number), retry)  # no subscriber has such an id
            else:
                self._wait_again([number])

    def _backoff_us(self, attempts: int) -> int:
        policy = self.declared.retry_policy
        least_us, most_us = policy.minimum_backoff.ToMicroseconds(), policy.maximum_backoff.ToMicroseconds()
        return min(most_us, least_us << min(attempts - 1, 20))

    def _letter(self, number: int) -> Any:
        """Returns a copy of a message with the attributes of a dead letter."""
        message = self._messages[number]
        letter = type(message)()
        letter.CopyFrom(message)
        _, project, _, subscription = self.declared.name.split("/")
        source = "CloudPubSubDeadLetterSource"
        letter.attributes[f"{source}DeliveryCount"] = str(self._attempts[number])
        letter.attributes[f"{source}Subscription"] = subscription
        letter.attributes[f"{source}SubscriptionProject"] = project
        letter.attributes[f"{source}TopicPublishTime"] = message.publish_time.ToJsonString()
        return letter

    def _acknowledged(self, number: int) -> None:
        if not self.declared.retain_acked_messages:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._messages.pop(number, None)
        self._attempts.pop(number, None)

    def _known(self, ack_ids: Sequence[str]) -> list[str]:
        """Returns the ids of deliveries that have not ended. Refuses what no subscriber has received."""
        for ack_id in ack_ids:
            name, _, number = ack_id.rpartition(":")
            if name != self.declared.name or not number.isdecimal():
                raise invalid(f"Invalid ack id (ack_id={ack_id})")
        return [ack_id for ack_id in dict.fromkeys(ack_ids) if ack_id in self._delivered]

    def _ended(self, ack_ids: Iterable[str]) -> Iterator[Delivery]:
        for ack_id in ack_ids:
            delivery = self._delivered.pop(ack_id)
            if delivery.key:
                self._locked[delivery.key] -= 1
                if not self._locked[delivery.key]:
                    del self._locked[delivery.key]
                    self.wake()
            yield delivery

    def _wait_again(self, numbers: Iterable[int]) -> None:
        self._waiting.update(numbers)
        self.wake()
