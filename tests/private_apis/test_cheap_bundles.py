from collections import Counter, defaultdict
from types import SimpleNamespace

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.executor import _ExecutorServiceParallelExecutor
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.trigger import InMemoryUnmergedState, _ListStateTag
from apache_beam.transforms.window import GlobalWindow

from pipeline.private_apis.cheap_bundles import cheap_bundles

CALLS = defaultdict(Counter)  # by the name of a step: a job has copies of the steps that it is made of


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


class _Telling(beam.DoFn):
    """Passes its elements on but "nothing". Tells of its calls, and refuses as many bundles as it should."""

    def __init__(self, name, refused=0):
        self.name, self.refused = name, refused

    def _tell(self, call):
        CALLS[self.name][call] += 1

    def setup(self):
        self._tell("setup")

    def start_bundle(self):
        self._tell("bundles")

    def process(self, element):
        self._tell(element)
        if element != "nothing":
            yield element

    def finish_bundle(self):
        if self.refused:
            self.refused -= 1
            raise ValueError("refused")

    def teardown(self):
        self._tell("teardown")


def run(*steps):
    stream = TestStream().add_elements(["a"]).add_elements(["nothing"]).add_elements(["b"])
    with beam.Pipeline("BundleBasedDirectRunner", options=PipelineOptions(["--streaming"])) as pipeline:
        elements = pipeline | stream.advance_watermark_to_infinity()
        for index, step in enumerate(steps):
            elements |= f"{index}" >> beam.ParDo(step)


def test_a_step_is_set_up_once():
    """It serves all bundles, and is torn down at the end. A bundle without elements starts no step."""
    with cheap_bundles():
        run(_Telling("first"), _Telling("second"))
        assert not any(calls["teardown"] for calls in CALLS.values())
    assert CALLS["first"] == {"setup": 1, "bundles": 3, "a": 1, "nothing": 1, "b": 1, "teardown": 1}
    assert CALLS["second"] == {"setup": 1, "bundles": 2, "a": 1, "b": 1, "teardown": 1}


def test_a_step_is_set_up_again_after_it_failed():
    """The runner tries a bundle again, with a step that is set up for it."""
    with cheap_bundles():
        run(_Telling("first", refused=2))
    assert CALLS["first"] == {"setup": 3, "bundles": 5, "a": 3, "nothing": 1, "b": 1, "teardown": 1}


def test_a_copy_of_state_is_its_own():
    """It has the values and timers of the original, which do not change with it."""
    window, tag = GlobalWindow(), _ListStateTag("bag")
    state = InMemoryUnmergedState()
    state.add_state(window, tag, b"1")
    state.set_timer(window, "clock", TimeDomain.REAL_TIME, 7)
    expected = state.copy()
    with cheap_bundles():
        copied = state.copy()
    assert vars(copied) == vars(expected)
    copied.add_state(window, tag, b"2")
    copied.clear_timer(window, "clock", TimeDomain.REAL_TIME)
    assert vars(state) == vars(expected)


def test_timers_fire_when_no_bundle_is_left():
    """Timers of one step wait for the bundles of another."""
    with cheap_bundles():
        monitor = _ExecutorServiceParallelExecutor._MonitorTask(
            SimpleNamespace(transform_executor_services=SimpleNamespace(executors=[SimpleNamespace(blocked=False)]))
        )
        assert not monitor._fire_timers()
