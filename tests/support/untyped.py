"""Pipelines that are built faster, for tests of what their steps do."""

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, TypeOptions

from pipeline.job import bounded


@pytest.fixture(autouse=True)
def unchecked_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out Beam's check of the types between steps, a seventh of a small pipeline's time.

    Whatever runs a command in another process, and the tests of the graph, check them.
    """
    options = bounded.beam_options

    def unchecked(flags: list[str], project: str) -> PipelineOptions:
        found = options(flags, project)
        found.view_as(TypeOptions).pipeline_type_check = False
        return found

    monkeypatch.setattr(bounded, "beam_options", unchecked)
