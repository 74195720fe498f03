"""Streams of records that convert to an Arrow table or a pandas DataFrame.

A DataFrame needs the extra ``frames``. From the checkout: ``pip install '.[frames]'``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline.core.events.file_columns import (
    EVENT_ID,
    EVENT_TIME,
    METADATA,
    READING,
    SENSOR_ID,
    metadata_column,
    reading_column,
)
from pipeline.core.notation.cell_values import shortest
from pipeline.core.rows.aggregate_rows import READING_COUNT
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.rows.records import AggregateRecord, EventBlock, GroupRecord, RawRecord, statistics_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import split_qualifier
from pipeline.core.windows import Window

if TYPE_CHECKING:
    import pandas
    import pyarrow

_Record = TypeVar("_Record", bound=RawRecord | AggregateRecord | GroupRecord)
WINDOW_START = "window_start"
_OF_EVENTS = (SENSOR_ID, EVENT_TIME, EVENT_ID)
_OF_WINDOWS = (WINDOW_START, "window", "reading_count", "filled", "sensors", "expected", "windows")
_READINGS = frozenset({"count", "min", "max", "first", "last", "first_time", "last_time"})
_Window = TypeVar("_Window", bound=AggregateRecord | GroupRecord)


class _Records(Generic[_Record]):
    """An iterator of records. A table or frame contains only the records that were not yet taken."""

    def __init__(self, records: Iterable[_Record]) -> None:
        self._records: Iterator[_Record] = iter(records)

    def __iter__(self) -> Iterator[_Record]:
        return self._records

    def __next__(self) -> _Record:
        return next(self._records)

    def to_arrow(self) -> "pyarrow.Table":
        """Returns the remaining records as an Arrow table."""
        import pyarrow as arrow  # slow to import, and used for nothing else here

        return arrow.table(self._columns(arrow, list(self._records)))

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the remaining records as a DataFrame, with NaN for null. Raises ImportError without ``frames``.

        Whole numbers are ``Int64``, which allows nulls: so a column always has the same type.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "pandas is not installed; install the extra \"frames\" from the checkout: pip install '.[frames]'"
            ) from error
        table = self.to_arrow()
        import pyarrow as arrow

        return table.to_pandas(types_mapper={arrow.int64(): pandas.Int64Dtype()}.get)

    def _columns(self, arrow: Any, records: list[_Record]) -> dict[str, Any]:
        raise NotImplementedError


class RawRecords(_Records[RawRecord]):
    """Events. Columns: ``sensor_id``, ``event_time`` (microseconds, UTC), and ``event_id`` if any event has one.

    Each metric, requested or found, is a column of doubles. Each metadata field is a column of text such as
    ``metadata.location``. A value that an event lacks is null. A metric that has the name of another column, such as
    ``event_time``, becomes ``reading.event_time``.
    """

    def __init__(self, records: Iterable[RawRecord], metrics: Iterable[str] = ()) -> None:
        super().__init__(records)
        self._metrics = tuple(metrics)

    def _columns(self, arrow: Any, records: list[RawRecord]) -> dict[str, Any]:
        block = EventBlock()
        for record in records:
            block.add(record)
        return event_columns(arrow, block, self._metrics)


def event_columns(arrow: Any, block: EventBlock, metrics: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the Arrow columns of events; those of :class:`RawRecords`, given its metrics."""
    columns = {
        SENSOR_ID: arrow.array(block.sensor_ids, arrow.string()),
        EVENT_TIME: arrow.array(block.times_us, _instant(arrow)),
    }
    if any(block.event_ids):
        columns[EVENT_ID] = arrow.array([event_id or None for event_id in block.event_ids], arrow.string())
    for metric in sorted({*block.readings, *metrics}):
        values = block.readings.get(metric) or [None] * len(block)
        columns[reading_column(metric)] = arrow.array(values, arrow.float64())
    for name, texts in sorted(block.metadata.items()):
        columns[metadata_column(name)] = arrow.array(texts, arrow.string())
    return columns


class _Windows(_Records[_Window]):
    """Windows, whose answer knows which may be missing."""

    def __init__(
        self, records: Iterable[_Window], incomplete_before_us: Callable[[], int | None] = lambda: None
    ) -> None:
        super().__init__(records)
        self._incomplete_before_us = incomplete_before_us

    @property
    def incomplete_before_us(self) -> int | None:
        """The start before which windows may be missing; None if there is none in the range.

        Their rows may have been collected, or the tier was added later. Asks the table, which takes a request or two a
        minute.
        """
        return self._incomplete_before_us()


