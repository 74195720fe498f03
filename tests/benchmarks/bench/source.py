"""A Beam source of messages in memory, in several bundles like a stream: the source of (3), (4) and (5)."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider

BUNDLES = 10

held: list[PubsubMessage] = []
"""The messages to read. In a global, they are not pickled with the step that reads them."""


class ReadHeld(beam.PTransform):
    """Reads the messages in memory, a tenth of them in each bundle."""

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        return pipeline | "Once" >> beam.Create([0], reshuffle=False) | "Read" >> beam.ParDo(_ReadFn())


class _Held(RestrictionProvider):
    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, len(held))

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()


_TRACKER = beam.DoFn.RestrictionParam(_Held())


class _ReadFn(beam.DoFn):
    def process(self, element: int, tracker: Any = _TRACKER) -> Iterator[PubsubMessage]:
        position = tracker.current_restriction().start
        end = position + -(-len(held) // BUNDLES)
        while tracker.try_claim(position):
            yield held[position]
            position += 1
            if position == end:
                tracker.defer_remainder()  # ends the bundle; the rest follows in the next
                return
