"""A Beam source of messages in memory, in several bundles like a stream."""

from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider

BUNDLES = 10

held: Sequence[PubsubMessage] = []
"""The messages to read. In a global, they are not pickled with the step that reads them."""


class ReadHeld(beam.PTransform):
    """Reads the messages in memory.

    Args:
        of_bundle: the number of messages in a bundle; by default a tenth of them.
    """

    def __init__(self, of_bundle: int | None = None) -> None:
        super().__init__()
        self._of_bundle = of_bundle

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        return pipeline | "Once" >> beam.Create([0], reshuffle=False) | "Read" >> beam.ParDo(_ReadFn(self._of_bundle))


class _Held(RestrictionProvider):
    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, len(held))

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()


_TRACKER = beam.DoFn.RestrictionParam(_Held())


class _ReadFn(beam.DoFn):
    def __init__(self, of_bundle: int | None) -> None:
        self._of_bundle = of_bundle

    def process(self, element: int, tracker: Any = _TRACKER) -> Iterator[PubsubMessage]:
        position = tracker.current_restriction().start
        end = position + (self._of_bundle or -(-len(held) // BUNDLES))
        while tracker.try_claim(position):
            yield held[position]
            position += 1
            if position == end:
                tracker.defer_remainder()  # ends the bundle; the rest follows in the next
                return
