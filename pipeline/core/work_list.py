"""The work list: windows whose aggregates may be wrong, recorded in the table until a repair has settled them.

One row for a window of the table's shortest tier, ``repair#hourly#{sensor_id}#{YYYY-MM-DDTHH}``: the key of the
aggregate row under another first segment.

Its cell lies in the shortest tier's family, since every table with aggregates has it, and its timestamp is later than
any time: no policy by age collects it before a repair has settled the window, however old the window is.
"""

from collections.abc import Iterable

from pipeline.core.aggregates import AggregateKey, aggregate_key, aggregate_prefix, aggregate_range, parse_aggregate_key
from pipeline.core.events import LATEST_US
from pipeline.core.mutation_bytes import encoded
from pipeline.core.rows import Cell, EncodedRows, KeyRange, Row, prefix_range
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import Window

LATE = b"late"

_FOR_EVER_US = LATEST_US - LATEST_US % 1000
_PREFIX = b"repair#"
_AGGREGATES = b"agg#"


def work_row(tier: Tier, sensor_id: str, start_us: int, column: bytes = LATE) -> Row:
    """The row that records the sensor's window of that time; however often it is written, it is one.

    Args:
        tier: the table's shortest.
        sensor_id: whose.
        start_us: within the window.
        column: under which it is recorded.
    """
    key = work_key(tier.window, sensor_id, tier.window.start_of(start_us))
    return Row(key, [Cell(tier.family, column, _FOR_EVER_US, b"1")])


def encoded_work_rows(tier: Tier, windows: Iterable[tuple[str, int]]) -> EncodedRows:
    """Returns the rows that record windows, encoded for Bigtable.

    Args:
        tier: the table's shortest.
        windows: sensor id, and a time in µs within the window.
    """
    return EncodedRows(encoded(work_row(tier, sensor_id, start_us)) for sensor_id, start_us in windows)


def is_work_key(key: bytes) -> bool:
    """Whether a row is one of the work list."""
    return key.startswith(_PREFIX)


def work_key(window: Window, sensor_id: str, start_us: int) -> bytes:
    """The key of the row that records the sensor's window that starts then."""
    return _listed(aggregate_key(window, sensor_id, start_us))


def parse_work_key(window: Window, key: bytes) -> AggregateKey:
    """Which sensor's window is recorded, and its start. Raises ValueError where it is no such key."""
    if not key.startswith(_PREFIX):
        raise ValueError(f"{key!r} is not the key of a work list's row")
    return parse_aggregate_key(window, _AGGREGATES + key.removeprefix(_PREFIX))


def work_range(window: Window) -> KeyRange:
    """Where the rows of all sensors lie."""
    return prefix_range(_listed(aggregate_prefix(window).encode()))


def work_range_of(window: Window, sensor_id: str, start_us: int, end_us: int) -> KeyRange:
    """A sensor's recorded windows that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first."""
    start, end = aggregate_range(window, sensor_id, start_us, end_us)
    return KeyRange(_listed(start), _listed(end))


def _listed(key: bytes) -> bytes:
    return _PREFIX + key.removeprefix(_AGGREGATES)
