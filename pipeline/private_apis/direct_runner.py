"""Adds to Beam's DirectRunner what a streaming job needs: no message is lost, panes come on time, counters are correct.

The DirectRunner acknowledges the messages of a pull before it processes them, so a process that ends in between loses
them. It can't drain, and on an idle subscription its one thread waits in a pull for up to 30 seconds and fires no pane
in that time. So it reads through a gate:

- The runner pulls only after it has processed all earlier bundles: those of the messages, those that came of them, and
  those that timers started. So at each pull, everything that the last one returned has been written, and only then does
  the gate acknowledge it. After a failure the runner may pull once more; then the gate acknowledges nothing.
- Until then, a thread extends the leases of the messages. If a lease runs out all the same, its message comes twice.
- The first pull after the gate is closed means that everything pulled has been written.
- Panes wait for the clock, and a stop would lose them. So once everything pulled is processed, the runner's clock is
  set forward, by more than any pane waits.
- A pull returns the waiting messages at once, and none is cut short. If none wait, the gate waits a moment, not the
  server: cancelling a pull would leave the messages that the server has just handed out leased until their deadline.
- The gate pulls more than the runner's ten messages, and again if Pub/Sub returns fewer, because each bundle has a
  price. An element is all messages of a pull: the runner compares the times of a bundle's elements again and again.

The DirectRunner's counters stop after the first bundle of each step. One ``StateSampler`` lives as long as the worker
thread and keeps the first bundle's states by name, with their metrics container. Later bundles count into that
container, which was committed long ago. Here every bundle gets its own sampler.

Relies on, in ``apache-beam``:

- ``_PubSubReadEvaluator`` in apache_beam/runners/direct/transform_evaluator.py: ``_read_from_pubsub`` pulls messages
  from the subscription ``_sub_name``, acknowledges them at once, and returns them with their times. Nothing else reads.
- ``_ExecutorServiceParallelExecutor._MonitorTask._add_work_if_necessary`` in apache_beam/runners/direct/executor.py
  adds work from a source only when nothing else is executing, and no timer has fired. One thread does all work
  (``NUM_WORKERS``), and a bundle counts as executing until its outputs are known. No step of a job has a side input,
  for which a bundle could wait.
- ``_ExecutorServiceParallelExecutor._VisibleExecutorUpdate`` in the same file is made with the exception of whatever
  ends the job, before the runner adds work again.
- ``BundleBasedDirectRunner.run_pipeline`` in apache_beam/runners/direct/direct_runner.py makes its clock with
  ``RealClock()``, an attribute of that module. Timers fire by it.
- ``TransformExecutor.call``, in apache_beam/runners/direct/executor.py, processes a bundle with the sampler of the
  worker's thread. The runner tries it four times for each bundle.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.runners.direct import direct_runner, executor, transform_evaluator
from apache_beam.runners.direct.clock import RealClock
from apache_beam.runners.worker.statesampler import StateSampler, set_current_tracker
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.timestamp import Timestamp
from google.api_core import exceptions
from google.pubsub_v1.types import AcknowledgeRequest, PullResponse

from pipeline.cloud.connection.errors import PUBSUB_TRANSIENT, explained
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.notation.times import to_datetime
from pipeline.private_apis.cheap_bundles import cheap_bundles
from pipeline.private_apis.repeated_work import specs_by_class
from pipeline.private_apis.replace import replaced

_LOGGER = logging.getLogger(__name__)

_MESSAGES_PER_REQUEST = 1000  # Pub/Sub returns no more, and the ids of so many fit into a request that acknowledges
_ENOUGH_MESSAGES = 10_000
_ENOUGH_BYTES = 1 << 20  # of them; more would take seconds to process, and no pane fires meanwhile
_ENOUGH_S = 0.5
# The pause between pulls from an idle or closed subscription, in which the runner's thread can fire timers.
_IDLE_S = 0.1
# From a pull of few messages to the next: so each gets more of those that come one by one.
_PAUSE_S = 0.05
# The pause after a transient error. The runner must not see the error: it would fail after four attempts.
_AWAY_S = 1.0
_AHEAD_S = 10 * 365 * 86400.0  # longer than any interval between panes
# Pulls after the clock is set forward: first the panes of windows fire, then the rows collected from them.
_PULLS_TO_FLUSH = 5
# One attempt for each call: a stop must not wait for a server that does not answer.
_CALL = {"retry": None, "timeout": 10.0}
# A subscription's leases last for 10 seconds or more: a pull that takes longer than one or two of these is extended.
_EXTEND_EVERY_S = 3.0
_LEASE_S = 20  # messages of a process that was killed come again after so long, or sooner

_Acknowledge = AcknowledgeRequest.pb()  # the plain protobuf class: its wrapper takes ten times as long for each id
_Element = tuple[Timestamp, list[PubsubMessage]]


class PullGate:
    """Replaces the runner's subscriber client.

    Lets pulls through until it is closed, and then reports when everything pulled has been processed. Acknowledges
    messages when they have been processed.

    Args:
        may_read: a function that returns whether the process may pull and acknowledge now.
    """

    def __init__(self, may_read: Callable[[], bool] = lambda: True) -> None:
        self._may_read = may_read
        with explained("Pub/Sub"):
            self._client = subscriber_client()
        self._closed = threading.Event()
        self._failed = threading.Event()
        self._drained = threading.Event()
        self._flushed = threading.Event()
        self._pulls_to_flush = _PULLS_TO_FLUSH
        self._last_pull = self._pull_at = time.monotonic()
        self._of_bundle: list[_Element] | None = None
        self._leased: list[dict[str, Any]] = []  # messages that are not acknowledged yet, in requests
        self._in_process_since: float | None = None  # when the oldest message of the last pull was published
        self._waits = threading.Lock()
        self._longest_wait_s: float | None = None

    @property
    def seconds_since_pull(self) -> float:
        """The time for which the runner has been processing its last pull; a second or two is usual."""
        return time.monotonic() - self._last_pull

    def longest_wait_s(self) -> float | None:
        """Returns the longest time from a message's publication until now, or until it was processed.

        Of the messages that were in process since the last call; None if none was.
        """
        with self._waits:
            longest_s, self._longest_wait_s = self._longest_wait_s, None
            since = self._in_process_since
        return longest_s if since is None else max(longest_s or 0.0, time.time() - since)

    def close(self) -> None:
        """Ends pulling for good. Returns at once."""
        self._closed.set()

    def fail(self) -> None:
        """Ends pulling and acknowledging for good: what is in process comes again."""
        self._failed.set()

    def wait_drained(self, timeout_s: float) -> bool:
        """Waits until everything pulled was processed; returns False at the timeout. Call :meth:`close` first."""
        return self._drained.wait(timeout_s)

    def wait_flushed(self, timeout_s: float) -> bool:
        """Waits until every pane that waited for the clock was written; returns False at the timeout."""
        return self._flushed.wait(timeout_s)

    def time(self) -> float:
        """Returns the time by the runner's clock, in seconds since the epoch."""
        return time.time() + (_AHEAD_S if self._drained.is_set() else 0.0)

    def begin_bundle(self) -> None:
        """Tells that the runner begins another bundle. In one bundle, it pulls again only after it failed."""
        self._of_bundle = None

    def pull(self, subscription: str) -> list[_Element]:
        """Acknowledges what is processed. Returns all waiting messages in an element, with the time of the oldest.

        Returns no element if no message waits, and none once the gate is closed. If the runner failed before it passed
        the messages on, it gets them again: Pub/Sub would not return them before their deadline.
        """
        if self._of_bundle is None:
            self._of_bundle = self._next(subscription)
        return self._of_bundle

    def extend_leases(self, ended: threading.Event) -> None:
        """Extends the leases of messages that take long, until the event is set."""
        before = None
        while not ended.wait(_EXTEND_EVERY_S):
            leased = self._leased
            if leased is before and not self._failed.is_set():
                for some in leased:
                    # If this fails, the messages come twice.
                    with suppress(exceptions.GoogleAPIError):
                        self._client.modify_ack_deadline(**some, ack_deadline_seconds=_LEASE_S, **_CALL)
            before = leased

    def _next(self, subscription: str) -> list[_Element]:
        if self._failed.is_set():
            time.sleep(_IDLE_S)
            return []
        self._count_processed()
        acknowledged = self._may_read() and self._acknowledge_processed()
        time.sleep(max(0.0, self._pull_at - time.monotonic()))
        received: list[Any] | None = []
        if self._closed.is_set():
            if self._drained.is_set():
                self._pulls_to_flush -= 1
                if not self._pulls_to_flush:
                    self._flushed.set()
            self._drained.set()
        else:
            received = self._received(subscription) if acknowledged else None
        if received is None:
            time.sleep(_AWAY_S)
            return []  # does not update the time of the last pull, which reveals the stall
        elements = []
        if received:
            messages, ids = [_message(each.message) for each in received], [each.ack_id for each in received]
            published = min(message.publish_time for message in messages)
            elements.append((Timestamp.from_utc_datetime(published), messages))
            parts = (ids[start : start + _MESSAGES_PER_REQUEST] for start in range(0, len(ids), _MESSAGES_PER_REQUEST))
            self._leased = [{"subscription": subscription, "ack_ids": part} for part in parts]
            self._in_process_since = published.timestamp()
        else:
            time.sleep(_IDLE_S)
        self._last_pull = time.monotonic()
        self._pull_at = self._last_pull + (_PAUSE_S if 0 < len(received) < _MESSAGES_PER_REQUEST else 0.0)
        return elements

    def _acknowledge_processed(self) -> bool:
        """Acknowledges the messages of the last pull. Returns False if Pub/Sub is unavailable, and they wait."""
        for some in self._leased:
            try:
                self._client.acknowledge(AcknowledgeRequest.wrap(_Acknowledge(**some)), **_CALL)
            except PUBSUB_TRANSIENT:
                if not self._closed.is_set():
                    return False
                break  # a stop does not wait: the next job gets the messages again
            except exceptions.GoogleAPICallError as error:  # for example, leases have run out: the messages come again
                _LOGGER.warning("Pub/Sub refused to acknowledge messages, which will come again: %s", error)
        self._leased = []
        return True

    def _count_processed(self) -> None:
        """Notes how long the oldest message of the last pull took."""
        if self._in_process_since is not None:
            wait_s = max(0.0, time.time() - self._in_process_since)
            with self._waits:
                self._in_process_since = None
                self._longest_wait_s = max(wait_s, self._longest_wait_s or 0.0)

    def _received(self, subscription: str) -> list[Any] | None:
        """Pulls until there are enough messages or no more. Returns None if Pub/Sub is unavailable."""
        received: list[Any] = []  # ReceivedMessage, of the plain protobuf class
        size, until = 0, time.monotonic() + _ENOUGH_S
        while not received or (time.monotonic() < until and not self._closed.is_set()):
            most = min(_MESSAGES_PER_REQUEST, _ENOUGH_MESSAGES - len(received))
            try:
                pulled = self._client.pull(
                    subscription=subscription, max_messages=most, return_immediately=True, **_CALL
                )
            except exceptions.GoogleAPICallError as error:
                if received:
                    break  # process these messages first; the next pull will meet the error again
                if isinstance(error, PUBSUB_TRANSIENT):
                    return None
                raise
            response = PullResponse.pb(pulled)
            received += (more := response.received_messages)
            size += response.ByteSize()
            if not more or len(received) >= _ENOUGH_MESSAGES or size >= _ENOUGH_BYTES:
                break
        return received


