"""Lets Beam's FnApiRunner run the job's graph.

FnApiRunner runs steps with state in one stage with the steps before them, although every other runner shuffles between
the two. In such a stage it lets event time pass to its end after the first bundle, so windows would close while their
events are still to come. Here readings are shuffled first, as elsewhere: then all of them come before any watermark.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import apache_beam as beam

from pipeline.job import table_steps
from pipeline.transforms.aggregate import AggregateWindows


class _AggregateShuffled(AggregateWindows):
    def expand(self, parts: beam.PCollection) -> Any:
        shuffled = (
            parts
            | "Shuffle" >> beam.GroupByKey()
            | "Each" >> beam.FlatMap(_each).with_output_types(beam.typehints.KV[int, bytes])
        )
        return super().expand(shuffled)


def _each(element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
    group, parts = element
    for part in parts:
        yield group, part


@contextmanager
def shuffled() -> Iterator[None]:
    """Makes graphs that are built within the block shuffle readings before they are aggregated."""
    with mock.patch.object(table_steps, "AggregateWindows", _AggregateShuffled):
        yield
