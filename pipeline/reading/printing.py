"""Where and how ``tidetable read`` writes records: their format, and standard output, a file, a folder or a bucket.

A file has a temporary name until it is whole, and the files of a folder or a bucket appear once all are: what has a
file's name is never half a file.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import click

from pipeline.cli.console import print_json
from pipeline.cli.options import COUNT, Command, beam_flags
from pipeline.cli.output import Output, output_option, print_arrow
from pipeline.cloud.reading.frames import with_units
from pipeline.core.notation.text import counted
from pipeline.core.schema.table_schema import TableSchema
from pipeline.formats.tabular import Spool, write_arrow, write_csv, write_parquet

if TYPE_CHECKING:
    import pyarrow

_SUFFIXES = {Output.CSV: ".csv", Output.JSON: ".ndjson", Output.PARQUET: ".parquet", Output.ARROW: ".arrow"}
_BUCKET = "gs://"
BIGQUERY = "bigquery://"
LINE = "line"
"""The column of tables that are printed as lines of JSON."""


@dataclass(frozen=True)
class Printing:
    """How records are written.

    Attributes:
        output: the format.
        delimiter: the character between fields of CSV.
        decimal: the character between the whole and the fraction of a number in CSV.
        long: whether each reading or statistic is a row of its own.
        out: the file, the folder or the place in a bucket; empty for standard output.
        sensor_prefix: the number of characters of a sensor's id by which files in a folder differ, besides the day.
        beam_flags: Beam's flags for a job that writes the files; None for this process.
    """

    output: Output
    delimiter: str = ","
    decimal: str = "."
    long: bool = False
    out: str = ""
    sensor_prefix: int = 0
    beam_flags: Sequence[str] | None = None

    @property
    def in_columns(self) -> bool:
        """Whether a row has a column for each metric or statistic."""
        return not self.long and self.output in (Output.CSV, Output.PARQUET, Output.ARROW)

    @property
    def one_file(self) -> bool:
        """Whether ``out`` is the name of a file, not of a folder."""
        return self.out.lower().endswith(tuple(_SUFFIXES.values()))


def format_options(command: Command) -> Command:
    """Adds ``--format`` and its like, ``--long`` and ``--output``; passes ``output``, a :class:`Printing`."""

    @output_option
    @click.option(
        "--delimiter",
        metavar="CHARACTER",
        help="The character between fields of CSV. By default a comma, or with --decimal , a semicolon.",
    )
    @click.option(
        "--decimal", type=click.Choice([".", ","]), default=".", show_default=True, help="The decimal mark in CSV."
    )
    @click.option("--long", is_flag=True, help="Print a row for each reading or statistic: metric and value.")
    @click.option(
        "-o",
        "--output",
        "out",
        metavar="PATH",
        default="",
        help="Write to a file such as month.csv, or to a folder or a bucket (gs://…): there, a file for each day, in "
        "Parquet unless --format says otherwise. A job also writes to bigquery://PROJECT.DATASET.TABLE.",
    )
    @click.option(
        "--sensor-prefix",
        type=COUNT,
        metavar="LENGTH",
        help="In a folder or bucket, tell apart the sensors whose ids differ in so many first characters.",
    )
    @functools.wraps(command)
    def with_formats(
        *args: Any,
        output: Output,
        delimiter: str | None,
        decimal: str,
        long: bool,
        out: str,
        sensor_prefix: int | None,
        **kwargs: Any,
    ) -> Any:
        suffix = next((kind for kind, suffix in _SUFFIXES.items() if out.lower().endswith(suffix)), None)
        if out and output == Output.TABLE:
            output = suffix or Output.PARQUET
        if out in list(Output):
            raise click.UsageError(f"--output is a path; the format is --format {out}")
        if suffix not in (None, output):
            raise click.UsageError(f"--output {out} and --format {output} name two formats; remove --format")
        if sensor_prefix and (not out or suffix):
            raise click.UsageError("--sensor-prefix needs a folder or a bucket: --output PATH")
        if (delimiter or decimal != ".") and output != Output.CSV:
            raise click.UsageError("--delimiter and --decimal are for CSV: add --format csv")
        if long and output == Output.TABLE:
            raise click.UsageError("--long is not for tables: add --format csv, json, parquet or arrow")
        delimiter = {None: ";" if decimal == "," else ",", "\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
        if len(delimiter or "") != 1 or delimiter in ('"', "\r", "\n", decimal):
            raise click.UsageError(f"--delimiter {delimiter} can't be between numbers with the decimal mark {decimal}")
        flags = beam_flags()
        if out.startswith(BIGQUERY) and flags is None:
            raise click.UsageError(f"--output {out} is for a job: add -- --runner=DataflowRunner …")
        printing = Printing(output, delimiter or ",", decimal, long, out, sensor_prefix or 0, flags)
        return command(*args, output=printing, **kwargs)

    # The order of --help: what a decorator adds last comes first.
    return with_formats


def write_tables(
    tables: Iterable["pyarrow.Table"],
    schema: TableSchema,
    printing: Printing,
    rank: Callable[[str], Any],
    time: str,
    name: str,
) -> None:
    """Writes tables as one, or in parts by day and sensor.

    Memory has some 200,000 rows; others wait in a temporary folder for columns that come late. Long tables have all
    columns at once, and go to standard output as they come.

    Args:
        tables: the tables, at least one; their first column has the sensors.
        schema: the table's schema, for the units and labels of metrics.
        printing: the format, and where it goes.
        rank: the place of a column, as for :class:`~pipeline.formats.tabular.Spool`.
        time: the name of the column with the times.
        name: the name of the files in a folder.

    Raises:
        click.ClickException: a file can't be written.
    """
    tables = iter(tables)
    if not printing.out and (printing.long or printing.output == Output.JSON):
        first = next(tables)
        _print(_reader(first.schema, chain([first], tables)), printing)
        return
    with TemporaryDirectory(prefix="tidetable-") as folder:
        spool = Spool(Path(folder), rank if printing.in_columns else lambda _: 0)
        for table in tables:
            for part, rows in parted(table, printing, time):
                spool.add(part, rows)
        if not printing.out:
            _print(with_units(spool.read(""), schema, time), printing)
            return
        paths = {part: printing.out if printing.one_file else path_of(printing, part, name) for part in spool.parts}
        with _files(printing.out, list(paths.values())) as files:
            for part, path in paths.items():
                with files[path].open("wb") as file:
                    write_table(with_units(spool.read(part), schema, time), file, printing)


def _reader(schema: "pyarrow.Schema", tables: Iterable["pyarrow.Table"]) -> "pyarrow.RecordBatchReader":
    import pyarrow

    return pyarrow.RecordBatchReader.from_batches(schema, chain.from_iterable(table.to_batches() for table in tables))


def parted(table: "pyarrow.Table", printing: Printing, time: str) -> Iterator[tuple[str, "pyarrow.Table"]]:
    """Yields the parts of a table, and the path of each: by the days of its times, in their zone, and by sensors."""
    if not printing.out or printing.one_file:
        yield "", table
        return
    import pyarrow.compute as compute

    for day, of_day in _grouped(table, compute.floor_temporal(table[time], unit="day")):
        path = f"day={day.date().isoformat()}"
        if not printing.sensor_prefix:
            yield path, of_day
            continue
        starts = compute.utf8_slice_codeunits(of_day.column(0).cast("string"), 0, printing.sensor_prefix)
        for start, rows in _grouped(of_day, starts):
            yield f"{path}/prefix={quote(start, safe='')}", rows


def _grouped(table: "pyarrow.Table", column: "pyarrow.ChunkedArray") -> Iterator[tuple[Any, "pyarrow.Table"]]:
    """Yields each value of a column, and the rows that have it."""
    import pyarrow.compute as compute

    for value in compute.unique(column):
        yield value.as_py(), table.filter(compute.equal(column, value))


def path_of(printing: Printing, part: str, name: str) -> str:
    """Returns the path of a file of one of the parts of :func:`parted`."""
    return "/".join([printing.out.rstrip("/"), part, f"{name}{_SUFFIXES[printing.output]}"])


def _print(table: "pyarrow.RecordBatchReader", printing: Printing) -> None:
    if printing.output != Output.JSON:
        print_arrow(table, printing.output, delimiter=printing.delimiter, decimal=printing.decimal)
        return
    for batch in table:
        for line in batch.column(LINE).to_pylist():
            print_json(line)


def write_table(table: "pyarrow.RecordBatchReader", file: BinaryIO, printing: Printing) -> None:
    """Writes a table to a file in the format."""
    match printing.output:
        case Output.PARQUET:
            write_parquet(table, file)
        case Output.ARROW:
            write_arrow(table, file)
        case Output.CSV:
            with TextIOWrapper(file, encoding="utf-8", newline="") as text:
                write_csv(table, text, delimiter=printing.delimiter, decimal=printing.decimal)
        case _:
            for batch in table:
                file.writelines(f"{line}\n".encode() for line in batch.column(LINE).to_pylist())


@contextmanager
def _files(out: str, paths: list[str]) -> Iterator[dict[str, Path]]:
    """Yields a temporary file for each path. At the end of the block, all get their names, unless the block failed."""
    local = not out.startswith(_BUCKET)
    try:
        if local:
            parent = Path(paths[0]).parent if paths == [out] else Path(out)
            parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".tidetable-", dir=parent if local else None) as folder:
            files = {path: Path(folder, f"{number}.part") for number, path in enumerate(paths)}
            yield files
            for path, file in files.items():
                if local:
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                    file.replace(path)
                else:
                    _upload(file, path)
    except OSError as error:
        raise click.ClickException(f"{error.filename or out}: {error.strerror or error}") from error
    click.echo(f"{paths[0] if len(paths) == 1 else counted(len(paths), 'file')} written by this process", err=True)


def _upload(file: Path, path: str) -> None:
    """Writes an object, which readers see once it is whole. Raises ServerError."""
    from google.cloud.storage import Client  # slow to import

    from pipeline.cloud.connection.errors import explained

    bucket, _, name = path.removeprefix(_BUCKET).partition("/")
    with explained(path), Client(project=None) as client:
        client.bucket(bucket).blob(name).upload_from_filename(str(file))
