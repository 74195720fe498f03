"""Reads encoded rows back, with Google's own class."""

from collections.abc import Sequence

from google.cloud.bigtable_v2.types import MutateRowsRequest, Mutation

from pipeline.core.rows.rows import Cell, EncodedRow, Row


def decoded(row: EncodedRow) -> Row:
    """Returns the cells of an encoded row, without what it deletes."""
    cells = [each.set_cell for each in mutations_of(row) if each.HasField("set_cell")]
    return Row(
        row.key, [Cell(each.family_name, each.column_qualifier, each.timestamp_micros, each.value) for each in cells]
    )


def mutations_of(row: EncodedRow) -> Sequence[Mutation]:
    """Returns the mutations of an encoded row."""
    found = MutateRowsRequest.Entry.pb().FromString(row.mutations).mutations
    assert len(found) == row.cells
    return found
