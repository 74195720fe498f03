"""Valid events, and the rules that make an event valid.

No other module decides whether an event is valid, or gives the reason why it is refused.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pipeline.core.events.invalid_readings import not_finite
from pipeline.core.events.message import sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.cell_values import shown_bytes
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import format_time, shown_time
from pipeline.proto.sensor_event_pb2 import SensorEvent

EARLIEST_US = 946_684_800_000_000  # 2000-01-01T00:00:00Z
LATEST_US = 9_999_999_999_999_999  # 2286-11-20T17:46:39.999999Z: the most that a row key's 16 digits can express
MAX_FUTURE_US = 3_600_000_000  # by which an event may be ahead of the clock, unless --max-future is set
MAX_SENSOR_ID = 256
MAX_NAME = 128
MAX_READINGS = 1000
MAX_METADATA = 100
MAX_METADATA_BYTES = 4096
# First segments of the keys of the table's own rows. A sensor with such a name would be mistaken for one of them.
RESERVED_SENSOR_IDS = frozenset(
    {"agg", "schema", "repair", "latest", "alert", "rollup", "rollup_parts", "rollup_members"}
)

_SENSOR_ID = re.compile(r"[\x21\x22\x24-\x7e]{1,256}")  # printable ASCII except '#'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")

_new = tuple.__new__
_isfinite = math.isfinite

_valid_name_sets: set[tuple[str, ...]] = set()
"""Cache of the metric names of earlier valid events. It stays small: a fleet has few kinds of sensors."""
_MAX_NAMES_IN_SET = 64
_MAX_NAME_SETS = 1024


class Event(NamedTuple):
    """A valid event.

    The table's schema defines an event's identity: sensor and event time, and whatever else its row keys contain.
    """

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str]
    event_id: str = ""
    message: SensorEvent | None = None  # as received, with unknown fields

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the message as its bytes: runners pickle events to pass them on, or to know their size."""
        message = None if self.message is None else self.message.SerializeToString()
        return _unpickled, (self[:-1], message)


def _unpickled(fields: Sequence[Any], message: bytes | None) -> Event:
    return Event._make((*fields, None if message is None else SensorEvent.FromString(message)))


def serialized(event: Event) -> bytes:
    """Serializes the event as a ``SensorEvent``, deterministically and with its unknown fields."""
    message = event.message
    if message is None:
        message = sensor_event(event.sensor_id, event.event_time_us, event.readings, event.metadata, event.event_id)
    return message.SerializeToString(deterministic=True)


def deserialized(data: bytes) -> Event:
    """Parses what :func:`serialized` returned. Raises ValueError if the bytes are not a valid event."""
    message = SensorEvent()
    try:
        message.ParseFromString(data)
        return validate(message, LATEST_US, metadata_alone=True)  # whatever the schema says of new events
    except DecodeError as error:
        raise ValueError(f"not a SensorEvent: {error}") from error
    except BadData as error:
        raise ValueError(f"not a valid SensorEvent: {error}") from error


def validate(event: SensorEvent, latest_us: int, *, metadata_alone: bool = False) -> Event:
    """Checks the event against every rule of the contract and returns it as plain data.

    Args:
        event: the event as decoded.
        latest_us: the latest event time allowed, inclusive: now + ``--max-future``.
        metadata_alone: whether an event may have metadata and no readings.

    Raises:
        BadData: the first rule that the event breaks.
    """
    sensor_id = event.sensor_id
    # The length is checked first: oversized ids must not fill the cache.
    if len(sensor_id) > MAX_SENSOR_ID or not _is_sensor_id(sensor_id):
        raise _bad_sensor_id(sensor_id)
    timestamp = event.event_time
    seconds, nanos = timestamp.seconds, timestamp.nanos
    time_us = seconds * 1_000_000 + nanos // 1000
    if not (EARLIEST_US <= time_us <= latest_us and 0 <= nanos < 1_000_000_000 and time_us <= LATEST_US):
        raise _bad_event_time(event, latest_us)  # an unset event time is in 1970, thus too early
    # A comprehension costs half as much as dict(), which calls keys() on a protobuf map first. tuple.__new__ costs half
    # as much as Event(...), which has to bind its arguments.
    readings, metadata = event.readings, event.metadata
    return _new(
        Event,
        (
            sensor_id,
            time_us,
            {}
            if metadata_alone and len(metadata) and not len(readings)
            else _readings({metric: readings[metric] for metric in readings}),
            _metadata({name: metadata[name] for name in metadata}) if len(metadata) else {},
            event.event_id,
            event,
        ),
    )


def valid_event(
    made: tuple[str, int, dict[str, float], dict[str, str], str], latest_us: int, *, metadata_alone: bool = False
) -> Event:
    """Checks the fields of an event as :func:`validate` does, and returns it. Raises BadData.

    ``made`` has the sensor id, the event time in microseconds, the readings, the metadata and the event id.
    """
    sensor_id, time_us, readings, metadata, event_id = made
    if len(sensor_id) > MAX_SENSOR_ID or not _is_sensor_id(sensor_id):
        raise _bad_sensor_id(sensor_id)
    if not EARLIEST_US <= time_us <= min(latest_us, LATEST_US):
        raise _time_out_of_range(time_us, latest_us)
    if readings or not (metadata_alone and metadata):
        _readings(readings)
    return _new(Event, (sensor_id, time_us, readings, _metadata(metadata) if metadata else {}, event_id, None))


