"""The sinks: rows to Bigtable and dead letters to Pub/Sub, through Beam's own connectors."""

from dataclasses import dataclass

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.core.events.message import Message
from pipeline.private_apis.bigtable_writer import WriteToBigTable

CELLS_PER_REQUEST = 10_000
"""The connector counts cells, not rows. An aggregate row of ten metrics has 61 cells."""


@dataclass(eq=False)
class WriteRows(beam.PTransform):
    """Writes ``Row`` elements, or ``EncodedRows``, to a table with Beam's Bigtable connector.

    Attributes:
        name: the table.
        guard: the table as it was at the job's launch; None for any table.
    """

    name: TableName
    guard: TableGuard | None = None

    def expand(self, rows: PCollection) -> PCollection:
        sink = WriteToBigTable(self.name, flush_count=CELLS_PER_REQUEST, guard=self.guard)
        return rows | "WriteToBigTable" >> sink


@dataclass(eq=False)
class WriteDeadLetters(beam.PTransform):
    """Publishes ``Message`` elements to a topic."""

    topic: str

    def expand(self, dead_letters: PCollection) -> PCollection:
        return (
            dead_letters
            | "ToPubsubMessage" >> beam.Map(_pubsub_message).with_output_types(PubsubMessage)
            | "WriteToPubSub" >> WriteToPubSub(self.topic, with_attributes=True)
        )


def _pubsub_message(message: Message) -> PubsubMessage:
    return PubsubMessage(message.data, dict(message.attributes))
