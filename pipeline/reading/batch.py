"""Exports as a batch job: the events or windows of many sensors, to files in a folder or a bucket, or to BigQuery.

    parts of the table ─ ReadParts ─ Gather ─ WriteFiles ─ Rename ── files by day, and by sensors
                              │                 │
                              └── columns ──────┘
                              └─ WriteToBigQuery ── rows of a table

A part is a range of keys, or a sensor where rows have parts of events. A file has a temporary name until all are
written. A bundle that Beam repeats writes another temporary file, and only the last one gets the name.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
import pyarrow
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.bigquery import BigQueryDisposition, WriteToBigQuery
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.pvalue import AsSingleton, PCollection, TaggedOutput

from pipeline.cli.output import Output
from pipeline.cloud.connection.key_ranges import Sample, sampled_keys, split_points
from pipeline.cloud.connection.names import TableName
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time
from pipeline.core.queries.events import Query
from pipeline.core.queries.many import (
    Chosen,
    EventPart,
    blocks_of_part,
    event_parts,
    window_blocks,
    window_parts,
)
from pipeline.core.queries.reads import ForeignRows
from pipeline.core.rows.aggregate_rows import aggregate_prefix
from pipeline.core.rows.records import AggregateRecord, RawRecord
from pipeline.core.rows.rows import prefix_range, split_range
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.formats.spool import aligned
from pipeline.job import bounded
from pipeline.job.flag_values import BadFlag
from pipeline.job.settings import runs_here
from pipeline.reading.printing import BIGQUERY, Printing, parted, path_of, write_table
from pipeline.reading.views import AGGREGATES, RAW, View, event_tables, tables_of, window_tables
from pipeline.transforms import metrics
from pipeline.transforms.tables import RETRY_S, TableReadingFn

if TYPE_CHECKING:
    from pipeline.cloud.reading.reader import SensorTable

_FILE_BYTES = 256 << 20  # of the table, for a file of a day
_DAY_US = 86_400_000_000
_COLUMNS = "columns"
_NUMBER = re.compile(r"-\d{5}-of-\d{5}")  # of a file
_BIGQUERY = re.compile(BIGQUERY + r"([a-z][a-z0-9:.-]*[a-z0-9])\.(\w{1,1024})\.([\w-]{1,1024})", re.ASCII)

_ENTRY = {"mode": "REPEATED", "type": "RECORD"}


def _field(name: str, kind: str, mode: str = "REQUIRED") -> dict[str, Any]:
    return {"name": name, "type": kind, "mode": mode}


_NAMED_VALUE = [_field("name", "STRING"), _field("value", "FLOAT64")]
BIGQUERY_FIELDS: Mapping[str, list[dict[str, Any]]] = {
    RAW.name: [
        _field("sensor_id", "STRING"),
        _field("event_time", "TIMESTAMP"),
        {"name": "readings", "fields": [_field("key", "STRING"), _field("value", "FLOAT64")], **_ENTRY},
        {"name": "metadata", "fields": [_field("key", "STRING"), _field("value", "STRING")], **_ENTRY},
        _field("event_id", "STRING", "NULLABLE"),
    ],
    AGGREGATES.name: [
        _field("sensor_id", "STRING"),
        _field("tier", "STRING"),
        _field("window_start", "TIMESTAMP"),
        _field("window_end", "TIMESTAMP"),
        _field("reading_count", "INT64"),
        {
            "name": "metrics",
            "fields": [
                _field("metric", "STRING"),
                _field("count", "INT64"),
                {"name": "statistics", "fields": _NAMED_VALUE, **_ENTRY},
            ],
            **_ENTRY,
        },
    ],
}
"""The fields of BigQuery's tables of events and windows: those of the messages ``SensorEvent`` and ``WindowResult``."""


def bigquery_row(record: RawRecord | AggregateRecord) -> dict[str, Any]:
    """Returns the row of an event or a window. An infinite sum is the text that BigQuery reads as one."""
    if isinstance(record, RawRecord):
        return {
            "sensor_id": record.sensor_id,
            "event_time": format_time(record.event_time_us),
            "readings": [{"key": name, "value": value} for name, value in record.readings.items()],
            "metadata": [{"key": name, "value": text} for name, text in record.metadata.items()],
            "event_id": record.event_id or None,
        }
    summaries = ((metric, summary.count, summary.statistics()) for metric, summary in record.metrics.items())
    return {
        "sensor_id": record.sensor_id,
        "tier": record.window.text,
        "window_start": format_time(record.start_us),
        "window_end": format_time(record.window.end_of(record.start_us)),
        "reading_count": record.reading_count,
        "metrics": [
            {
                "metric": metric,
                "count": count,
                "statistics": [
                    {"name": name, "value": json_number(value)} for name, value in found.items() if name != "count"
                ],
            }
            for metric, count, found in summaries
        ],
    }


