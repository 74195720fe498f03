"""The result of a window."""

from typing import NamedTuple

from pipeline.core.statistics.window_stats import WindowStats


class Pane(NamedTuple):
    """The result of a window so far.

    Attributes:
        stats: the window's statistics; empty if it is too wide.
        too_wide: whether the window has more metrics than fit in a row.
    """

    stats: WindowStats
    too_wide: bool = False
