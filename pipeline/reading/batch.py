"""Exports as a batch job: the events or windows of many sensors, to files in a folder or a bucket, or to BigQuery.

    table ─ Parts ─ Read ─ Gather ─ WriteFile ─ Written ─ Rename ── files by day, and by sensors
                     │                 │
                     ├──── columns ────┘
                     └─ Write ── rows of BigQuery

A part is a range of keys, or a sensor where rows have parts of events. A file has a temporary name until all are
written. A bundle that Beam repeats writes another temporary file, and only the last one gets the name.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import apache_beam as beam
import pyarrow
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.bigquery import WriteToBigQuery
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import AsSingleton, PCollection, TaggedOutput

from pipeline.cli.output import Output
from pipeline.cloud.connection.key_ranges import sampled_keys, split_points
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.answers.enough_data import ANY_DATA, LeastData, with_enough
from pipeline.core.queries.events import Query
from pipeline.core.queries.reads import ForeignRows
from pipeline.core.queries.sweeps import Chosen, EventPart, blocks_of_part, event_parts, window_blocks, window_parts
from pipeline.core.rows.aggregate_rows import aggregate_prefix
from pipeline.core.rows.records import AggregateRecord, RawRecord
from pipeline.core.rows.rows import prefix_range, split_range
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.formats.tabular import aligned
from pipeline.job import bounded
from pipeline.job.flags import BadFlag
from pipeline.job.settings import runs_here
from pipeline.reading.printing import BIGQUERY, Printing, parted, path_of, write_table
from pipeline.reading.views import AGGREGATES, RAW, View, event_tables, tables_of, window_tables
from pipeline.transforms import metrics
from pipeline.transforms.tables import RETRY_S, TableReadingFn

_FILE_BYTES = 256 << 20  # of the table, for a file of a day
_DAY_US = 86_400_000_000
_COLUMNS = "columns"
_NUMBER = re.compile(r"-\d{5}-of-\d{5}")  # of a file
_BIGQUERY = re.compile(BIGQUERY + r"([a-z][a-z0-9:.-]*[a-z0-9])\.(\w{1,1024})\.([\w-]{1,1024})", re.ASCII)
_FIELDS = {  # of BigQuery's tables
    RAW.name: "sensor_id:STRING,event_time:TIMESTAMP,event_id:STRING,readings:JSON,metadata:JSON",
    AGGREGATES.name: "sensor_id:STRING,window_start:TIMESTAMP,window:STRING,reading_count:INTEGER,metrics:JSON",
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
        least: the data that a metric needs in a window.
    """

    table: TableName
    schema: TableSchema
    sensors: Chosen
    query: Query
    tier: Tier | None
    printing: Printing
    least: LeastData = ANY_DATA

    @property
    def view(self) -> View[Any]:
        """How records become tables and JSON."""
        return RAW if self.tier is None else AGGREGATES

    def files_of_a_day(self, table_bytes: int) -> int:
        """Returns the number of files of a day that makes none of them very large."""
        days = max((self.query.end_us - self.query.start_us) // _DAY_US, 1)
        return max(table_bytes // days // _FILE_BYTES, 1)


def run(export: Export) -> tuple[int, int, str]:
    """Runs an export, here or on Dataflow.

    Returns:
        The number of events or windows; that of foreign rows, which are left out; and where the job ran.

    Raises:
        BadFlag: a flag of Beam's is wrong or missing, or the job can't write to the place.
        ServerError: the job failed. Files of an earlier export stay, as far as no file replaces them.
    """
    options = bounded.beam_options(export.printing.beam_flags or (), export.table.project)
    bigquery = _checked_place(export.printing, options)
    samples = sampled_keys(export.table)

    def build(pipeline: beam.Pipeline) -> None:
        parts = (
            pipeline
            | "Table" >> beam.Create([split_points(samples)])
            | "Parts" >> beam.FlatMap(_parts, export)
            | "Spread" >> beam.Reshuffle()
        )
        if bigquery:
            temp = options.view_as(GoogleCloudOptions).temp_location
            _ = parts | "Read" >> beam.ParDo(_ReadPartFn(export)) | "Write" >> write_to_bigquery(bigquery, export, temp)
        else:
            files = export.files_of_a_day(samples[-1].offset_bytes if samples else 0)
            _ = parts | "WriteFiles" >> _WriteFiles(export, files)

    totals = bounded.run(options, build, [export.schema])
    where = "in this process" if runs_here(options) else "on Dataflow"
    return totals.get(metrics.EXPORTED, 0), totals.get(metrics.EXPORT_FOREIGN_ROWS, 0), where


def _checked_place(printing: Printing, options: PipelineOptions) -> "re.Match[str] | None":
    """Returns the table of BigQuery; None for a folder. Raises BadFlag if the job can't write there."""
    out, bigquery = printing.out, _BIGQUERY.fullmatch(printing.out)
    if bigquery and (printing.long or printing.sensor_prefix or printing.output != Output.PARQUET):
        raise BadFlag("BigQuery gets rows, not files: remove --output, --long and --sensor-prefix")
    if bigquery and not options.view_as(GoogleCloudOptions).temp_location:
        raise BadFlag("--temp-location is needed: a folder in a bucket, from which BigQuery loads the rows")
    if not bigquery and (not out or printing.one_file or re.search(r"://|[*?[]", out.removeprefix("gs://"))):
        raise BadFlag("a job writes to a folder, --output gs://…, or to --output bigquery://PROJECT.DATASET.TABLE")
    if not bigquery and not runs_here(options) and not out.startswith("gs://"):
        raise BadFlag(f"--output {out} is a local folder, where workers can't write; pass a bucket, gs://…")
    return bigquery


def write_to_bigquery(place: "re.Match[str]", export: Export, temp: str) -> beam.PTransform:
    """Returns the step that loads rows into a table, which is new or empty: another load would add the rows again."""
    partitioning = {"timePartitioning": {"type": "DAY", "field": export.view.time}}
    return WriteToBigQuery(
        "{}:{}.{}".format(*place.groups()),
        schema=_FIELDS[export.view.name],
        method=WriteToBigQuery.Method.FILE_LOADS,
        write_disposition="WRITE_EMPTY",
        custom_gcs_temp_location=temp,
        additional_bq_parameters=partitioning | {"clustering": {"fields": ["sensor_id"]}},
    )


def _parts(points: list[bytes], export: Export) -> Iterator[tuple[int, EventPart]]:
    """Yields the parts of a table to read, with their numbers, given the keys that cut it."""
    ignored = ForeignRows()  # reading a part tells of them
    with RowReader.open(export.table, RETRY_S) as reader:
        parts = event_parts(export.schema, reader.read_selection, export.sensors, export.query, points, ignored.add)
        if export.tier is not None:
            keys = prefix_range(aggregate_prefix(export.tier.window).encode())
            parts = (EventPart(export.query, each) for each in split_range(keys, points))
        yield from enumerate(parts)


@beam.typehints.with_output_types(Any)
class _ReadPartFn(TableReadingFn):
    """Turns parts into rows of BigQuery, or into rows of files, and counts them.

    Rows of files are ``((part of the path, number of the file), (part, table, rows as a stream of Arrow))``. Another
    output has their columns.

    Args:
        export: the export.
        files: the number of files of a day; 0 for BigQuery.
    """

    def __init__(self, export: Export, files: int = 0) -> None:
        super().__init__(export.table, RETRY_S)
        self._export, self._files = export, files
        self._exported = metrics.counter(metrics.EXPORTED)
        self._foreign = metrics.counter(metrics.EXPORT_FOREIGN_ROWS)

    def process(self, element: tuple[int, EventPart]) -> Iterator[Any]:
        (number, part), export, foreign, known = element, self._export, ForeignRows(), set[bytes]()
        for record in () if self._files else self._records(part, foreign):
            self._exported.inc()
            yield export.view.json(record)
        for index, table in enumerate(self._tables(part, foreign) if self._files else ()):
            for path, rows in parted(table, export.printing, export.view.time):
                self._exported.inc(len(rows))
                columns = rows.schema.serialize().to_pybytes()
                if columns not in known:
                    known.add(columns)
                    yield TaggedOutput(_COLUMNS, columns)
                sink = pyarrow.BufferOutputStream()
                with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
                    writer.write_table(rows)
                yield (path, number % self._files), (number, index, sink.getvalue().to_pybytes())
        self._foreign.inc(foreign.count)

    def _records(self, part: EventPart, foreign: ForeignRows) -> Iterator[RawRecord | AggregateRecord]:
        sensors, tier = self._export.sensors, self._export.tier
        if tier is not None:
            windows = window_parts(tier, self._read, sensors, part.query, foreign.add, part.keys)
            return with_enough(chain.from_iterable(windows), tier, self._export.least)
        blocks = chain.from_iterable(blocks_of_part(self._export.schema, self._read, sensors, part, foreign.add))
        return chain.from_iterable(block.records() for block in blocks)

    def _tables(self, part: EventPart, foreign: ForeignRows) -> Iterator[pyarrow.Table]:
        sensors, tier, printing = self._export.sensors, self._export.tier, self._export.printing
        if not printing.in_columns or any(self._export.least):
            return tables_of(self._records(part, foreign), self._export.view, printing)
        if tier is not None:
            blocks = window_blocks(tier, self._read, sensors, part.query, foreign.add, part.keys)
            return window_tables(chain.from_iterable(blocks), tier.window, printing)
        blocks = blocks_of_part(self._export.schema, self._read, sensors, part, foreign.add)
        return event_tables(chain.from_iterable(blocks), part.query.metrics or ())


@dataclass(eq=False)
class _WriteFiles(beam.PTransform):
    """Writes parts to files, so many a day, which get their names when all are whole."""

    export: Export
    files: int

    def expand(self, parts: PCollection) -> PCollection:
        read = parts | "Read" >> beam.ParDo(_ReadPartFn(self.export, self.files)).with_outputs(_COLUMNS, main="rows")
        columns = AsSingleton(read[_COLUMNS] | "Columns" >> beam.CombineGlobally(_united))
        folder = FileSystems.join(self.export.printing.out, f".tidetable-{secrets.token_hex(8)}")
        return (
            read.rows
            | "Gather" >> beam.GroupByKey()
            | "WriteFile" >> beam.Map(_write_file, columns, self.export, self.files, folder)
            | "All" >> beam.WithKeys(None)
            | "Written" >> beam.GroupByKey()
            | "Rename" >> beam.Map(rename, folder)
        )


def _united(schemas: Iterable[bytes]) -> bytes:
    """Returns all columns of tables, each once."""
    each = [pyarrow.ipc.read_schema(pyarrow.py_buffer(schema)) for schema in schemas]
    return pyarrow.unify_schemas(each or [pyarrow.schema([])]).serialize().to_pybytes()


def _write_file(
    element: tuple[tuple[str, int], Iterable[tuple[int, int, bytes]]],
    columns: bytes,
    export: Export,
    files: int,
    folder: str,
) -> tuple[str, str]:
    """Writes a file, in the order of the table's keys. Returns its temporary path and its path."""
    ((part, number), chunks), view = element, export.view
    temporary = FileSystems.join(folder, secrets.token_hex(16))
    _make_folder(folder)
    with TemporaryFile() as spool:
        places = list[tuple[int, int, int, int]]()
        for of_part, index, rows in chunks:
            places.append((of_part, index, spool.tell(), len(rows)))
            spool.write(rows)

        def tables() -> Iterator[pyarrow.Table]:
            for _, _, begin, size in sorted(places):
                spool.seek(begin)
                yield pyarrow.ipc.open_stream(spool.read(size)).read_all()

        fields = sorted(pyarrow.ipc.read_schema(pyarrow.py_buffer(columns)), key=lambda column: view.rank(column.name))
        with FileSystems.create(temporary, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            write_table(aligned(pyarrow.schema(fields), tables()), file, export.printing)
    name = view.name if files == 1 else f"{view.name}-{number:05}-of-{files:05}"
    return temporary, path_of(export.printing, part, name)


def rename(written: tuple[None, Iterable[tuple[str, str]]], folder: str) -> None:
    """Gives files their names. Deletes files of an earlier export with other numbers, and the temporary folder.

    Args:
        written: the temporary path and the path of each file. What an earlier attempt has renamed is left alone.
        folder: the temporary folder.
    """
    paths, there = {path: temporary for temporary, path in written[1]}, set(_matching(f"{folder}/*"))
    left = {temporary: path for path, temporary in paths.items() if temporary in there}
    useless = sorted(there - left.keys())  # of bundles that were repeated
    unnumbered = {_NUMBER.sub("", path) for path in paths}
    for parent in {path.rpartition("/")[0] for path in paths}:
        _make_folder(parent)
        useless += [
            path for path in _matching(f"{parent}/*") if _NUMBER.sub("", path) in unnumbered and path not in paths
        ]
    if left:
        FileSystems.rename(list(left), list(left.values()))
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
