"""The sinks: rows to Bigtable and dead letters to Pub/Sub, through Beam's own connectors."""

from collections import Counter
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable, _BigTableWriteFn
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.batcher import MutationsBatchError
from google.cloud.bigtable.data.mutations import RowMutationEntry
from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.core.messages import Message
from pipeline.core.mutation_bytes import ENTRY_OVERHEAD, encoded, entry_of
from pipeline.core.rows import EncodedRow, EncodedRows, Row
from pipeline.core.work_list import is_work_key

# Bigtable takes at most 100,000 mutations in an entry: an aggregate row of 16,667 metrics has more.
_CELLS_AN_ENTRY = 50_000

_EntryMessage = MutateRowsRequest.Entry.pb()  # the plain protobuf class


class WriteRows(beam.PTransform):
    """Writes ``Row`` elements, or ``EncodedRows``, to a table with Beam's Bigtable connector."""

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
    """Rows of the work list are written when all others of the bundle are: whoever finds one finds its events."""

    def default_label(self) -> str:
        return _BigTableWriteFn.__name__  # the step is called as it always was, which jobs are updated by

    def start_bundle(self) -> None:
        super().start_bundle()
        self._last = EncodedRows()

    def process(self, element: Row | EncodedRows) -> None:
        rows = list(_parts(element)) if isinstance(element, Row) else element
        self.written.inc(len(rows))
        if rows and is_work_key(rows[0].key):
            self._last += rows
        else:
            self._append(rows)

    def _append(self, rows: Iterable[EncodedRow]) -> None:
        for row in rows:
            self.batcher._batcher.append(_Entry(row))

    def finish_bundle(self) -> None:
        try:
            super().finish_bundle()
            if self._last:
                super().start_bundle()
                self._append(self._last)
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


class _Entry(RowMutationEntry):
    """What the connector's batcher makes of a ``DirectRow``, of a row that is encoded already: in a fifth of the time.

    Of its mutations the batcher asks how many there are, and of its size, that it is known: that of a ``DirectRow`` is
    the same for all, so that requests would have no limit in bytes.
    """

    def __init__(self, row: EncodedRow) -> None:
        self.row_key = row.key
        self.mutations = range(row.cells)
        self._encoded = row.mutations

    def size(self) -> int:
        return len(self.row_key) + len(self._encoded) + ENTRY_OVERHEAD

    def is_idempotent(self) -> bool:
        return True  # each cell has a timestamp of its own

    def _to_pb(self) -> MutateRowsRequest.Entry:
        return MutateRowsRequest.Entry.wrap(_EntryMessage.FromString(entry_of(self.row_key, [self._encoded])))


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
