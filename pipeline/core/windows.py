"""Fixed, UTC-aligned windows of event time."""

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from pipeline.core.durations import parse_duration

_DAY = timedelta(days=1)


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
        length = parse_duration(text)
        if not length or _DAY % length:
            raise ValueError(f"a window of {text} does not divide a day; use one like 15m, 1h, 6h or 1d")
        return cls(text, length)

    @cached_property
    def length_us(self) -> int:
        """The length in microseconds."""
        return self.length // timedelta(microseconds=1)

    def start_of(self, time_us: int) -> int:
        """Returns the start, in microseconds, of the window that contains the time."""
        return time_us - time_us % self.length_us


HOURLY = Window("1h", timedelta(hours=1))
DAILY = Window("1d", _DAY)
