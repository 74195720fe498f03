"""The newest reading of each metric of a sensor, in one row a sensor.

The key is ``latest#{sensor_id}``. A cell contains a metric's newest value as decimal text; its timestamp is the event
time, to the millisecond. Bigtable shows the newest version of a cell, and the family keeps one: so rows may be written
in any order, and a late event never replaces a newer one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from pipeline.core.events.event import checked_sensor_id, name_of
from pipeline.core.notation.cell_values import format_value, parse_value, shown_bytes
from pipeline.core.queries.foreign import ForeignRow, OnForeign
from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.rows.mutation_bytes import ColumnBytes, timestamp_of
from pipeline.core.rows.rows import EncodedRow, KeyRange, Row, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.statistics.courses import At
from pipeline.core.statistics.window_stats import MAX_METRICS

_PREFIX = b"latest#"


@dataclass(frozen=True, slots=True)
class LatestRecord:
    """What a sensor says now.

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
            family: of the rows.
            from_us: earlier readings are left out: Bigtable would collect their cells at once.
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
    """Returns the key range of the sensors whose ids have the prefix, and follow this one in the order of ids."""
    of_prefix = prefix_range(_PREFIX + prefix.encode())
    return of_prefix._replace(start=max(of_prefix.start, _PREFIX + after.encode() + b"\x00")) if after else of_prefix


def parse_latest_row(row: Row) -> LatestRecord:
    """Parses a row. Raises ValueError if the key, a column or a value is none of such a row."""
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


def latest_of(
    family: str,
    read: ReadRows,
    prefix: str,
    after: str,
    metrics: tuple[str, ...] | None,
    page_rows: int | None,
    on_foreign: OnForeign,
) -> Iterator[LatestRecord]:
    """Yields what the sensors whose ids have the prefix say now, by one scan, in the order of their ids.

    Begins behind the sensor ``after``, if there is one, and reads pages of so many rows, if that is known.

    With ``metrics``, yields only these, and only sensors that have one of them.
    """
    columns = None if metrics is None else tuple(metric.encode() for metric in metrics)
    selection = CellSelection((family,), columns, versions=1)
    for row in read(RowSelection(latest_range(prefix, after), selection, page_rows=page_rows)):
        try:
            record = parse_latest_row(row)
        except ValueError as error:
            on_foreign(ForeignRow(row, error))
            continue
        if metrics is not None:  # if the names are too long for a filter, the server sends all columns
            record = LatestRecord(record.sensor_id, _selected(record.readings, metrics))
        if record.readings:
            yield record


def _selected(readings: Mapping[str, At], metrics: tuple[str, ...]) -> dict[str, At]:
    return {metric: at for metric, at in readings.items() if metric in metrics}
