"""The rows of the work list: windows whose aggregates may be wrong, kept in the table until a repair settles them.

Each row stands for a window of the table's shortest tier. Its key is that of the aggregate row with another first
segment: ``repair#hourly#{sensor_id}#{YYYY-MM-DDTHH}``.

Its cells are in the shortest tier's family, which every table with aggregates has. Their timestamp is the latest
possible, so no policy by age collects them before a repair settles the window, however old the window is.

Each listing is a column of its own, whose name ends with the time: ``late-1771322400000000``. So a repair removes the
listings that it has read, and no other. When a job lists a window, a pane of the window may be on its way to the table:
until it has certainly arrived, a repair corrects the window and leaves it listed.
"""

from collections.abc import Iterable

from pipeline.core.events.event import LATEST_US
from pipeline.core.rows.aggregate_rows import (
    AggregateKey,
    aggregate_key,
    aggregate_prefix,
    aggregate_range,
    parse_aggregate_key,
)
from pipeline.core.rows.rows import Cell, EncodedRows, KeyRange, Row, encoded, prefix_range
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import Window

LATE = b"late"
BACKFILLED = b"backfill"
REPAIRED = b"repaired"

_LATEST_TIMESTAMP_US = LATEST_US - LATEST_US % 1000
_PREFIX = b"repair#"
_AGGREGATES = b"agg#"
_TIME_DIGITS = 16


def work_row(tier: Tier, sensor_id: str, start_us: int, column: bytes = LATE) -> Row:
    """Returns the row that puts a sensor's window on the work list. Writing it again changes nothing.

    Args:
        tier: the table's shortest tier.
        sensor_id: the sensor.
        start_us: a time within the window.
        column: the qualifier of the row's cell, from :func:`listing`.
    """
    key = work_key(tier.window, sensor_id, tier.window.start_of(start_us))
    return Row(key, [Cell(tier.family, column, _LATEST_TIMESTAMP_US, b"1")])


def encoded_work_rows(tier: Tier, windows: Iterable[tuple[str, int]], column: bytes = LATE) -> EncodedRows:
    """Returns the rows that record windows, encoded for Bigtable.

    Args:
        tier: the table's shortest tier.
        windows: sensor id, and a time in µs within the window.
        column: the qualifier of the rows' cells, from :func:`listing`.
    """
    return EncodedRows(encoded(work_row(tier, sensor_id, start_us, column)) for sensor_id, start_us in windows)


def listing(writer: bytes, now_us: int) -> bytes:
    """Returns the column of windows that are listed now.

    Args:
        writer: ``LATE`` for a writer whose rows may be on their way, such as a job; ``BACKFILLED`` for a backfill;
            ``REPAIRED`` for a repair that has yet to settle roll-ups.
        now_us: the current time.
    """
    return b"%b-%0*d" % (writer, _TIME_DIGITS, now_us)


def listing_time(column: bytes) -> tuple[bytes, int] | None:
    """Returns the writer and the time that :func:`listing` wrote; None for another column of a work list row."""
    writer, _, digits = column.rpartition(b"-")
    return (writer, int(digits)) if writer and digits.isdigit() and len(digits) == _TIME_DIGITS else None


def work_key(window: Window, sensor_id: str, start_us: int) -> bytes:
    """Returns the work list key of the sensor's window that starts at ``start_us``."""
    return _work_list_key(aggregate_key(window, sensor_id, start_us))


def parse_work_key(window: Window, key: bytes) -> AggregateKey:
    """Parses a work list key into the sensor and the window's start. Raises ValueError for any other key."""
    if not key.startswith(_PREFIX):
        raise ValueError(f"{key!r} is not the key of a work list row")
    return parse_aggregate_key(window, _AGGREGATES + key.removeprefix(_PREFIX))


def work_range(window: Window) -> KeyRange:
    """Returns the key range of the whole work list for windows of this length."""
    return prefix_range(_work_list_key(aggregate_prefix(window).encode()))


def work_range_of(window: Window, sensor_id: str, start_us: int, end_us: int) -> KeyRange:
    """Returns the key range of a sensor's listed windows that start in [``start_us``, ``end_us``), oldest first."""
    start, end = aggregate_range(window, sensor_id, start_us, end_us)
    return KeyRange(_work_list_key(start), _work_list_key(end))


def _work_list_key(key: bytes) -> bytes:
    return _PREFIX + key.removeprefix(_AGGREGATES)