@dataclass(frozen=True)
class Export:
    """What is exported, and how.

    Attributes:
        table: the table.
        schema: the table's schema.
        sensors: the sensors.
        query: the events, or the starts and metrics of windows.
        tier: the tier of the windows; None to export events.
        printing: the format and the place.
    """

    table: TableName
    schema: TableSchema
    sensors: Chosen
    query: Query
    tier: Tier | None
    printing: Printing

    @property
    def view(self) -> View[Any]:
        """How records become tables."""
        return RAW if self.tier is None else AGGREGATES


def run(
    table: "SensorTable", sensors: Chosen, query: Query, tier: Tier | None, printing: Printing
) -> tuple[int, int, str]:
    """Runs an export, here or on Dataflow.

    Returns:
        The number of events or windows; that of foreign rows, which are left out; and where the job ran.

    Raises:
        BadFlag: a flag of Beam's is wrong or missing, or the job can't write to the place.
        ServerProblem: the job failed. No file has its name then, or files of an earlier export stay.
    """
    export = Export(table.rows.name, table.schema, sensors, query, tier, printing)
    options = bounded.beam_options(printing.beam_flags or (), table.rows.name.project)
    here, to_bigquery = runs_here(options), _BIGQUERY.fullmatch(printing.out)
    if to_bigquery is None and (not printing.out or printing.one_file or "://" in printing.out.removeprefix("gs://")):
        raise BadFlag(
            "a job writes a folder, a bucket or a table: --out gs://… or --out bigquery://PROJECT.DATASET.TABLE"
        )
    if to_bigquery is None and not here and not printing.out.startswith("gs://"):
        raise BadFlag(f"--out {printing.out} is a local folder, where workers can't write; pass a bucket, gs://…")
    temp = options.view_as(GoogleCloudOptions).temp_location
    if to_bigquery and (printing.long or printing.sensor_prefix or printing.output != Output.PARQUET):
        raise BadFlag("BigQuery gets rows, not files: remove --output, --long and --sensor-prefix")
    if to_bigquery and not temp:
        raise BadFlag(
            "--temp_location is needed: a folder in a bucket from which BigQuery loads, like gs://my-bucket/temp"
        )
    samples = sampled_keys(table.rows.name)
    points = split_points(samples)

    def build(pipeline: beam.Pipeline) -> None:
        parts = (
            pipeline
            | "Table" >> beam.Create([points])
            | "Parts" >> beam.ParDo(_PartsFn(export))
            | "SpreadParts" >> beam.Reshuffle()
        )
        if to_bigquery:
            rows = parts | "ReadRecords" >> beam.ParDo(_ReadRecordsFn(export))
            _ = rows | "Write" >> write_to_bigquery(to_bigquery, export, temp)
        else:
            _ = parts | "WriteFiles" >> _WriteFiles(export, _files_of_a_day(samples, query))

    totals = bounded.run(options, build, [table.schema])
    where = "in this process" if here else "on Dataflow"
    return totals.get(metrics.EXPORTED, 0), totals.get(metrics.EXPORT_FOREIGN_ROWS, 0), where


def write_to_bigquery(place: "re.Match[str]", export: Export, temp: str) -> beam.PTransform:
    """Returns the step that loads rows into a table, which is new or empty: another load would add the rows again."""
    project, dataset, table = place.groups()
    time = "event_time" if export.tier is None else "window_start"
    return WriteToBigQuery(
        f"{project}:{dataset}.{table}",
        schema={"fields": BIGQUERY_FIELDS[export.view.name]},
        method=WriteToBigQuery.Method.FILE_LOADS,
        create_disposition=BigQueryDisposition.CREATE_IF_NEEDED,
        write_disposition=BigQueryDisposition.WRITE_EMPTY,
        custom_gcs_temp_location=temp,
        additional_bq_parameters={
            "timePartitioning": {"type": "DAY", "field": time},
            "clustering": {"fields": ["sensor_id"]},
        },
    )


