"""Beam's local runner for bounded jobs, with shorter waits, without reshuffles, and each class of DoFns inspected once.

The garbage collector would go through the half a million objects of Beam's and Google's modules again and again, a
quarter of the CPU time of a job of many small elements. So it leaves out what exists when a job starts.

A sampling thread of Beam's measures the time of each step: every 200 ms it checks what a bundle is doing. A bundle ends
only when that thread wakes up, which makes a bundle of one second about a twelfth longer. A Dataflow worker runs other
bundles meanwhile, but a local job is idle. So the thread samples more often here, which it does without the GIL.

A reshuffle gives work to other workers. A single worker has nobody to share it with, and pays for two more stages.

Relies on, in ``apache-beam``:

- ``BundleProcessor.__init__`` in apache_beam/runners/worker/bundle_processor.py creates a sampler for each bundle
  processor. It looks up the class as ``statesampler.StateSampler`` at that moment, and passes no period.
- ``StateSampler.__init__`` in apache_beam/runners/worker/statesampler.py takes ``sampling_period_ms``.
- ``PipelineRunner.apply_PTransform`` in apache_beam/runners/runner.py expands each transform of a pipeline.
- ``FnApiRunner.run_pipeline`` in apache_beam/runners/portability/fn_api_runner/fn_runner.py runs the job to its end in
  this process.
"""

import gc
from functools import partial
from typing import Any

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.ptransform import PTransform
from apache_beam.transforms.util import Reshuffle

from pipeline.private_apis.repeated_work import specs_by_class
from pipeline.private_apis.replace import replaced

SAMPLING_PERIOD_MS = 10


class LocalRunner(FnApiRunner):
    """Runs a pipeline in this process, to its end."""

    def apply_PTransform(self, transform: PTransform, input: Any, options: PipelineOptions) -> Any:  # noqa: A002, N802
        if isinstance(transform, Reshuffle) and options.view_as(DirectOptions).direct_num_workers == 1:
            return input
        return super().apply_PTransform(transform, input, options)

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> PipelineResult:
        sampler = partial(statesampler.StateSampler, sampling_period_ms=SAMPLING_PERIOD_MS)
        gc.freeze()
        try:
            with replaced(statesampler, "StateSampler", sampler), specs_by_class():
                return super().run_pipeline(pipeline, options)
        finally:
            gc.unfreeze()