def _message(message: Any) -> PubsubMessage:
    """Returns a message of the plain protobuf class as Beam does, in a tenth of the time."""
    at = message.publish_time
    published = to_datetime(at.seconds * 1_000_000 + at.nanos // 1000)
    return PubsubMessage(message.data, dict(message.attributes), message.message_id, published, message.ordering_key)


@contextmanager
def patched_direct_runner(may_read: Callable[[], bool] = lambda: True) -> Iterator[PullGate]:
    """Makes every DirectRunner pull through the yielded gate, a list of messages as an element, within the block.

    Also makes it count every bundle, and makes bundles cheap.
    """
    gate = PullGate(may_read)
    ended = threading.Event()

    class GateClock(RealClock):
        def time(self) -> float:
            return gate.time()

    class GateUpdate(executor._ExecutorServiceParallelExecutor._VisibleExecutorUpdate):
        def __init__(self, exception: Any = None) -> None:
            if exception is not None:
                gate.fail()
            super().__init__(exception)

    call = executor.TransformExecutor.call

    def call_with_own_sampler(bundle: executor.TransformExecutor, _: StateSampler) -> None:
        gate.begin_bundle()
        sampler = StateSampler("", CounterFactory())
        set_current_tracker(sampler)
        call(bundle, sampler)

    with (
        replaced(transform_evaluator._PubSubReadEvaluator, "_read_from_pubsub", lambda by, _: gate.pull(by._sub_name)),
        replaced(direct_runner, "RealClock", GateClock),
        replaced(executor.TransformExecutor, "call", call_with_own_sampler),
        replaced(executor._ExecutorServiceParallelExecutor, "_VisibleExecutorUpdate", GateUpdate),
        specs_by_class(),
        cheap_bundles(),
    ):
        threading.Thread(target=gate.extend_leases, args=(ended,), daemon=True).start()
        try:
            yield gate
        finally:
            ended.set()
