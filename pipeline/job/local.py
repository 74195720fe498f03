"""Beam's runner for jobs that end, without its waiting.

A thread of Beam's looks every 200 ms at what a bundle is doing, for metrics of each step's time, and a bundle ends only
when that thread has woken up: a bundle of a second or less takes a twelfth longer on average, one behind the other. A
worker on Dataflow has other bundles to run meanwhile; here nobody does anything. So here that thread looks more often,
for which it does not need Python's lock.

``apache-beam`` is pinned to the release that this was read in.
"""

from functools import partial
from unittest.mock import patch  # it replaces an attribute for a while, and fails where there is none

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker import statesampler

SAMPLING_PERIOD_MS = 10


class LocalRunner(FnApiRunner):
    """Runs a pipeline in this process, to its end."""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> PipelineResult:
        sampler = partial(statesampler.StateSampler, sampling_period_ms=SAMPLING_PERIOD_MS)
        with patch.object(statesampler, "StateSampler", sampler):
            return super().run_pipeline(pipeline, options)
