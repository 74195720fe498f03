"""Longer windows out of shorter ones: a day out of its hours, without a look at the events again."""

from collections.abc import Mapping
from typing import NamedTuple

from pipeline.core.accumulator import MOST_METRICS, Pane, at_least
from pipeline.core.accumulator_bytes import Reader, flags_byte, read_stats, read_windows, stats_bytes, windows_bytes
from pipeline.core.stats import WindowStats


class RestoredShorterWindows(NamedTuple):
    """What the table held of a longer window before the job saw the first of it.

    Attributes:
        shorter: the statistics of shorter windows by their starts, in microseconds.
        least: what the longer window's own aggregate row counts: no pane that counts less may replace it.
    """

    shorter: Mapping[int, WindowStats]
    least: WindowStats


class ShorterWindows:
    """The latest accumulator of each shorter window in a longer one. The longer window's own accumulator.

    A shorter window's accumulators come one after the other, each with everything that those before it held: so the
    latest of them replaces the others, and is never added to them. The latest is the one that has seen the
    most; so it does not matter in which order they come, how often, or in which groups they are merged. One that came
    replaces what was recalled, however much that had seen: it goes on from the same, or puts it right.
    """

    __slots__ = ("latest", "least", "restored", "whole")

    def __init__(self) -> None:
        self.latest: dict[int, WindowStats] = {}  # that came, by the start of the shorter window, in microseconds
        self.restored: dict[int, WindowStats] = {}
        self.least = WindowStats()
        self.whole = False  # whether what the table held was recalled

    def put(self, start_us: int, stats: WindowStats) -> None:
        """Takes an accumulator of the shorter window that starts then; it must not change any more."""
        _put(self.latest, start_us, stats)

    def restore(self, stored: Mapping[int, WindowStats], least: WindowStats | None = None) -> None:
        """Adds what the table stored before the job saw the longer window; see :class:`RestoredShorterWindows`."""
        for start_us, stats in stored.items():
            _put(self.restored, start_us, stats)
        if least is not None:
            self._at_least(least)
        self.whole = True

    def merge(self, other: "ShorterWindows") -> None:
        """Takes everything that ``other`` has; ``other`` stays as it is."""
        for start_us, stats in other.latest.items():
            _put(self.latest, start_us, stats)
        for start_us, stats in other.restored.items():
            _put(self.restored, start_us, stats)
        self._at_least(other.least)
        self.whole |= other.whole

    def pane(self) -> Pane:
        """What the longer window has seen: a new accumulator, merged in order of time."""
        windows = self.restored | self.latest
        total = WindowStats()
        for start_us in sorted(windows):
            total.merge(windows[start_us])
        if len(total.metrics) > MOST_METRICS:
            return Pane(WindowStats(), whole=False, too_wide=True)
        return Pane(total, self.whole and at_least([total], self.least))

    def _at_least(self, least: WindowStats) -> None:
        if least.size > self.least.size:
            self.least = least

    def to_bytes(self) -> bytes:
        """All of it, as :mod:`pipeline.core.accumulator_bytes` has it."""
        least = stats_bytes(self.least) if self.least.events else b""
        flags = flags_byte(self.whole | bool(least) << 6)
        return b"".join((flags, windows_bytes(self.latest), windows_bytes(self.restored), least))

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShorterWindows":
        """What :meth:`to_bytes` wrote. Raises ValueError for other bytes, as another release may have written."""
        found = cls()
        reader = Reader(data)
        flags = reader.flags()
        found.whole = bool(flags & 1)
        found.latest, found.restored = read_windows(reader), read_windows(reader)
        if flags & 64:
            found.least = read_stats(reader)
        reader.end()
        return found


def _put(windows: dict[int, WindowStats], start_us: int, stats: WindowStats) -> None:
    known = windows.get(start_us)
    if known is None or stats.size > known.size:
        windows[start_us] = stats
