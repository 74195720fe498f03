"""Converts times between microseconds since the epoch, datetimes, and RFC 3339 text.

Event identities and row keys use microseconds in an ``int``. A ``float`` would lose them, and a ``datetime`` costs ten
times as much.

A text without an offset is UTC, or a local time of a zone: as its clocks showed it, the first time if they showed it
twice. If clocks skipped it, it is as if they had not changed: 02:30 in a night without that hour is 03:30.

Zone data is from the package ``tzdata``, never from the system: workers, the launcher and readers agree.
"""

import difflib
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from operator import index
from typing import SupportsIndex, TypeAlias
from zoneinfo import ZoneInfo

from pipeline.core.notation.durations import parse_duration

Time: TypeAlias = SupportsIndex | datetime | str
"""What readers take for a time: whole microseconds since the epoch, an aware datetime, or ISO 8601 text."""

UTC_ZONE = "UTC"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAYS_AGO = {"today": 0, "yesterday": 1}
_FIRST_US, _LAST_US = ((day.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for day in (datetime.min, datetime.max))


def to_datetime(time_us: int) -> datetime:
    """Returns the time as an aware UTC datetime. Raises OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=time_us)


def from_datetime(instant: datetime) -> int:
    """Returns microseconds since the epoch. A naive datetime is taken as UTC."""
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return (instant - _EPOCH) // _MICROSECOND


def to_us(time: Time, zone: str = UTC_ZONE) -> int:
    """Returns microseconds since the epoch. ISO 8601 text without an offset is of the zone, as in :func:`parse_time`.

    Raises:
        ValueError: the text is not a time, or a datetime has no time zone: elsewhere that may mean local time.
        TypeError: it is none of the three.
    """
    if isinstance(time, str):
        return parse_time(time, zone)
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise ValueError(f"{time!r} has no time zone; give it one, such as tzinfo=timezone.utc")
        return int((time - _EPOCH) // _MICROSECOND)
    try:
        return index(time)
    except TypeError:
        raise TypeError(
            f"{time!r} is not a time; pass an aware datetime, ISO 8601 text like '2026-02-17T10:30:00Z', "
            "or whole microseconds since the epoch"
        ) from None


def format_time(time_us: int) -> str:
    """Returns RFC 3339 text in UTC with zero, three or six decimals, the fewest that are exact."""
    timespec = "seconds" if time_us % 1_000_000 == 0 else "milliseconds" if time_us % 1000 == 0 else "microseconds"
    return to_datetime(time_us).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def shown_time(time_us: int) -> str:
    """Returns a time for a message: ISO 8601, or the number of microseconds if no calendar has it."""
    try:
        return format_time(time_us)
    except (ValueError, OverflowError):
        return f"{time_us} µs since the epoch"


def to_local(time_us: int, zone: str) -> datetime:
    """Returns the time as an aware datetime of the zone; in UTC if it is outside the years 1 to 9999 there."""
    instant = to_datetime(time_us)
    try:
        return instant.astimezone(zone_of(zone))
    except OverflowError:
        return instant


def local_text(time_us: int, zone: str) -> str:
    """Returns the time as RFC 3339 text with the zone's offset; in UTC as :func:`format_time` does."""
    return format_time(time_us) if zone == UTC_ZONE else to_local(time_us, zone).isoformat()


def parse_time(text: str, zone: str = UTC_ZONE) -> int:
    """Parses an ISO 8601 date, or date and time, into microseconds since the epoch; of the zone if it has no offset.

    ``2026-02-17``, ``2026-02-17T10``, ``2026-02-17T10:30:00.25Z`` and ``2026-02-17 12:30+02:00`` are all valid. Raises
    ValueError for another format, and outside the years 1 to 9999 in UTC.
    """
    time_us = _of_iso(text, zone)
    if not _FIRST_US <= time_us <= _LAST_US:  # by its offset
        raise ValueError(f"{text!r} is outside the years 1 to 9999 in UTC")
    return time_us


def _of_iso(text: str, zone: str) -> int:
    try:
        parsed = datetime.fromisoformat(text.strip())
        return from_datetime(parsed if parsed.tzinfo or zone == UTC_ZONE else parsed.replace(tzinfo=zone_of(zone)))
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO 8601 time, like 2026-02-17T10:30:00Z") from None


def parse_moment(text: str, now_us: int, zone: str = UTC_ZONE) -> int:
    """Parses a time as people type it into microseconds since the epoch.

    It is ``now``; ``today`` or ``yesterday``, the date in the zone; a duration before now, such as ``-15m`` or ``-1d``;
    or what :func:`parse_time` parses. Raises ValueError as that does.
    """
    word = text.strip().lower()
    if word == "now":
        return now_us
    try:
        if word in _DAYS_AGO:
            today = to_local(now_us, zone).date()
            return parse_time(str(today - timedelta(_DAYS_AGO[word])), zone)
        time_us = now_us - parse_duration(word[1:]) // _MICROSECOND if word.startswith("-") else _of_iso(text, zone)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2026-02-17T10:30:00Z, now, today, yesterday or -1d") from None
    try:
        to_datetime(time_us)
    except OverflowError:
        raise ValueError(f"{text!r} is outside the years 1 to 9999 in UTC") from None
    return time_us


@cache
def zone_names() -> frozenset[str]:
    """Returns the names of all time zones."""
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


@cache
def zone_of(name: str) -> ZoneInfo:
    """Returns a time zone by its name, which is one of :func:`zone_names`."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def checked_zone(name: str) -> str:
    """Returns the name of a time zone. Raises ValueError for any other text."""
    if name not in zone_names():
        raise ValueError(f"{name!r} is not a time zone{_nearest(name)}")
    return name


def _nearest(zone: str) -> str:
    lower = {name.lower(): name for name in zone_names()}
    last = {name.rpartition("/")[2]: name for name in lower}
    near = difflib.get_close_matches(zone.lower(), lower, 1, 0.7)
    near = near or [last[each] for each in difflib.get_close_matches(zone.lower().rpartition("/")[2], last, 1, 0.7)]
    return f"; did you mean {lower[near[0]]}?" if near else ", like Europe/Berlin"