class AggregateRecords(_Windows[AggregateRecord]):
    """Windows. Columns: ``sensor_id``, ``window_start`` (microseconds), ``window``, ``reading_count``.

    Starts are in UTC; those of windows of a time zone's calendar are in that zone.

    Each metric adds ``count_temperature``, ``sum_temperature`` and so on, named as the table's columns; null if a
    window has none. Counts are whole numbers, times of readings are like ``window_start``, other statistics doubles; a
    sum that overflowed is infinite. If gaps were filled, ``filled`` tells which windows have no row.
    """

    def _columns(self, arrow: Any, records: list[AggregateRecord]) -> dict[str, Any]:
        columns = {"sensor_id": arrow.array([record.sensor_id for record in records], arrow.string())}
        return columns | _window_columns(arrow, records) | _statistic_columns(arrow, _block_of(records))


class GroupRecords(_Windows[GroupRecord]):
    """Windows of groups of sensors. Columns: the fields of the roll-up, and those of windows of a sensor.

    Beside ``reading_count`` they have ``sensors``, ``expected`` if the schema tells it, and ``windows`` if each record
    is what several amount to. A field that has the name of another column, such as ``window``, becomes
    ``metadata.window``.
    """

    def _columns(self, arrow: Any, records: list[GroupRecord]) -> dict[str, Any]:
        others = _window_columns(arrow, records)
        others["sensors"] = arrow.array([record.sensors for record in records], arrow.int64())
        if any(record.expected is not None for record in records):
            others["expected"] = arrow.array([record.expected for record in records], arrow.int64())
        if any(record.windows > 1 for record in records):
            others["windows"] = arrow.array([record.windows for record in records], arrow.int64())
        others |= _statistic_columns(arrow, _block_of(records))
        columns = {}
        for name in dict.fromkeys(name for record in records for name in record.group.fields):
            texts = [record.group.fields.get(name) for record in records]
            columns[metadata_column(name) if name in others else name] = arrow.array(texts, arrow.string())
        return columns | others


def windows_table(block: EventBlock, window: Window) -> "pyarrow.Table":
    """Returns the table of :class:`AggregateRecords` for windows as columns, of one tier."""
    import pyarrow as arrow

    columns = {
        SENSOR_ID: arrow.array(block.sensor_ids, arrow.string()),
        WINDOW_START: arrow.array(block.times_us, _instant(arrow, window.zone)),
        "window": arrow.repeat(arrow.scalar(window.text), len(block)),
    }
    return arrow.table(columns | _statistic_columns(arrow, block))


def event_rank(column: str) -> tuple[int, str]:
    """Returns the place of a column of events: sensor, time, id, readings by name, metadata by name."""
    if column in _OF_EVENTS:
        return _OF_EVENTS.index(column), ""
    return len(_OF_EVENTS) + column.startswith(METADATA), column


def window_rank(column: str) -> tuple[int, str, float]:
    """Returns the place of a column of windows: the fields of roll-ups first, statistics last, by metric."""
    if column in _OF_WINDOWS:
        return _OF_WINDOWS.index(column), "", 0.0
    try:
        found, metric = split_qualifier(column)
    except ValueError:
        return -1, "", 0.0
    return len(_OF_WINDOWS), metric, found.rank


def rounded_statistics(table: "pyarrow.Table") -> "pyarrow.Table":
    """Returns a table of windows whose computed statistics have at most 15 significant digits.

    Readings stay exact: minima and maxima, first and last ones.
    """
    import pyarrow as arrow

    for place, field in enumerate(table.schema):
        if arrow.types.is_floating(field.type) and split_qualifier(field.name)[0].name not in _READINGS:
            values = [value if value is None else shortest(value) for value in table.column(place).to_pylist()]
            table = table.set_column(place, field, arrow.array(values, field.type))
    return table


def with_units(table: "pyarrow.RecordBatchReader", schema: TableSchema, time: str) -> "pyarrow.RecordBatchReader":
    """Returns rows whose columns of metrics have their metric, unit and label as metadata, if the schema declares any.

    Args:
        table: rows of events or of windows.
        schema: the table's schema.
        time: the name of the column of times, by which windows differ from events.
    """
    import pyarrow as arrow

    fields = [_with_unit(field, schema, time) for field in table.schema]
    return arrow.RecordBatchReader.from_batches(arrow.schema(fields, table.schema.metadata), table)


def _with_unit(field: "pyarrow.Field", schema: TableSchema, time: str) -> "pyarrow.Field":
    metric, statistic = field.name.removeprefix(READING), None
    if time == WINDOW_START:
        try:
            kind, metric = split_qualifier(field.name)
        except ValueError:
            return field
        statistic = kind.name
    if metric not in schema.declared or (statistic is None and field.name != reading_column(metric)):
        return field
    facts = {"metric": metric, "unit": schema.unit_of(metric, statistic), "label": schema.labels.get(metric)}
    return field.with_metadata({name: text for name, text in facts.items() if text})


