"""The sinks: rows to Bigtable and dead letters to Pub/Sub, through Beam's own connectors."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable, _BigTableWriteFn
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.batcher import MutationsBatchError
from google.cloud.bigtable.data.mutations import Mutation
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable_v2.types import MutateRowsRequest
from google.cloud.bigtable_v2.types import Mutation as MutationMessage

from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.core.messages import Message
from pipeline.core.mutation_bytes import encoded
from pipeline.core.rows import EncodedRow, Row

# Bigtable takes at most 100,000 mutations in an entry: an aggregate row of 16,667 metrics has more.
_CELLS_AN_ENTRY = 50_000

_Entry = MutateRowsRequest.Entry.pb()  # the plain protobuf class


class WriteRows(beam.PTransform):
    """Writes ``Row`` elements, or lists of ``EncodedRow``, to a table with Beam's Bigtable connector."""

    def __init__(self, project: str, instance: str, table: str) -> None:
        super().__init__()
        self._project = project
        self._instance = instance
        self._table = table

    def expand(self, rows: PCollection) -> PCollection:
        return rows | "WriteToBigTable" >> _WriteToBigTable(self._project, self._instance, self._table)


class _WriteToBigTable(WriteToBigTable):
    """Beam's connector, given our rows, many at once. ``apache-beam`` is pinned to the release that this was read in.

    It fails as it does, and also says which rows Bigtable refused, and why: it keeps that in an attribute of its error,
    which is lost on the way from a worker to a log.
    """

    def expand(self, rows: PCollection) -> PCollection:
        write_fn = _WriteFn(self._project_id, self._instance_id, self._table_id, self._flush_count, self._max_row_bytes)
        return rows | beam.ParDo(write_fn)


class _WriteFn(_BigTableWriteFn):
    def default_label(self) -> str:
        return _BigTableWriteFn.__name__  # the step is called as it always was, which jobs are updated by

    def process(self, element: Row | list[EncodedRow]) -> None:
        for row in _parts(element) if isinstance(element, Row) else element:
            super().process(_DirectRow(row))

    def finish_bundle(self) -> None:
        try:
            super().finish_bundle()
        except MutationsBatchError as error:
            name = TableName(*(self.beam_options[key] for key in ("project_id", "instance_id", "table_id")))
            causes = Counter(" ".join(f"{type(cause).__name__}: {cause}".split())[:300] for cause in error.exc)
            (cause, _), *others = causes.most_common()
            more = f", and {len(others)} other causes" if others else ""
            raise ServerProblem(f"table {name}: {causes.total()} rows could not be written: {cause}{more}") from error


def _parts(row: Row) -> Iterator[EncodedRow]:
    """The row in as many entries as it takes; each has cells of its own, so their order does not matter."""
    for start in range(0, len(row.cells), _CELLS_AN_ENTRY):
        yield encoded(Row(row.key, row.cells[start : start + _CELLS_AN_ENTRY]))


class _DirectRow(DirectRow):
    """What the connector takes, of mutations that are encoded already: ``set_cell`` takes several times as long."""

    def __init__(self, row: EncodedRow) -> None:
        super().__init__(row.key)
        self._mutations = [_Encoded(message) for message in _Entry.FromString(row.mutations).mutations]


class _Encoded(Mutation):
    """A ``SetCell`` as the plain protobuf message that is sent."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    def _to_pb(self) -> MutationMessage:
        return MutationMessage.wrap(self._message)

    def _to_dict(self) -> dict[str, Any]:
        # For people to read, and for a size that the connector takes of the dictionary alone, three times a row.
        return {"set_cell": self._message.set_cell}


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
