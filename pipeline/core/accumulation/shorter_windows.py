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
    """

    __slots__ = ("latest", "restored", "settled", "settled_sizes", "settled_us")

    exact = True
    differs = False

    def __init__(self, latest: dict[int, WindowStats] | None = None) -> None:
        self.latest = {} if latest is None else latest
        self.restored: dict[int, WindowStats] = {}
        self.settled = WindowStats()
        self.settled_us = 0
        self.settled_sizes: dict[int, int] = {}

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

    def restore(self, stored: Mapping[int, WindowStats]) -> None:
        """Adds the shorter windows, by start in µs, that the table stored before the job saw the longer one."""
        for start_us, stats in stored.items():
            known = self.restored.get(start_us)
            if known is None or stats.size > known.size:
                self.restored[start_us] = stats

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
        self.settled, self.settled_us, self.settled_sizes = WindowStats(), 0, {}

    def pane(self, statistics: Statistics = BY_DEFAULT) -> Pane:
        """Returns the longer window's result so far: its shorter windows, merged in order of time."""
        windows = self.restored | self.latest
        total = WindowStats()
        total.merge(self.settled)
        for start_us in sorted(windows):
            _append(total, windows[start_us])
        if len(total.metrics) > statistics.most_metrics:
            return Pane(WindowStats(), too_wide=True)
        if self.settled_sizes or not self.settled_us:
            total.sizes = self.settled_sizes | {start_us: stats.size for start_us, stats in windows.items()}
        return Pane(total)

    def newest(self) -> Iterator[tuple[int, str, float]]:
        return iter(())

    def to_bytes(self) -> bytes:
        settled = b""
        if self.settled_us:
            settled = windows_bytes({self.settled_us: self.settled}) + sizes_bytes(self.settled_sizes)
        head = head_bytes(bool(settled), WINDOWS_VERSION)
        return b"".join((head, windows_bytes(self.latest), windows_bytes(self.restored), settled))

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShorterWindows":
        found = cls()
        reader = Reader(data)
        reader.version(WINDOWS_VERSION)
        flags = reader.byte()
        found.latest, found.restored = read_windows(reader), read_windows(reader)
        if flags & 1:
            ((found.settled_us, found.settled),) = read_windows(reader).items()
            found.settled_sizes = read_sizes(reader)
        reader.end()
        return found


def _append(total: WindowStats, stats: WindowStats) -> None:
    """Adds a later window, whose newest event counts even if it does not tell its metadata: no roll-up needed it."""
    total.merge(stats)
    if stats.events and stats.member is None:
        total.member = None
