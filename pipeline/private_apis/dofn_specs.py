"""Caches the specs of a DoFn's state and timers by its class.

Beam looks up these specs several times for each DoFn when it builds a pipeline, and again for each bundle. Each time it
inspects the signatures of all methods, which takes a third of a small job's time. The specs depend on the class alone.

Relies on, in ``apache-beam``:

- ``get_dofn_specs`` in apache_beam/transforms/userstate.py takes a DoFn, and its callers find it as an attribute of
  that module.
- It looks only at bound methods. ``CallableWrapperDoFn`` in apache_beam/transforms/core.py has what it wraps as its
  ``process``.
- ``AbstractDoFnWrapper`` in apache_beam/typehints/typecheck.py wraps another DoFn, and has its specs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

from apache_beam.transforms import userstate
from apache_beam.transforms.core import DoFn
from apache_beam.typehints.typecheck import AbstractDoFnWrapper

from pipeline.private_apis.replace import replaced

_Specs = tuple[set[Any], set[Any]]  # state specs, timer specs


def specs_by_class() -> AbstractContextManager[None]:
    """Makes Beam inspect each class of DoFns only once, within the block."""
    return replaced(userstate, "get_dofn_specs", _SpecsByClass(userstate.get_dofn_specs))


class _SpecsByClass:
    """Calls ``get_dofn_specs`` once for each class; every time for DoFns that wrap a method or another DoFn."""

    def __init__(self, specs_of: Callable[[DoFn], _Specs]) -> None:
        self._specs_of = specs_of
        self._known: dict[type[DoFn], _Specs] = {}

    def __call__(self, dofn: DoFn) -> _Specs:
        if isinstance(dofn, AbstractDoFnWrapper) or isinstance(vars(dofn).get("process"), MethodType):
            return self._specs_of(dofn)
        if (known := self._known.get(type(dofn))) is None:
            known = self._known[type(dofn)] = self._specs_of(dofn)
        return known
