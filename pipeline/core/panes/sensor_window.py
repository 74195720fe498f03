"""One sensor's window, as the state of its group contains it."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.pane import Accumulator
from pipeline.core.statistics.courses import At
from pipeline.core.statistics.window_stats import WindowStats

A = TypeVar("A", bound=Accumulator)


@dataclass(slots=True)
class SensorWindow(Generic[A]):
    """One sensor's window.

    Attributes:
        kind: the accumulator's class.
        data: the bytes of the accumulator, if ``value`` is None.
        value: the accumulator.
        dirty: whether a pane has to be written.
        written: the number of events and readings in the last pane; -1 if there was none.
        stored: whether the table may have stored the window before its first readings came. If so, it was read.
        exact: whether the accumulator has readings only, which can be merged with raw rows, and no other statistics.
        again: whether the table is read once more before the closed window is dropped.
        moved: whether a pane has to be written although it counts the same as the last one.
        finished: whether a pane has to be written because the window is over. See
            :mod:`pipeline.core.panes.pane_results`.
        before: the last reading before the window by metric; None for a metric without one. See
            :mod:`pipeline.core.panes.carried_readings`.
        last: the last reading in the last pane, by metric.
        unsure: whether it continues from a row that may lack something, or count it twice. Each of its panes is listed.
        kept_until_us: the time of the clock until which a closed window is kept, in case raw rows are still on their
            way to the table. Zero for an open window.
        closes: whether it has been open until now.
        rests: whether the state has it among the resting windows, and nothing came since.
        resting: the bytes of the accumulator that rests, if this one has only the readings that came since.
    """

    kind: type[A]
    data: bytes = b""
    value: A | None = None
    dirty: bool = False
    written: int = -1
    stored: bool = False
    exact: bool = True
    again: bool = False
    moved: bool = False
    before: dict[str, At | None] = field(default_factory=dict)
    last: dict[str, At] = field(default_factory=dict)
    unsure: bool = False
    kept_until_us: int = 0
    closes: bool = False
    rests: bool = False
    resting: bytes = b""
    finished: bool = False

    @property
    def accumulator(self) -> A:
        """The accumulator, to be changed."""
        if self.value is None:
            self.value = self.kind.from_bytes(self.data)
        return self.value

    def wake(self) -> None:
        """Notes that something comes for a closed window. What rests stays where it is, if it can be merged."""
        if self.rests and self.is_mergeable:
            self.resting, self.data, self.value = self.data, self.kind().to_bytes(), None
        self.rests = False

    @property
    def is_mergeable(self) -> bool:
        """Whether the accumulator has readings that can be merged with others of the same window."""
        return self.exact and self.kind is WindowReadings

    def whole(self) -> A:
        """Returns an accumulator of all that the state has of the window."""
        return self._with_resting(self.accumulator)

    def last_written(self) -> A | None:
        """Returns the accumulator of the last pane; None if the row may count something else."""
        return self._with_resting(self.kind.from_bytes(self.data)) if self.written >= 0 else None

    def _with_resting(self, accumulator: Any) -> A:
        if not self.resting:
            return accumulator
        found: Any = self.kind.from_bytes(self.resting)
        found.merge(accumulator)
        return found

    def forget(self) -> None:
        """Replaces the accumulator by an empty one, which can be merged with raw rows."""
        self.value, self.exact = self.kind(), True
        self.data = self.value.to_bytes()

    def settle(self, stats: WindowStats | None, *, late: bool) -> bool:
        """Notes that a pane fired, with this result or none. Returns whether it has to be written.

        A late window's row may be written by others too: it is written whenever something came.
        """
        again = self.moved or self.finished or (late and self.dirty)
        changed = stats is not None and (stats.size != self.written or again)
        self.dirty = self.moved = self.finished = False
        self.again &= not late  # the last pane of an open window may still be on its way
        if stats is not None:
            self.written = stats.size
        elif late:
            self.written = -1  # what its row counts is not known any more
        return changed


@dataclass(slots=True)
class StartWindows(Generic[A]):
    """The sensors' windows with the same start.

    Attributes:
        late: whether they are closed.
        entries: the sensors' windows by sensor id.
    """

    late: bool = False
    entries: dict[str, SensorWindow[A]] = field(default_factory=dict)
