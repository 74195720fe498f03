"""Makes bundles of the DirectRunner cheap: most of a small one's time goes into what need not be done.

- For each bundle, the runner copies a step's DoFn, sets the copy up, and tears it down, with its connections to
  Bigtable and Pub/Sub. A worker on Dataflow keeps its DoFns, and so does a job here: it sets one up again only after a
  bundle that failed.
- A step outputs a bundle to each of its outputs, mostly an empty one, and the runner would start all steps that follow.
- Between any two bundles, the runner looks at the timers of all keys. Here it looks when no bundle is left.
- Of each key of a bundle, it copies the state, so that a bundle that fails changes nothing. It copies even the times of
  timers, which nobody changes: these take most of it.

Relies on, in ``apache-beam``:

- ``_ParDoEvaluator`` in apache_beam/runners/direct/transform_evaluator.py evaluates one bundle. It takes
  ``perform_dofn_pickle_test``, without which it copies nothing, and calls its ``DoFnRunner``, an attribute of that
  module: ``setup`` first, and ``teardown`` last, unless the bundle fails.
- ``TransformEvaluatorRegistry`` in the same file takes evaluators from ``_test_evaluators_overrides``.
- ``_ExecutorServiceParallelExecutor`` in apache_beam/runners/direct/executor.py: ``schedule_consumers`` starts the
  steps that follow. Its ``_MonitorTask`` runs after each bundle: its ``_fire_timers`` starts the steps whose timers
  fire, and returns whether there are any; while ``_is_executing``, it reads nothing more. One thread does all work
  (``NUM_WORKERS``), so a DoFn has one bundle at a time.
- ``WatermarkManager._refresh_watermarks`` in apache_beam/runners/direct/watermark_manager.py: watermarks pass through
  steps without bundles.
- ``InMemoryUnmergedState.copy`` in apache_beam/transforms/trigger.py: a state has ``timers`` by window, ``state`` by
  window and tag, and a ``global_state``, which steps do not use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from apache_beam.runners.common import DoFnRunner
from apache_beam.runners.direct import transform_evaluator
from apache_beam.runners.direct.executor import _ExecutorServiceParallelExecutor as _Executor
from apache_beam.transforms.core import DoFn, ParDo
from apache_beam.transforms.trigger import InMemoryUnmergedState

from pipeline.private_apis.replace import replaced


@contextmanager
def cheap_bundles() -> Iterator[None]:
    """Makes bundles cheap, within the block. At its end, no pipeline may run."""
    ready: set[DoFn] = set()

    class KeptRunner(DoFnRunner):
        def __init__(self, fn: DoFn, *arguments: Any, **options: Any) -> None:
            super().__init__(fn, *arguments, **options)
            self._fn = fn

        def setup(self) -> None:
            if self._fn not in ready:
                super().setup()
            ready.discard(self._fn)

        def teardown(self) -> None:
            ready.add(self._fn)

    class KeptEvaluator(transform_evaluator._ParDoEvaluator):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, perform_dofn_pickle_test=False)

        def start_bundle(self) -> None:
            with replaced(transform_evaluator, "DoFnRunner", KeptRunner):
                super().start_bundle()

    schedule, fire_timers = _Executor.schedule_consumers, _Executor._MonitorTask._fire_timers

    def schedule_consumers(executor: _Executor, bundle: Any) -> None:
        if bundle.has_elements():
            schedule(executor, bundle)

    def fire_timers_at_last(monitor: _Executor._MonitorTask) -> bool:
        return not monitor._is_executing() and fire_timers(monitor)

    with (
        replaced(transform_evaluator.TransformEvaluatorRegistry, "_test_evaluators_overrides", {ParDo: KeptEvaluator}),
        replaced(_Executor, "schedule_consumers", schedule_consumers),
        replaced(_Executor._MonitorTask, "_fire_timers", fire_timers_at_last),
        replaced(InMemoryUnmergedState, "copy", _copied),
    ):
        yield
    for fn in ready:
        fn.teardown()


def _copied(state: InMemoryUnmergedState) -> InMemoryUnmergedState:
    copied = InMemoryUnmergedState(state.defensive_copy)
    copied.global_state.update(state.global_state)
    for window, timers in state.timers.items():
        copied.timers[window].update(timers)
    for window, values in state.state.items():
        copied.state[window].update((tag, copy(value)) for tag, value in values.items())
    return copied
