"""The sinks: rows to Bigtable and dead letters to Pub/Sub, through Beam's own connectors."""

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.row import DirectRow

from pipeline.core.messages import Message
from pipeline.core.rows import Row
from pipeline.core.times import to_datetime

# Bigtable takes at most 100,000 mutations in an entry: an aggregate row of 16,667 metrics has more.
_CELLS_AN_ENTRY = 50_000


class WriteRows(beam.PTransform):
    """Writes ``Row`` elements to a table with Beam's Bigtable connector."""

    def __init__(self, project: str, instance: str, table: str) -> None:
        super().__init__()
        self._project = project
        self._instance = instance
        self._table = table

    def expand(self, rows: PCollection) -> PCollection:
        return (
            rows
            | "ToDirectRow" >> beam.FlatMap(_direct_rows)
            | "WriteToBigTable" >> WriteToBigTable(self._project, self._instance, self._table)
        )


def _direct_rows(row: Row) -> Iterator[DirectRow]:
    """The row in as many entries as it takes; each has cells of its own, so their order does not matter."""
    timestamps = {cell.timestamp_us: to_datetime(cell.timestamp_us) for cell in row.cells}  # mostly one for all cells
    for start in range(0, len(row.cells), _CELLS_AN_ENTRY):
        direct_row = DirectRow(row.key)
        for cell in row.cells[start : start + _CELLS_AN_ENTRY]:
            direct_row.set_cell(cell.family, cell.qualifier, cell.value, timestamps[cell.timestamp_us])
        yield direct_row


class WriteDeadLetters(beam.PTransform):
    """Publishes ``Message`` elements to a topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def expand(self, dead_letters: PCollection) -> PCollection:
        return (
            dead_letters
            | "ToPubsubMessage" >> beam.Map(_pubsub_message).with_output_types(PubsubMessage)
            | "WriteToPubSub" >> WriteToPubSub(self._topic, with_attributes=True)
        )


def _pubsub_message(message: Message) -> PubsubMessage:
    return PubsubMessage(message.data, dict(message.attributes))
