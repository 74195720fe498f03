"""Places and formats the tick labels of a time axis that is measured in characters."""

from collections.abc import Iterator
from datetime import MAXYEAR, datetime, timedelta
from datetime import time as time_of_day
from typing import NamedTuple

from pipeline.core.notation.times import from_datetime, to_datetime, to_local
from pipeline.core.notation.zones import UTC_ZONE, zone_of

_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US
_CLOCKS_US = 15 * _MINUTE_US  # clocks change at multiples of it
_DAY_US = 86_400 * _SECOND_US
_YEAR_US = 365 * _DAY_US
_BLANKS = 4  # between labels: rounding to a character may move one closer to the next


def time_ticks(start_us: int, end_us: int, width: int, zone: str = UTC_ZONE) -> dict[int, str]:
    """Returns ticks from ``start_us`` to ``end_us``, both inclusive, with their labels: as many as fit.

    Args:
        start_us: the start of the axis, in microseconds since the epoch.
        end_us: the end of the axis, at least a second later.
        width: the length of the axis, in characters.
        zone: the time zone whose clocks the ticks follow.
    """
    ticks: dict[int, str] = {}
    for step in _STEPS:
        if (end_us - start_us) // step.length_us < width:
            ticks = {time_us: step.label(time_us, zone) for time_us in step.between(start_us, end_us, zone)}
            if sum(len(label) + _BLANKS for label in ticks.values()) <= width:
                break
    return ticks


class _Step(NamedTuple):
    """The distance between ticks: a fixed length, or a number of months at least that long."""

    length_us: int
    months: int = 0

    def between(self, start_us: int, end_us: int, zone: str) -> Iterator[int]:
        if self.length_us < _DAY_US:
            yield from self._times(start_us, end_us, zone)
            return
        for local in self._months(start_us, end_us, zone) if self.months else self._days(start_us, end_us, zone):
            if start_us <= (time_us := from_datetime(local.replace(tzinfo=zone_of(zone)))) <= end_us:
                yield time_us

    def _times(self, start_us: int, end_us: int, zone: str) -> Iterator[int]:
        at_us = start_us
        while at_us <= end_us:
            offset_us = _offset_us(at_us, zone)
            tick_us = -(-(at_us + offset_us) // self.length_us) * self.length_us - offset_us
            if tick_us > end_us:
                break
            if _offset_us(tick_us, zone) == offset_us:
                yield tick_us
                at_us = tick_us + 1
            else:  # clocks change before
                at_us += _CLOCKS_US - at_us % _CLOCKS_US
                if _starts_day(at_us, zone) and at_us <= end_us:  # they skip midnight
                    yield at_us
                    at_us += 1

    def _days(self, start_us: int, end_us: int, zone: str) -> Iterator[datetime]:
        start_us, end_us = (time_us + _offset_us(time_us, zone) for time_us in (start_us, end_us))
        for day in range(-(-start_us // self.length_us), end_us // self.length_us + 1):
            yield to_datetime(day * self.length_us)

    def _months(self, start_us: int, end_us: int, zone: str) -> Iterator[datetime]:
        start, end = to_local(start_us, zone), to_local(end_us, zone)
        first, last = ((time.year * 12 + time.month - 1) // self.months for time in (start, end))
        for step in range(max(first, 1), last + 1):
            year, month = divmod(step * self.months, 12)
            if 1 <= year <= MAXYEAR:
                yield datetime(year, month + 1, 1)

    def label(self, time_us: int, zone: str) -> str:
        time = to_local(time_us, zone)
        if self.length_us >= _YEAR_US:
            return f"{time.year}"
        if self.months:
            return f"{time.year}-{time:%m}"
        if self.length_us >= _DAY_US or _starts_day(time_us, zone):
            return f"{time:%m-%d}"
        if self.length_us >= _MINUTE_US:
            return f"{time:%H:%M}"
        return f"{time:%H:%M:%S}" if self.length_us >= _SECOND_US else f"{time:%H:%M:%S.%f}"[:10]


def _starts_day(time_us: int, zone: str) -> bool:
    time = to_local(time_us, zone)
    return time.time() == time_of_day() or time.date() > to_local(time_us - 1, zone).date()


def _offset_us(time_us: int, zone: str) -> int:
    return (to_local(time_us, zone).utcoffset() or timedelta(0)) // timedelta(microseconds=1)


_STEPS = [
    *(_Step(tenths * _SECOND_US // 10) for tenths in (1, 2, 5, 10, 20, 50, 100, 150, 300)),
    *(_Step(minutes * _MINUTE_US) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)),
    *(_Step(days * _DAY_US) for days in (1, 2, 4, 7, 14)),
    *(_Step(months * 28 * _DAY_US, months) for months in (1, 2, 3, 6)),
    *(_Step(years * _YEAR_US, years * 12) for years in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)),
]
