"""Parses the values of records in any format, and makes events from them."""

import copy
import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import NamedTuple

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
from pipeline.core.events.message import sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.exact_numbers import MAX_EXACT, exact_float_of
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import from_datetime, parse_time
from pipeline.proto.sensor_event_pb2 import SensorEvent

MAX_RECORD_BYTES = 10_000_000
"""The default limit of a record in a file: the greatest size that Pub/Sub accepts."""

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


class EventMaker:
    """Makes valid events from the values of records.

    Args:
        columns: the columns of the sensor and the time.
        now_us: returns the current time in microseconds since the epoch.
        max_future: the longest time that an event may be ahead of the clock.
        max_record_bytes: the limit of a record. Readers refuse longer records without reading them into memory.
        metadata_alone: whether an event may have metadata and no readings.
        encodes: whether the events are protobuf messages, which a publisher needs.
    """

    def __init__(
        self,
        columns: FileColumns,
        now_us: Callable[[], int] = clock_us,
        max_future: timedelta = MAX_FUTURE_US * _MICROSECOND,
        max_record_bytes: int = MAX_RECORD_BYTES,
        *,
        metadata_alone: bool = False,
        encodes: bool = True,
    ) -> None:
        self.columns = columns
        self._metadata_alone = metadata_alone
        self._encodes = encodes
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
        found = copy.copy(self)
        found._sensor = file_attributes(path)[self.columns.of_file]
        return found

    @property
    def identity(self) -> tuple[object, ...]:
        """Whatever determines the events of a record. It pickles."""
        return self.columns, self.max_record_bytes

    def event(
        self,
        sensor: str,
        time: str | datetime,
        readings: dict[str, float],
        metadata: dict[str, str],
        event_id: str = "",
    ) -> SensorEvent | Event:
        """Returns a valid event.

        Args:
            sensor: the sensor id; blank if missing, or if the file's name is the sensor.
            time: the time as text, blank if missing; or a ``datetime``, from formats that have them.
            readings: the values by metric.
            metadata: the texts by name.
            event_id: the event's id, if it has one.

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
        if is_valid and not self._encodes and not event_id and "".join(metadata.values()).isascii():
            return _new(Event, (sensor, time_us, readings, metadata, "", None))
        try:
            event = sensor_event(sensor, time_us, readings, metadata, event_id)
        except UnicodeEncodeError:
            raise Malformed("text contains an unpaired surrogate") from None
        except ValueError:
            raise Malformed(f"{shown(self.columns.time)} {shown(str(time))} is outside the years 1 to 9999") from None
        if not is_valid:
            self.checked(event)
            if len(self._known_sensors) + len(self._known_names) < _MAX_KNOWN:
                self._known_sensors.add(sensor)
                self._known_names.update(readings, metadata)
        return event

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

    def checked(self, event: SensorEvent) -> SensorEvent:
        """Returns the event unchanged. Raises InvalidEvent if it breaks a rule."""
        latest_us = self._now_us() + self._max_future_us
        self._latest_us = min(latest_us, LATEST_US)
        try:
            validate(event, latest_us, metadata_alone=self._metadata_alone)
        except BadData as problem:
            raise InvalidEvent(problem, event.SerializeToString(deterministic=True)) from problem
        return event

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
