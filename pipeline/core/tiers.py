"""Longer windows out of shorter ones: a day out of its hours, without a look at the events again."""

from collections.abc import Iterable, Mapping

from pipeline.core.accumulator_bytes import Reader, read_windows, windows_bytes
from pipeline.core.readings import Pane
from pipeline.core.stats import WindowStats
from pipeline.core.windows import Window


class ShorterWindows:
    """The latest accumulator of each shorter window in a longer one. The longer window's own accumulator.

    A shorter window's accumulators come one after the other, each with everything that those before it held: so the
    latest of them replaces the others, and is never added to them. The latest is the one that has seen the
    most; so it does not matter in which order they come, how often, or in which groups they are merged.
    """

    __slots__ = ("latest", "whole")

    def __init__(self) -> None:
        self.latest: dict[int, WindowStats] = {}  # by the start of the shorter window, in microseconds
        self.whole = False  # whether what the table held was recalled

    def put(self, start_us: int, stats: WindowStats) -> None:
        """Takes an accumulator of the shorter window that starts then; it must not change any more."""
        known = self.latest.get(start_us)
        if known is None or stats.size > known.size:
            self.latest[start_us] = stats

    def recall(self, stored: Mapping[int, WindowStats]) -> None:
        """Takes what the table held of the shorter windows before the job saw the first of the longer one."""
        for start_us, stats in stored.items():
            self.put(start_us, stats)
        self.whole = True

    def merge(self, other: "ShorterWindows") -> None:
        """Takes everything that ``other`` has; ``other`` stays as it is."""
        for start_us, stats in other.latest.items():
            self.put(start_us, stats)
        self.whole |= other.whole

    def pane(self) -> Pane:
        """What the longer window has seen: a new accumulator, merged in order of time."""
        total = WindowStats()
        for start_us in sorted(self.latest):
            total.merge(self.latest[start_us])
        return Pane(total, self.whole)

    def to_bytes(self) -> bytes:
        """All of it, as :mod:`pipeline.core.accumulator_bytes` has it."""
        return windows_bytes(self.latest, whole=self.whole)

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShorterWindows":
        """What :meth:`to_bytes` wrote. Raises ValueError for other bytes, as another release may have written."""
        found = cls()
        reader = Reader(data)
        found.latest, found.whole = read_windows(reader)
        reader.end()
        return found


def computed_from(windows: Iterable[Window]) -> dict[Window, Window | None]:
    """Every length of window once, the shortest first, with the window that it is computed from.

    That is the longest of the shorter ones that divides it, and None, for the events themselves, where none does.
    """
    by_length: dict[int, Window] = {}
    for window in windows:
        by_length.setdefault(window.length_us, window)
    found: dict[Window, Window | None] = {}
    for length_us in sorted(by_length):
        dividing = [shorter for shorter in found if length_us % shorter.length_us == 0]
        found[by_length[length_us]] = dividing[-1] if dividing else None
    return found
