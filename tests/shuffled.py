"""Lets Beam's FnApiRunner run the job's graph.

FnApiRunner runs steps with state in one stage with the steps before them, although every other runner shuffles between
the two. In such a stage it lets event time pass to its end after the first bundle, so windows would close while their
events are still to come. Here readings are shuffled first, as elsewhere: then all of them come before any watermark.

Its timers of the clock fire as soon as the clock has passed the event time of what set them, which is the end of the
previous timer if that set them. So a clock that goes on leaves timers that never fire.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
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


def stopped_clock() -> Callable[[], float]:
    """Returns a clock that stands still, as a step can pickle it.

    It is some seconds slow: a timer that is set by it has to be over when the runner looks, however short the run.
    """
    return partial(float, time.time() - 10)
