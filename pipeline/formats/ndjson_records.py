"""Reads events from NDJSON: one flat object per line. Numbers are readings, strings and booleans are metadata."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

from pipeline.formats.lines import Lines, Record, Refusal, TooLong, UnreadableFile, parse_or_refuse
from pipeline.formats.mappings import NumberText, event_of
from pipeline.formats.values import EventMaker, InvalidEvent, Malformed, check_utf8
from pipeline.proto.sensor_event_pb2 import SensorEvent


def ndjson_records(lines: Lines, maker: EventMaker) -> Iterator[Record]:
    """Returns the records, one per line. Raises UnreadableFile if there is none."""
    records = _ndjson_lines(lines, maker)
    first = next(records, None)
    if first is None:
        lines.raise_failure()
        raise UnreadableFile("it is empty")
    return chain([first], records)


def _ndjson_lines(lines: Lines, maker: EventMaker) -> Iterator[Record]:
    sensor, time = maker.columns.sensor, maker.columns.time
    exact = False  # set once a sensor or time is a number with decimals: a float would lose digits

    def event(line: str) -> SensorEvent:
        nonlocal exact
        if not exact:
            try:
                record = _json_object(line, _QUICK)
                exact = type(record.get(sensor)) is float or type(record.get(time)) is float
                if not exact:
                    return event_of(record, maker)
            except (Malformed, InvalidEvent):
                pass  # parsed again below: the message then quotes numbers as they are written
        return event_of(_json_object(line, _EXACT), maker)

    while True:
        try:
            for line in lines:
                if line.strip():
                    yield parse_or_refuse(lines.last, event, line)
                lines.begin_record()
            return
        except TooLong as problem:
            yield Refusal(lines.last, str(problem))
            lines.begin_record()


def _json_object(line: str, decoder: json.JSONDecoder) -> dict[str, Any]:
    check_utf8(line)
    try:
        record = decoder.decode(line)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.colno}") from None
    # Integers with thousands of digits, and arrays nested thousands deep.
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Malformed("not a JSON object")
    return record


def _no_number(text: str) -> NoReturn:
    raise Malformed(f"not JSON: {text} is not a number")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise Malformed("two values have the same name")
    return record


# Made once: json.loads would make a decoder for every line. The exact one, which keeps numbers as text, is slower.
_QUICK = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_unique_names)
_EXACT = json.JSONDecoder(parse_float=NumberText, parse_constant=_no_number, object_pairs_hook=_unique_names)
