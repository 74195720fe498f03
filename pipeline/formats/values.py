"""Parses the values of records in any format, and makes events from them.

In JSON, Avro and Parquet, values have types. Numbers are readings; strings, booleans, times and UUIDs are metadata;
None is missing.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple
from uuid import UUID

from pipeline.core.decoding.file_names import FILE_ATTRIBUTES, file_attributes
from pipeline.core.events.event import (
    EARLIEST_US,
    LATEST_US,
    MAX_FUTURE_US,
    MAX_METADATA,
    MAX_METADATA_BYTES,
    MAX_READINGS,
    Event,
    validate,
)
from pipeline.core.events.file_columns import EVENT_ID, METADATA, READING
from pipeline.core.events.message import sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.exact_numbers import MAX_EXACT, exact_float, exact_float_of
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import from_datetime, parse_time, to_datetime
from pipeline.proto.sensor_event_pb2 import SensorEvent

MAX_RECORD_BYTES = 10_000_000
"""The default limit of a record in a file: the greatest size that Pub/Sub accepts."""

_MAX_COLUMNS = 10_000  # of a file; an event has at most 1,100 values, but each may leave most columns blank

_new = tuple.__new__
_MICROSECOND = timedelta(microseconds=1)
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
# By unit: its name, and the number of decimals to a microsecond.
_EPOCH_UNITS = {"s": ("seconds", 6), "ms": ("milliseconds", 3), "us": ("microseconds", 0)}
_MAX_KNOWN = 1 << 17  # valid sensors and names in the cache
_FLOOR = Context(prec=60, rounding=ROUND_FLOOR)

_OF_FILE = {f"{{{name}}}": attribute for name, attribute in FILE_ATTRIBUTES.items()}

TIME_UNITS = ("iso", *_EPOCH_UNITS)


class FileColumns(NamedTuple):
    """The columns of the sensor and the time, and the unit of the time, one of ``TIME_UNITS``.

    The sensor may also be the name of each file: ``{file}``, ``{file.stem}`` or ``{file.folder}``.
    """

    sensor: str = "sensor_id"
    time: str = "event_time"
    time_unit: str = "iso"

    @property
    def of_file(self) -> str | None:
        """The attribute of a file that is the sensor of its records; None if a column has the sensor."""
        return _OF_FILE.get(self.sensor)


class UnreadableFile(Exception):
    """The file, or the rest of it, can't be read. ``str()`` is the reason, in one line without the file's name."""


class Malformed(Exception):
    """A record that can't be read. ``str()`` is the problem, ``reason`` that of its dead letter."""

    def __init__(self, problem: str, reason: Reason = Reason.UNPARSEABLE) -> None:
        super().__init__(problem)
        self.reason = reason


class InvalidEvent(BadData):
    """An event that the pipeline would refuse. ``data`` is the serialized event."""

    def __init__(self, problem: BadData, data: bytes) -> None:
        super().__init__(problem.reason, problem.detail)
        self.data = data


def clock_us() -> int:
    """Returns the current time in microseconds since the epoch."""
    return time.time_ns() // 1000


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


def time_of(time_us: int, kind: str) -> time_of_day | BadValue:
    """Returns the time of day from microseconds since midnight; BadValue if out of range. ``kind`` names the type."""
    if 0 <= time_us < _DAY_US:
        return to_datetime(time_us).time()
    return BadValue(f"is not a time of day: a {kind} of {time_us:,} µs since midnight")


