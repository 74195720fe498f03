"""Windows of a calendar: days, ISO weeks and months of a time zone.

A day starts at the first instant whose local date is that day. Usually this is midnight. If clocks skip midnight, it is
the instant when they do; if they repeat it, it is the first of the two. So windows divide time without gap or overlap,
a day has 23, 24 or 25 hours, or half an hour more or less, and a day that a zone skips has no window.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from math import gcd

from pipeline.core.notation.times import local_text, to_datetime, to_local
from pipeline.core.notation.zones import UTC_ZONE, checked_zone, zone_of
from pipeline.core.windows.fixed import DAILY, Window

_SECOND_US = 1_000_000
_DAY_US = DAILY.length_us
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CHUNK_BITS = 45  # starts are computed and cached for 2**45 µs, which are 407 days
_MARGIN = timedelta(days=33)  # more than a month, and the change of a clock
_FIRST, _LAST = date(1, 1, 1), date(9999, 12, 31)
_CHECKED = date(1999, 12, 1), date(2041, 1, 1)  # contains events of 2000; rules repeat from 2037 on
_LONGER_HOURS = 2  # of a day on which clocks go back: one nearly everywhere, two in Antarctica/Troll


class Unit(StrEnum):
    """What a window of a calendar is."""

    DAY = "1d"
    WEEK = "1w"
    MONTH = "1mo"


_LABELS = {Unit.DAY: "daily", Unit.WEEK: "weekly", Unit.MONTH: "monthly"}
_DAYS = {Unit.DAY: 1, Unit.WEEK: 7, Unit.MONTH: 31}
_MONTH_TEXT = re.compile(r"[0-9]{4}-[0-9]{2}")


def parse_window(text: str) -> Window:
    """Parses the window of a tier: a fixed one like ``15m``, or one of a calendar like ``1d@Europe/Berlin``.

    ``1w`` and ``1mo`` are those of UTC; ``1d@UTC`` is ``1d``.

    Raises:
        ValueError: ``text`` is neither, or no such zone exists.
    """
    unit, at, zone = text.partition("@")
    if not at and unit not in (Unit.WEEK, Unit.MONTH):
        return Window.parse(text)
    if unit not in list(Unit):
        raise ValueError(
            f"a window of {unit or 'nothing'} has no time zone; of a zone there are 1d, 1w and 1mo, like 1d@{zone}"
        )
    if at:
        checked_zone(zone)
    if zone in ("", UTC_ZONE):
        return DAILY if unit == Unit.DAY else CalendarWindow(unit, timedelta(days=_DAYS[Unit(unit)]))
    longest = timedelta(days=_DAYS[Unit(unit)], hours=_LONGER_HOURS)
    return CalendarWindow(text, longest)


@dataclass(frozen=True)
class CalendarWindow(Window):
    """The days, weeks or months of a time zone. :func:`parse_window` makes them.

    Its length is that of the longest window.
    """

    @cached_property
    def unit(self) -> Unit:
        """What a window is."""
        return Unit(self.text.partition("@")[0])

    @cached_property
    def zone(self) -> str:
        return self.text.partition("@")[2] or UTC_ZONE

    @cached_property
    def label(self) -> str:
        return f"{_LABELS[self.unit]}@{self.zone}" if self.zone != UTC_ZONE else _LABELS[self.unit]

    def start_of(self, time_us: int) -> int:
        starts = _starts(self.unit, self.zone, time_us >> _CHUNK_BITS)
        return starts[bisect_right(starts, time_us) - 1]

    def end_of(self, start_us: int) -> int:
        starts = _starts(self.unit, self.zone, start_us >> _CHUNK_BITS)
        return starts[bisect_right(starts, start_us)]

    def count(self, from_us: int, to_us: int) -> int:
        return sum(1 for _ in self.starts(from_us, to_us))

    def is_source_of(self, longer: Window) -> bool:
        if not isinstance(longer, CalendarWindow) or self.unit != Unit.DAY or longer.unit == Unit.DAY:
            return False
        return self.zone == longer.zone

    @property
    def grain_us(self) -> int:
        return _grain_us(self.zone)

    def start_text(self, start_us: int) -> str:
        local = to_local(start_us, self.zone).date()
        if self.unit == Unit.MONTH:
            return f"{local:%Y-%m}"
        return str(local - timedelta(local.weekday()) if self.unit == Unit.WEEK else local)

    def parse_start(self, text: str) -> int:
        # Only one text of a date is that of a start: the last check rejects others that fromisoformat accepts.
        day = date.fromisoformat(f"{text}-01" if self.unit == Unit.MONTH and _MONTH_TEXT.fullmatch(text) else text)
        if not _FIRST < day < _LAST or self.start_text(start_us := _day_start_us(self.zone, day)) != text:
            raise ValueError(f"{text!r} is not the start of a window of {self.text}")
        return start_us

    def shown(self, start_us: int) -> str:
        return local_text(start_us, self.zone)


def offsets_text(zone: str) -> str:
    """Returns the zone's offsets from UTC since 2000, as text like ``+01:00, +02:00``."""
    noons = (datetime(day.year, day.month, day.day, 12, tzinfo=zone_of(zone)) for day in _checked_days())
    texts = {noon.isoformat()[19:] for noon in noons}
    return ", ".join(sorted(texts))


