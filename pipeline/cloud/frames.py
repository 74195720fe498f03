"""Records that stream, and that become an Arrow table or a pandas frame where that is wanted.

Both need the extra ``frames``: ``pip install 'tidetable[frames]'``.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline.core.aggregates import STATISTICS
from pipeline.core.records import AggregateRecord, RawRecord

if TYPE_CHECKING:
    import pandas
    import pyarrow

_Record = TypeVar("_Record", RawRecord, AggregateRecord)


class _Records(Generic[_Record]):
    """An iterator of records. Each can be had once: what was taken is not in a frame that is made afterwards."""

    def __init__(self, records: Iterator[_Record]) -> None:
        self._records: Iterator[_Record] = iter(records)

    def __iter__(self) -> Iterator[_Record]:
        return self._records

    def __next__(self) -> _Record:
        return next(self._records)

    def to_arrow(self) -> "pyarrow.Table":
        """The records that are left as an Arrow table. Raises ImportError without the extra ``frames``."""
        arrow = _imported("pyarrow")
        return self._table(arrow, list(self._records))

    def to_pandas(self) -> "pandas.DataFrame":
        """The records that are left as a frame. Raises ImportError without the extra ``frames``."""
        _imported("pandas")
        return self.to_arrow().to_pandas()

    def _table(self, arrow: Any, records: list[_Record]) -> "pyarrow.Table":
        raise NotImplementedError


class RawRecords(_Records[RawRecord]):
    """Events. As a table: ``sensor_id``, ``event_time`` (microseconds, UTC), ``event_id`` where there is one.

    Then a column of doubles for each metric, and one of text for each metadata field, called ``metadata.location``;
    null where an event has none.
    """

    def _table(self, arrow: Any, records: list[RawRecord]) -> "pyarrow.Table":
        columns: dict[str, Any] = {
            "sensor_id": arrow.array([record.sensor_id for record in records], arrow.string()),
            "event_time": arrow.array([record.event_time_us for record in records], _instant(arrow)),
        }
        if any(record.event_id for record in records):
            columns["event_id"] = arrow.array([record.event_id or None for record in records], arrow.string())
        for metric in _sorted_names(records, lambda record: record.readings):
            values = [record.readings.get(metric) for record in records]
            columns[_free(columns, metric)] = arrow.array(values, arrow.float64())
        for name in _sorted_names(records, lambda record: record.metadata):
            texts = [record.metadata.get(name) for record in records]
            columns[_free(columns, f"metadata.{name}")] = arrow.array(texts, arrow.string())
        return arrow.table(columns)


class AggregateRecords(_Records[AggregateRecord]):
    """Windows. As a table: ``sensor_id``, ``window_start`` (microseconds, UTC), ``window``, ``reading_count``.

    Then for each metric ``count_temperature``, ``sum_temperature`` and so on, as the table's own columns are called;
    null where a window has none.
    """

    def _table(self, arrow: Any, records: list[AggregateRecord]) -> "pyarrow.Table":
        columns: dict[str, Any] = {
            "sensor_id": arrow.array([record.sensor_id for record in records], arrow.string()),
            "window_start": arrow.array([record.start_us for record in records], _instant(arrow)),
            "window": arrow.array([record.window.text for record in records], arrow.string()),
            "reading_count": arrow.array([record.reading_count for record in records], arrow.int64()),
        }
        for metric in _sorted_names(records, lambda record: record.metrics):
            summaries = [record.metrics.get(metric) for record in records]
            of_metric = [asdict(summary) if summary else {} for summary in summaries]
            for statistic in STATISTICS:
                kind = arrow.int64() if statistic == "count" else arrow.float64()
                values = [statistics.get(statistic) for statistics in of_metric]
                columns[f"{statistic}_{metric}"] = arrow.array(values, kind)
        return arrow.table(columns)


def _imported(module: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}; install it with: pip install 'tidetable[frames]'") from error


def _instant(arrow: Any) -> Any:
    return arrow.timestamp("us", tz="UTC")


def _sorted_names(records: list[_Record], of: Callable[[_Record], dict[str, Any]]) -> list[str]:
    return sorted({name for record in records for name in of(record)})


def _free(columns: dict[str, Any], name: str) -> str:
    """The name, or ``reading.<name>`` where a metric is called like a column of ours."""
    return name if name not in columns else f"reading.{name}"