class EventMaker:
    """Makes valid events from the values of records."""

    def __init__(
        self,
        columns: FileColumns,
        now_us: Callable[[], int] = clock_us,
        max_future: timedelta = MAX_FUTURE_US * _MICROSECOND,
        max_record_bytes: int = MAX_RECORD_BYTES,
        *,
        metadata_alone: bool = False,
    ) -> None:
        self.columns = columns
        self._metadata_alone = metadata_alone
        self.max_record_bytes = max_record_bytes
        self._now_us = now_us
        self._max_future_us = max_future // _MICROSECOND
        # Of valid events. Files repeat them in every record, and a look-up is faster than a check.
        self._known_sensors: set[str] = set()
        self._known_names: set[str] = set()
        self._latest_us = 0  # the latest valid time when the clock was last read; a later event reads it again
        self._sensor = ""  # of all records of a file

    def in_file(self, path: str) -> "EventMaker":
        """Returns the maker of the events of a file, whose name may be the sensor."""
        if not self.columns.of_file:
            return self
        maker = copy.copy(self)
        maker._sensor = file_attributes(path)[self.columns.of_file]
        return maker

    @property
    def identity(self) -> tuple[object, ...]:
        """Whatever determines the events of a record. It pickles."""
        return self.columns, self.max_record_bytes

    def check_columns(self, names: Sequence[str]) -> Sequence[Any]:
        """Raises UnreadableFile if the sensor or the time is missing, two names are equal, or there are too many."""
        check_width(names)
        listed = ", ".join(map(shown, names))
        for required, flag in ((self.columns.sensor, "--sensor-column"), (self.columns.time, "--time-column")):
            if required not in names and not (required == self.columns.sensor and self.columns.of_file):
                raise UnreadableFile(f"no column {shown(required)} ({flag}); the columns are {listed}")
        if len(set(names)) < len(names):
            raise UnreadableFile(f"two columns have the same name; the columns are {listed}")
        return ()

    def of_object(self, record: Mapping[str, Any]) -> Event:
        """Returns a flat record's event.

        A name decides what a value is if it is ``event_id``, or begins with ``metadata.`` or ``reading.``. The sensor
        and the time are strings or numbers; the time may also be a ``datetime``.

        Raises:
            Malformed: a value is nested, a :class:`BadValue`, of another type, or beyond the range of a double.
            InvalidEvent: the event breaks a rule.
        """
        sensor, event_time = self.columns.sensor, self.columns.time
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
        return self.event(_text(sensor, record.get(sensor)), at, readings, metadata, event_id)

    def event(
        self,
        sensor: str,
        time: str | datetime,
        readings: dict[str, float],
        metadata: dict[str, str],
        event_id: str = "",
    ) -> Event:
        """Returns a valid event.

        Raises:
            Malformed: the sensor is missing, or the time is missing or unreadable.
            InvalidEvent: the event breaks a rule; for example, it is too far in the future.
        """
        sensor = self._sensor or sensor
        if not sensor.strip():
            raise Malformed(f"{shown(self.columns.sensor)} is missing")
        if isinstance(time, datetime):
            time_us = from_datetime(time)
        elif time.strip():
            time_us = self._time_us(time)
        else:
            raise Malformed(f"{shown(self.columns.time)} is missing")
        is_valid = self._is_plainly_valid(sensor, time_us, readings, metadata)
        if is_valid and not event_id and "".join(metadata.values()).isascii():
            return _new(Event, (sensor, time_us, readings, metadata, "", None))
        try:
            event = sensor_event(sensor, time_us, readings, metadata, event_id)
        except UnicodeEncodeError:
            raise Malformed("text contains an unpaired surrogate") from None
        except ValueError:
            raise Malformed(f"{shown(self.columns.time)} {shown(str(time))} is outside the years 1 to 9999") from None
        if is_valid:
            return _new(Event, (sensor, time_us, readings, metadata, event_id, event))
        checked = self.checked(event)
        if len(self._known_sensors) + len(self._known_names) < _MAX_KNOWN:
            self._known_sensors.add(sensor)
            self._known_names.update(readings, metadata)
        return checked

    def _is_plainly_valid(
        self, sensor: str, time_us: int, readings: dict[str, float], metadata: dict[str, str]
    ) -> bool:
        """Returns whether a fast check finds the event valid. If it doesn't, :meth:`checked` decides."""
        return (
            sensor in self._known_sensors
            and self._known_names.issuperset(readings)
            and self._known_names.issuperset(metadata)
            and 0 < len(readings) <= MAX_READINGS
            and len(metadata) <= MAX_METADATA
            and EARLIEST_US <= time_us <= self._latest_us
            and math.isfinite(sum(readings.values()))  # a sum with an infinity or a NaN is not finite
            and len("".join(metadata.values())) * 4 <= MAX_METADATA_BYTES  # a character has at most four bytes
        )

    def checked(self, event: SensorEvent) -> Event:
        """Returns the valid event. Raises InvalidEvent if it breaks a rule."""
        latest_us = self._now_us() + self._max_future_us
        self._latest_us = min(latest_us, LATEST_US)
        try:
            return validate(event, latest_us, metadata_alone=self._metadata_alone)
        except BadData as problem:
            raise InvalidEvent(problem, event.SerializeToString(deterministic=True)) from problem

    def _time_us(self, text: str) -> int:
        unit = self.columns.time_unit
        try:
            return parse_time(text) if unit == "iso" else _since_epoch(text, unit)
        except (ValueError, InvalidOperation):
            expected = "an ISO 8601 time" if unit == "iso" else f"a number of {_EPOCH_UNITS[unit][0]} since the epoch"
            raise Malformed(f"{shown(self.columns.time)} {shown(text)} is not {expected} (--time-unit)") from None


