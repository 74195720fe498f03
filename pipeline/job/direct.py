"""What Beam's DirectRunner lacks for a job that never ends: a stop that loses nothing, panes on time, true counters.

Beam's DirectRunner acknowledges a pull of messages before it processes them, and its ``cancel()`` drops whatever is
still on its way: a plain stop loses messages for good, and there is no drain. Its one thread also waits up to 30
seconds in a pull on an idle subscription, and fires no pane in that time. So a gate stands between the runner's
Pub/Sub read and its client:

- The runner pulls only when every bundle before has gone all the way (``_MonitorTask._add_work_if_necessary`` in
  apache_beam/runners/direct/executor.py adds work from a source when nothing else is executing). So the first pull
  that meets a closed gate says: all that was acknowledged has been written.
- A pull takes what is there and waits a moment where that is nothing, instead of waiting at the server. Breaking off
  a waiting pull would do as well, but leaves its messages leased to nobody until their deadline.
- It asks for more than the runner's ten messages, and asks again where Pub/Sub gives fewer, since the runner sets up
  every DoFn, clients and all, for every bundle.

And its counters stand still after the first bundle of each step: one ``StateSampler`` lives as long as the worker
thread and keeps, by name, the states of the first bundle with the metrics container in them, so every later bundle
counts into a container that was committed long ago. Here every bundle gets a sampler of its own.

And for every bundle it inspects the signature of every method of every DoFn, three times over, to find out which of
them keep state: a third of its time where a bundle is a message. That is a matter of their classes, and so asked once.

All this takes the place of private methods; ``apache-beam`` is pinned to the release that they were read in.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch  # it replaces an attribute for a while, and fails where there is none

from apache_beam.runners.direct import executor, transform_evaluator
from apache_beam.runners.worker.statesampler import StateSampler, set_current_tracker
from apache_beam.transforms import userstate
from apache_beam.transforms.core import CallableWrapperDoFn, DoFn
from apache_beam.typehints.typecheck import AbstractDoFnWrapper
from apache_beam.utils.counters import CounterFactory
from google.api_core import exceptions
from google.pubsub_v1.types import PullResponse

from pipeline.cloud.errors import PUBSUB_TRANSIENT, explained
from pipeline.cloud.subscriber import subscriber_client

_MESSAGES_A_PULL = 1000
_ENOUGH_BYTES = 1 << 20  # of messages: more would take seconds, in which no pane fires
_ENOUGH_S = 0.5
# How long the runner's thread may look after its timers before the next pull of an idle or closed subscription.
_IDLE_S = 0.1
# Transient errors stop here: the runner tries a bundle four times, in two minutes at the least, and then ends the job.
_AWAY_S = 1.0
# Of a call, tried once: a stop must not wait for a server that does not answer.
_CALL = {"retry": None, "timeout": 10.0}

_Specs = tuple[set[Any], set[Any]]  # of state, of timers


class PullGate:
    """Stands in for the runner's subscriber client, in the two calls that the runner makes of it.

    Lets pulls through until it is closed, and tells when everything acknowledged has been processed.
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
        """How long the runner has been busy with what it pulled last; a second or two is usual."""
        return time.monotonic() - self._last_pull

    def close(self) -> None:
        """Ends pulling for good. Returns at once."""
        self._closed.set()

    def wait_drained(self, timeout_s: float) -> bool:
        """After :meth:`close`: whether all that was acknowledged was processed within the time."""
        return self._drained.wait(timeout_s)

    def pull(self, **request: Any) -> PullResponse:
        """What is waiting on the subscription; nothing once the gate is closed."""
        if self._closed.is_set():
            self._drained.set()
            response = PullResponse()
        else:
            # A pull that was not acknowledged has failed in the runner, over a timestamp attribute for one, and this
            # is its retry: it gets the same messages, which Pub/Sub would not give out again before their deadline.
            response = self._unacknowledged or self._pulled(request)
            if response is None:
                time.sleep(_AWAY_S)
                return PullResponse()  # and the time of the last pull stands, so that somebody says why
        if response.received_messages:
            self._unacknowledged = response
        else:
            time.sleep(_IDLE_S)
        self._last_pull = time.monotonic()
        return response

    def acknowledge(self, **request: Any) -> None:
        """``SubscriberClient.acknowledge``, as often as it takes; what a stop breaks off comes to the next job."""
        while True:
            try:
                self._client.acknowledge(**request | _CALL)
            except PUBSUB_TRANSIENT:
                if self._closed.wait(_AWAY_S):
                    raise
            else:
                self._unacknowledged = None
                return

    def _pulled(self, request: dict[str, Any]) -> PullResponse | None:
        """What several pulls give, until it is enough or there is no more; None where Pub/Sub is away."""
        wanted = {"max_messages": _MESSAGES_A_PULL, "return_immediately": True}
        try:
            pulled = self._client.pull(**request | wanted | _CALL)
        except PUBSUB_TRANSIENT:
            return None
        messages = PullResponse.pb(pulled).received_messages
        until = time.monotonic() + _ENOUGH_S
        more = len(messages)
        while more and len(messages) < _MESSAGES_A_PULL and not self._closed.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0 or sum(message.ByteSize() for message in messages) >= _ENOUGH_BYTES:
                break
            wanted["max_messages"] = _MESSAGES_A_PULL - len(messages)
            try:
                response = self._client.pull(**request | wanted | _CALL | {"timeout": left_s})
            except exceptions.GoogleAPICallError:
                break  # what it is, the next pull says; what is there already goes on
            more = len(response.received_messages)
            messages.extend(PullResponse.pb(response).received_messages)
        return pulled


@contextmanager
def patched_direct_runner() -> Iterator[PullGate]:
    """Every DirectRunner that starts inside the block pulls through the gate, and counts every bundle."""
    gate = PullGate()
    call = executor.TransformExecutor.call

    def call_with_own_sampler(bundle: executor.TransformExecutor, _: StateSampler) -> None:
        sampler = StateSampler("", CounterFactory())
        set_current_tracker(sampler)
        call(bundle, sampler)

    with (
        patch.object(transform_evaluator._PubSubReadEvaluator, "_get_subscriber_client", staticmethod(lambda _: gate)),
        patch.object(executor.TransformExecutor, "call", call_with_own_sampler),
        patch.object(userstate, "get_dofn_specs", _SpecsByClass(userstate.get_dofn_specs)),
    ):
        yield gate


class _SpecsByClass:
    """``get_dofn_specs``, asked once for each class; a DoFn that wraps another, or a function, is as that one is."""

    def __init__(self, specs_of: Callable[[DoFn], _Specs]) -> None:
        self._specs_of = specs_of
        self._known: dict[type[DoFn], _Specs] = {}

    def __call__(self, dofn: DoFn) -> _Specs:
        if isinstance(dofn, (CallableWrapperDoFn, AbstractDoFnWrapper)):
            return self._specs_of(dofn)
        if (known := self._known.get(type(dofn))) is None:
            known = self._known[type(dofn)] = self._specs_of(dofn)
        return known
