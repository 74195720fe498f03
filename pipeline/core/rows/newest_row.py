"""The newest reading of each metric of a sensor, in one row a sensor.

The key is ``latest#{sensor_id}``. A cell contains a metric's newest value as decimal text; its timestamp is the event
time, to the millisecond. Bigtable shows the newest version of a cell, and the family keeps one: so rows may be written
in any order, and a late event never replaces a newer one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from pipeline.core.events.event import checked_sensor_id, name_of
from pipeline.core.notation.cell_values import format_value, parse_value, shown_bytes
from pipeline.core.rows.mutation_bytes import ColumnBytes, timestamp_of
from pipeline.core.rows.rows import EncodedRow, KeyRange, Row, prefix_range
from pipeline.core.statistics.courses import At
from pipeline.core.statistics.window_stats import MAX_METRICS

_PREFIX = b"latest#"


@dataclass(frozen=True, slots=True)
class LatestRecord:
    """The newest readings of a sensor.

    Attributes:
        sensor_id: the sensor.
        readings: the newest reading of each metric, sorted by name; times are whole milliseconds.
    """

    sensor_id: str
    readings: dict[str, At]

    @property
    def event_time_us(self) -> int:
        """The time of the newest reading in µs."""
        return max(at.time_us for at in self.readings.values())


class NewestReadings:
    """Gathers the newest readings of sensors."""

    def __init__(self) -> None:
        self._sensors: dict[str, dict[str, At]] = {}

    def add(self, sensor_id: str, time_us: int, readings: Iterable[tuple[str, float]]) -> None:
        """Adds an event's readings."""
        newest = self._sensors.setdefault(sensor_id, {})
        for metric, value in readings:
            known = newest.get(metric)
            if known is None or known.time_us <= time_us:
                newest[metric] = At(time_us, value)

    def rows(self, family: str, from_us: int = 0) -> Iterator[EncodedRow]:
        """Yields the row of each sensor, with at most as many metrics as an aggregate row contains.

        Args:
            family: the column family of the newest readings.
            from_us: the earliest reading to write: Bigtable would collect earlier cells at once.
        """
        for sensor_id, newest in self._sensors.items():
            parts: list[bytes] = []
            kept = ((metric, at) for metric, at in newest.items() if at.time_us >= from_us)
            for metric, at in islice(kept, MAX_METRICS):
                text = format_value(at.value)
                before, between = _column(family, metric)[len(text)]
                parts += (before, timestamp_of(at.time_us - at.time_us % 1000), between, text)
            if parts:
                yield EncodedRow(latest_key(sensor_id), b"".join(parts), len(parts) // 4)


@lru_cache(maxsize=8192)
def _column(family: str, metric: str) -> ColumnBytes:
    return ColumnBytes(family, metric.encode())


def latest_key(sensor_id: str) -> bytes:
    """Returns the key of the sensor's row."""
    return _PREFIX + sensor_id.encode()


def is_latest_key(key: bytes) -> bool:
    """Returns whether a row with this key contains newest readings."""
    return key.startswith(_PREFIX)


def latest_range(prefix: str = "", after: str = "") -> KeyRange:
    """Returns the key range of the sensors whose ids have the prefix and follow ``after`` in the order of ids."""
    of_prefix = prefix_range(_PREFIX + prefix.encode())
    return of_prefix._replace(start=max(of_prefix.start, _PREFIX + after.encode() + b"\x00")) if after else of_prefix


def parse_latest_row(row: Row) -> LatestRecord:
    """Returns the newest readings in a row. Raises ValueError for a key, column or value that no such row has."""
    if not row.key.startswith(_PREFIX):
        raise ValueError(f"the key does not begin with {_PREFIX.decode()}")
    sensor_id = checked_sensor_id(row.key.removeprefix(_PREFIX).decode())
    readings: dict[str, At] = {}
    for cell in row.cells:
        try:
            readings[name_of(cell.qualifier)] = At(cell.timestamp_us, parse_value(cell.value))
        except ValueError as error:
            raise ValueError(f"{shown_bytes(cell.qualifier)}: {error}") from error
    return LatestRecord(sensor_id, dict(sorted(readings.items())))
