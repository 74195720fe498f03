"""Events in protobuf's JSON mapping, exactly: https://protobuf.dev/programming-guides/json/

``google.protobuf.json_format`` accepts more than the mapping allows: true and ``"1_000"`` as numbers, digits of any
script, UTC offsets of 99 hours. Other languages parse such a message differently or not at all, so this module refuses
it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from pipeline.core.notation.documents import StrictDecoder
from pipeline.core.notation.exact_numbers import exact_float_of
from pipeline.core.notation.text import shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

_Parsed = TypeVar("_Parsed", SensorEvent, SensorEventBatch)

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # JSON's syntax
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# RFC 3339 as the mapping restricts it: capital letters and at most nine decimals.
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # a Timestamp's range, the years 1 to 9999
_KINDS = {dict: "an object", list: "an array", str: "a string", float: "a number", bool: "a boolean"}


class InexactInteger(ValueError):
    """Raised for an integer that a double cannot hold exactly. ``str()`` is a one-line message."""


def parse_json(data: bytes, kind: type[_Parsed]) -> _Parsed:
    """Returns the message that UTF-8 JSON contains. Raises ValueError with a one-line message if the JSON does not fit.

    An integer that a double cannot hold exactly raises InexactInteger, which is a ValueError.
    """
    document, message = _DECODER.decode(data.decode()), kind()
    if isinstance(message, SensorEvent):
        _fill_event(message, document)
        return message
    for name, events in _fields(document, _BATCH_FIELDS):
        if type(events) is not list:
            raise _wrong_type(name, events, "an array")
        for index, event in enumerate(events):
            try:
                _fill_event(message.events.add(), event)
            except ValueError as error:
                raised = InexactInteger if isinstance(error, InexactInteger) else ValueError
                raise raised(f"{name}[{index}]: {error}") from None
    return message


def event_json(
    sensor_id: str, event_time: str | None, event_id: str, readings: Mapping[str, Any], metadata: Mapping[str, str]
) -> dict[str, Any]:
    """Returns an event as a JSON object with the names of the protobuf file; ``event_id`` only if it has one."""
    return {
        "sensor_id": sensor_id,
        "event_time": event_time,
        **({"event_id": event_id} if event_id else {}),
        "readings": readings,
        "metadata": metadata,
    }


def _fill_event(event: SensorEvent, document: Any) -> None:
    for name, value in _fields(document, _EVENT_FIELDS):
        match name:
            case "event_time":
                _fill_time(event.event_time, _text(value, name))
            case "readings":
                for metric, reading in _object(value, name).items():
                    event.readings[metric] = _number(reading, metric)
            case "metadata":
                for entry, text in _object(value, name).items():
                    event.metadata[entry] = _text(text, entry)
            case _:
                setattr(event, name, _text(value, name))  # like the maps, raises ValueError for unpaired surrogates


def _fields(document: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yields fields under their names in the protobuf file, with their values. Skips null, which means not set."""
    seen = set()
    for spelling, value in _object(document, "message").items():
        name = names.get(spelling)
        if name is None:
            raise ValueError(f"there is no field {shown(spelling)}")
        if name in seen:
            raise ValueError(f"{name} is set twice, under both its names")
        seen.add(name)
        if value is not None:
            yield name, value


def _object(value: Any, name: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise _wrong_type(name, value, "an object")
    return value


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _wrong_type(name, value, "a string")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{shown(name)} is {shown(value)}, not a number")
        value = _integer(value) if value.lstrip("-").isdecimal() else float(value)
    if type(value) is _InexactJson:
        raise InexactInteger(f"{shown(name)} is {shown(value)}, an integer that a double can't hold exactly")
    if type(value) is not float:
        raise _wrong_type(name, value, "a number")
    if math.isinf(value):
        raise ValueError(f"{shown(name)} exceeds the range of a double")
    return value


def _fill_time(timestamp: Timestamp, text: str) -> None:
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError(f"event_time {shown(text)} is not RFC 3339, like 2026-02-17T10:30:00Z")
    *calendar, decimals, sign, hours, minutes = found.groups()
    try:
        local = datetime(*map(int, calendar), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError as error:
        raise ValueError(f"event_time {shown(text)} is not a valid date and time: {error}") from None
    offset = (int(hours) * 60 + int(minutes)) * 60 if sign else 0
    seconds = (local - _EPOCH) // _SECOND + (offset if sign == "-" else -offset)
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        raise ValueError(f"event_time {shown(text)} is outside the years 1 to 9999 in UTC")
    timestamp.seconds = seconds
    timestamp.nanos = int((decimals or "").ljust(9, "0"))


def _wrong_type(name: str, value: Any, expected: str) -> ValueError:
    kind = "a number" if type(value) is _InexactJson else _KINDS.get(type(value), "null")
    return ValueError(f"{shown(name)} is {kind}, not {expected}")


class _InexactJson(str):
    """The digits of an integer that a double cannot hold exactly."""

    __slots__ = ()


def _integer(text: str) -> "float | _InexactJson":
    number = exact_float_of(text)
    return _InexactJson(text) if number is None else number


def _spellings(message: type[SensorEvent] | type[SensorEventBatch]) -> dict[str, str]:
    return {spelling: field.name for field in message.DESCRIPTOR.fields for spelling in (field.name, field.json_name)}


_EVENT_FIELDS = _spellings(SensorEvent)
_BATCH_FIELDS = _spellings(SensorEventBatch)
_DECODER = StrictDecoder(parse_int=_integer)
