"""Keeps the views of a pipeline's options, which Beam makes hundreds of times for each small job.

Each view parses the command line again, with a parser of its own, which takes a quarter of a small job's time. A view
has no values of its own: views of the same options share one dictionary.

Relies on, in ``apache-beam``:

- ``PipelineOptions.view_as`` in apache_beam/options/pipeline_options.py returns a view with the ``_all_options`` of the
  options that it is asked for; reading and setting an attribute of a view reads and sets that dictionary.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.private_apis.replace import replaced

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
