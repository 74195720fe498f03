"""Reads events from CSV: numeric columns are readings, others are metadata, unless their names say what they are."""

import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from pipeline.core.decoding.mapping.language.model import CsvFormat, Mapping, MappingEntry
from pipeline.core.decoding.mapping.language.paths import Field, Root, Star
from pipeline.core.decoding.mapping.values.conversions import as_texts, number_reader
from pipeline.core.events.event import Event, is_name
from pipeline.core.events.file_columns import EVENT_ID, METADATA, READING
from pipeline.core.notation.exact_numbers import MAX_EXACT
from pipeline.core.notation.text import shown
from pipeline.formats.annotated_csv import annotated_records
from pipeline.formats.csv_rows import ANNOTATIONS, Head, Row, csv_rows, first_cell, read_head, spanning
from pipeline.formats.lines import Lines, MappedRecord, Record, Refusal, Remark, parse_or_refuse
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import (
    EventMaker,
    Malformed,
    UnreadableFile,
    check_encoding,
    is_missing,
    parse_number,
    parse_reading,
)

_SAMPLE_ROWS = 1000  # rows that decide which columns are numeric; fewer if they are long
_SAMPLE_FACTOR = 16  # the most memory of the sample, in multiples of the record limit
_MAX_KNOWN = 1 << 16  # sensors in memory
_FIELD_OVERHEAD = 64  # bytes of memory

_Parsed = TypeVar("_Parsed", Event, MappedRecord)


def csv_records(lines: Lines, maker: EventMaker | MappedMaker, delimiter: str = ",") -> Iterator[Record]:
    """Returns the records below the header, or below the headers of annotated CSV.

    Args:
        lines: the lines of the file.
        maker: the maker of events, or of messages for mappings.
        delimiter: the delimiter of such files, unless the mapping has another one.

    Raises:
        UnreadableFile: the file is empty, or the header is unreadable or lacks the maker's columns.
    """
    csv_format = maker.csv if isinstance(maker, MappedMaker) else CsvFormat()
    if csv_format.delimiter == CsvFormat.delimiter:
        csv_format = replace(csv_format, delimiter=delimiter)
    if csv_format.is_plain and first_cell(lines) in ANNOTATIONS:
        if not isinstance(maker, MappedMaker):
            raise UnreadableFile(
                "it is InfluxDB's annotated CSV, for which tidetable mapping draft FILE writes a --message-mapping"
            )
        return annotated_records(csv_rows(lines, csv_format), maker)
    head, rows = read_head(lines, csv_format)
    if isinstance(maker, MappedMaker):
        return _mapped(rows, head, maker)
    maker.check_columns(head.names)
    return _plain(rows, _RowParser(head.names, maker), maker.max_record_bytes)


def _take_sample(rows: Iterator[Row | Refusal], limit: int) -> Iterator[Row | Refusal]:
    most_bytes = _SAMPLE_FACTOR * limit
    for row in islice(rows, _SAMPLE_ROWS):
        yield row
        if not isinstance(row, Refusal):
            most_bytes -= sum(map(len, row[2])) + _FIELD_OVERHEAD * len(row[2])
        if most_bytes < 0:
            return


def _plain(rows: Iterator[Row | Refusal], parser: "_RowParser", limit: int) -> Iterator[Record]:
    sample = list(_take_sample(rows, limit))
    yield from parser.classify_columns([row for row in sample if not isinstance(row, Refusal)])
    yield from _records(chain(sample, rows), parser.event)


def _records(rows: Iterable[Row | Refusal], parse: Callable[[list[str]], _Parsed]) -> Iterator[Record]:
    for row in rows:
        if isinstance(row, Refusal):
            yield row
            continue
        first_line, last_line, fields = row
        record = parse_or_refuse(first_line, parse, fields)
        yield spanning(record, last_line) if isinstance(record, Refusal) else record


