from google.cloud.bigtable.data.mutations import RowMutationEntry
from google.cloud.bigtable.row import DirectRow

from pipeline.core.rows import Cell, Row
from pipeline.core.times import to_datetime
from pipeline.transforms.write import _DirectRow, _parts


def direct_rows(row):
    return [_DirectRow(part) for part in _parts(row)]


def row_of(cells):
    return Row(
        b"agg#hourly#a#2026-02-17T12", [Cell("stats", b"q%d" % i, 1_771_329_600_000_000, b"1") for i in range(cells)]
    )


def test_a_row_is_one_entry():
    """A row becomes one entry with all its cells, each with its family, column, value and time."""
    (entry,) = direct_rows(row_of(3))
    assert entry.row_key == b"agg#hourly#a#2026-02-17T12"
    assert [
        (pb.set_cell.family_name, pb.set_cell.column_qualifier, pb.set_cell.timestamp_micros, pb.set_cell.value)
        for pb in entry._get_mutation_pbs()
    ] == [("stats", b"q%d" % i, 1_771_329_600_000_000, b"1") for i in range(3)]


def test_a_row_wider_than_bigtable_takes_at_once():
    """More cells than an entry may have become several entries of one row, with every cell in one of them."""
    entries = direct_rows(row_of(120_001))
    sizes = [len(entry._get_mutations()) for entry in entries]
    assert sizes == [50_000, 50_000, 20_001]
    assert {entry.row_key for entry in entries} == {b"agg#hourly#a#2026-02-17T12"}


def test_what_the_connector_makes_of_it():
    """The request that the connector sends is the one of Google's own rows, and its errors can print what it was."""
    ours, googles = direct_rows(row_of(2))[0], DirectRow(b"agg#hourly#a#2026-02-17T12")
    for cell in row_of(2).cells:
        googles.set_cell(cell.family, cell.qualifier, cell.value, to_datetime(cell.timestamp_us))
    entries = [RowMutationEntry(row.row_key, row._get_mutations()) for row in (ours, googles)]
    assert entries[0]._to_pb() == entries[1]._to_pb()
    assert entries[0].is_idempotent()
    assert entries[0].size() == entries[1].size()
    assert 'column_qualifier: "q0"' in str(entries[0].mutations[0])
