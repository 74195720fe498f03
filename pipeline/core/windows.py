"""Fixed windows, windows of a calendar, and the shorter windows that make up a longer one.

Windows divide event time into parts of a length, each with a start. Fixed windows are aligned to UTC. Windows of a
calendar are the days, ISO weeks and months of a time zone. Everything asks a window for its bounds: only fixed windows
all have the same length.

A day starts at the first instant whose local date is that day. Usually this is midnight. If clocks skip midnight, it is
the instant when they do; if they repeat it, it is the first of the two. So windows divide time without gap or overlap,
a day has 23, 24 or 25 hours, or half an hour more or less, and a day that a zone skips has no window.

The shortest tier of a table aggregates events. Each other one is computed from its source: the longest of the shorter
tiers of whose windows its own consist. So tiers form a tree: days of UTC and days of Berlin are both computed from
hours.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import gcd

from pipeline.core.notation.durations import format_interval, parse_duration
from pipeline.core.notation.times import (
    UTC_ZONE,
    checked_zone,
    format_time,
    from_datetime,
    local_text,
    to_datetime,
    to_local,
    zone_of,
)

_DAY = timedelta(days=1)
_DEFAULT_FORMAT = "%Y-%m-%dT%H:%M:%S"


@dataclass(frozen=True)
class Window:
    """The length of fixed windows, and the text it was parsed from, which becomes part of row keys."""

    text: str
    length: timedelta

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Parses a duration like ``15m``.

        Raises:
            ValueError: ``text`` is not a duration, or the duration does not divide a day.
        """
        if "@" in text or text in ("1w", "1mo"):
            raise ValueError(
                f"windows of {text} are computed from shorter ones; declare them as a further tier of the schema"
            )
        length = parse_duration(text)
        if not length or _DAY % length:
            raise ValueError(f"a window of {text} does not divide a day; use one like 15m, 1h, 6h or 1d")
        return cls(text, length)

    @cached_property
    def length_us(self) -> int:
        """The length in microseconds, of the longest window if they differ."""
        return self.length // timedelta(microseconds=1)

    @property
    def zone(self) -> str:
        """The name of the time zone whose calendar the windows follow."""
        return "UTC"

    def same_as(self, other: "Window") -> bool:
        """Returns whether the windows are the same, whatever their text."""
        return (self.length, self.zone) == (other.length, other.zone)

    def start_of(self, time_us: int) -> int:
        """Returns the start, in microseconds, of the window that contains the time."""
        return time_us - time_us % self.length_us

    def end_of(self, start_us: int) -> int:
        """Returns the end, exclusive, of the window that starts then: the start of the next one."""
        return start_us + self.length_us

    def first_start(self, time_us: int) -> int:
        """Returns the first start that is not before the time."""
        start_us = self.start_of(time_us)
        return start_us if start_us == time_us else self.end_of(start_us)

    def starts(self, from_us: int, to_us: int) -> Iterator[int]:
        """Yields the starts in [``from_us``, ``to_us``), in order."""
        start_us = self.first_start(from_us)
        while start_us < to_us:
            yield start_us
            start_us = self.end_of(start_us)

    def gaps(self, starts: Iterable[int], from_us: int, to_us: int) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each gap between windows with these starts, from one start to another."""
        gap_us = from_us
        for start_us in [*sorted(starts), to_us]:
            if gap_us < start_us:
                yield gap_us, start_us
            gap_us = self.end_of(start_us)

    def count(self, from_us: int, to_us: int) -> int:
        """Returns the number of windows between two starts; zero if the second is not later."""
        return max(to_us - from_us, 0) // self.length_us

    def is_source_of(self, longer: "Window") -> bool:
        """Returns whether each of the longer windows consists of whole windows of this kind."""
        return self.length < longer.length and longer.grain_us % self.length_us == 0

    @property
    def grain_us(self) -> int:
        """The longest length, in microseconds, of fixed windows of which these windows consist."""
        return self.length_us

    @property
    def label(self) -> str:
        """What row keys call these windows."""
        return _LABELS.get(self.length, (self.text, ""))[0]

    def start_text(self, start_us: int) -> str:
        """Returns the start as row keys contain it. The order of texts is that of time."""
        return to_datetime(start_us).strftime(self._format)

    def parse_start(self, text: str) -> int:
        """Parses a start from a row key, in microseconds. Raises ValueError for other text."""
        start_us = from_datetime(datetime.strptime(text, self._format))
        # strptime accepts several texts for one time; only one of them is that of a start.
        if start_us < 0 or self.start_of(start_us) != start_us or self.start_text(start_us) != text:
            raise ValueError(f"{text!r} is not the start of a window of {self.text}")
        return start_us

    def shown(self, start_us: int) -> str:
        """Returns the start as RFC 3339 text for people and JSON."""
        return format_time(start_us)

    @property
    def _format(self) -> str:
        return _LABELS.get(self.length, ("", _DEFAULT_FORMAT))[1]


HOURLY = Window("1h", timedelta(hours=1))
DAILY = Window("1d", _DAY)
_LABELS = {HOURLY.length: ("hourly", "%Y-%m-%dT%H"), DAILY.length: ("daily", "%Y-%m-%d")}


_SECOND_US = 1_000_000
_DAY_US = DAILY.length_us
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CHUNK_BITS = 45  # starts are computed and cached for 2**45 µs, which are 407 days
_MARGIN = timedelta(days=33)  # more than a month, and the change of a clock
_FIRST_DAY, _LAST_DAY = date(1, 1, 1), date(9999, 12, 31)
_CHECKED = date(1999, 12, 1), date(2041, 1, 1)  # contains events of 2000; rules repeat from 2037 on
_LONGER_HOURS = 2  # of a day on which clocks go back: one nearly everywhere, two in Antarctica/Troll


class Unit(StrEnum):
    """What a window of a calendar is."""

    DAY = "1d"
    WEEK = "1w"
    MONTH = "1mo"


_UNIT_LABELS = {Unit.DAY: "daily", Unit.WEEK: "weekly", Unit.MONTH: "monthly"}
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
        return f"{_UNIT_LABELS[self.unit]}@{self.zone}" if self.zone != UTC_ZONE else _UNIT_LABELS[self.unit]

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
        if not _FIRST_DAY < day < _LAST_DAY or self.start_text(start_us := _day_start_us(self.zone, day)) != text:
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


@lru_cache(maxsize=64)
def sources(windows: tuple[Window, ...]) -> tuple[int, ...]:
    """Returns the index of each window's source; -1 for a window without one, such as the first.

    Args:
        windows: the windows of a table's tiers, shortest first.
    """
    return tuple(
        max((index for index, shorter in enumerate(windows[:place]) if shorter.is_source_of(longer)), default=-1)
        for place, longer in enumerate(windows)
    )


def chains(windows: tuple[Window, ...]) -> list[list[int]]:
    """Returns the windows by index in chains, each window in one of them; in a chain, each source divides the next.

    The chain with the first window comes first. Tables without windows of a calendar usually have a single chain. The
    last window of a chain contains whole windows of all others in it.
    """
    of_window, left, found = sources(windows), set(range(len(windows))), list[list[int]]()
    for top in reversed(range(len(windows))):
        chain, index = list[int](), top
        while index in left:
            chain.append(index)
            left.remove(index)
            index = of_window[index]
        if chain:
            found.append(chain[::-1])
    return sorted(found)


def tier_problem(windows: Sequence[Window]) -> str | None:
    """Returns why these can't be the windows of a table's tiers, and what to do; None if they can.

    Args:
        windows: the windows, shortest first.
    """
    for shorter, longer in pairwise(windows):
        if shorter.same_as(longer):
            return f"two tiers have the same window, {shorter.text}"
    for index, source in enumerate(sources(tuple(windows))):
        if source < 0 and (index or isinstance(windows[0], CalendarWindow)):
            return _why_none(windows[index], windows[:index])
    return None


def _why_none(longer: Window, shorter: Sequence[Window]) -> str:
    """Returns why a window has no source."""
    if not isinstance(longer, CalendarWindow):
        return f"{shorter[-1].text} does not divide {longer.text}, which is computed from it"
    fixed = [window for window in shorter if not isinstance(window, CalendarWindow)]
    grain_us = longer.grain_us
    fits = format_interval(gcd(grain_us, *(window.length_us for window in fixed)))
    add = f"add a tier of {fits}, or of a length that divides it"
    if not fixed:
        return f"{longer.text} is computed from shorter windows, and there is no tier of them; {add}"
    return (
        f"windows of {fixed[0].text} do not fit into {longer.text}: the offsets of {longer.zone} since 2000, "
        f"{offsets_text(longer.zone)}, are multiples of {format_interval(grain_us)}; {add}"
    )
