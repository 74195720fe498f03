"""Publishes the results of windows."""

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection

from pipeline.core.results.window_results import Encoding, message_of, read_batch


@dataclass(eq=False)
class PublishResults(beam.PTransform):
    """Publishes batches of results, as :func:`pipeline.core.results.window_results.batches_of` encodes them.

    The batches are shuffled first. So only results of committed firings are published: if a firing is repeated, it may
    have more readings, and what its first attempt would have published has the same ids.

    Args:
        topic: the topic's full path.
        encoding: the encoding of the messages.
    """

    topic: str
    encoding: Encoding

    def expand(self, batches: PCollection) -> PCollection:
        return (
            batches
            | "OfCommitted" >> beam.Reshuffle()
            | "ToPubsubMessages" >> beam.FlatMap(_messages_of, self.encoding).with_output_types(PubsubMessage)
            | "WriteToPubSub" >> WriteToPubSub(self.topic, with_attributes=True)
        )


def _messages_of(batch: bytes, encoding: Encoding) -> Iterator[PubsubMessage]:
    for serialized in read_batch(batch):
        message = message_of(serialized, encoding)
        yield PubsubMessage(message.data, dict(message.attributes))
