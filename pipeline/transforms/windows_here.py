"""The windows that steps of this process have open, and those left to read from the table: for a job that runs here.

After a start, reading windows from the table may take minutes. The DirectRunner fires all groups of sensors in one
bundle and commits Beam's counters only at its end, so no counter tells how far the job is.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from pipeline.core.panes.group_state import GroupWindows
from pipeline.core.panes.grouped_readings import read_group_values, start_of_readings

Group = tuple[Hashable, int]  # a step, and a group of sensors


class WindowsHere:
    """Counts the windows of this process, if asked to.

    A window counts as left from the arrival of its readings until its group fires. When a group has fired for the
    first time, only the windows that the firing left are left: of a sensor that sends again, the state has the window.

    Args:
        clock: a monotonic clock.

    Attributes:
        watched: whether to count. Counting passes over readings once more, so jobs on Dataflow do not.
        after_crash: whether the process before this one did not stop in order.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.watched = self.after_crash = False
        self._lock = threading.Lock()
        self._open: dict[Group, int] = {}
        self._left: dict[tuple[Group, int], set[str]] = {}
        self._late: dict[tuple[Group, int], set[str]] = {}
        self._fired: set[tuple[Group, int]] = set()
        self._clock = clock
        self._read_at_s = clock()

    def wait(self, group: Group, part: bytes, *, late: bool) -> None:
        """Notes readings of a window that has to be read from the table: a late one, or one that may be stored."""
        with self._lock:
            key = group, start_of_readings(part)
            if late or key not in self._fired:
                (self._late if late else self._left).setdefault(key, set()).update(_sensors(part))

    def fired(self, group: Group, due: Iterable[int], left: Iterable[bytes], windows: GroupWindows) -> None:
        """Notes that a group has fired."""
        with self._lock:
            for key in ((group, start_us) for start_us in due):
                late, restored = self._late.pop(key, None), self._left.pop(key, None)
                if restored:
                    self._fired.add(key)
                if late or restored:
                    self._read_at_s = self._clock()
            for part in left:
                self._left.setdefault((group, start_of_readings(part)), set()).update(_sensors(part))
            if windows.has_open:
                of_starts: Iterable[Any] = (each for of_tier in windows.of_tier for each in of_tier.values())
                self._open[group] = sum(len(each.entries) for each in of_starts if not each.late)

    @property
    def open(self) -> int:
        """The number of open windows of all tiers."""
        with self._lock:
            return sum(self._open.values())

    @property
    def left_to_restore(self) -> int:
        """The number of open windows of the shortest tier that are left to restore from the table."""
        with self._lock:
            return sum(map(len, self._left.values()))

    @property
    def left_to_recompute(self) -> int:
        """The number of closed windows that are left to compute again from the table."""
        with self._lock:
            return sum(map(len, self._late.values()))

    @property
    def seconds_since_read(self) -> float:
        """The time since a group last fired whose windows were left to read from the table."""
        return self._clock() - self._read_at_s


HERE = WindowsHere()


def _sensors(part: bytes) -> set[str]:
    return {sensor_id for sensor_id, *_ in read_group_values(part)}
