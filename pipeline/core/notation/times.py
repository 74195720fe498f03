"""Converts times between microseconds since the epoch, datetimes, and RFC 3339 text in UTC.

Event identities and row keys use microseconds in an ``int``. A ``float`` would lose them, and a ``datetime`` costs ten
times as much.
"""

from datetime import UTC, datetime, timedelta
from operator import index
from typing import SupportsIndex, TypeAlias

from pipeline.core.notation.durations import parse_duration

Time: TypeAlias = SupportsIndex | datetime | str
"""What readers take for a time: whole microseconds since the epoch, an aware datetime, or ISO 8601 text."""

_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_datetime(time_us: int) -> datetime:
    """Returns the time as an aware UTC datetime. Raises OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=time_us)


def from_datetime(instant: datetime) -> int:
    """Returns microseconds since the epoch. A naive datetime is taken as UTC."""
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return (instant - _EPOCH) // _MICROSECOND


def to_us(time: Time) -> int:
    """Returns microseconds since the epoch. ISO 8601 text without an offset is UTC, as in :func:`parse_time`.

    Raises:
        ValueError: the text is not a time, or a datetime has no time zone: elsewhere that may mean local time.
        TypeError: it is none of the three.
    """
    if isinstance(time, str):
        return parse_time(time)
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


def parse_time(text: str) -> int:
    """Parses an ISO 8601 date, or date and time, into microseconds since the epoch. Without an offset it is UTC.

    ``2026-02-17``, ``2026-02-17T10``, ``2026-02-17T10:30:00.25Z`` and ``2026-02-17 12:30+02:00`` are all valid.

    Raises:
        ValueError: ``text`` has another format.
    """
    try:
        return from_datetime(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO 8601 time, like 2026-02-17T10:30:00Z") from None


def parse_moment(text: str, now_us: int) -> int:
    """Parses a time as people type it into microseconds since the epoch.

    Args:
        text: ``now``; ``today`` or ``yesterday``, which begin at midnight in UTC; a duration before now, such as
            ``-15m`` or ``-1d``; or what :func:`parse_time` parses.
        now_us: the current time.

    Raises:
        ValueError: ``text`` has another format, or is outside the years 1 to 9999 in UTC.
    """
    today_us = now_us - now_us % _DAY_US
    named = {"now": now_us, "today": today_us, "yesterday": today_us - _DAY_US}
    word = text.strip().lower()
    try:
        if word in named:
            return named[word]
        time_us = now_us - parse_duration(word[1:]) // _MICROSECOND if word.startswith("-") else parse_time(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2026-02-17T10:30:00Z, now, today, yesterday or -1d") from None
    try:
        to_datetime(time_us)
    except OverflowError:
        raise ValueError(f"{text!r} is outside the years 1 to 9999 in UTC") from None
    return time_us
