"""Keeps the steps of the DirectRunner set up from bundle to bundle, and starts none for a bundle without elements.

For each bundle, the runner copies a step's DoFn, sets the copy up, and tears it down: connections to Bigtable and
Pub/Sub take most of a small bundle's time. A worker on Dataflow keeps its DoFns; so do jobs here. One is set up again
only after a bundle that failed.

A step outputs a bundle to each of its outputs, mostly an empty one, and the runner would start all steps that follow.

Relies on, in ``apache-beam``:

- ``_ParDoEvaluator`` in apache_beam/runners/direct/transform_evaluator.py evaluates one bundle. It takes
  ``perform_dofn_pickle_test``, without which it copies nothing, and calls its ``DoFnRunner``, an attribute of that
  module: ``setup`` first, and ``teardown`` last, unless the bundle fails.
- ``TransformEvaluatorRegistry`` in the same file takes evaluators from ``_test_evaluators_overrides``.
- ``_ExecutorServiceParallelExecutor.schedule_consumers`` in apache_beam/runners/direct/executor.py starts the steps
  that follow. Watermarks pass through steps without it: ``WatermarkManager._refresh_watermarks``, in
  apache_beam/runners/direct/watermark_manager.py.
- One thread does all work: ``NUM_WORKERS`` in the same file as that method. So a DoFn has one bundle at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.common import DoFnRunner
from apache_beam.runners.direct import transform_evaluator
from apache_beam.runners.direct.executor import _ExecutorServiceParallelExecutor
from apache_beam.transforms.core import DoFn, ParDo

from pipeline.private_apis.replace import replaced


@contextmanager
def kept_steps() -> Iterator[None]:
    """Keeps steps set up, within the block. At its end, no pipeline may run."""
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

    schedule = _ExecutorServiceParallelExecutor.schedule_consumers

    def schedule_consumers(executor: _ExecutorServiceParallelExecutor, bundle: Any) -> None:
        if bundle.has_elements():
            schedule(executor, bundle)

    with (
        replaced(transform_evaluator.TransformEvaluatorRegistry, "_test_evaluators_overrides", {ParDo: KeptEvaluator}),
        replaced(_ExecutorServiceParallelExecutor, "schedule_consumers", schedule_consumers),
    ):
        yield
    for fn in ready:
        fn.teardown()
