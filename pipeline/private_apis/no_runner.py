"""Runs steps without a runner, in this process: no element is encoded, and a step costs a call.

Relies on, in ``apache-beam``:

- ``MetricUpdater.__call__`` in apache_beam/metrics/execution.py passes each update of a counter or a distribution to
  ``update_metric`` of the thread's tracker, which ``set_current_tracker`` in
  apache_beam/runners/worker/statesampler.py sets.
- ``dumps`` and ``loads`` in apache_beam/internal/pickler.py pickle whatever a step may contain.
- A typed name has its ``metric_name``, with ``namespace`` and ``name``, and its ``cell_type``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.metrics.cells import CounterCell
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.windowed_value import WindowedValue

Output = tuple[str | None, Any]
"""The tag of an output, None for the main one, and the value."""


dumps, loads = pickler.dumps, pickler.loads
"""Pickle a DoFn, or whatever a DoFn may contain, and the reverse."""


class Step:
    """A DoFn without state and timers, ready to process elements.

    Args:
        fn: the DoFn.
    """

    def __init__(self, fn: beam.DoFn) -> None:
        self._fn = fn
        fn.setup()

    def start(self) -> None:
        """Begins a bundle."""
        self._fn.start_bundle()

    def process(self, element: Any) -> Iterator[Output]:
        """Processes an element, and yields the outputs."""
        return _outputs(self._fn.process(element))

    def finish(self) -> Iterator[Output]:
        """Ends a bundle, and yields the outputs."""
        return _outputs(self._fn.finish_bundle())

    def bundle(self, elements: Iterable[Any]) -> Iterator[Output]:
        """Processes elements as one bundle, and yields the outputs."""
        self.start()
        for element in elements:
            yield from self.process(element)
        yield from self.finish()

    def close(self) -> None:
        """Closes connections."""
        self._fn.teardown()


def _outputs(values: Iterable[Any] | None) -> Iterator[Output]:
    for value in values or ():
        tag, plain = (value.tag, value.value) if isinstance(value, TaggedOutput) else (None, value)
        while isinstance(plain, (WindowedValue, TimestampedValue)):
            plain = plain.value
        yield tag, plain


class _Tracker:
    def __init__(self, namespace: str, counts: Counter[str]) -> None:
        self._namespace, self._counts = namespace, counts

    def update_metric(self, typed: Any, value: Any) -> None:
        if typed.cell_type is CounterCell and typed.metric_name.namespace == self._namespace:
            self._counts[typed.metric_name.name] += value


@contextmanager
def counted(namespace: str) -> Iterator[Counter[str]]:
    """Counts what steps of this thread count within the block: the value of each counter of a namespace, by name."""
    counts = Counter[str]()
    before = statesampler.get_current_tracker()
    statesampler.set_current_tracker(_Tracker(namespace, counts))
    try:
        yield counts
    finally:
        statesampler.set_current_tracker(before)
