"""Readings in ``.csv`` and ``.ndjson`` files, plain or gzipped, as events: one for each record, or why not.

A record is what one sensor measured at one time. Two columns, which the caller names, hold the sensor and the
time; of the others, numbers are readings and the rest is metadata:

- CSV: a column is numeric when every value in the first 1,000 records is a finite number, missing ones aside. A value
  further down that is no finite number makes its record malformed. ``NA``, ``N/A``, ``NaN``, ``null``, ``None``, in
  capitals or not, and nothing at all mark a value as missing: the event simply lacks that reading or metadata.
- NDJSON: a number is a reading; a string, ``true`` or ``false`` is metadata; ``null`` is missing.

Times are ISO 8601, or seconds, milliseconds or microseconds since the epoch, exact to the microsecond; what is finer
is cut off.
"""

import gzip
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.toolbox.records.csv_records import csv_records
from pipeline.toolbox.records.lines import Lines, Record, Refusal, Remark, UnreadableFile
from pipeline.toolbox.records.ndjson_records import ndjson_records
from pipeline.toolbox.records.values import TIME_UNITS, Columns, EventMaker, clock_us

__all__ = ["TIME_UNITS", "Columns", "Record", "RecordFile", "Refusal", "Remark", "UnreadableFile", "open_records"]


class RecordFile:
    """The records of an open file, to be iterated over once. Blank lines are no records.

    Iterating ends in UnreadableFile where there is more that can't be read, as in a truncated ``.gz``.
    """

    def __init__(self, file: io.FileIO, lines: Lines, records: Iterator[Record]) -> None:
        self._file = file
        self._lines = lines
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        yield from self._records
        self._lines.raise_failure()

    @property
    def size(self) -> int:
        """The file's bytes, as it is stored."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def position(self) -> int:
        """How many of those bytes were read; a little ahead of the records."""
        return self._file.tell()


@contextmanager
def open_records(path: Path, columns: Columns, now_us: Callable[[], int] = clock_us) -> Iterator[RecordFile]:
    """Opens the file and, of a CSV, reads the header.

    Args:
        path: its suffix tells the format: ``.csv`` or ``.ndjson``, each with or without ``.gz``.
        columns: what the file calls them.
        now_us: the time, in microseconds since the epoch; events more than an hour later are refused.

    Raises:
        UnreadableFile: another suffix, an empty file, one in another format, or a header without the columns.
    """
    name = path.name.lower()
    read = _reader(name.removesuffix(".gz"))
    with path.open("rb", buffering=0) as file, _text(file, gzipped=name.endswith(".gz")) as text:
        lines = Lines(text)
        yield RecordFile(file, lines, read(lines, EventMaker(columns, now_us)))


def _text(file: io.FileIO, *, gzipped: bool) -> TextIO:
    content = gzip.GzipFile(fileobj=file) if gzipped else io.BufferedReader(file)
    # A byte that is not UTF-8 must not end the file: it becomes a surrogate, for which its record is refused.
    return io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _reader(name: str) -> Callable[[Lines, EventMaker], Iterator[Record]]:
    if name.endswith(".csv"):
        return csv_records
    if name.endswith(".ndjson"):
        return ndjson_records
    raise UnreadableFile("its name ends in none of .csv, .csv.gz, .ndjson and .ndjson.gz")
