import gc

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statesampler

from pipeline.private_apis.local_runner import SAMPLING_PERIOD_MS, LocalRunner

seen = []
frozen = []


def look(element):
    seen.append((element, statesampler.get_current_tracker().sampling_period_ms))
    return element


def count_frozen(_):
    frozen.append(gc.get_freeze_count())


def test_bundles_are_sampled_often():
    """The shorter period applies while the runner runs, and not afterwards."""
    before = statesampler.StateSampler
    pipeline = beam.Pipeline(LocalRunner(), PipelineOptions([]))
    _ = pipeline | beam.Create([1]) | beam.Map(look)
    pipeline.run().wait_until_finish()
    assert seen == [(1, SAMPLING_PERIOD_MS)]
    assert statesampler.StateSampler is before


def test_the_collector_leaves_out_what_was_there_before():
    """Modules are not searched for garbage during a job, and are again afterwards."""
    pipeline = beam.Pipeline(LocalRunner(), PipelineOptions([]))
    _ = pipeline | beam.Create([1]) | beam.Map(count_frozen)
    pipeline.run().wait_until_finish()
    assert gc.get_freeze_count() == 0
    assert frozen[0] > 100_000