def _mapped(rows: Iterator[Row | Refusal], head: Head, maker: MappedMaker) -> Iterator[Record]:
    """Returns the records below a header. Raises UnreadableFile for a header without the columns of the mapping.

    Cells are text. In columns that stars of readings take, and that contain only numbers in the first records, they are
    numbers.
    """
    names, added = head.names, head.added
    stars = _star_columns([mapped.mapping for mapped in maker.json_types], names)
    numeric: list[_StarColumn] = []

    def record(fields: Sequence[str]) -> MappedRecord:
        if len(fields) != len(names):
            raise Malformed(f"{len(fields)} fields, but the header has {len(names)}")
        cells: dict[str, Any] = {name: text if text.strip() else None for name, text in zip(names, fields, strict=True)}
        cells.pop("", None)
        cells.update(added)
        cells.update((column.name, column.number(cells[column.name] or "")) for column in numeric)
        try:
            return maker.of_object(cells)
        except Malformed:
            check_encoding("".join(fields), maker.csv.encoding)
            raise

    def records() -> Iterator[Record]:
        sample = list(_take_sample(rows, maker.max_record_bytes)) if stars else []
        complete = [row[2] for row in sample if not isinstance(row, Refusal) and len(row[2]) == len(names)]
        for column in stars:
            at = names.index(column.name)
            if column.is_numeric(fields[at] for fields in complete):
                numeric.append(column)
        yield from _records(chain(sample, rows), record)

    return chain(maker.check_columns([*names, *added]), records())


class _RowParser:
    """Makes events of the rows below a header."""

    def __init__(self, names: Sequence[str], maker: EventMaker) -> None:
        self._names, self._maker, columns = names, maker, maker.columns
        self._sensor = None if columns.of_file else names.index(columns.sensor)
        self._time = names.index(columns.time)
        has_event_id = EVENT_ID in {*names} - {columns.sensor, columns.time}
        self._event_id = names.index(EVENT_ID) if has_event_id else None
        # Positions and names of columns, divided by classify_columns.
        self._readings: list[tuple[int, str]] = []
        self._metadata: list[tuple[int, str]] = []
        self._texts: list[tuple[int, str]] = []  # metadata by name: only an empty text is missing
        self._sensors: set[str] = set()  # that are not missing

    def classify_columns(self, sample: Sequence[Row]) -> list[Remark]:
        """Divides the columns into readings and metadata. Returns a remark for each metadata column with numbers."""
        complete = [(line, fields) for line, _, fields in sample if len(fields) == len(self._names)]
        own = self._sensor, self._time, self._event_id
        others = [(index, name) for index, name in enumerate(self._names) if index not in own]
        remarks = [self._classify(index, name, complete) for index, name in others]
        for columns in (self._readings, self._metadata + self._texts):
            if len({name for _, name in columns}) < len(columns):
                raise UnreadableFile(
                    f"two columns have the same name; the columns are {', '.join(map(shown, self._names))}"
                )
        return [remark for remark in remarks if remark]

    def _classify(self, index: int, name: str, rows: Sequence[tuple[int, Sequence[str]]]) -> Remark | None:
        if name.startswith(METADATA):
            self._texts.append((index, name.removeprefix(METADATA)))
            return None
        if name.startswith(READING):
            self._readings.append((index, name.removeprefix(READING)))
            return None
        values = [(line, fields[index]) for line, fields in rows if not is_missing(fields[index])]
        texts = [(line, text) for line, text in values if parse_number(text) is None]
        if values and not is_name(name):
            raise UnreadableFile(
                f"column {shown(name)} can't be the name of a reading or of metadata: rename it, or have tidetable "
                "mapping draft FILE write a --message-mapping that does"
            )
        (self._metadata if texts else self._readings).append((index, name))
        if not 0 < len(texts) < len(values):
            return None
        line, text = texts[0]
        return Remark(line, f"{shown(name)} is metadata in every record because {shown(text)} is not a number")

    def event(self, fields: Sequence[str]) -> Event:
        if len(fields) != len(self._names):
            raise Malformed(f"{len(fields)} fields, but the header has {len(self._names)}")
        check_encoding("".join(fields))
        readings = self._plain_readings(fields)
        if readings is None:
            readings = {}
            for index, name in self._readings:
                value = parse_reading(name, fields[index])
                if value is not None:
                    readings[name] = value
                elif not is_missing(fields[index]):
                    raise Malformed(f"{shown(name)} {shown(fields[index])} is not a finite number")
        metadata = {name: fields[index] for index, name in self._metadata if not is_missing(fields[index])}
        metadata.update((name, fields[index]) for index, name in self._texts if fields[index])
        sensor, time = "" if self._sensor is None else fields[self._sensor], fields[self._time]
        if sensor not in self._sensors:
            sensor = _blank_if_missing(sensor)
            if sensor and len(self._sensors) < _MAX_KNOWN:
                self._sensors.add(sensor)
        if not time[:1].isdigit():
            time = _blank_if_missing(time)
        event_id = "" if self._event_id is None else _blank_if_missing(fields[self._event_id])
        return self._maker.event(sensor, time, readings, metadata, event_id)

    def _plain_readings(self, fields: Sequence[str]) -> dict[str, float] | None:
        """Returns the readings if all are there and plain numbers. Parsing them together takes a third of the time."""
        texts = [fields[index] for index, _ in self._readings]
        try:
            values = list(map(float, texts))
        except ValueError:
            return None
        text, total = "".join(texts), sum(map(abs, values))
        if not total < MAX_EXACT or "_" in text or not text.isascii():  # the total of a NaN and others is not less
            return None
        return {name: value for (_, name), value in zip(self._readings, values, strict=True)}


