"""Stopping the DirectRunner without losing what it has acknowledged.

Beam's DirectRunner acknowledges a pull of messages before it processes them, and its ``cancel()`` drops whatever is
still on its way: a plain stop loses messages for good. It has no drain, so this module adds one. A gate stands
between the runner's Pub/Sub read and its client:

- Once the gate is closed, a pull that is waiting is broken off, which is safe: nothing that it might have brought has
  been acknowledged, and Pub/Sub delivers it again. A pull that has come back goes on through acknowledging and the
  whole graph.
- The runner pulls only when every bundle before has gone all the way (``_MonitorTask._add_work_if_necessary`` in
  apache_beam/runners/direct/executor.py adds work from a source when nothing else is executing). So the first pull
  that meets a closed gate says: all that was acknowledged has been written.

It also asks for more than the runner's ten messages in a pull, since the runner sets up every DoFn, clients and all,
for every bundle.

The gate takes the place of a private method; ``apache-beam`` is pinned to the release that this was read in.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.direct import transform_evaluator
from google.api_core.exceptions import Cancelled
from google.cloud.pubsub_v1 import SubscriberClient
from google.pubsub_v1.types import PullResponse

_MESSAGES_A_PULL = 1000
# How long a pull on a closed gate takes: the runner asks again and again until it is cancelled.
_CLOSED_PULL_S = 0.05


class PullGate:
    """Lets pulls through until it is closed; tells when everything acknowledged has been processed."""

    def __init__(self) -> None:
        # A client for pulling alone, so that closing it breaks off a pull but never an acknowledgement.
        self._puller = SubscriberClient()
        self._closed = threading.Event()
        self._drained = threading.Event()

    def close(self) -> None:
        """Ends pulling for good. Returns at once."""
        self._closed.set()
        self._puller.close()

    def wait_drained(self, timeout_s: float) -> bool:
        """After :meth:`close`: whether all that was acknowledged was processed within the time."""
        return self._drained.wait(timeout_s)

    def pull(self, **request: Any) -> PullResponse:
        """``SubscriberClient.pull``; once the gate is closed, an empty response."""
        if self._closed.is_set():
            self._drained.set()
            time.sleep(_CLOSED_PULL_S)
            return PullResponse()
        try:
            return self._puller.pull(**request | {"max_messages": _MESSAGES_A_PULL})
        except (Cancelled, ValueError):  # what gRPC raises for a call on a channel that closes, or has just closed
            if self._closed.is_set():
                return PullResponse()
            raise


class _GatedSubscriber:
    """The two calls that the runner's read makes of its client."""

    def __init__(self, client: SubscriberClient, gate: PullGate) -> None:
        self.pull = gate.pull
        self.acknowledge = client.acknowledge


@contextmanager
def gated_pulls() -> Iterator[PullGate]:
    """Every DirectRunner that starts inside the block pulls through the gate."""
    gate = PullGate()
    evaluator = transform_evaluator._PubSubReadEvaluator
    original = evaluator.__dict__["_get_subscriber_client"]

    def get_gated(cls: type, transform: Any) -> _GatedSubscriber:
        return _GatedSubscriber(original.__func__(cls, transform), gate)

    evaluator._get_subscriber_client = classmethod(get_gated)
    try:
        yield gate
    finally:
        evaluator._get_subscriber_client = original
