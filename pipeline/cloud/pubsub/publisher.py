"""Publishes messages to a Pub/Sub topic, confirms each, and can limit the rate."""

import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.api_core.timeout import ConstantTimeout
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import PublisherClient as RequestClient
from google.pubsub_v1.types import PubsubMessage

from pipeline.cloud.connection.emulators import PUBSUB, check_emulator
from pipeline.cloud.connection.errors import PUBSUB_TRANSIENT, ServerError, explained
from pipeline.cloud.connection.names import topic_path
from pipeline.core.events.message import Message

# A request has at most 1,000 messages. The few messages of a paced publisher leave when max_latency is over.
_BATCHING = BatchSettings(max_messages=1000, max_bytes=1_000_000, max_latency=0.02)
_MAX_UNCONFIRMED = 10_000
_MAX_UNCONFIRMED_BYTES = 16_000_000

_CHECK_SECONDS = 10.0
_ATTEMPT_SECONDS = 60.0
_RETRY_SECONDS = 60.0  # Google's default retries silently for ten minutes
# With an ordering key, Google's client ignores the timeout and retries for ever: this class has to give up.
_PATIENCE_SECONDS = 180.0
_RETRY = Retry(
    predicate=if_exception_type(*PUBSUB_TRANSIENT),
    initial=0.1,
    maximum=10.0,
    multiplier=2.0,
    timeout=_RETRY_SECONDS,
)

# Google's client takes attributes as keyword arguments. With these names, they would be its other arguments.
_UNPUBLISHABLE_ATTRIBUTES = frozenset(inspect.signature(PublisherClient.publish).parameters) - {"attrs"}


class UnacceptableMessage(ServerError):
    """A topic refuses a message for its content, for example because it does not fit the topic's schema."""


