"""NDJSON as events: a flat object a line, whose numbers are readings and whose strings and booleans are metadata."""

import json
import math
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

from pipeline.core.events import shown
from pipeline.proto.sensor_event_pb2 import SensorEvent
from pipeline.toolbox.records.lines import Lines, Record, UnreadableFile, attempt
from pipeline.toolbox.records.values import EventMaker, Malformed, check_utf8


class _Float(str):
    """A JSON number with a point or an exponent, digit for digit: in a float, a time would lose its microseconds."""

    __slots__ = ()


def ndjson_records(lines: Lines, maker: EventMaker) -> Iterator[Record]:
    """Records that are flat JSON objects, one a line."""
    records = _ndjson_lines(lines, maker)
    first = next(records, None)
    if first is None:
        lines.raise_failure()
        raise UnreadableFile("it is empty")
    return chain([first], records)


def _ndjson_lines(lines: Lines, maker: EventMaker) -> Iterator[Record]:
    def event(line: str) -> SensorEvent:
        return _ndjson_event(_json_object(line), maker)

    for line in lines:
        if line.strip():
            yield attempt(lines.last, event, line)
        lines.begin_record()


def _json_object(line: str) -> dict[str, Any]:
    check_utf8(line)
    try:
        record = json.loads(line, parse_float=_Float, parse_constant=_no_number, object_pairs_hook=_unique_names)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.colno}") from None
    # Integers of thousands of digits, and arrays nested thousands deep.
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Malformed("not a JSON object")
    return record


def _no_number(text: str) -> NoReturn:
    raise Malformed(f"not JSON: {text} is no number")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise Malformed("two values have one name")
    return record


def _ndjson_event(record: dict[str, Any], maker: EventMaker) -> SensorEvent:
    sensor, time = (_text(name, record.pop(name, None)) for name in (maker.columns.sensor, maker.columns.time))
    readings: dict[str, float] = {}
    metadata: dict[str, str] = {}
    for name, value in record.items():
        match value:
            case None:
                continue
            case bool():
                metadata[name] = "true" if value else "false"
            case int() | _Float():
                readings[name] = _finite(name, value)
            case str():
                metadata[name] = value
            case _:
                raise Malformed(f"{shown(name)} is nested")
    return maker.event(sensor, time, readings, metadata)


def _text(name: str, value: Any) -> str:
    """A sensor or a time: a string, or a number as it is written; empty where it is missing."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise Malformed(f"{shown(name)} is neither a string nor a number")
    return str(value)


def _finite(name: str, value: int | _Float) -> float:
    try:
        number = float(value)
    except OverflowError:  # of an integer; a float would become infinite
        number = math.inf
    if math.isinf(number):
        raise Malformed(f"{shown(name)} is beyond what a double can hold")
    return number
