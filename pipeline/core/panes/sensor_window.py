"""One sensor's window, as the state of its group contains it."""

from dataclasses import dataclass, field

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.statistics.courses import At
from pipeline.core.statistics.window_stats import WindowStats


@dataclass(slots=True)
class SensorWindow:
    """One sensor's window. Of a longer one, the state has no readings.

    Attributes:
        data: the bytes of the accumulator, if ``value`` is None.
        value: the accumulator.
        dirty: whether a pane has to be written.
        written: the number of events and readings in the last pane; -1 if there was none.
        moved: whether a pane has to be written although it counts the same as the last one.
        held: whether no pane is written, because the table's row may count readings that this job can't read.
        ahead: whether longer windows lack what the last pane counts.
        finished: whether a pane has to be written because the window is over. See
            :mod:`pipeline.core.panes.pane_results`.
        before: the last reading before the window by metric; None for a metric without one. See
            :mod:`pipeline.core.panes.carried_readings`.
    """

    data: bytes = b""
    value: WindowReadings | None = None
    dirty: bool = False
    written: int = -1
    moved: bool = False
    held: bool = False
    ahead: bool = False
    before: dict[str, At | None] = field(default_factory=dict)
    finished: bool = False

    @property
    def accumulator(self) -> WindowReadings:
        """The accumulator, to be changed."""
        if self.value is None:
            self.value = WindowReadings.from_bytes(self.data)
        return self.value

    def settle(self, stats: WindowStats | None) -> bool:
        """Notes that a pane fired, with this result or none. Returns whether it has to be written."""
        changed = stats is not None and (stats.size != self.written or self.moved or self.finished)
        self.dirty = self.moved = self.finished = False
        if stats is not None:
            self.written = stats.size
        return changed


@dataclass(slots=True)
class StartWindows:
    """The sensors' windows with the same start.

    Attributes:
        late: whether they are closed: they are computed from the table.
        entries: the sensors' windows by sensor id.
    """

    late: bool = False
    entries: dict[str, SensorWindow] = field(default_factory=dict)
