"""Events in protobuf's JSON mapping, and in nothing else: https://protobuf.dev/programming-guides/json/

``google.protobuf.json_format`` accepts more than the mapping allows, as Python does: true and ``"1_000"`` for numbers,
the digits of any script, offsets of 99 hours. Other languages read such a message differently or not at all, so it is
refused here.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from google.protobuf.timestamp_pb2 import Timestamp

from pipeline.core.text import shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # as JSON has it
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# RFC 3339, with the capital letters and the nine decimals at the most that the mapping asks for.
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999: all that a Timestamp holds
_KINDS = {dict: "an object", list: "an array", str: "a string", float: "a number", bool: "a boolean"}


def parse_json(data: bytes, into: SensorEvent | SensorEventBatch) -> None:
    """Fills in an empty message from UTF-8 JSON. Raises ValueError, in one line, where that is not such a message."""
    try:
        document = _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(into, SensorEvent):
        _fill_event(into, document)
        return
    for name, events in _fields(document, _BATCH_FIELDS):
        if type(events) is not list:
            raise _not(name, events, "an array")
        for index, event in enumerate(events):
            try:
                _fill_event(into.events.add(), event)
            except ValueError as error:
                raise ValueError(f"{name}[{index}]: {error}") from None


def _fill_event(event: SensorEvent, given: Any) -> None:
    for name, value in _fields(given, _EVENT_FIELDS):
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
                setattr(event, name, _text(value, name))  # as of maps, a ValueError where surrogates are unpaired


def _fields(given: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Names of fields, as the protobuf file has them, and their values; null is a field that is not set."""
    seen = set()
    for spelling, value in _object(given, "message").items():
        name = names.get(spelling)
        if name is None:
            raise ValueError(f"there is no field {shown(spelling)}")
        if name in seen:
            raise ValueError(f"{name} is there under both its names")
        seen.add(name)
        if value is not None:
            yield name, value


def _object(value: Any, name: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise _not(name, value, "an object")
    return value


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _not(name, value, "a string")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{shown(name)} is {shown(value)}, not a number")
        value = float(value)
    if type(value) is not float:
        raise _not(name, value, "a number")
    if math.isinf(value):
        raise ValueError(f"{shown(name)} is beyond what a double can hold")
    return value


def _fill_time(timestamp: Timestamp, text: str) -> None:
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError(f"event_time {shown(text)} is not RFC 3339, like 2026-02-17T10:30:00Z")
    *calendar, decimals, sign, hours, minutes = found.groups()
    try:
        local = datetime(*map(int, calendar), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError as error:
        raise ValueError(f"event_time {shown(text)} is in no calendar: {error}") from None
    offset = (int(hours) * 60 + int(minutes)) * 60 if sign else 0
    seconds = (local - _EPOCH) // _SECOND + (offset if sign == "-" else -offset)
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        raise ValueError(f"event_time {shown(text)} is outside the years 1 to 9999 in UTC")
    timestamp.seconds = seconds
    timestamp.nanos = int((decimals or "").ljust(9, "0"))


def _not(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"{shown(name)} is {_KINDS.get(type(value), 'null')}, not {wanted}")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON; the mapping has it in quotes")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shown(name)} is there twice")
    return members


def _spellings(message: type[SensorEvent] | type[SensorEventBatch]) -> dict[str, str]:
    return {spelling: field.name for field in message.DESCRIPTOR.fields for spelling in (field.name, field.json_name)}


_EVENT_FIELDS = _spellings(SensorEvent)
_BATCH_FIELDS = _spellings(SensorEventBatch)
# Integers as floats at once: Python's own of thousands of digits are an error, and no double holds them.
_DECODER = json.JSONDecoder(parse_int=float, parse_constant=_no_number, object_pairs_hook=_unique_names)
