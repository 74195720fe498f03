"""Places and formats the tick labels of a time axis that is measured in characters."""

from collections.abc import Iterator
from datetime import MAXYEAR, datetime
from typing import NamedTuple

from pipeline.core.notation.times import from_datetime, to_datetime

_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US
_DAY_US = 86_400 * _SECOND_US
_YEAR_US = 365 * _DAY_US
_BLANKS = 4  # between labels: rounding to a character may move one closer to the next


def time_ticks(start_us: int, end_us: int, width: int) -> dict[int, str]:
    """Returns ticks from ``start_us`` to ``end_us``, both inclusive, with their labels: as many as fit.

    Args:
        start_us: the start of the axis, in microseconds since the epoch.
        end_us: the end of the axis, at least a second later.
        width: the length of the axis, in characters.
    """
    ticks: dict[int, str] = {}
    for step in _STEPS:
        if (end_us - start_us) // step.length_us < width:
            ticks = {time_us: step.label(time_us) for time_us in step.between(start_us, end_us)}
            if sum(len(label) + _BLANKS for label in ticks.values()) <= width:
                break
    return ticks


class _Step(NamedTuple):
    """The distance between ticks: a fixed length, or a number of months at least that long."""

    length_us: int
    months: int = 0

    def between(self, start_us: int, end_us: int) -> Iterator[int]:
        if not self.months:
            yield from range(-(-start_us // self.length_us) * self.length_us, end_us + 1, self.length_us)
            return
        start, end = to_datetime(start_us), to_datetime(end_us)
        first, last = ((time.year * 12 + time.month - 1) // self.months for time in (start, end))
        for step in range(max(first, 1), last + 1):
            year, month = divmod(step * self.months, 12)
            if 1 <= year <= MAXYEAR and start_us <= (time_us := from_datetime(datetime(year, month + 1, 1))) <= end_us:
                yield time_us

    def label(self, time_us: int) -> str:
        time = to_datetime(time_us)
        if self.length_us >= _YEAR_US:
            return f"{time.year}"
        if self.months:
            return f"{time.year}-{time:%m}"
        if self.length_us >= _DAY_US or time_us % _DAY_US == 0:
            return f"{time:%m-%d}"
        if self.length_us >= _MINUTE_US:
            return f"{time:%H:%M}"
        return f"{time:%H:%M:%S}" if self.length_us >= _SECOND_US else f"{time:%H:%M:%S.%f}"[:10]


_STEPS = [
    *(_Step(tenths * _SECOND_US // 10) for tenths in (1, 2, 5, 10, 20, 50, 100, 150, 300)),
    *(_Step(minutes * _MINUTE_US) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)),
    *(_Step(days * _DAY_US) for days in (1, 2, 4, 7, 14)),
    *(_Step(months * 28 * _DAY_US, months) for months in (1, 2, 3, 6)),
    *(_Step(years * _YEAR_US, years * 12) for years in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)),
]
