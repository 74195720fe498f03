"""Reads encoded rows back, with Google's own class."""

from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.core.rows.rows import Cell, EncodedRow, Row


def decoded(row: EncodedRow) -> Row:
    """Returns the row that was encoded."""
    cells = [each.set_cell for each in MutateRowsRequest.Entry.pb().FromString(row.mutations).mutations]
    assert len(cells) == row.cells
    return Row(
        row.key, [Cell(each.family_name, each.column_qualifier, each.timestamp_micros, each.value) for each in cells]
    )
