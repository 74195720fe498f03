"""A record as names and values, out of JSON, Avro or Parquet, as an event: what each type of value means."""

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from pipeline.core.events import shown
from pipeline.core.times import to_datetime
from pipeline.formats.values import EventMaker, Malformed
from pipeline.proto.sensor_event_pb2 import SensorEvent


class NumberText(str):
    """A number as it is written, digit for digit: in a float, a time would lose its microseconds."""

    __slots__ = ()


class Bad(NamedTuple):
    """Stands where a value should be that could not be read. ``why`` goes on from the field's name: "is nested"."""

    why: str


NESTED = Bad("is nested")
BYTES = Bad("is bytes, neither a number nor text")

_DAY_US = 86_400_000_000


def time_of(time_us: int, kind: str) -> time | Bad:
    """The time of day so many microseconds after midnight, of a field of that kind."""
    if 0 <= time_us < _DAY_US:
        return to_datetime(time_us).time()
    return Bad(f"is no time of a day: a {kind} of {time_us:,} µs since midnight")


def event_of(record: Mapping[str, Any], maker: EventMaker) -> SensorEvent:
    """The event of a flat record: numbers are readings; strings, booleans, times and UUIDs metadata; None is missing.

    The sensor and the time are strings or numbers; the time may be a ``datetime`` as well.

    Raises:
        Malformed: something is nested, :class:`Bad`, or of another type, or beyond what a double can hold.
        InvalidEvent: a rule of the contract is broken.
    """
    named = sensor, event_time = maker.columns.sensor, maker.columns.time
    readings: dict[str, float] = {}
    metadata: dict[str, str] = {}
    for name, value in record.items():
        if name in named:
            continue
        kind = type(value)
        # Nearly all that there is: a match would ask for it last.
        if kind is float:
            readings[name] = value
            continue
        if kind is NumberText:
            readings[name] = _number(name, value)
            continue
        match value:
            case None:
                continue
            case bool():
                metadata[name] = "true" if value else "false"
            case int() | float() | Decimal() | NumberText():
                readings[name] = _number(name, value)
            case str():
                metadata[name] = value
            case datetime() | date() | time():
                metadata[name] = value.isoformat()
            case UUID():
                metadata[name] = str(value)
            case _:
                raise Malformed(f"{shown(name)} {_wrong(value).why}")
    at = record.get(event_time)
    at = at if isinstance(at, datetime) else _text(event_time, at)
    return maker.event(_text(sensor, record.get(sensor)), at, readings, metadata)


def _wrong(value: Any) -> Bad:
    match value:
        case Bad():
            return value
        case bytes():
            return BYTES
        case list() | tuple() | dict():
            return NESTED
        case _:
            return Bad(f"is a {type(value).__name__}, neither a number nor text")


def _text(name: str, value: Any) -> str:
    """A sensor or a time: a string, or a number as it is written; empty where it is missing."""
    if value is None:
        return ""
    if isinstance(value, Bad):
        raise Malformed(f"{shown(name)} {value.why}")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise Malformed(f"{shown(name)} is neither a string nor a number")
    return str(value)


def _number(name: str, value: int | float | Decimal | NumberText) -> float:
    try:
        number = float(value)
    except OverflowError:  # of an integer; a text would become infinite
        number = math.inf
    if math.isinf(number) and not isinstance(value, float):  # one that is infinite as such breaks a rule, by its name
        raise Malformed(f"{shown(name)} is beyond what a double can hold")
    return number
