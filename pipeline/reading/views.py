"""Prints the records of ``tidetable read``: as a table, JSON, CSV or Parquet; and says why there are none."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline.cli.console import print_json_line
from pipeline.cli.output import Output
from pipeline.cli.tables import RowBlock, TableColumn, number, print_table, prose, word
from pipeline.cloud.reading.frames import (
    WINDOW_START,
    AggregateRecords,
    GroupRecords,
    RawRecords,
    event_columns,
    event_rank,
    long_events,
    long_newest,
    long_windows,
    long_with_units,
    rounded_statistics,
    window_rank,
    windows_table,
)
from pipeline.core.answers.record_json import aggregate_json, event_json, group_record_json, latest_json
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.file_columns import EVENT_TIME, SENSOR_ID
from pipeline.core.notation.cell_values import rounded
from pipeline.core.notation.text import counted, joined, json_line, plain
from pipeline.core.notation.times import format_time
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.rows.records import (
    AggregateRecord,
    EventBlock,
    GroupRecord,
    MetricSummary,
    RawRecord,
    statistic_names,
)
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import Window
from pipeline.formats.tabular import json_values
from pipeline.reading.printing import LINE, Printing, write_tables

if TYPE_CHECKING:
    import pyarrow

    from pipeline.cloud.reading.reader import SensorTable


Record = TypeVar("Record", RawRecord, AggregateRecord, LatestRecord, GroupRecord)

Rows = tuple[Sequence[TableColumn], Iterable[Sequence[str]]]
"""A table's columns and rows."""

_Column = tuple[TableColumn, Callable[[Any], str]]  # with its text of a record

_NO_METRIC = (("", MetricSummary(0)),)  # a gap's metrics

_TABLE_RECORDS = 4096
NEVER = ", or at any other time"
"""The end of a message about a sensor that the table does not have."""


@dataclass(frozen=True)
class View(Generic[Record]):
    """Renders records of one kind."""

    name: str  # of files
    json: Callable[[Record], dict[str, Any]]
    arrow: Callable[[Iterable[Record]], "pyarrow.Table"]
    long: Callable[[Sequence[Record], bool], "pyarrow.Table"]  # with exact statistics if True
    rank: Callable[[str], Any]  # the place of a column
    time: str  # the column of times
    table: Callable[
        [Sequence[Record], bool, TableSchema], Rows
    ]  # with a column for the sensor or the fields of groups if True
    heading: Callable[[Record], str]  # on a narrow terminal, headings and named lines replace the table
    lines: Callable[[Record, TableSchema], list[tuple[TableColumn, str]]]
    subject: Callable[[Record], str]  # what it is about, for a heading


def print_records(
    records: Iterable[Record], view: View[Record], schema: TableSchema, printing: Printing, *, several: bool = False
) -> None:
    """Prints records, or writes them to files: JSON and long rows as they arrive, all else once it is complete.

    Without records, prints nothing as a table or JSON, and a header as CSV, Parquet or Arrow.

    Args:
        records: the records to print.
        view: the view that renders the records.
        schema: the table's schema, for the units and labels of metrics.
        printing: the format, and where it goes.
        several: whether records may belong to several sensors or groups; each is then printed with its own.
    """
    if printing.output == Output.JSON and not (printing.out or printing.long):
        for record in records:
            print_json_line(view.json(record))
    elif printing.output != Output.TABLE:
        tables = tables_of(iter(records), view, schema, printing)
        write_tables(tables, schema, printing, view.rank, view.time, view.name)
    elif listed := list(records):
        blocks = (_block(record, view, schema, several) for record in listed)
        print_table(*view.table(listed, several, schema), lambda: blocks)


def print_blocks(
    blocks: Iterable[EventBlock], schema: TableSchema, printing: Printing, metrics: Sequence[str] = ()
) -> None:
    """Prints events that come as columns, as :func:`print_records` prints them one by one.

    Args:
        blocks: the events.
        schema: the table's schema, for the units and labels of metrics.
        printing: the format, and where it goes.
        metrics: metrics that have a column in any case.
    """
    if printing.in_columns:
        write_tables(event_tables(blocks, metrics), schema, printing, RAW.rank, RAW.time, RAW.name)
    else:
        print_records(chain.from_iterable(block.records() for block in blocks), RAW, schema, printing, several=True)


def event_tables(blocks: Iterable[EventBlock], metrics: Sequence[str] = ()) -> Iterator["pyarrow.Table"]:
    """Yields the tables of events that come as columns, at least one; see :func:`print_blocks`."""
    import pyarrow  # slow to import

    for block in chain([EventBlock()], blocks):
        yield pyarrow.table(event_columns(pyarrow, block, metrics))


def print_window_blocks(blocks: Iterable[EventBlock], window: Window, schema: TableSchema, printing: Printing) -> None:
    """Prints windows that come as columns, in a format that has columns. The arguments are those above."""
    tables = window_tables(blocks, window, printing)
    write_tables(tables, schema, printing, AGGREGATES.rank, AGGREGATES.time, AGGREGATES.name)


