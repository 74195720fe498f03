"""Windows of event time: what divides time into parts of a length, each with a start.

Windows here are fixed ones, aligned to UTC. Those of a calendar are in :mod:`pipeline.core.windows.calendars`.
Everything asks a window for its bounds: only fixed windows all have the same length.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.times import format_time, from_datetime, to_datetime

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
