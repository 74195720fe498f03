"""Beam's runner for jobs that end, without its waits.

A thread of Beam's looks every 200 ms at what a bundle is doing, to measure the time of each step. A bundle ends only
when that thread wakes up, which makes a bundle of a second about a twelfth longer. A Dataflow worker has other bundles
to run meanwhile; a local job does nothing. So the thread looks more often here; it needs no GIL for that.

Relies on, in ``apache-beam``:

- ``BundleProcessor.__init__`` in apache_beam/runners/worker/bundle_processor.py makes a sampler for each bundle
  processor, finds its class as the attribute ``statesampler.StateSampler`` at that moment, and passes no period.
- ``StateSampler.__init__`` in apache_beam/runners/worker/statesampler.py takes ``sampling_period_ms``.
- ``FnApiRunner.run_pipeline`` in apache_beam/runners/portability/fn_api_runner/fn_runner.py runs the job to its end in
  this process.
"""

from functools import partial

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker import statesampler

from pipeline.private_apis.replace import replaced

SAMPLING_PERIOD_MS = 10


class LocalRunner(FnApiRunner):
    """Runs a pipeline in this process, to its end."""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> PipelineResult:
        sampler = partial(statesampler.StateSampler, sampling_period_ms=SAMPLING_PERIOD_MS)
        with replaced(statesampler, "StateSampler", sampler):
            return super().run_pipeline(pipeline, options)