def long_with_units(table: "pyarrow.Table", schema: TableSchema) -> "pyarrow.Table":
    """Returns a table with a row for each reading or statistic, with columns of units and labels, if there are any."""
    import pyarrow as arrow

    metrics = table["metric"].to_pylist()
    statistics = table["statistic"].to_pylist() if "statistic" in table.column_names else [None] * len(metrics)
    if schema.units:
        units = list(map(schema.unit_of, metrics, statistics))
        table = table.append_column("unit", arrow.array(units, arrow.string()))
    if schema.labels:
        table = table.append_column("label", arrow.array(map(schema.labels.get, metrics), arrow.string()))
    return table


def long_events(records: Iterable[RawRecord]) -> "pyarrow.Table":
    """Returns a row for each reading: sensor, event time, metric and value."""
    rows = (
        (record.sensor_id, record.event_time_us, *reading) for record in records for reading in record.readings.items()
    )
    return _long(rows, (SENSOR_ID, EVENT_TIME, "metric", "value"))


def long_newest(records: Iterable[LatestRecord]) -> "pyarrow.Table":
    """Returns a row for each newest reading, with its own time: sensor, event time, metric and value."""
    rows = (
        (record.sensor_id, at.time_us, metric, at.value) for record in records for metric, at in record.readings.items()
    )
    return _long(rows, (SENSOR_ID, EVENT_TIME, "metric", "value"))


def long_windows(records: Sequence[AggregateRecord | GroupRecord], subject: str, *, exact: bool) -> "pyarrow.Table":
    """Returns a row for each statistic: sensor or group, window, number of events, metric, statistic and value.

    Values that are times are microseconds since the epoch.

    Args:
        records: windows of one tier.
        subject: the name of the first column.
        exact: whether computed statistics are exact, and do not have at most 15 significant digits.
    """
    rows = (
        (
            record.group.label if isinstance(record, GroupRecord) else record.sensor_id,
            record.start_us,
            record.window.text,
            record.reading_count,
            metric,
            name,
            float(value if exact or name in _READINGS else shortest(float(value))),
        )
        for record in records
        for metric, summary in record.metrics.items()
        for name, value in summary.statistics().items()
    )
    names = (subject, WINDOW_START, *_OF_WINDOWS[1:3], "metric", "statistic", "value")
    return _long(rows, names, records[0].window.zone if records else "UTC")


def _long(rows: Iterable[tuple[Any, ...]], names: Sequence[str], zone: str = "UTC") -> "pyarrow.Table":
    import pyarrow as arrow

    times = dict.fromkeys((EVENT_TIME, WINDOW_START), _instant(arrow, zone))
    kinds = times | {"reading_count": arrow.int64(), "value": arrow.float64()}
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return arrow.table(
        {
            name: arrow.array(values, kinds.get(name, arrow.string()))
            for name, values in zip(names, columns, strict=True)
        }
    )


def _window_columns(arrow: Any, records: Sequence[AggregateRecord | GroupRecord]) -> dict[str, Any]:
    zone = records[0].window.zone if records else "UTC"
    columns = {
        WINDOW_START: arrow.array([record.start_us for record in records], _instant(arrow, zone)),
        "window": arrow.array([record.window.text for record in records], arrow.string()),
        "reading_count": arrow.array([record.reading_count for record in records], arrow.int64()),
    }
    if any(record.filled for record in records):
        columns["filled"] = arrow.array([record.filled for record in records], arrow.bool_())
    return columns


def _block_of(records: Iterable[AggregateRecord | GroupRecord]) -> EventBlock:
    """Returns the statistics of windows as columns."""
    block = EventBlock()
    for record in records:
        block.add(RawRecord("", record.start_us, statistics_of(record)))
    return block


def _statistic_columns(arrow: Any, block: EventBlock) -> dict[str, Any]:
    """Returns a column for each statistic, by metric and in the order of cells. Counts and times are whole numbers."""
    kinds = {"count": arrow.int64(), "first_time": _instant(arrow), "last_time": _instant(arrow)}
    columns = {}
    for name, values in sorted(block.readings.items(), key=lambda column: window_rank(column[0])):
        kind = kinds.get("count" if name == READING_COUNT else split_qualifier(name)[0].name)
        numbers = arrow.array(values, arrow.float64())
        columns[name] = numbers if kind is None else numbers.cast(arrow.int64()).cast(kind)
    return columns


def _instant(arrow: Any, zone: str = "UTC") -> Any:
    return arrow.timestamp("us", tz=zone)
