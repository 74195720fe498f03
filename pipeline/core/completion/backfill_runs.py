"""Notes of the runs of backfills, in a row of the table.

Where raw rows may be gone, a job can't tell whether a pane replaced a row that a backfill wrote while the pane was on
its way. So it lists such a window if a backfill ran at that time. The row is ``schema#backfills``, with a column for
each run: the time at which it began, and the one by which its rows were written.
"""

from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import SCHEMA_FAMILY

RUNS_KEY = b"schema#backfills"

_OWN_ROWS = b"schema#"
_MAX_DIGITS = 19


def run_text(start_us: int, end_us: int) -> bytes:
    """Returns the value that notes a run."""
    return b"%d %d" % (start_us, end_us)


def end_of_run(value: bytes) -> int:
    """Returns the time in µs by which the rows of a noted run were written; 0 for another program's value."""
    start, _, end = value.partition(b" ")
    return int(end) if start.isdigit() and end.isdigit() and len(end) <= _MAX_DIGITS else 0


def last_run_us(read: ReadRows) -> int | None:
    """Returns the time in µs by which the rows of all backfills were written, which may be in the future.

    Returns 0 without any backfill, and None if the table contains no notes, not even its schema.
    """
    rows = list(read(RowSelection(prefix_range(_OWN_ROWS), CellSelection((SCHEMA_FAMILY,), versions=1))))
    if not rows:
        return None
    return max((end_of_run(cell.value) for row in rows if row.key == RUNS_KEY for cell in row.cells), default=0)
