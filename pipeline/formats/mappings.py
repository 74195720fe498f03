"""Makes events of records from JSON, Avro or Parquet, by the types of their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from pipeline.core.events.event import Event
from pipeline.core.events.file_columns import EVENT_ID, METADATA, READING
from pipeline.core.notation.exact_numbers import exact_float
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import to_datetime
from pipeline.formats.values import EventMaker, Malformed, inexact
from pipeline.proto.sensor_event_pb2 import SensorEvent


class NumberText(str):
    """A number as text, with all its digits: in a float, a time would lose its microseconds."""

    __slots__ = ()


@dataclass(frozen=True)
class BadValue:
    """Replaces a value that could not be read. ``problem`` follows the field's name in messages: "is nested"."""

    problem: str


NESTED = BadValue("is nested")
BYTES = BadValue("is bytes, neither a number nor text")

_DAY_US = 86_400_000_000


def time_of(time_us: int, kind: str) -> time | BadValue:
    """Returns the time of day from microseconds since midnight; BadValue if out of range. ``kind`` names the type."""
    if 0 <= time_us < _DAY_US:
        return to_datetime(time_us).time()
    return BadValue(f"is not a time of day: a {kind} of {time_us:,} µs since midnight")


def event_of(record: Mapping[str, Any], maker: EventMaker) -> SensorEvent | Event:
    """Returns a flat record's event.

    Numbers are readings; strings, booleans, times and UUIDs are metadata; None is missing. A name decides instead if it
    is ``event_id``, or begins with ``metadata.`` or ``reading.``. The sensor and the time are strings or numbers. The
    time may also be a ``datetime``.

    Raises:
        Malformed: a value is nested, a :class:`BadValue`, of another type, or beyond the range of a double.
        InvalidEvent: the event breaks a rule.
    """
    sensor, event_time = maker.columns.sensor, maker.columns.time
    columns = (sensor, event_time, EVENT_ID)
    prefixed: list[str] = []
    readings: dict[str, float] = {}
    metadata: dict[str, str] = {}
    for name, value in record.items():
        if name in columns:
            continue
        if "." in name and name.startswith((METADATA, READING)):
            prefixed.append(name)
            continue
        kind = type(value)
        # For speed: most values are floats, which the match statement would check late.
        if kind is float:
            readings[name] = value
            continue
        if kind is NumberText:
            readings[name] = _number(name, value)
            continue
        match value:
            case None:
                continue
            case int() | float() | Decimal() | NumberText() if kind is not bool:
                readings[name] = _number(name, value)
            case _:
                metadata[name] = _metadata(name, value)
    for name in prefixed:
        _add_prefixed(name, record[name], readings, metadata)
    at = record.get(event_time)
    at = at if isinstance(at, datetime) else _text(event_time, at)
    event_id = "" if EVENT_ID in (sensor, event_time) else _text(EVENT_ID, record.get(EVENT_ID))
    return maker.event(_text(sensor, record.get(sensor)), at, readings, metadata, event_id)


def _add_prefixed(column: str, value: Any, readings: dict[str, float], metadata: dict[str, str]) -> None:
    """Adds the value of a column whose prefix says what it is."""
    if value is None:
        return
    values: dict[str, Any] = metadata if column.startswith(METADATA) else readings
    name = column.removeprefix(METADATA if values is metadata else READING)
    if name in values:
        raise Malformed(f"{shown(name)} and {shown(column)} are two values of the same name")
    if values is metadata:
        metadata[name] = str(value) if _is_number(value) else _metadata(column, value)
    elif _is_number(value):
        readings[name] = _number(column, value)
    else:
        raise Malformed(f"{shown(column)} is not a number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | NumberText) and not isinstance(value, bool)


def _metadata(name: str, value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case _:
            raise Malformed(f"{shown(name)} {_bad_value(value).problem}")


def _bad_value(value: Any) -> BadValue:
    match value:
        case BadValue():
            return value
        case bytes():
            return BYTES
        case list() | tuple() | dict():
            return NESTED
        case _:
            return BadValue(f"is a {type(value).__name__}, neither a number nor text")


def _text(name: str, value: Any) -> str:
    """Returns a sensor or a time as text: a string, or a number as written; empty if missing."""
    if value is None:
        return ""
    if isinstance(value, BadValue):
        raise Malformed(f"{shown(name)} {value.problem}")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise Malformed(f"{shown(name)} is neither a string nor a number")
    return str(value)


def _number(name: str, value: int | float | Decimal | NumberText) -> float:
    whole = isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value()
    number = exact_float(int(value)) if whole or isinstance(value, int) else float(value)
    if number is None:
        raise inexact(name, f"{value:f}" if isinstance(value, Decimal) else str(value))
    if math.isinf(number) and not isinstance(value, float):  # an infinite float is refused by the event's rules
        raise Malformed(f"{shown(name)} exceeds the range of a double")
    return number