def _blank_if_missing(text: str) -> str:
    return "" if is_missing(text) else text


class _StarColumn(NamedTuple):
    """A column that a star of readings may take."""

    name: str
    number_in: Callable[[str], str | None]  # returns a number in Python's notation; None for a cell without one
    nulls: frozenset[str]  # texts of missing values

    def is_missing(self, cell: str) -> bool:
        """Returns whether a cell has no value."""
        return is_missing(cell) or cell.strip() in self.nulls

    def is_numeric(self, cells: Iterable[str]) -> bool:
        """Returns whether cells contain only numbers, and at least one."""
        numbers = [self.number_in(cell) is not None for cell in cells if not self.is_missing(cell)]
        return bool(numbers) and all(numbers)

    def number(self, cell: str) -> int | float | None:
        """Returns the number of a cell; None if it is missing. Raises Malformed for anything else."""
        if self.is_missing(cell):
            return None
        text = self.number_in(cell)
        number = float(text) if text is not None else math.nan
        if not math.isfinite(number):
            raise Malformed(
                f"{shown(self.name)} {shown(cell)} is not a finite number, as the column's first ones are; name the "
                "column in the mapping to read it otherwise"
            )
        return int(text) if text is not None and text.lstrip("+-").isdecimal() else number


def _star_columns(mappings: Sequence[Mapping], names: Sequence[str]) -> list[_StarColumn]:
    """Returns the columns that stars of readings may take.

    Raises:
        UnreadableFile: one of the columns that stars may take can't be a name.
    """
    stars: dict[str, _StarColumn] = {}
    named = {
        path.steps[0].name
        for mapping in mappings
        for path in mapping.paths
        if path.root in (Root.MESSAGE, Root.ELEMENT) and path.steps and isinstance(path.steps[0], Field)
    }
    for mapping in mappings:
        number_in = number_reader(mapping.decimal, mapping.thousands)
        for entries in (mapping.readings, mapping.metadata):
            for entry in filter(_has_star, entries):
                columns = [name for name in names if name and name not in named and not _is_excluded(name, entry)]
                _check_star_names(columns, entry, mapping)
                nulls = frozenset(text for source in entry.value for value in source.null for text in as_texts(value))
                if entries is mapping.readings:
                    stars.update((name, _StarColumn(name, number_in, nulls)) for name in columns if name not in stars)
    return list(stars.values())


def _has_star(entry: MappingEntry) -> bool:
    """Returns whether an entry takes all columns."""
    return any(
        source.path is not None and isinstance(next(iter(source.path.steps), None), Star) for source in entry.value
    )


def _is_excluded(name: str, entry: MappingEntry) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in entry.excluded)


def _check_star_names(columns: Iterable[str], entry: MappingEntry, mapping: Mapping) -> None:
    for name in columns:
        if not mapping.rewrite_names and not is_name(entry.name.replace("*", name)):
            raise UnreadableFile(
                f"column {shown(name)} can't be the name of a reading or of metadata: set rewrite_names = true in "
                "the mapping, name the column there, or leave it out with except"
            )
