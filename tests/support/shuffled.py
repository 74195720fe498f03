"""Lets Beam's FnApiRunner run the job's graph.

FnApiRunner runs steps with state in one stage with the steps before them, although every other runner shuffles between
the two. In such a stage it lets event time pass to its end after the first bundle, so windows would close while their
events are still to come. Here readings are shuffled first, as elsewhere: then all of them come before any watermark.

Its timers of the clock wait until the clock has passed the event time of what set them, and it ends before they fire if
that is in the future, like the end of the hour in progress. So its clock is ahead here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import apache_beam as beam
from apache_beam.runners.direct.clock import RealClock
from apache_beam.runners.portability.fn_api_runner import execution

from pipeline.job import table_steps
from pipeline.transforms.aggregate import AggregateWindows

_AHEAD_S = 10 * 365 * 86_400.0


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


class _ClockAhead(RealClock):
    def time(self) -> float:
        return super().time() + _AHEAD_S


@contextmanager
def shuffled() -> Iterator[None]:
    """Makes graphs that are built within the block shuffle readings before they are aggregated. Run them within it."""
    with (
        mock.patch.object(table_steps, "AggregateWindows", _AggregateShuffled),
        mock.patch.object(execution, "RealClock", _ClockAhead),
    ):
        yield
