"""Caches what Beam computes again and again: inspection takes half of a small job's time, options take a quarter.

Beam looks up the specs of a DoFn's state and timers several times when it builds a pipeline, and again for each bundle.
They depend on the class alone. It inspects the arguments of each function a thousand times for a pipeline. It makes
hundreds of views of a pipeline's options, and parses the command line for each. A view has no values of its own: views
of the same options share one dictionary.

Relies on, in ``apache-beam``:

- ``get_dofn_specs`` in apache_beam/transforms/userstate.py takes a DoFn, and its callers find it as an attribute of
  that module.
- It looks only at bound methods. ``CallableWrapperDoFn`` in apache_beam/transforms/core.py has what it wraps as its
  ``process``.
- ``AbstractDoFnWrapper`` in apache_beam/typehints/typecheck.py wraps another DoFn, and has its specs.
- ``get_function_args_defaults`` in apache_beam/transforms/core.py returns two new lists, and its callers find it as an
  attribute of that module.
- ``PipelineOptions.view_as`` in apache_beam/options/pipeline_options.py returns a view with the ``_all_options`` of the
  options that it is asked for; reading and setting an attribute of a view reads and sets that dictionary.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, MethodType
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate
from apache_beam.transforms.core import DoFn
from apache_beam.typehints.typecheck import AbstractDoFnWrapper

from pipeline.private_apis.replace import replaced

_Specs = tuple[set[Any], set[Any]]  # state specs, timer specs
_Arguments = tuple[list[str], list[Any]]  # names, defaults


@contextmanager
def specs_by_class() -> Iterator[None]:
    """Makes Beam inspect each class of DoFns and each function only once, within the block."""
    arguments = _arguments_by_function(core.get_function_args_defaults)
    with (
        replaced(userstate, "get_dofn_specs", _SpecsByClass(userstate.get_dofn_specs)),
        replaced(core, "get_function_args_defaults", arguments),
    ):
        yield


def _arguments_by_function(arguments_of: Callable[[Any], _Arguments]) -> Callable[[Any], _Arguments]:
    known: dict[tuple[bool, FunctionType], _Arguments] = {}

    def kept(function: Any) -> _Arguments:
        is_method = isinstance(function, MethodType)
        inspected = function.__func__ if is_method else function
        if not isinstance(inspected, FunctionType):
            return arguments_of(function)
        key = is_method, inspected
        if key not in known:
            known[key] = arguments_of(function)
        names, defaults = known[key]
        return [*names], [*defaults]

    return kept


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


_View = Callable[[PipelineOptions, type[PipelineOptions]], PipelineOptions]


def kept_views() -> AbstractContextManager[None]:
    """Makes Beam parse each kind of options only once for the same options, within the block."""
    return replaced(PipelineOptions, "view_as", _keeping(PipelineOptions.view_as))


def _keeping(view_as: _View) -> _View:
    views: dict[tuple[int, type[PipelineOptions]], PipelineOptions] = {}

    def kept(options: PipelineOptions, kind: type[PipelineOptions]) -> PipelineOptions:
        key = id(options._all_options), kind  # not used again while its view, which shares the dictionary, is kept
        if (view := views.get(key)) is None:
            view = views[key] = view_as(options, kind)
        return view

    return kept
