import argparse
from types import FunctionType

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, WorkerOptions
from apache_beam.transforms import core, userstate
from apache_beam.transforms.core import CallableWrapperDoFn
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from pipeline.private_apis.repeated_work import kept_views, specs_by_class

SPEC = ReadModifyWriteStateSpec("last", beam.coders.VarIntCoder())
LAST = beam.DoFn.StateParam(SPEC)


class Stateful(beam.DoFn):
    def process(self, element, last=LAST):
        yield element


class Stateless(beam.DoFn):
    def process(self, element):
        yield element


class Methods:
    def keeping(self, element, last=LAST):
        yield element

    def forgetting(self, element):
        yield element


def test_each_class_has_its_own_specs(monkeypatch):
    """Beam learns what keeps state, a wrapped method included, and inspects each class once."""
    asked = []
    specs_of = userstate.get_dofn_specs
    monkeypatch.setattr(userstate, "get_dofn_specs", lambda dofn: asked.append(dofn) or specs_of(dofn))
    with specs_by_class():
        for _ in range(2):
            assert userstate.get_dofn_specs(Stateful()) == ({SPEC}, set())
            assert userstate.get_dofn_specs(Stateless()) == (set(), set())
            assert userstate.is_stateful_dofn(Stateful())
            assert not userstate.is_stateful_dofn(beam.Map(str).fn)
            assert not userstate.is_stateful_dofn(beam.FlatMap(Methods().forgetting).fn)
            assert userstate.is_stateful_dofn(beam.FlatMap(Methods().keeping).fn)
    assert sum(isinstance(dofn, Stateful) for dofn in asked) == 1
    wrapped = [dofn.process for dofn in asked if isinstance(dofn, CallableWrapperDoFn)]
    assert sum(isinstance(each, FunctionType) for each in wrapped) == 1


def test_each_function_is_inspected_once(monkeypatch):
    """Beam learns the arguments of functions and methods, and nobody's changes of an answer reach the next one."""
    asked = []
    arguments_of = core.get_function_args_defaults
    monkeypatch.setattr(
        core, "get_function_args_defaults", lambda function: asked.append(function) or arguments_of(function)
    )
    with specs_by_class():
        for _ in range(2):
            names, defaults = core.get_function_args_defaults(Methods().keeping)
            assert (names, defaults) == (["element", "last"], [LAST])
            names.clear()
            assert core.get_function_args_defaults(Methods.keeping)[0] == ["self", "element", "last"]
            assert core.get_function_args_defaults(Methods)[0] == []
    assert len(asked) == 4  # a class is no function


def test_views_are_kept(monkeypatch):
    """Each kind of view is parsed once for the same options, and sees and sets their values; others have their own."""
    parsed = []
    parse = argparse.ArgumentParser.parse_known_args
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_known_args", lambda *arguments: parsed.append(arguments) or parse(*arguments)
    )
    options, others = (PipelineOptions(["--runner=X", f"--num_workers={n}"]) for n in (1, 2))
    before = PipelineOptions.view_as
    with kept_views():
        parsed.clear()
        for _ in range(2):
            assert options.view_as(StandardOptions).runner == "X"
            assert options.view_as(StandardOptions).view_as(WorkerOptions).num_workers == 1
        assert len(parsed) == 2
        assert others.view_as(WorkerOptions).num_workers == 2
        options.view_as(WorkerOptions).num_workers = 3
        assert options.view_as(WorkerOptions).num_workers == 3
        assert others.view_as(WorkerOptions).num_workers == 2
    assert PipelineOptions.view_as is before
    assert options.view_as(WorkerOptions).num_workers == 3