def _checked_days() -> Iterator[date]:
    return map(date.fromordinal, range(_CHECKED[0].toordinal(), _CHECKED[1].toordinal()))


@lru_cache(maxsize=1024)
def _starts(unit: Unit, zone: str, chunk: int) -> list[int]:
    """Returns the starts of windows in a chunk of time, in order, with one before or at its start and one after it."""
    first_us, last_us = chunk << _CHUNK_BITS, (chunk + 1) << _CHUNK_BITS
    found = sorted({_day_start_us(zone, day) for day in _days(unit, first_us, last_us)})
    if len(found) < 2 or not found[0] <= first_us < last_us <= found[-1]:
        raise OverflowError(f"{unit}@{zone} has no window at {first_us} µs: it is outside the years 1 to 9999")
    return found[bisect_right(found, first_us) - 1 : bisect_left(found, last_us) + 1]


def _days(unit: Unit, first_us: int, last_us: int) -> Iterator[date]:
    """Yields the first days of windows from before one time to after another."""
    day, last = (to_datetime(first_us) - _MARGIN).date(), (to_datetime(last_us) + _MARGIN).date()
    if unit == Unit.WEEK:
        day -= timedelta(day.weekday())
    step = timedelta(7 if unit == Unit.WEEK else 1)
    while day <= last:
        if unit != Unit.MONTH or day.day == 1:
            yield day
        day += step


def _day_start_us(zone: str, day: date) -> int:
    """Returns the first instant whose local date is that day or a later one, in microseconds since the epoch."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone_of(zone))
    midnight_us = (day.toordinal() - _EPOCH_DAY) * _DAY_US
    # Of a repeated time, the first is meant; of one that clocks skip, that by the clock before, which is too late.
    start_us, by_clock_after_us = (midnight_us - _offset_us(each) for each in (midnight, midnight.replace(fold=1)))
    return start_us if by_clock_after_us >= start_us else _skipped_us(midnight, by_clock_after_us, start_us)


def _offset_us(local: datetime) -> int:
    offset = local.utcoffset() or timedelta(0)
    return (offset.days * 86400 + offset.seconds) * _SECOND_US


def _skipped_us(local: datetime, before_us: int, after_us: int) -> int:
    """Returns the instant when clocks skip that local time: after ``before_us`` and not after ``after_us``."""
    zone, day = local.tzinfo, local.date()
    low, high = before_us // _SECOND_US, after_us // _SECOND_US
    while high - low > 1:
        middle = (low + high) // 2
        if to_datetime(middle * _SECOND_US).astimezone(zone).date() < day:
            low = middle
        else:
            high = middle
    return high * _SECOND_US


@cache
def _grain_us(zone: str) -> int:
    """Returns the longest length in microseconds that divides a day and all days of the zone since 2000."""
    return gcd(_DAY_US, *(_day_start_us(zone, day) for day in _checked_days()))
