"""What Beam's DirectRunner lacks for a job that never ends: a stop that loses nothing, panes on time, true counters.

The DirectRunner acknowledges the messages of a pull before it processes them, and ``cancel()`` drops what is still in
process: a plain stop loses messages, and there is no drain. On an idle subscription its one thread waits up to 30
seconds in a pull and fires no pane in that time. So a gate takes the place of its Pub/Sub client:

- The runner pulls only when it has processed every bundle before. The first pull after the gate is closed therefore
  means that every acknowledged message has been written.
- A pull returns what is there. If there is nothing, it waits a moment here rather than at the server. Cancelling a
  waiting pull instead would leave its messages leased until their deadline.
- A pull asks for more than the runner's ten messages, and again if Pub/Sub returns fewer, because the runner sets up
  every DoFn, with its clients, for every bundle.

Counters stop after the first bundle of each step. One ``StateSampler`` lives as long as the worker thread and keeps the
states of the first bundle by name, with their metrics container; later bundles count into that container, which was
committed long ago. Here every bundle gets its own sampler.

The runner inspects the signature of every method of every DoFn for each bundle, three times, to find the DoFns that
keep state. This takes a third of its time where a bundle is a message. Here each class is inspected once.

Relies on, in ``apache-beam``:

- ``_PubSubReadEvaluator`` in apache_beam/runners/direct/transform_evaluator.py: ``_read_from_pubsub`` gets a client
  from ``_get_subscriber_client`` and calls its ``pull`` and, at once, its ``acknowledge``. Nothing else calls it.
- ``_ExecutorServiceParallelExecutor._MonitorTask._add_work_if_necessary`` in apache_beam/runners/direct/executor.py
  adds work from a source only when nothing else is executing.
- ``TransformExecutor.call``, in the same file, processes a bundle with the sampler of the worker's thread, and is tried
  four times for each bundle.
- ``get_dofn_specs`` in apache_beam/transforms/userstate.py is called as an attribute of that module.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.direct import executor, transform_evaluator
from apache_beam.runners.worker.statesampler import StateSampler, set_current_tracker
from apache_beam.transforms import userstate
from apache_beam.transforms.core import CallableWrapperDoFn, DoFn
from apache_beam.typehints.typecheck import AbstractDoFnWrapper
from apache_beam.utils.counters import CounterFactory
from google.api_core import exceptions
from google.pubsub_v1.types import PullResponse

from pipeline.cloud.errors import explained
from pipeline.cloud.subscriber import subscriber_client
from pipeline.private_apis.replace import replaced

_MESSAGES_A_PULL = 1000
_ENOUGH_BYTES = 1 << 20  # of messages: more would take seconds, and no pane fires meanwhile
_ENOUGH_S = 0.5
# How long the runner's thread may see to its timers before it pulls again from an idle or closed subscription.
_IDLE_S = 0.1
# Errors that pass by themselves. The runner tries a bundle four times, within two minutes at least, then fails.
_TRANSIENT = (
    exceptions.Aborted,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
    exceptions.ServiceUnavailable,
    exceptions.Unknown,
)
_AWAY_S = 1.0
# One attempt for each call: a stop must not wait for a server that does not answer.
_CALL = {"retry": None, "timeout": 10.0}

_Specs = tuple[set[Any], set[Any]]  # state specs, timer specs


class PullGate:
    """Replaces the runner's subscriber client: its ``pull`` and its ``acknowledge``.

    Lets pulls through until it is closed, and then reports when everything acknowledged has been processed.
    """

    def __init__(self) -> None:
        with explained("Pub/Sub"):
            self._client = subscriber_client()
        self._closed = threading.Event()
        self._drained = threading.Event()
        self._last_pull = time.monotonic()
        self._unacknowledged: PullResponse | None = None

    @property
    def seconds_since_pull(self) -> float:
        """How long the runner has been processing its last pull; a second or two is usual."""
        return time.monotonic() - self._last_pull

    def close(self) -> None:
        """Ends pulling for good. Returns at once."""
        self._closed.set()

    def wait_drained(self, timeout_s: float) -> bool:
        """Returns whether everything acknowledged was processed within the time; for use after :meth:`close`."""
        return self._drained.wait(timeout_s)

    def pull(self, **request: Any) -> PullResponse:
        """Returns the messages that wait on the subscription; none once the gate is closed."""
        if self._closed.is_set():
            self._drained.set()
            response = PullResponse()
        else:
            # If the last pull was not acknowledged, it failed in the runner, for example over a timestamp attribute,
            # and this is its retry. It gets the same messages: Pub/Sub would not return them before their deadline.
            response = self._unacknowledged or self._pulled(request)
            if response is None:
                time.sleep(_AWAY_S)
                return PullResponse()  # and keep the time of the last pull, so that the stall is noticed
        if response.received_messages:
            self._unacknowledged = response
        else:
            time.sleep(_IDLE_S)
        self._last_pull = time.monotonic()
        return response

    def acknowledge(self, **request: Any) -> None:
        """Acknowledges, with as many attempts as it takes; if a stop ends them, the next job gets the messages."""
        while True:
            try:
                self._client.acknowledge(**request | _CALL)
            except _TRANSIENT:
                if self._closed.wait(_AWAY_S):
                    raise
            else:
                self._unacknowledged = None
                return

    def _pulled(self, request: dict[str, Any]) -> PullResponse | None:
        """Returns the messages of several pulls, until they are enough or all; None if Pub/Sub is away."""
        limits = {"max_messages": _MESSAGES_A_PULL, "return_immediately": True}
        try:
            pulled = self._client.pull(**request | limits | _CALL)
        except _TRANSIENT:
            return None
        messages = PullResponse.pb(pulled).received_messages
        until = time.monotonic() + _ENOUGH_S
        more = len(messages)
        while more and len(messages) < _MESSAGES_A_PULL and not self._closed.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0 or sum(message.ByteSize() for message in messages) >= _ENOUGH_BYTES:
                break
            limits["max_messages"] = _MESSAGES_A_PULL - len(messages)
            try:
                response = self._client.pull(**request | limits | _CALL | {"timeout": left_s})
            except exceptions.GoogleAPICallError:
                break  # the next pull meets the error again; these messages are processed meanwhile
            more = len(response.received_messages)
            messages.extend(PullResponse.pb(response).received_messages)
        return pulled


@contextmanager
def patched_direct_runner() -> Iterator[PullGate]:
    """Within the block, every DirectRunner pulls through the gate and counts every bundle."""
    gate = PullGate()
    call = executor.TransformExecutor.call

    def call_with_own_sampler(bundle: executor.TransformExecutor, _: StateSampler) -> None:
        sampler = StateSampler("", CounterFactory())
        set_current_tracker(sampler)
        call(bundle, sampler)

    with (
        replaced(transform_evaluator._PubSubReadEvaluator, "_get_subscriber_client", staticmethod(lambda _: gate)),
        replaced(executor.TransformExecutor, "call", call_with_own_sampler),
        replaced(userstate, "get_dofn_specs", _SpecsByClass(userstate.get_dofn_specs)),
    ):
        yield gate


class _SpecsByClass:
    """Calls ``get_dofn_specs`` once for each class. DoFns that wrap a function or another DoFn are asked every time."""

    def __init__(self, specs_of: Callable[[DoFn], _Specs]) -> None:
        self._specs_of = specs_of
        self._known: dict[type[DoFn], _Specs] = {}

    def __call__(self, dofn: DoFn) -> _Specs:
        if isinstance(dofn, (CallableWrapperDoFn, AbstractDoFnWrapper)):
            return self._specs_of(dofn)
        if (known := self._known.get(type(dofn))) is None:
            known = self._known[type(dofn)] = self._specs_of(dofn)
        return known
