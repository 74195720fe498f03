"""The sinks: rows to Bigtable and dead letters to Pub/Sub, through Beam's own connectors."""

from collections import Counter
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable, _BigTableWriteFn
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.batcher import MutationsBatchError
from google.cloud.bigtable.row import DirectRow

from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.core.messages import Message
from pipeline.core.rows import Row
from pipeline.core.times import to_datetime

# Bigtable takes at most 100,000 mutations in an entry: an aggregate row of 16,667 metrics has more.
_CELLS_AN_ENTRY = 50_000


class WriteRows(beam.PTransform):
    """Writes ``Row`` elements, or lists of them, to a table with Beam's Bigtable connector."""

    def __init__(self, project: str, instance: str, table: str) -> None:
        super().__init__()
        self._project = project
        self._instance = instance
        self._table = table

    def expand(self, rows: PCollection) -> PCollection:
        return (
            rows
            | "ToDirectRow" >> beam.FlatMap(_direct_rows)
            | "WriteToBigTable" >> _TellingWriteToBigTable(self._project, self._instance, self._table)
        )


class _TellingWriteToBigTable(WriteToBigTable):
    """Beam's connector, which fails as it does, and also says which rows Bigtable refused, and why.

    It keeps that in an attribute of its error, which is lost on the way from a worker to a log. ``apache-beam`` is
    pinned to the release that its private class was read in.
    """

    def expand(self, rows: PCollection) -> PCollection:
        write_fn = _TellingWriteFn(
            self._project_id, self._instance_id, self._table_id, self._flush_count, self._max_row_bytes
        )
        return rows | beam.ParDo(write_fn)


class _TellingWriteFn(_BigTableWriteFn):
    def default_label(self) -> str:
        return _BigTableWriteFn.__name__  # the step is called as it always was, which jobs are updated by

    def finish_bundle(self) -> None:
        try:
            super().finish_bundle()
        except MutationsBatchError as error:
            name = TableName(*(self.beam_options[key] for key in ("project_id", "instance_id", "table_id")))
            causes = Counter(" ".join(f"{type(cause).__name__}: {cause}".split())[:300] for cause in error.exc)
            (cause, _), *others = causes.most_common()
            more = f", and {len(others)} other causes" if others else ""
            raise ServerProblem(f"table {name}: {causes.total()} rows could not be written: {cause}{more}") from error


def _direct_rows(element: Row | list[Row]) -> Iterator[DirectRow]:
    for row in element if isinstance(element, list) else [element]:
        yield from _entries(row)


def _entries(row: Row) -> Iterator[DirectRow]:
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
