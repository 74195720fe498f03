"""Rows as a reader of tables has them: one by one, or in blocks."""

from google.cloud.bigtable_v2.types import ReadRowsResponse

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import BlockOfRows, KeyRange, RowStream, in_parts
from pipeline.core.schema.layouts import CellSelection
from tests.support.row_server import chunk, response

_ALL = RowSelection(KeyRange(b"", b""), CellSelection(("any",)))


def terse_chunks(row, *, names=False):
    """Returns a row's chunks as Bigtable sends them: with names that change, or with all ``names``."""
    chunks, family, qualifier = [], None, None
    for cell in row.cells:
        one = chunk(timestamp_micros=cell.timestamp_us, value=cell.value)
        if not chunks or names:
            one.row_key = row.key
        if cell.family != family or names:
            one.family_name, qualifier = cell.family, None
        if cell.qualifier != qualifier or names:
            one.qualifier = cell.qualifier
        family, qualifier = cell.family, cell.qualifier
        chunks.append(one)
    chunks[-1].commit_row = True
    return chunks


class Responses:
    """Bigtable's client, which answers the first request with these responses."""

    def __init__(self, responses):
        self._responses = list(responses)

    def read_rows(self, _request, **_):
        responses, self._responses = self._responses, []
        return iter(responses)


def reader_of(responses):
    return RowReader(Responses(responses), TableName("p", "i", "t"))


def parts_of(responses):
    """Returns the rows in the responses, in blocks as far as possible."""
    return list(in_parts(reader_of(responses).read_selection(_ALL)))


def blocks_in(parts):
    return [part for part in parts if isinstance(part, BlockOfRows)]


class InBlocks:
    """A table in memory whose rows come in responses of so many chunks, and so in blocks."""

    def __init__(self, table, size=1000, *, names=False):
        self._table, self._size, self._names = table, size, names
        self.blocks = 0

    def __call__(self, selection):
        rows = list(self._table(selection))
        if selection.reverse or selection.cells.keys_only:
            return iter(rows)
        return RowStream(iter(rows), self._parts(rows))

    def _parts(self, rows):
        chunks = [each for row in rows for each in terse_chunks(row, names=self._names)]
        sent = [response(*chunks[n : n + self._size]) for n in range(0, len(chunks), self._size)]
        for part in parts_of(map(ReadRowsResponse, sent)):
            self.blocks += isinstance(part, BlockOfRows)
            yield part
