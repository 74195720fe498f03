from google.cloud.bigtable.data.mutations import RowMutationEntry
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.core.mutation_bytes import ENTRY_OVERHEAD
from pipeline.core.rows import Cell, Row
from pipeline.core.times import to_datetime
from pipeline.private_apis.bigtable_writer import _Entry, _parts

KEY = b"agg#hourly#a#2026-02-17T12"


def row_of(cells):
    return Row(KEY, [Cell("stats", b"q%d" % i, 1_771_329_600_000_000, b"1") for i in range(cells)])


def entries(row):
    return [_Entry(part) for part in _parts(row)]


def test_an_entry_is_that_of_a_direct_row():
    """The connector sends what it would have made of Google's own row, and may send it again."""
    row = row_of(3)
    direct_row = DirectRow(row.key)
    for cell in row.cells:
        direct_row.set_cell(cell.family, cell.qualifier, cell.value, to_datetime(cell.timestamp_us))
    expected = RowMutationEntry(direct_row.row_key, direct_row._get_mutations())
    (entry,) = entries(row)
    assert entry._to_pb() == expected._to_pb()
    assert (entry.row_key, len(entry.mutations)) == (expected.row_key, len(expected.mutations))
    assert entry.is_idempotent()


def test_size_of_an_entry():
    """The size, by which the connector limits requests, is at least that of the encoded entry, and little more."""
    for cells in (1, 1000):
        (entry,) = entries(row_of(cells))
        size = MutateRowsRequest.pb()(entries=[MutateRowsRequest.Entry.pb(entry._to_pb())]).ByteSize()
        assert size <= entry.size() <= size + ENTRY_OVERHEAD


def test_a_row_wider_than_bigtable_takes_at_once():
    """A row of more cells than an entry may have becomes several entries, each cell in one of them."""
    parts = entries(row_of(120_001))
    assert [len(part._to_pb().mutations) for part in parts] == [50_000, 50_000, 20_001]
    assert {part.row_key for part in parts} == {KEY}