def _files_of_a_day(samples: list[Sample], query: Query) -> int:
    """Returns the number of files of a day, so that none is much larger than others, given the size of the table."""
    size, days = samples[-1].offset_bytes if samples else 0, (query.end_us - query.start_us) // _DAY_US
    return max(size // max(days, 1) // _FILE_BYTES, 1)


_Part = tuple[int, EventPart]  # with its number


@beam.typehints.with_output_types(Any)
class _PartsFn(TableReadingFn):
    """Turns the keys that cut a table into the parts to read."""

    def __init__(self, export: Export) -> None:
        super().__init__(export.table, RETRY_S)
        self._export = export

    def process(self, element: list[bytes]) -> Iterator[_Part]:
        export, ignored = self._export, ForeignRows()  # a part tells of them
        if export.tier is None:
            yield from enumerate(
                event_parts(export.schema, self._read, export.sensors, export.query, element, ignored.add)
            )
        else:
            keys = prefix_range(aggregate_prefix(export.tier.window).encode())
            yield from enumerate(EventPart(export.query, each) for each in split_range(keys, element))


class _ReadPartFn(TableReadingFn):
    """Reads parts, and counts what they have."""

    def __init__(self, export: Export) -> None:
        super().__init__(export.table, RETRY_S)
        self._export = export
        self._exported = metrics.counter(metrics.EXPORTED)
        self._foreign = metrics.counter(metrics.EXPORT_FOREIGN_ROWS)

    def _tables(self, part: EventPart, foreign: ForeignRows) -> Iterator[pyarrow.Table]:
        export, printing, found = self._export, self._export.printing, part.query.metrics
        if export.tier is None:
            blocks = blocks_of_part(export.schema, self._read, export.sensors, part, foreign.add)
            return event_tables(chain.from_iterable(blocks), printing, found or ())
        if not printing.in_columns:
            return tables_of(self._windows(part, foreign), AGGREGATES, printing)
        blocks = window_blocks(export.tier, self._read, *self._of_windows(part), foreign.add, part.keys)
        return window_tables(chain.from_iterable(blocks), export.tier.window, printing)

    def _records(self, part: EventPart, foreign: ForeignRows) -> Iterator[RawRecord | AggregateRecord]:
        export = self._export
        if export.tier is not None:
            yield from self._windows(part, foreign)
            return
        for blocks in blocks_of_part(export.schema, self._read, export.sensors, part, foreign.add):
            for block in blocks:
                yield from block.records()

    def _windows(self, part: EventPart, foreign: ForeignRows) -> Iterator[AggregateRecord]:
        assert self._export.tier is not None  # noqa: S101 (for the type checker)
        parts = window_parts(self._export.tier, self._read, *self._of_windows(part), foreign.add, part.keys)
        return chain.from_iterable(parts)

    def _of_windows(self, part: EventPart) -> tuple[Chosen, int, int, tuple[str, ...] | None]:
        return self._export.sensors, part.query.start_us, part.query.end_us, part.query.metrics


class _Chunk(NamedTuple):
    """Rows of a file.

    Attributes:
        part: the number of the part.
        number: the number of the table in the part.
        rows: the table, as a stream of Arrow.
    """

    part: int
    number: int
    rows: bytes


@beam.typehints.with_output_types(tuple[tuple[str, int], Any])
class _ReadTablesFn(_ReadPartFn):
    """Turns parts into rows of files: ``((part of the path, number of the file), chunk)``; and into their columns."""

    def __init__(self, export: Export, files: int) -> None:
        super().__init__(export)
        self._files = files

    def process(self, element: _Part) -> Iterator[Any]:
        (number, part), foreign, seen = element, ForeignRows(), set[bytes]()
        for index, table in enumerate(self._tables(part, foreign)):
            for path, rows in parted(table, self._export.printing, self._export.view.time):
                self._exported.inc(len(rows))
                columns = rows.schema.serialize().to_pybytes()
                if columns not in seen:
                    seen.add(columns)
                    yield TaggedOutput(_COLUMNS, columns)
                yield (path, number % self._files), _Chunk(number, index, _stream_of(rows))
        self._foreign.inc(foreign.count)


@beam.typehints.with_output_types(Any)
class _ReadRecordsFn(_ReadPartFn):
    """Turns parts into rows of BigQuery."""

    def process(self, element: _Part) -> Iterator[dict[str, Any]]:
        foreign = ForeignRows()
        for record in self._records(element[1], foreign):
            self._exported.inc()
            yield bigquery_row(record)
        self._foreign.inc(foreign.count)


def _stream_of(rows: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def _united(schemas: Iterable[bytes]) -> bytes:
    """Returns all columns of tables, each once."""
    each = [pyarrow.ipc.read_schema(pyarrow.py_buffer(schema)) for schema in schemas]
    return pyarrow.unify_schemas(each or [pyarrow.schema([])]).serialize().to_pybytes()


@dataclass(eq=False)
class _WriteFiles(beam.PTransform):
    """Writes the rows of parts to files, which get their names when all are whole.

    Args:
        export: the export.
        files: the number of files of a day, or of a day and sensors.
    """

    export: Export
    files: int

    def expand(self, parts: PCollection) -> PCollection:
        read = parts | "ReadTables" >> beam.ParDo(_ReadTablesFn(self.export, self.files)).with_outputs(
            _COLUMNS, main="rows"
        )
        columns = read[_COLUMNS] | "Columns" >> beam.CombineGlobally(_united)
        folder = FileSystems.join(self.export.printing.out, f".tidetable-{secrets.token_hex(8)}")
        return (
            read.rows
            | "Gather" >> beam.GroupByKey()
            | "WriteFile" >> beam.ParDo(_WriteFileFn(self.export, self.files, folder), AsSingleton(columns))
            | "All" >> beam.WithKeys(None)
            | "Written" >> beam.GroupByKey()
            | "Rename" >> beam.Map(rename, folder)
        )


@beam.typehints.with_output_types(tuple[str, str])
class _WriteFileFn(beam.DoFn):
    """Writes each file under a temporary name. Yields that, and the name that it gets."""

    def __init__(self, export: Export, files: int, folder: str) -> None:
        self._export = export
        self._files = files
        self._folder = folder

    def process(self, element: tuple[tuple[str, int], Iterable[_Chunk]], columns: bytes) -> Iterator[tuple[str, str]]:
        ((path, number), chunks), export = element, self._export
        fields = sorted(
            pyarrow.ipc.read_schema(pyarrow.py_buffer(columns)), key=lambda column: export.view.rank(column.name)
        )
        name = export.view.name if self._files == 1 else f"{export.view.name}-{number:05}-of-{self._files:05}"
        temporary = FileSystems.join(self._folder, secrets.token_hex(16))
        _make_folder(self._folder)
        with TemporaryFile() as spool:
            tables = aligned(pyarrow.schema(fields), _in_order(chunks, spool))
            with FileSystems.create(temporary, compression_type=CompressionTypes.UNCOMPRESSED) as file:
                write_table(tables, file, export.printing)
        yield temporary, path_of(export.printing, path, name)


def _in_order(chunks: Iterable[_Chunk], spool: Any) -> Iterator[pyarrow.Table]:
    """Yields the tables of chunks in the order of the table's keys. Memory holds one, and a file the others."""
    places = list[tuple[int, int, int, int]]()
    for part, number, rows in chunks:
        places.append((part, number, spool.tell(), len(rows)))
        spool.write(rows)
    for _, _, begin, size in sorted(places):
        spool.seek(begin)
        yield pyarrow.ipc.open_stream(spool.read(size)).read_all()


def rename(written: tuple[None, Iterable[tuple[str, str]]], folder: str) -> None:
    """Gives files their names. Deletes files of an earlier export with other numbers, and the temporary folder.

    Args:
        written: the temporary path and the path of each file. What an earlier attempt has renamed is left alone.
        folder: the temporary folder.
    """
    paths, there = {path: temporary for temporary, path in written[1]}, set(_matching(f"{folder}/*"))
    left = {temporary: path for path, temporary in paths.items() if temporary in there}
    for parent in {path.rpartition("/")[0] for path in paths}:
        _make_folder(parent)
    if left:
        FileSystems.rename(list(left), list(left.values()))
    useless = sorted(there - left.keys())  # of bundles that were repeated
    for parent, suffix in {(path.rpartition("/")[0], path[path.rindex(".") :]) for path in paths}:
        names = {_NUMBER.sub("", path.rpartition("/")[2]) for path in paths}
        useless += [
            path
            for path in _matching(f"{parent}/*{suffix}")
            if path not in paths and _NUMBER.sub("", path.rpartition("/")[2]) in names
        ]
    if FileSystems.exists(folder):  # buckets have none
        useless.append(folder)
    if useless:
        FileSystems.delete(useless)


def _matching(pattern: str) -> list[str]:
    [found] = FileSystems.match([pattern])
    return [each.path for each in found.metadata_list]


def _make_folder(path: str) -> None:
    if not path.startswith("gs://"):
        Path(path).mkdir(parents=True, exist_ok=True)