def _since_epoch(text: str, unit: str) -> int:
    """Returns exact microseconds: a float would round them."""
    decimals = _EPOCH_UNITS[unit][1]
    if len(text) < 20 and text.isascii() and text.isdigit():
        return int(text) * 10**decimals
    number = Decimal(text)
    # Checks the magnitude before the conversion to an integer: 1e999999 has a million digits.
    if not _is_plain(text) or not number.is_finite() or abs(number) >= 10**20:
        raise ValueError(text)
    return math.floor(number.scaleb(decimals, _FLOOR))


def parse_number(text: str) -> float | None:
    """Returns the finite number in the text; None if there is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and _is_plain(text) else None


def parse_reading(name: str, text: str) -> float | None:
    """Returns what :func:`parse_number` does. Raises Malformed for an integer that a double can't hold exactly."""
    value = parse_number(text)
    if value is not None and abs(value) >= MAX_EXACT:
        digits = text.strip()
        if digits.lstrip("+-").isdecimal() and exact_float_of(digits) is None:
            raise inexact(name, digits)
    return value


def inexact(name: str, digits: str) -> Malformed:
    """Returns the reason to refuse an integer as a reading."""
    problem = f"{shown(name)} {shown(digits)} is an integer that a double can't hold exactly"
    return Malformed(problem, Reason.INEXACT_INTEGER)


def _is_plain(text: str) -> bool:
    """Returns whether other languages accept the number too: only Python takes ``1_000`` and digits of any script."""
    return text.isascii() and "_" not in text


def is_missing(text: str) -> bool:
    """Returns whether a value is missing: blank, or ``NA``, ``N/A``, ``NaN``, ``null`` or ``None`` in any case."""
    return text.strip().lower() in _MISSING


def check_encoding(text: str, encoding: str = "utf-8") -> None:
    """Raises Malformed if ``surrogateescape`` decoded the text from bytes that are not in the encoding."""
    if text.isascii():  # does not scan the string, while encoding would copy it
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        raise Malformed(f"not {encoding.upper()}: invalid byte 0x{byte:02x}") from None


def check_width(names: Sequence[str]) -> None:
    """Raises UnreadableFile if a file has too many columns."""
    if len(names) > _MAX_COLUMNS:
        raise UnreadableFile(f"it has {len(names):,} columns, more than {_MAX_COLUMNS:,}")


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
        case datetime() | date() | time_of_day():
            return value.isoformat()
        case UUID():
            return str(value)
        case BadValue(problem):
            raise Malformed(f"{shown(name)} {problem}")
        case bytes():
            raise Malformed(f"{shown(name)} {BYTES.problem}")
        case list() | tuple() | dict():
            raise Malformed(f"{shown(name)} {NESTED.problem}")
        case _:
            raise Malformed(f"{shown(name)} is a {type(value).__name__}, neither a number nor text")


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
