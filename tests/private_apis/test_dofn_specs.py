from types import FunctionType

import apache_beam as beam
from apache_beam.transforms import userstate
from apache_beam.transforms.core import CallableWrapperDoFn
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from pipeline.private_apis.dofn_specs import specs_by_class

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
