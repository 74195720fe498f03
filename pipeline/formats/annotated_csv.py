"""Reads InfluxDB's annotated CSV: tables with columns and types of their own, one below the other.

A line that begins with ``#`` annotates the table below it, whose header is the next line without. Blank lines mean
nothing. The types of ``#datatype`` distinguish numbers and booleans from text. An empty cell has the value of
``#default``.
The column ``_type`` of a record is the type of its ``_value``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.formats.csv_rows import ANNOTATIONS, Row, header_names, spanning
from pipeline.formats.lines import MappedRecord, Refusal, parse_or_refuse
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import Malformed, UnreadableFile, check_encoding, is_missing, parse_number

_VALUE, _TYPE = "_value", "_type"
_BOOLEANS = {"true": True, "false": False}
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


def annotated_records(rows: Iterable[Row | Refusal], maker: MappedMaker) -> Iterator[MappedRecord | Refusal]:
    """Yields the records of all tables. Raises UnreadableFile for an invalid header, with its line."""
    annotations: dict[str, list[str]] = {}  # of the next header
    table: _TypedTable | None = None
    for row in rows:
        if isinstance(row, Refusal):
            if annotations:
                raise UnreadableFile(f"the header of the table on line {row.line} is {row.reason}")
            yield row
            continue
        first_line, last_line, fields = row
        if fields[0].startswith("#"):
            if fields[0] in ANNOTATIONS:  # others are comments
                annotations[fields[0]] = fields
        elif annotations or table is None:
            try:
                table = _TypedTable(header_names(row, maker.csv.encoding), annotations, maker)
            except UnreadableFile as problem:
                raise UnreadableFile(f"the table on line {first_line}: {problem}") from None
            annotations = {}
        else:
            record = parse_or_refuse(first_line, table.record, fields)
            yield spanning(record, last_line) if isinstance(record, Refusal) else record


class _TypedTable:
    """Makes messages of the rows of a table."""

    def __init__(self, names: Sequence[str], annotations: Mapping[str, list[str]], maker: MappedMaker) -> None:
        maker.check_names(names)
        self._names, self._maker = names, maker
        types, self._defaults = (
            [*annotations.get(line, []), *[""] * len(names)][: len(names)] for line in ("#datatype", "#default")
        )
        self._defaults[0] = ""  # the first column has the annotations
        self._readers = [_READERS.get(kind, str) for kind in types]
        kinds = dict(zip(names, types, strict=True))
        self._added = {_TYPE: kinds[_VALUE] or None} if _VALUE in names and _TYPE not in names else {}

    def record(self, fields: Sequence[str]) -> MappedRecord:
        if len(fields) != len(self._names):
            raise Malformed(f"{len(fields)} fields, but the header has {len(self._names)}")
        cells: dict[str, Any] = {}
        for name, text, default, read in zip(self._names, fields, self._defaults, self._readers, strict=True):
            cell = text or default
            cells[name] = read(cell) if cell.strip() else None
        cells.pop("", None)
        try:
            return self._maker.of_object(cells | self._added)
        except Malformed:
            check_encoding("".join(fields), self._maker.csv.encoding)
            raise


def _number(text: str) -> int | float | str | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    number = parse_number(text)
    if number is None:
        return None if is_missing(text) else text  # which the mapping refuses
    return number


def _boolean(text: str) -> bool | str:
    return _BOOLEANS.get(text, text)


_READERS: dict[str, Callable[[str], Any]] = {
    "long": _number,
    "unsignedLong": _number,
    "double": _number,
    "boolean": _boolean,
}
