"""Rows of tables without a schema: written by the rewriter, and read."""

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.rows.rows import KeyRange


def write(name, rows):
    """Writes these cells in place of all others in the family of the first one."""
    with Rewriter.open(name) as opened:
        opened.replace(Replacement(key, cells[0].family, tuple(cells)) for key, cells in rows.items())


def rows_of(name):
    """Returns the whole table, key to cells; of aggregates, whose older versions go at any time, the newest cells."""
    with RowReader.open(name) as reader:  # the emulator returns families in any order
        return {row.key: sorted(_newest(row.cells)) for row in reader.read(KeyRange(b"", b""))}


def _newest(cells):
    first = {(cell.family, cell.qualifier): cell for cell in reversed(cells)}  # the newest of a column comes first
    return [cell for cell in cells if cell.family == "raw" or cell is first[cell.family, cell.qualifier]]
