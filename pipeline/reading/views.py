"""Prints the records of ``tidetable read``: as a table, as JSON lines, as CSV or Parquet."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from pipeline.cli.console import out, print_json_line
from pipeline.cli.output import Output, print_arrow
from pipeline.cloud.reading.frames import AggregateRecords, GroupRecords, RawRecords
from pipeline.core.answers.record_json import aggregate_json, event_json, group_record_json, latest_json
from pipeline.core.notation.cell_values import rounded
from pipeline.core.notation.text import counted, joined, plain
from pipeline.core.notation.times import format_time
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.rows.records import AggregateRecord, GroupRecord, MetricSummary, RawRecord, statistic_names

if TYPE_CHECKING:
    import pyarrow

Record = TypeVar("Record", RawRecord, AggregateRecord, LatestRecord, GroupRecord)

# For pipes: lines are as long as they need to be, and nothing is folded.
_UNBOUNDED = Console(width=1_000_000, highlight=False, emoji=False)


@dataclass(frozen=True)
class View(Generic[Record]):
    """Renders records of one kind."""

    json: Callable[[Record], dict[str, Any]]
    arrow: Callable[[Iterable[Record]], "pyarrow.Table"]
    table: Callable[[Sequence[Record], bool], Table]  # with a column for the sensor or the fields of groups if True
    heading: Callable[[Record], str]  # on a narrow terminal, headings and named lines replace the table
    lines: Callable[[Record], dict[str, Text]]
    subject: Callable[[Record], str]  # what it is about, for a heading


def print_records(records: Iterable[Record], view: View[Record], output: Output, *, several: bool = False) -> None:
    """Prints records: JSON as they arrive, all else once it is complete.

    Without records, prints nothing as a table or JSON, and a header as CSV or Parquet.

    Args:
        records: the records to print.
        view: the view that renders the records.
        output: the format.
        several: whether records may belong to several sensors or groups; each is then printed with its own.
    """
    if output == Output.JSON:
        for record in records:
            print_json_line(view.json(record))
    elif output != Output.TABLE:
        print_arrow(view.arrow(records), output)
    elif listed := list(records):
        _print_table(listed, view, several)


def _print_table(records: Sequence[Record], view: View[Record], several: bool) -> None:
    """Prints a table, or one block per record if the terminal is too narrow: a number is never folded."""
    console = out if out.is_terminal else _UNBOUNDED
    table = view.table(records, several)
    if Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).minimum <= console.width:
        console.print(table)
        return
    for record in records:
        heading = f"{view.subject(record)}, {view.heading(record)}" if several else view.heading(record)
        grid = Table.grid("name", Column(overflow="fold"), padding=(0, 2))
        for name, line in view.lines(record).items():
            grid.add_row(Text(plain(name)), line)
        console.print(Text(plain(heading), style="bold"), Padding(grid, (0, 0, 1, 2), expand=False))


def _raw_table(records: Sequence[RawRecord], several: bool) -> Table:
    metrics = sorted({metric for record in records for metric in record.readings})
    with_ids = any(record.event_id for record in records)
    with_metadata = any(record.metadata for record in records)
    table = _table(
        *([_word("sensor")] if several else []),
        _word("event time"),
        *([_word("event id")] if with_ids else []),
        *map(_number, metrics),
        *([Column("metadata")] if with_metadata else []),
    )
    for record in records:
        values = (_text(record.readings[metric]) if metric in record.readings else "" for metric in metrics)
        table.add_row(
            *([Text(plain(record.sensor_id))] if several else []),
            format_time(record.event_time_us),
            *([_printable(record.event_id)] if with_ids else []),
            *values,
            *([_joined(record.metadata)] if with_metadata else []),
        )
    return table


def _raw_lines(record: RawRecord) -> dict[str, Text]:
    readings = {metric: _text(value) for metric, value in record.readings.items()}
    lines = {
        "event id": _printable(record.event_id),
        "readings": _joined(readings),
        "metadata": _joined(record.metadata),
    }
    return {name: line for name, line in lines.items() if line}


def _latest_table(records: Sequence[LatestRecord], several: bool) -> Table:
    return _raw_table([_as_event(record) for record in records], several)


def _latest_lines(record: LatestRecord) -> dict[str, Text]:
    return _raw_lines(_as_event(record))


def _as_event(record: LatestRecord) -> RawRecord:
    """Returns the readings and metadata as one event at the time of the newest."""
    readings = {metric: at.value for metric, at in record.readings.items()}
    metadata = {name: at.text for name, at in record.metadata.items()}
    return RawRecord(record.sensor_id, record.event_time_us, readings, metadata)


_NO_METRIC = (("", MetricSummary(0)),)  # a gap's metrics


def _aggregate_table(records: Sequence[AggregateRecord], several: bool) -> Table:
    names = statistic_names(record.metrics.values() for record in records)
    table = _table(
        *([_word("sensor")] if several else []),
        _word("window start"),
        _number("events"),
        _word("metric"),
        *map(_number, names),
    )
    for record in records:
        for metric, summary in record.metrics.items() or _NO_METRIC:
            found = summary.statistics()
            table.add_row(
                *([Text(plain(record.sensor_id))] if several else []),
                record.window.shown(record.start_us),
                str(record.reading_count),
                Text(plain(metric)),
                *(_statistic(name, found[name]) if name in found else "" for name in names),
            )
    return table


def _group_table(records: Sequence[GroupRecord], several: bool) -> Table:
    names = statistic_names(record.metrics.values() for record in records)
    fields = list(dict.fromkeys(field for record in records for field in record.group.fields)) if several else []
    with_expected = any(record.expected is not None for record in records)
    with_windows = any(record.windows > 1 for record in records)
    table = _table(
        *(_word(plain(field)) for field in fields),
        _word("window start"),
        *([_number("windows")] if with_windows else []),
        _number("sensors"),
        *([_number("expected")] if with_expected else []),
        _number("events"),
        _word("metric"),
        *map(_number, names),
    )
    for record in records:
        for metric, summary in record.metrics.items() or _NO_METRIC:
            found = summary.statistics()
            table.add_row(
                *(_printable(record.group.fields.get(field, "")) for field in fields),
                record.window.shown(record.start_us),
                *([str(record.windows)] if with_windows else []),
                str(record.sensors),
                *(["" if record.expected is None else str(record.expected)] if with_expected else []),
                str(record.reading_count),
                Text(plain(metric)),
                *(_statistic(name, found[name]) if name in found else "" for name in names),
            )
    return table


def _aggregate_lines(record: AggregateRecord | GroupRecord) -> dict[str, Text]:
    return {
        metric: _joined({name: _statistic(name, x) for name, x in summary.statistics().items()})
        for metric, summary in record.metrics.items()
    }


RAW = View(
    event_json,
    lambda records: RawRecords(records).to_arrow(),
    _raw_table,
    lambda record: format_time(record.event_time_us),
    _raw_lines,
    lambda record: record.sensor_id,
)
LATEST = View(
    latest_json,
    lambda records: RawRecords(map(_as_event, records)).to_arrow(),
    _latest_table,
    lambda record: format_time(record.event_time_us),
    _latest_lines,
    lambda record: record.sensor_id,
)
AGGREGATES = View(
    aggregate_json,
    lambda records: AggregateRecords(records).to_arrow(),
    _aggregate_table,
    lambda record: f"{record.window.shown(record.start_us)}, {record.reading_count} events",
    _aggregate_lines,
    lambda record: record.sensor_id,
)
GROUPS = View(
    group_record_json,
    lambda records: GroupRecords(records).to_arrow(),
    _group_table,
    lambda record: f"{record.window.shown(record.start_us)}, {counted(record.sensors, 'sensor')}",
    _aggregate_lines,
    lambda record: record.group.label,
)


def _joined(pairs: Mapping[str, str]) -> Text:
    return Text(joined(pairs))


def _printable(text: str) -> Text:
    return Text(text if text.isprintable() else repr(text))


def _table(*columns: Column) -> Table:
    return Table(*columns, box=box.SIMPLE, pad_edge=False, collapse_padding=True)


def _word(header: str) -> Column:
    return Column(header, no_wrap=True)


def _number(header: str) -> Column:
    return Column(Text(plain(header)), justify="right", no_wrap=True)  # Text: a metric's name is not markup


def _statistic(name: str, value: float) -> str:
    return format_time(int(value)) if name.endswith("_time") else _text(value)


def _text(value: float) -> str:
    return rounded(value)
