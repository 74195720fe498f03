"""The result of a window, and the methods that its accumulators share."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, Self

from pipeline.core.statistics.rules import BY_DEFAULT, Statistics
from pipeline.core.statistics.window_stats import WindowStats


class Pane(NamedTuple):
    """The result of a window so far.

    Attributes:
        stats: the window's statistics; empty if it is too wide.
        too_wide: whether the window has more metrics than fit in a row.
    """

    stats: WindowStats
    too_wide: bool = False


class Accumulator(Protocol):
    """Accumulates one sensor's window: from its readings, or from shorter windows."""

    @property
    def exact(self) -> bool:
        """Whether it counts each reading once: restored statistics may count one that comes again."""

    @property
    def differs(self) -> bool:
        """Whether a reading had several values, of which its raw row may have another one."""

    def pane(self, statistics: Statistics = BY_DEFAULT) -> Pane:
        """Returns the window's result so far, as a copy: the accumulator keeps accumulating.

        Args:
            statistics: the rules that tell which statistics a row contains, and how many metrics fit.
        """

    def newest(self) -> Iterator[tuple[int, str, float]]:
        """Returns the newest kept readings: event time in µs, metric and value. A metric may come several times."""

    def to_bytes(self) -> bytes:
        """Serializes the accumulator in the format of :mod:`pipeline.core.accumulation.accumulator_bytes`."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parses what :meth:`to_bytes` wrote. Raises ValueError for other bytes, such as those of another release."""