def is_sensor_id(text: str) -> bool:
    """Returns whether the text is a valid sensor_id."""
    return len(text) <= MAX_SENSOR_ID and _is_sensor_id(text)


def checked_sensor_id(text: str) -> str:
    """Returns the text if it is a valid sensor_id; otherwise raises ValueError with the reason."""
    if not is_sensor_id(text):
        raise ValueError(
            f"{shown(text) if len(text) > MAX_SENSOR_ID else repr(text)} can't be a sensor's id: it "
            f"{_why_no_sensor_id(text)}"
        )
    return text


@lru_cache(maxsize=1 << 17)
def _is_sensor_id(text: str) -> bool:
    return _SENSOR_ID.fullmatch(text) is not None and text not in RESERVED_SENSOR_IDS


def _bad_sensor_id(text: str) -> BadData:
    if not text.strip():
        return BadData(Reason.MISSING_SENSOR_ID, f"sensor_id {_why_no_sensor_id(text)}")
    return BadData(Reason.INVALID_SENSOR_ID, f"sensor_id {shown(text)} {_why_no_sensor_id(text)}")


def _why_no_sensor_id(text: str) -> str:
    """Returns what is wrong with an invalid sensor_id, as a predicate."""
    if not text.strip():
        return "is blank" if text else "is empty"
    if text in RESERVED_SENSOR_IDS:
        return "is reserved for the table's own rows"
    if len(text) > MAX_SENSOR_ID:  # first, so that a long text is not searched
        return f"has {len(text):,} characters, and {MAX_SENSOR_ID} are allowed"
    character = next(each for each in text if not _SENSOR_ID.fullmatch(each))
    return f"contains {character!r}, and only printable ASCII without '#' and spaces is allowed"


def _bad_event_time(event: SensorEvent, latest_us: int) -> BadData:
    if not event.HasField("event_time"):
        return BadData(Reason.MISSING_EVENT_TIME, "event_time is not set")
    nanos = event.event_time.nanos
    if not 0 <= nanos < 1_000_000_000:
        return BadData(Reason.INVALID_EVENT_TIME, f"event_time has {nanos} nanoseconds, not 0 to 999,999,999")
    return _time_out_of_range(event.event_time.seconds * 1_000_000 + nanos // 1000, latest_us)


def _time_out_of_range(time_us: int, latest_us: int) -> BadData:
    if time_us < EARLIEST_US:
        return BadData(
            Reason.EVENT_TIME_TOO_EARLY, f"event_time {shown_time(time_us)} is before {format_time(EARLIEST_US)}"
        )
    return BadData(Reason.EVENT_TIME_IN_FUTURE, f"event_time {shown_time(time_us)} is after {shown_time(latest_us)}")


def _readings(readings: dict[str, float]) -> dict[str, float]:
    # The common case: known names, and a finite sum, which proves that every value is finite. A sum that overflowed
    # proves nothing, and the loop below checks each value.
    names = tuple(readings)
    if names in _valid_name_sets and _isfinite(sum(readings.values())):
        return readings
    if not readings:
        raise BadData(Reason.NO_READINGS, "the event has no readings")
    if len(readings) > MAX_READINGS:
        raise BadData(Reason.TOO_MANY_READINGS, f"the event has {len(readings)} readings, more than {MAX_READINGS}")
    for metric in readings:
        if len(metric) > MAX_NAME or not _matches_name(metric):
            raise BadData(Reason.INVALID_METRIC_NAME, f"metric name {shown(metric)} does not match {_NAME.pattern}")
    if problem := not_finite(readings):
        raise problem
    if len(names) <= _MAX_NAMES_IN_SET and len(_valid_name_sets) < _MAX_NAME_SETS:
        _valid_name_sets.add(names)
    return readings


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > MAX_METADATA:
        raise BadData(
            Reason.TOO_MUCH_METADATA, f"the event has {len(metadata)} metadata entries, more than {MAX_METADATA}"
        )
    for name, value in metadata.items():
        if len(name) > MAX_NAME or not _matches_name(name):
            raise BadData(Reason.INVALID_METADATA_NAME, f"metadata name {shown(name)} does not match {_NAME.pattern}")
        # A character takes at most four bytes, so most values pass without being encoded.
        if len(value) * 4 > MAX_METADATA_BYTES and len(value.encode()) > MAX_METADATA_BYTES:
            raise BadData(Reason.METADATA_TOO_LONG, f"metadata {name} is longer than {MAX_METADATA_BYTES} bytes")
    return metadata


def is_name(text: str) -> bool:
    """Returns whether the text is a valid name of a metric or of metadata."""
    return len(text) <= MAX_NAME and _matches_name(text)


@lru_cache(maxsize=1 << 14)
def _matches_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


@lru_cache(maxsize=1 << 14)
def name_of(qualifier: bytes) -> str:
    """Returns the metric or metadata name that a column qualifier contains. Raises ValueError if it is not a name."""
    try:
        name = qualifier.decode()
    except UnicodeDecodeError:
        name = ""
    if not _NAME.fullmatch(name):
        raise ValueError(f"column {shown_bytes(qualifier)} is not a name: it does not match {_NAME.pattern}")
    return name
