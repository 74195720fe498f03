"""A sensor's aggregates as a band from minimum to maximum with the mean as a line: in a terminal, and as a PNG."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.core.times import to_datetime


class BandPoint(NamedTuple):
    """One window of one metric."""

    start_us: int
    minimum: float
    mean: float
    maximum: float


def terminal_band(points: Sequence[BandPoint], title: str, width: int = 80, height: int = 14) -> str:
    """The band as text, ``width`` characters wide and ``height`` lines high."""
    import plotext

    hours = list(range(len(points)))
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.title(title)
    plotext.plot(hours, [point.maximum for point in points], label="max", marker="braille")
    plotext.plot(hours, [point.mean for point in points], label="mean", marker="dot")
    plotext.plot(hours, [point.minimum for point in points], label="min", marker="braille")
    ticks = hours[:: max(1, len(hours) // 8)]
    plotext.xticks(ticks, [to_datetime(points[tick].start_us).strftime("%H:%M") for tick in ticks])
    return plotext.uncolorize(plotext.build())


def save_band(points: Sequence[BandPoint], title: str, unit: str, path: Path) -> None:
    """The band as a PNG. Raises OSError where the file can't be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import dates, pyplot

    starts: list[datetime] = [to_datetime(point.start_us) for point in points]
    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    axes.fill_between(
        starts,
        [point.minimum for point in points],
        [point.maximum for point in points],
        alpha=0.25,
        color="tab:blue",
        linewidth=0,
        label="minimum to maximum",
    )
    axes.plot(starts, [point.mean for point in points], color="tab:blue", marker="o", markersize=3, label="mean")
    locator = dates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_title(title, loc="left")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
