"""Reads the header and the rows of CSV files: title lines, comments, lines of units, and the formats of loggers.

A file is read from its beginning to its end by one reader, so comments, headers and further tables are where they are.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple, Protocol

from pipeline.core.decoding.mapping.language.model import BLANKS, CsvFormat
from pipeline.core.notation.text import shown
from pipeline.formats.lines import Lines, Refusal, TooLong
from pipeline.formats.values import Malformed, UnreadableFile, check_encoding

Row = tuple[int, int, list[str]]
"""The first line, the last line, and the cells."""


class CsvReader(Protocol):
    """A reader of the standard library."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


ANNOTATIONS = ("#datatype", "#group", "#default")
"""The beginnings of the lines above each header in InfluxDB's annotated CSV."""

TOA5 = "TOA5"
"""The first cell of a file of a Campbell Scientific logger in its table format."""

_OF_LOGGER = {"station": 1, "table": 7}  # cells of TOA5's first line
_LOGGER_HEADER = 3  # lines: names, units, kinds of processing
_BREAK = re.compile(r"\s*[\r\n]\s*")  # which no path can contain
_MAX_HEADER = 1 << 20  # characters; a mapping's message of a row has the names of all columns


class Head(NamedTuple):
    """The header of a file.

    Attributes:
        names: the names of the columns.
        others: the other lines of the header, such as units.
        added: the columns of all records that the lines above the header name, with their text.
    """

    names: list[str]
    others: list[list[str]]
    added: dict[str, str]


def first_cell(lines: Lines) -> str:
    """Returns the first cell of the first line that is not blank, and passes the blank lines above it."""
    while (line := lines.peek()) and not line.strip():
        lines.skip()
    return (line or "").partition(",")[0].strip().strip('"')


def csv_reader(lines: Iterable[str], delimiter: str, *, strict: bool = False) -> "CsvReader":
    """Returns a reader of lines, which also knows how many it has read."""
    if delimiter == BLANKS:
        return csv.reader(map(_single_blanks, lines), strict=strict, delimiter=" ", skipinitialspace=True)
    return csv.reader(lines, strict=strict, delimiter=delimiter)


def csv_rows(lines: Lines, csv_format: CsvFormat) -> Iterator[Row | Refusal]:
    """Returns the rows that are neither blank nor comments, from the next line on."""
    reader = csv_reader(lines, csv_format.delimiter, strict=True)
    comment = csv_format.comment
    while True:
        while comment and (lines.peek() or "").startswith(comment):
            lines.skip()
        lines.begin_record()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, TooLong) as error:
            # An unclosed quote swallows the lines below it, which may be valid records.
            lines.unread()
            reason = str(error) if isinstance(error, TooLong) else f"not CSV: {error}"
            yield spanning(Refusal(lines.first, reason), lines.last)
            continue
        if len(fields) > 1 or "".join(fields).strip():
            yield lines.first, lines.last, fields


def read_head(lines: Lines, csv_format: CsvFormat) -> tuple[Head, Iterator[Row | Refusal]]:
    """Returns the header and the rows below it. Raises UnreadableFile if it is missing or unreadable."""
    added = {}
    if csv_format.is_plain and first_cell(lines) == TOA5:
        added = _of_logger(lines)
        csv_format = replace(csv_format, skip_lines=1, header_lines=_LOGGER_HEADER)
    _skip_titles(lines, csv_format.skip_lines)
    # A header that a glob finds may look like a comment.
    is_found = isinstance(csv_format.skip_lines, str)
    header = next(csv_rows(lines, replace(csv_format, comment="") if is_found else csv_format), None)
    rows = csv_rows(lines, csv_format)
    if header is None:
        lines.raise_failure()
        raise UnreadableFile(
            "it ends above its header: see skip_lines of [csv]" if csv_format.skip_lines else "it is empty"
        )
    names = header_names(header, csv_format.encoding)
    others = [row[2] for row in islice(rows, csv_format.header_lines - 1) if not isinstance(row, Refusal)]
    return Head(names, others, {name: text for name, text in added.items() if name not in names}), rows


def header_names(header: Row | Refusal, encoding: str) -> list[str]:
    """Returns the names of a header. Raises UnreadableFile if they are unreadable or too long."""
    if isinstance(header, Refusal):
        raise UnreadableFile(f"the header is {header.reason}")
    if sum(map(len, header[2])) > _MAX_HEADER:
        raise UnreadableFile(f"the header has more than {_MAX_HEADER:,} characters")
    names = [_BREAK.sub(" ", name.strip()) for name in header[2]]
    try:
        check_encoding("".join(names), encoding)
    except Malformed as problem:
        raise UnreadableFile(f"the header is {problem}") from None
    return names


def spanning(refusal: Refusal, last_line: int) -> Refusal:
    """Returns the refusal; if the record has several lines, the reason also names the last one."""
    if last_line == refusal.line:
        return refusal
    return refusal._replace(reason=f"{refusal.reason}; the record ends on line {last_line}")


def _single_blanks(line: str) -> str:
    return line.replace("\t", " ").rstrip() + "\n"


def _skip_titles(lines: Lines, skipped: int | str) -> None:
    if isinstance(skipped, int):
        for _ in range(skipped):
            lines.skip()
        return
    while (line := lines.peek()) is None or not fnmatchcase(line.rstrip("\r\n"), skipped):
        if line == "":
            lines.raise_failure()
            raise UnreadableFile(f"no line is like {shown(skipped)}, the header that skip_lines of [csv] names")
        lines.skip()


def _of_logger(lines: Lines) -> dict[str, str]:
    try:
        cells = next(csv_reader([lines.peek() or ""], ","))
    except csv.Error as error:
        raise UnreadableFile(f"its first line is not CSV: {error}") from None
    return {name: cells[at] for name, at in _OF_LOGGER.items() if at < len(cells)}