def window_tables(blocks: Iterable[EventBlock], window: Window, printing: Printing) -> Iterator["pyarrow.Table"]:
    """Yields the tables of windows that come as columns, at least one."""
    for block in chain([EventBlock()], blocks):
        table = windows_table(block, window)
        yield rounded_statistics(table) if printing.output == Output.CSV else table


def tables_of(
    records: Iterator[Record], view: View[Record], schema: TableSchema, printing: Printing
) -> Iterator["pyarrow.Table"]:
    """Yields the records as tables, at least one; for JSON, with a column of lines."""
    some = list(islice(records, _TABLE_RECORDS))
    while True:
        if printing.long:
            table = long_with_units(view.long(some, printing.output != Output.CSV), schema)
            lines = _lines_of(table) if printing.output == Output.JSON else []
        elif printing.output == Output.JSON:
            table, lines = view.arrow(some), [json_line(view.json(record)) for record in some]
        else:
            table, lines = view.arrow(some), []
            if printing.output == Output.CSV and view.time == WINDOW_START:
                table = rounded_statistics(table)
        if printing.output == Output.JSON:
            import pyarrow

            table = table.select([table.column_names[0], view.time]).append_column(LINE, pyarrow.array(lines, "string"))
        yield table
        some = list(islice(records, _TABLE_RECORDS))
        if not some:
            return


