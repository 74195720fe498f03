"""Steps with state or timers."""

import inspect
import pkgutil
from importlib import import_module

import apache_beam as beam

import pipeline
from pipeline.transforms.tables import StatefulFn


def test_every_step_with_state_prepares_its_process():
    """Each DoFn with state or timers is a ``StatefulFn``: none reads a cache that may keep a revoked token."""
    for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    with_state = {each for each in subclasses(beam.DoFn) if each.__module__.startswith("pipeline.") and has_state(each)}
    assert len(with_state) > 5
    assert {each for each in with_state if not issubclass(each, StatefulFn)} == set()


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def has_state(kind):
    state_or_timer = beam.DoFn.StateParam, beam.DoFn.TimerParam
    return any(
        isinstance(parameter.default, state_or_timer)
        for method in vars(kind).values()
        if inspect.isfunction(method)
        for parameter in inspect.signature(method).parameters.values()
    )