class Publisher:
    """Publishes to one topic, from one thread: ``with Publisher(topic) as publisher: publisher.send(message)``.

    The end of the block waits until every message is confirmed. Memory is bounded: ``send`` waits while 10,000 messages
    or 16 MB are unconfirmed.

    Attributes:
        topic: the topic's full path.
        sent: the number of messages sent so far.
        confirmed: the number of messages that Pub/Sub has confirmed.
    """

    def __init__(self, topic: str) -> None:
        """Connects, and checks that the topic exists if the account may see it.

        Args:
            topic: the topic's full path, ``projects/PROJECT/topics/TOPIC``.

        Raises:
            ValueError: ``topic`` is not such a path.
            ServerError: the topic does not exist, or the server is out of reach.
        """
        self.topic = topic_path(topic)
        self.sent = 0
        self.confirmed = 0
        self._unconfirmed: deque[tuple[Any, int]] = deque()  # futures and the payload's bytes, oldest first
        self._unconfirmed_bytes = 0
        self._last_progress = 0.0
        self._failure: BaseException | None = None
        check_emulator(PUBSUB)
        with explained(f"topic {topic}"):
            self._client = _client(ordering=False)
            # An account may be allowed to publish but not to read the topic.
            with suppress(exceptions.PermissionDenied):
                self._client.get_topic(topic=topic, retry=None, timeout=_CHECK_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not KeyboardInterrupt:  # whoever interrupts does not want to wait
            self.confirm()

    def send(self, message: Message) -> None:
        """Sends a message. Waits only while too much is unconfirmed.

        Raises:
            ServerError: an earlier message failed; see :meth:`confirm`.
            ValueError: the message is larger than 10 MB, or has an attribute that Google's client cannot publish.
        """
        if not _UNPUBLISHABLE_ATTRIBUTES.isdisjoint(message.attributes):
            names = ", ".join(sorted(_UNPUBLISHABLE_ATTRIBUTES & message.attributes.keys()))
            raise ValueError(f"Google's Python client cannot publish attributes with these names: {names}")
        self._settle(_MAX_UNCONFIRMED - 1, _MAX_UNCONFIRMED_BYTES)
        if self._failure:
            self.confirm()
        if not self._unconfirmed:
            self._last_progress = time.monotonic()
        client = self._ordering_client if message.ordering_key else self._client
        future = client.publish(self.topic, message.data, ordering_key=message.ordering_key, **message.attributes)
        self._unconfirmed.append((future, len(message.data)))
        self._unconfirmed_bytes += len(message.data)
        self.sent += 1

    def send_batch(self, messages: Iterable[Message]) -> None:
        """Publishes messages in one request and waits for the response. After an error, none is known to be stored.

        Attributes may have any name that Pub/Sub accepts, including those that ``send`` can't publish.

        Args:
            messages: 1,000 messages or fewer, of 10 MB in all and with the same ordering key, as Pub/Sub requires.

        Raises:
            UnacceptableMessage: the topic refuses the content of a message.
            ServerError: any other failure.
        """
        request = {
            "topic": self.topic,
            "messages": [
                PubsubMessage(data=one.data, attributes=dict(one.attributes), ordering_key=one.ordering_key)
                for one in messages
            ],
        }
        with explained(f"topic {self.topic}"):
            try:
                RequestClient.publish(self._client, request, retry=_RETRY, timeout=_ATTEMPT_SECONDS)
            except exceptions.InvalidArgument as error:
                raise UnacceptableMessage(f"topic {self.topic}: {' '.join(str(error.message).split())}") from error

    def confirm(self) -> None:
        """Waits until every message sent so far is confirmed or has failed.

        Raises:
            ServerError: messages failed. It reports why the first one did, and how many are confirmed.
        """
        self._settle(0, 0)
        if self._failure is None:
            return
        try:
            with explained(f"topic {self.topic}"):
                raise self._failure
        except ServerError as problem:
            count = f"{self.confirmed:,} of {self.sent:,} messages are confirmed"
            raise ServerError(f"{problem}; {count}") from self._failure

    def _settle(self, max_messages: int, max_bytes: int) -> None:
        """Takes the results of messages that are done, and waits until at most this much is unconfirmed."""
        while self._unconfirmed:
            future, size = self._unconfirmed[0]
            too_much = len(self._unconfirmed) > max_messages or self._unconfirmed_bytes > max_bytes
            if not too_much and not future.done():
                return
            self._take_result(future)
            self._unconfirmed.popleft()
            self._unconfirmed_bytes -= size

    def _take_result(self, future: Any) -> None:
        patience = max(0.0, self._last_progress + _PATIENCE_SECONDS - time.monotonic())
        try:
            failure = future.exception(timeout=patience)
        except TimeoutError:
            failure = exceptions.DeadlineExceeded(f"no response for {_PATIENCE_SECONDS:.0f} s")
        if failure is None:
            self.confirmed += 1
            self._last_progress = time.monotonic()
        else:
            self._failure = self._failure or failure

    @cached_property
    def _ordering_client(self) -> PublisherClient:
        # A second client: one with ordering never gives up.
        return _client(ordering=True)


def _client(*, ordering: bool) -> PublisherClient:
    options = PublisherOptions(
        enable_message_ordering=ordering, retry=_RETRY, timeout=ConstantTimeout(_ATTEMPT_SECONDS)
    )
    return PublisherClient(batch_settings=_BATCHING, publisher_options=options)


class Pacer:
    """Holds a sender to a rate: ``wait``, called before each message, returns when its events are due.

    After a delay, it catches up by at most one second's worth of events.
    """

    _CATCH_UP_SECONDS = 1.0
    _NAP_SECONDS = 0.1  # between looks at ``stopped``

    def __init__(
        self,
        events_per_second: float,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Starts now: the first events are due at once.

        Args:
            events_per_second: the rate, above zero; ``math.inf`` never waits.
            stopped: a function that ends a wait by returning True.
            clock: a monotonic clock, in seconds.
            sleep: a function that waits for a number of seconds.
        """
        self._rate = events_per_second
        self._stopped = stopped
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def wait(self, events: int) -> None:
        """Returns when the next ``events`` may be sent, or soon after ``stopped()`` returns True."""
        while (early := self._due - self._clock()) > 0 and not self._stopped():
            self._sleep(min(early, self._NAP_SECONDS))
        self._due = max(self._due, self._clock() - self._CATCH_UP_SECONDS) + events / self._rate
