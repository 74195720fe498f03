"""Guesses how a CSV file is written: by its first lines, for the draft of a mapping."""

import codecs
import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipeline.core.decoding.mapping.authoring.guesses import looks_like_time
from pipeline.core.decoding.mapping.language.model import BLANKS, CsvFormat
from pipeline.formats.csv_rows import ANNOTATIONS, TOA5, csv_reader, first_cell, read_head
from pipeline.formats.lines import Lines
from pipeline.formats.values import UnreadableFile

_SAMPLE_BYTES = 1 << 20
_LINES = 500  # that decide the notation
_DELIMITERS = ",;\t|"
_COMMENT = "#"
_MOST_BELOW = 3  # lines of a header below its names
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8[:2]: "utf-8-sig"}
_NUMBER = re.compile(r"[+-]?[0-9.,']*[0-9][0-9.,']*([eE][+-]?[0-9]+)?")
_NO_UNIT = re.compile(r"[0-9]+[sdn]|[-=]*")  # the types of USGS, a line below the names


def guess_csv(path: Path) -> tuple[CsvFormat, dict[str, str]]:
    """Returns how a CSV file is probably written, and the units of columns in the lines below their names."""
    with path.open("rb") as stored:
        opened = gzip.GzipFile(fileobj=stored) if path.name.lower().endswith(".gz") else stored
        data = opened.read(_SAMPLE_BYTES)
    marked = _MARKS.get(data[:2])
    plain = CsvFormat(encoding="utf-8" if marked or _is_utf8(data) else "cp1252")
    text = data.decode(marked or plain.encoding, errors="replace")
    csv_format = plain
    if first_cell(_lines(text)) not in (TOA5, *ANNOTATIONS):
        csv_format = _notation_of(list(io.StringIO(text, newline=""))[:_LINES], plain)
    return csv_format, _units(text, csv_format)


def _lines(text: str) -> Lines:
    return Lines(io.StringIO(text, newline=""))


def _is_utf8(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)  # its last character may be cut
    except UnicodeDecodeError:
        return False
    return True


class _Fit(NamedTuple):
    """How well a delimiter divides lines; the best fit is the greatest."""

    share: float  # the rows from the header on that are as wide as most rows
    titles: int  # minus the rows above the header
    cells: int
    delimiter: str
    rows: list[tuple[int, list[str]]]  # from the header on, each with the lines above it


def _notation_of(lines: Sequence[str], plain: CsvFormat) -> CsvFormat:
    commented = [line.startswith(_COMMENT) for line in lines]
    bare = ["\n" if is_comment else line for line, is_comment in zip(lines, commented, strict=True)]
    fit = _best_fit(bare)
    if fit and any(commented) and _has_data(fit.rows[0][1]) and (inside := _best_fit(lines)):
        with_header = not _has_data(inside.rows[0][1]) and inside.delimiter == fit.delimiter
        fit, commented = (inside, [False] * len(lines)) if with_header else (fit, commented)
    if not fit:
        return plain
    start = fit.rows[0][0]
    titles = any(line.strip() for line, is_comment in zip(lines[:start], commented, strict=False) if not is_comment)
    skipped = start if titles else 0
    return replace(
        plain,
        delimiter=fit.delimiter,
        skip_lines=skipped,
        header_lines=_header_lines([cells for _, cells in fit.rows]),
        comment=_COMMENT if any(commented[skipped:]) else "",
    )


def _best_fit(lines: Sequence[str]) -> _Fit | None:
    fits = [fit for delimiter in _DELIMITERS if (fit := _fit(lines, delimiter))]
    most = sum(map(bool, map(str.strip, lines))) / 2
    if not any(fit.share == 1 and len(fit.rows) >= most for fit in fits) and (blanks := _fit(lines, BLANKS)):
        fits.append(blanks)
    return max(fits, key=lambda fit: fit[:3], default=None)


def _fit(lines: Sequence[str], delimiter: str) -> _Fit | None:
    """Returns the fit of a delimiter; None if most lines have one cell."""
    rows, start = [], 0
    reader = csv_reader(lines, delimiter)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((start, cells))
            start = reader.line_num
    except csv.Error:  # a cell is larger than any
        return None
    widths = [len(cells) for _, cells in rows]
    # Titles are in the first half, and the last line may be cut.
    width = max(Counter(widths[len(widths) // 2 :]).items(), key=lambda counted: counted[::-1], default=(0, 0))[0]
    if width < 2:
        return None
    first = widths.index(width)
    whole = widths[first:-1] or widths[first:]
    share = whole.count(width) / len(whole)
    return _Fit(share, -first, len(whole) * width, delimiter, rows[first:])


def _has_data(cells: Sequence[str]) -> bool:
    return any(_NUMBER.fullmatch(cell.strip()) or looks_like_time(cell.strip()) for cell in cells)


def _header_lines(rows: Sequence[Sequence[str]]) -> int:
    """Returns the number of rows before the first one with data, if there are few."""
    below = next((number for number, cells in enumerate(rows) if _has_data(cells)), 1)
    return below if 1 < below <= 1 + _MOST_BELOW else 1


def _units(text: str, csv_format: CsvFormat) -> dict[str, str]:
    try:
        head, _ = read_head(_lines(text), csv_format)
    except UnreadableFile:  # which reading the records reports
        return {}
    lines = (line for line in head.others if not all(_NO_UNIT.fullmatch(cell.strip()) for cell in line))
    units = zip(head.names, next(lines, []), strict=False)
    return {name: unit.strip() for name, unit in units if unit.strip()}
