"""CSV as events: the header's columns are readings where they hold numbers, metadata where they do not."""

import csv
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from pipeline.core.events import shown
from pipeline.formats.lines import (
    Lines,
    Record,
    Refusal,
    Remark,
    TooLong,
    UnreadableFile,
    attempt,
    check_columns,
)
from pipeline.formats.values import EventMaker, Malformed, check_utf8, is_missing, parse_number
from pipeline.proto.sensor_event_pb2 import SensorEvent

_SAMPLE = 1000  # records that tell which columns are numeric
_LIMITS_AT_ONCE = 16  # of a record: what these records may come to in memory; there are fewer of long ones
_BYTES_AROUND_FIELD = 64

_Row = tuple[int, int, list[str]]  # its first line, its last, and its fields


def csv_records(lines: Lines, maker: EventMaker) -> Iterator[Record]:
    """Records below a header that names the maker's columns."""
    rows = _csv_rows(lines)
    header = next(rows, None)
    if header is None:
        lines.raise_failure()
        raise UnreadableFile("it is empty")
    if isinstance(header, Refusal):
        raise UnreadableFile(f"the header is {header.reason}")
    _, _, names = header
    return _below_header(rows, _CsvEvents(names, maker), _LIMITS_AT_ONCE * maker.max_record_bytes)


def _csv_rows(lines: Lines) -> Iterator[_Row | Refusal]:
    reader = csv.reader(lines, strict=True)
    while True:
        lines.begin_record()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, TooLong) as error:
            # A quote that is never closed swallowed the lines below, which may well be good ones.
            lines.unread()
            reason = str(error) if isinstance(error, TooLong) else f"not CSV: {error}"
            yield _spanning(Refusal(lines.first, reason), lines.last)
            continue
        if len(fields) > 1 or "".join(fields).strip():
            yield lines.first, lines.last, fields


def _sample(rows: Iterator[_Row | Refusal], most_bytes: int) -> Iterator[_Row | Refusal]:
    for row in islice(rows, _SAMPLE):
        yield row
        if not isinstance(row, Refusal):
            most_bytes -= sum(map(len, row[2])) + _BYTES_AROUND_FIELD * len(row[2])
        if most_bytes < 0:
            return


def _below_header(rows: Iterator[_Row | Refusal], events: "_CsvEvents", most_bytes: int) -> Iterator[Record]:
    sample = list(_sample(rows, most_bytes))
    yield from events.learn([row for row in sample if not isinstance(row, Refusal)])
    for row in chain(sample, rows):
        if isinstance(row, Refusal):
            yield row
            continue
        first_line, last_line, fields = row
        record = attempt(first_line, events.event, fields)
        yield _spanning(record, last_line) if isinstance(record, Refusal) else record


def _spanning(refusal: Refusal, last_line: int) -> Refusal:
    """The same; of a record of several lines with the last."""
    if last_line == refusal.line:
        return refusal
    return refusal._replace(reason=f"{refusal.reason}; the record ends in line {last_line}")


class _CsvEvents:
    """Events of the fields below a header."""

    def __init__(self, header: Sequence[str], maker: EventMaker) -> None:
        self._names = [name.strip() for name in header]
        try:
            check_utf8("".join(self._names))
        except Malformed as problem:
            raise UnreadableFile(f"the header is {problem}") from None
        check_columns(self._names, maker.columns)
        self._maker = maker
        self._sensor = self._names.index(maker.columns.sensor)
        self._time = self._names.index(maker.columns.time)
        self._readings: list[tuple[int, str]] = []
        self._metadata: list[tuple[int, str]] = []

    def learn(self, sample: Sequence[_Row]) -> list[Remark]:
        """Sorts the columns into readings and metadata; tells which are metadata although they hold numbers."""
        remarks = []
        whole = [(line, fields) for line, _, fields in sample if len(fields) == len(self._names)]
        for index, name in enumerate(self._names):
            if index in (self._sensor, self._time):
                continue
            values = [(line, fields[index]) for line, fields in whole if not is_missing(fields[index])]
            texts = [(line, text) for line, text in values if parse_number(text) is None]
            (self._metadata if texts else self._readings).append((index, name))
            if 0 < len(texts) < len(values):
                line, text = texts[0]
                remarks.append(Remark(line, f"{shown(name)} is metadata, since {shown(text)} is no number"))
        return remarks

    def event(self, fields: Sequence[str]) -> SensorEvent:
        if len(fields) != len(self._names):
            raise Malformed(f"{len(fields)} fields, where the header has {len(self._names)}")
        check_utf8("".join(fields))
        readings = {}
        for index, name in self._readings:
            value = parse_number(fields[index])
            if value is not None:
                readings[name] = value
            elif not is_missing(fields[index]):
                raise Malformed(f"{shown(name)} {shown(fields[index])} is not a finite number")
        metadata = {name: fields[index] for index, name in self._metadata if not is_missing(fields[index])}
        return self._maker.event(_present(fields[self._sensor]), _present(fields[self._time]), readings, metadata)


def _present(text: str) -> str:
    return "" if is_missing(text) else text
