"""Accumulates a longer window, such as a day, from the results of its shorter ones, such as hours."""

from collections.abc import Callable, Iterator, Mapping

from pipeline.core.accumulation.accumulator_bytes import (
    WINDOWS_VERSION,
    Reader,
    head_bytes,
    read_sizes,
    read_windows,
    sizes_bytes,
    windows_bytes,
)
from pipeline.core.accumulation.pane import Pane
from pipeline.core.statistics.rules import BY_DEFAULT, Statistics
from pipeline.core.statistics.window_stats import WindowStats


class ShorterWindows:
    """The accumulator of a longer window: the latest result of each of its shorter windows.

    A shorter window's panes accumulate, so its latest result replaces the earlier ones and is never added to them. The
    latest is the one that counts most. So the order and repetition of results do not matter. A received result replaces
    a restored one even if that counts more: it continues from the same data, or corrects it.

    Attributes:
        latest: received results by start in µs.
        restored: results from the table.
        settled: the statistics of earlier shorter windows, merged.
        settled_us: the time before which all windows are among them.
        settled_sizes: the size of each of these windows by start in µs; empty if they are too many to tell.
        least: the least size of a pane.
        floor: the least size of each shorter window by start in µs.
        has_restored: whether what the table stored was restored.
    """

    __slots__ = ("floor", "has_restored", "latest", "least", "restored", "settled", "settled_sizes", "settled_us")

    exact = True
    differs = False

    def __init__(self, latest: dict[int, WindowStats] | None = None) -> None:
        self.latest = {} if latest is None else latest
        self.restored: dict[int, WindowStats] = {}
        self.settled = WindowStats()
        self.settled_us = 0
        self.settled_sizes: dict[int, int] = {}
        self.least = 0
        self.floor: dict[int, int] = {}
        self.has_restored = False

    def put(self, start_us: int, stats: WindowStats) -> bool:
        """Adds a result of the shorter window that starts at ``start_us``; it must not change later.

        It also replaces one that counts the same: it may continue from another reading before the window, or count
        another value. Returns whether it does.
        """
        known, restored = self.latest.get(start_us), self.restored.get(start_us)
        if known is None or stats.size >= known.size:
            self.latest[start_us] = stats
        replaced = restored if known is None else known
        return replaced is not None and replaced.size == stats.size

    def restore(
        self, stored: Mapping[int, WindowStats], least: int = 0, floor: Mapping[int, int] | None = None
    ) -> None:
        """Adds what the table stored before the job saw the longer window.

        Args:
            stored: the shorter windows' statistics by start, in microseconds.
            least: the size of the longer window's own row; no pane that counts less may replace it.
            floor: the size of each shorter window that the row counts, if it tells.
        """
        for start_us, stats in stored.items():
            known = self.restored.get(start_us)
            if known is None or stats.size > known.size:
                self.restored[start_us] = stats
        self._raise_floor(least, floor or {})
        self.has_restored = True

    def keep_restored(self, is_wanted: Callable[[int], bool]) -> None:
        """Drops the restored results of shorter windows whose start is not wanted."""
        self.restored = {start_us: stats for start_us, stats in self.restored.items() if is_wanted(start_us)}

    def settle(self, until_us: int) -> None:
        """Merges the windows that start before ``until_us``, which takes less space: they are over for now."""
        windows = self.restored | self.latest
        for start_us in sorted(start_us for start_us in windows if start_us < until_us):
            _append(self.settled, windows[start_us])
            if self.settled_sizes or not self.settled_us:
                self.settled_sizes[start_us] = windows[start_us].size
            self.settled_us = start_us + 1
            self.latest.pop(start_us, None)
            self.restored.pop(start_us, None)

    def unsettle(self) -> None:
        """Forgets what was merged, so that one of its windows can be replaced. It has to be restored then."""
        stats = self.pane().stats
        self._raise_floor(stats.size, stats.sizes or {})
        self.settled, self.settled_us, self.settled_sizes = WindowStats(), 0, {}

    def pane(self, statistics: Statistics = BY_DEFAULT) -> Pane:
        """Returns the longer window's result so far: its shorter windows, merged in order of time."""
        windows = self.restored | self.latest
        total = WindowStats()
        total.merge(self.settled)
        for start_us in sorted(windows):
            _append(total, windows[start_us])
        if len(total.metrics) > statistics.most_metrics:
            return Pane(WindowStats(), complete=False, too_wide=True)
        counts_all = total.size >= self.least
        if self.settled_sizes or not self.settled_us:
            total.sizes = sizes = self.settled_sizes | {start_us: stats.size for start_us, stats in windows.items()}
            counts_all &= all(sizes.get(start_us, 0) >= size for start_us, size in self.floor.items())
        return Pane(total, self.has_restored and counts_all)

    def newest(self) -> Iterator[tuple[int, str, float]]:
        return iter(())

    def _raise_floor(self, least: int, floor: Mapping[int, int]) -> None:
        self.least = max(self.least, least)
        self.floor |= {start_us: size for start_us, size in floor.items() if size > self.floor.get(start_us, 0)}

    def to_bytes(self) -> bytes:
        floor = sizes_bytes(self.least, self.floor) if self.least or self.floor else b""
        settled = b""
        if self.settled_us:
            settled = windows_bytes({self.settled_us: self.settled}) + sizes_bytes(0, self.settled_sizes)
        head = head_bytes(self.has_restored | bool(settled) << 1 | bool(floor) << 6, WINDOWS_VERSION)
        return b"".join((head, windows_bytes(self.latest), windows_bytes(self.restored), settled, floor))

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShorterWindows":
        found = cls()
        reader = Reader(data)
        reader.version(WINDOWS_VERSION)
        flags = reader.byte()
        found.has_restored = bool(flags & 1)
        found.latest, found.restored = read_windows(reader), read_windows(reader)
        if flags & 2:
            ((found.settled_us, found.settled),) = read_windows(reader).items()
            _, found.settled_sizes = read_sizes(reader)
        if flags & 64:
            found.least, found.floor = read_sizes(reader)
        reader.end()
        return found


def _append(total: WindowStats, stats: WindowStats) -> None:
    """Adds a later window, whose newest event counts even if it does not tell its metadata: no roll-up needed it."""
    total.merge(stats)
    if stats.events and stats.member is None:
        total.member = None