def _lines_of(table: "pyarrow.Table") -> list[str]:
    """Returns a line of JSON for each row."""
    columns = dict(zip(table.column_names, (json_values(column) for column in table.columns), strict=True))
    return [json_line(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _block(record: Record, view: View[Record], schema: TableSchema, several: bool) -> RowBlock:
    heading = f"{view.subject(record)}, {view.heading(record)}" if several else view.heading(record)
    return RowBlock(heading, view.lines(record, schema))


def _raw_table(records: Sequence[RawRecord], several: bool, schema: TableSchema) -> Rows:
    columns: list[_Column] = [(word("sensor"), lambda record: record.sensor_id)] if several else []
    columns.append((word("event time"), lambda record: format_time(record.event_time_us)))
    if any(record.event_id for record in records):
        columns.append((word("event id"), lambda record: _printable(record.event_id)))
    metrics = sorted({metric for record in records for metric in record.readings})
    columns += [(number(schema.title_of(metric)), partial(_reading, metric)) for metric in metrics]
    if any(record.metadata for record in records):
        columns.append((prose("metadata"), lambda record: joined(record.metadata)))
    return [column for column, _ in columns], ([text(record) for _, text in columns] for record in records)


def _reading(metric: str, record: RawRecord) -> str:
    return rounded(record.readings[metric]) if metric in record.readings else ""


def _raw_lines(record: RawRecord, schema: TableSchema) -> list[tuple[TableColumn, str]]:
    readings = {schema.title_of(metric): rounded(value) for metric, value in record.readings.items()}
    return [
        (word("event id"), _printable(record.event_id)),
        (prose("readings"), joined(readings)),
        (prose("metadata"), joined(record.metadata)),
    ]


def _as_event(record: LatestRecord) -> RawRecord:
    """Returns the readings and metadata as one event at the time of the newest."""
    readings = {metric: at.value for metric, at in record.readings.items()}
    metadata = {name: at.text for name, at in record.metadata.items()}
    return RawRecord(record.sensor_id, record.event_time_us, readings, metadata)


def _window_table(records: Sequence[AggregateRecord | GroupRecord], several: bool, schema: TableSchema) -> Rows:
    columns: list[_Column] = []
    groups = [record for record in records if isinstance(record, GroupRecord)]
    if several and not groups:
        columns.append((word("sensor"), lambda record: record.sensor_id))
    fields = dict.fromkeys(field for group in groups if several for field in group.group.fields)
    columns += [(word(field), partial(_field, field)) for field in fields]
    columns.append((word("window start"), lambda record: record.window.shown(record.start_us)))
    if any(group.windows > 1 for group in groups):
        columns.append((number("windows"), lambda record: str(record.windows)))
    if groups:
        columns.append((number("sensors"), lambda record: str(record.sensors)))
    if any(group.expected is not None for group in groups):
        columns.append((number("expected"), lambda record: "" if record.expected is None else str(record.expected)))
    columns.append((number("events"), lambda record: str(record.reading_count)))
    names = statistic_names(record.metrics.values() for record in records)
    rows = (
        [*(text(record) for _, text in columns), schema.title_of(metric), *_statistics(names, summary)]
        for record in records
        for metric, summary in record.metrics.items() or _NO_METRIC
    )
    return [*(column for column, _ in columns), prose("metric"), *map(number, names)], rows


def _field(name: str, record: GroupRecord) -> str:
    return _printable(record.group.fields.get(name, ""))


def _statistics(names: Iterable[str], summary: MetricSummary) -> Iterable[str]:
    found = summary.statistics()
    return (_statistic(name, found[name]) if name in found else "" for name in names)


def _aggregate_lines(record: AggregateRecord | GroupRecord, schema: TableSchema) -> list[tuple[TableColumn, str]]:
    return [
        (
            prose(schema.title_of(metric)),
            joined({name: _statistic(name, x) for name, x in summary.statistics().items()}),
        )
        for metric, summary in record.metrics.items()
    ]


RAW = View(
    "events",
    event_json,
    lambda records: RawRecords(records).to_arrow(),
    lambda records, _: long_events(records),
    event_rank,
    EVENT_TIME,
    _raw_table,
    lambda record: format_time(record.event_time_us),
    _raw_lines,
    lambda record: record.sensor_id,
)
LATEST = View(
    "newest",
    latest_json,
    lambda records: RawRecords(map(_as_event, records)).to_arrow(),
    lambda records, _: long_newest(records),
    event_rank,
    EVENT_TIME,
    lambda records, several, schema: _raw_table([_as_event(record) for record in records], several, schema),
    lambda record: format_time(record.event_time_us),
    lambda record, schema: _raw_lines(_as_event(record), schema),
    lambda record: record.sensor_id,
)
AGGREGATES = View(
    "aggregates",
    aggregate_json,
    lambda records: AggregateRecords(records).to_arrow(),
    lambda records, exact: long_windows(records, SENSOR_ID, exact=exact),
    window_rank,
    WINDOW_START,
    _window_table,
    lambda record: f"{record.window.shown(record.start_us)}, {counted(record.reading_count, 'event')}",
    _aggregate_lines,
    lambda record: record.sensor_id,
)
GROUPS = View(
    "rollups",
    group_record_json,
    lambda records: GroupRecords(records).to_arrow(),
    lambda records, exact: long_windows(records, "group", exact=exact),
    window_rank,
    WINDOW_START,
    _window_table,
    lambda record: f"{record.window.shown(record.start_us)}, {counted(record.sensors, 'sensor')}",
    _aggregate_lines,
    lambda record: record.group.label,
)


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _statistic(name: str, value: float) -> str:
    return format_time(int(value)) if name.endswith("_time") else rounded(value)


def no_readings(
    table: "SensorTable",
    sensor_id: str,
    metadata: Mapping[str, str],
    metrics: Sequence[str],
    span_us: tuple[int, int] | None = None,
) -> str:
    """Returns the message for a sensor without readings of these metrics, in the range or at all.

    Reads the newest event of the sensor.
    """
    newest = table.latest_events(sensor_id, metadata=metadata)
    what = "readings" if newest is None or not metrics else " or ".join(metrics)
    text = f"no {what} of {sensor_id}{_with(metadata)}{between(span_us)}"
    if newest is None:
        return text + NEVER if span_us else text
    if metrics and newest.readings and not newest.readings.keys() & set(metrics):
        return f"{text}; its newest event has {plain(', '.join(newest.readings))}"
    return f"{text}; its newest event is at {format_time(newest.event_time_us)}"


def no_aggregates(
    table: "SensorTable",
    sensor_id: str,
    window: Window,
    metrics: Sequence[str],
    span_us: tuple[int, int],
    aggregates: str = "aggregates",
) -> str:
    """Returns the message for a sensor without aggregates of these metrics, in the range or at all.

    Reads the sensor's oldest aggregate. ``aggregates`` are the words for what is missing.
    """
    exists = next(table.aggregates(sensor_id, 0, LATEST_US + 1, tier=window, metrics=metrics or None), None) is not None
    what = f"{' or '.join(metrics)} of {sensor_id}" if metrics else sensor_id
    text = f"no {aggregates} of {what} in windows of {window.text} that start{between(span_us)}"
    return text if exists else text + NEVER


def missing_before(time_us: int | None, what: str) -> str:
    """Returns the message for what may be missing of an answer; empty for None."""
    if time_us is None:
        return ""
    shown = format_time(-(-time_us // 1_000_000) * 1_000_000)
    return f"{what} before {shown} may be missing: collected, or older than their tier"


def no_sensors_message(table: "SensorTable", prefix: str, metadata: Mapping[str, str]) -> str:
    """Returns the message for a table without sensors, or without any that match."""
    return f"no sensors{_with_prefix(prefix)}{_with(metadata)} in table {table.rows.name}"


def _with_prefix(prefix: str) -> str:
    return f" whose ids begin with {prefix}" if prefix else ""


def _with(metadata: Mapping[str, str]) -> str:
    return f" with {joined(metadata)}" if metadata else ""


def between(span_us: tuple[int, int] | None) -> str:
    """Returns when: " between … and …"; empty for any time."""
    return "" if span_us is None else f" between {format_time(span_us[0])} and {format_time(span_us[1])}"
