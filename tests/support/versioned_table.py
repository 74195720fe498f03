"""A table in memory that applies encoded rows as Bigtable does: mutations of a row in order, cells by timestamp."""

from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.core.rows.rows import Cell, Row, entry_of

_Entry = MutateRowsRequest.Entry.pb()


class VersionedTable:
    """Rows by key, and the cells of each by family, qualifier and timestamp."""

    def __init__(self):
        self._rows = {}

    def apply(self, row):
        """Applies an encoded row."""
        cells = self._rows.setdefault(row.key, {})
        mutations = _Entry.FromString(entry_of(row.key, [row.mutations])).mutations
        assert len(mutations) == row.cells
        for mutation in mutations:
            if mutation.HasField("set_cell"):
                cell = mutation.set_cell
                cells[cell.family_name, cell.column_qualifier, cell.timestamp_micros] = cell.value
            else:
                deleted = mutation.delete_from_column
                assert not deleted.time_range.start_timestamp_micros
                column, end_us = (
                    (deleted.family_name, deleted.column_qualifier),
                    deleted.time_range.end_timestamp_micros,
                )
                for family, qualifier, time_us in list(cells):
                    if (family, qualifier) == column and time_us < end_us:
                        del cells[family, qualifier, time_us]

    def select(self, selection):
        """Yields the rows of selected keys, with the newest version of each cell."""
        families, columns = selection.cells.families, selection.cells.qualifiers
        for key in sorted(self._rows):
            if any(keys.start <= key < keys.end for keys in selection.ranges):
                cells = [
                    cell
                    for cell in self.cells(key)
                    if cell.family in families and (not columns or cell.qualifier in columns)
                ]
                newest = {(cell.family, cell.qualifier): cell for cell in reversed(cells)}
                if newest:
                    yield Row(key, [newest[place] for place in sorted(newest)])

    def cells(self, key):
        """Returns the cells of a row, the newest versions first."""
        return self.row(key).cells if key in self._rows else []

    def forget(self, key):
        """Deletes a row."""
        self._rows.pop(key, None)

    def row(self, key):
        """Returns a row."""
        cells = (Cell(*place, value) for place, value in self._rows[key].items())
        return Row(key, sorted(cells, key=lambda cell: (cell.family, cell.qualifier, -cell.timestamp_us)))

    def rows(self, prefix):
        """Yields the rows whose keys have a prefix."""
        return [self.row(key) for key in sorted(self._rows) if key.startswith(prefix) and self._rows[key]]
