"""One metric of one sensor over time: as text for a terminal, and as a PNG.

Aggregates are a band from minimum to maximum with the mean as a line, in steps as wide as their windows, so that every
event lies in the band of its window. Where windows are missing there is neither band nor line.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click

from pipeline.charts.time_ticks import time_ticks
from pipeline.core.durations import format_interval
from pipeline.core.times import format_time, to_datetime
from pipeline.core.windows import HOURLY

_SPARSE = 100  # an axis so many times as long as what is there would show nothing but a dot
_SHORTEST_US = 1_000_000  # of an axis: labels of less would not fit beside each other
_MOST_STEPS = 400  # of a PNG: a year of hours would be one blot
_PNG_WIDTH = 90  # of a PNG's time axis, in characters of its labels
_THOUSANDS = 10_000  # from which value on digits are parted
_GREATEST = 1e300  # that is drawn: the arithmetic of axes needs room above
_TINY = 1e-200  # not to be told from nothing

# Okabe and Ito's colours, https://jfly.uni-koeln.de/color/, that nobody takes for each other.
_BLUE, _VERMILLION = "#0072B2", "#D55E00"


class BandPoint(NamedTuple):
    """One window of one metric."""

    start_us: int
    minimum: float
    mean: float
    maximum: float


class Reading(NamedTuple):
    """One metric of one event."""

    time_us: int
    value: float


@dataclass(frozen=True)
class Chart:
    """What is to be drawn: at least one window or reading.

    Args:
        title: said above.
        label: said along the axis of values.
        band: the windows, the oldest first.
        window_us: how long each of them is, in microseconds.
        readings: of single events, in any order.
        asked_us: the range of time that was asked for; by default what there is.
    """

    title: str
    label: str
    band: Sequence[BandPoint] = ()
    window_us: int = HOURLY.length_us
    readings: Sequence[Reading] = ()
    asked_us: tuple[int, int] | None = None

    def span_us(self) -> tuple[int, int]:
        """The time axis: what was asked for; what there is of it, where that is less than a hundredth."""
        starts = [point.start_us for point in self.band]
        times = [reading.time_us for reading in self.readings]
        least, most = min(starts + times), max([start + self.window_us for start in starts] + times)
        length = max(most - least, _SHORTEST_US)
        start, end = self.asked_us or (least, most)
        if end - start > _SPARSE * max(length, self.window_us):
            start, end = least - length // 50, most + length // 50
        if end - start < _SHORTEST_US:
            start, end = start - _SHORTEST_US // 2, end + _SHORTEST_US // 2
        return start, end


class PngPath(click.Path):
    """Where a PNG is to go: refused where its name or its folder could not be, before anything is drawn."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        path = Path(value)
        if path.suffix != ".png":
            self.fail(f"{path} has to end in .png", param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.absolute().parent}", param, ctx)
        return super().convert(path, param, ctx)


def terminal_chart(chart: Chart, width: int = 80, height: int = 18) -> str:
    """The chart as text, ``width`` characters wide and ``height`` lines high, the last of which explains it.

    Needs a width of 60 at least.
    """
    import plotext

    start, end = chart.span_us()
    drawn = _drawable(chart, (start, end), most=width)
    bottom, top = _value_axis(drawn)
    shade, means = _dots(drawn, (start, end), (top - bottom) / (2 * height), 2 * width)
    events = [_Dot((reading.time_us - start) / (end - start), reading.value) for reading in drawn.readings]
    by = format_interval(drawn.window_us)
    # What comes later hides what came before: many events would hide the mean.
    marked = {f"░ minimum to maximum of {by}": shade, f"━ mean of {by}": means, "• event": events}
    if len(events) > 2 * width:
        marked[f"━ mean of {by}"] = marked.pop(f"━ mean of {by}")
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height - 3)
    plotext.xlim(0, 1)
    plotext.ylim(bottom, top)
    for label, dots in marked.items():
        if dots:
            plotext.scatter([dot.x for dot in dots], [dot.y for dot in dots], marker=label[0])
    values = [value for value in _value_ticks(bottom, top) if bottom <= value <= top]
    plotext.yticks(values, [format(value, _value_format(bottom, top)) for value in values])
    ticks = time_ticks(start, end, width)
    plotext.xticks([(time_us - start) / (end - start) for time_us in ticks], list(ticks.values()))
    legend = "   ".join(label for label, dots in marked.items() if dots)
    lines = plotext.uncolorize(plotext.build()).splitlines()
    title = _shortened(chart.title, width)
    lines = [title.center(width), *lines, _span_text(start, end).center(width), legend.center(width)]
    return "\n".join(line.rstrip() for line in lines)


def save_chart(chart: Chart, path: Path) -> None:
    """The chart as a PNG. Raises OSError where the file can't be written."""
    from matplotlib.figure import Figure

    start, end = chart.span_us()
    drawn = _drawable(chart, (start, end), most=_MOST_STEPS)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()  # which takes datetimes, but does not say so
    if steps := list(_steps(drawn)):
        starts = [to_datetime(point.start_us) for point in steps]
        lower, upper = [point.minimum for point in steps], [point.maximum for point in steps]
        by = format_interval(drawn.window_us)
        band = {"color": _BLUE, "alpha": 0.25, "linewidth": 0.8, "label": f"minimum to maximum of {by}"}
        axes.fill_between(starts, lower, upper, step="post", **band)
        means = [point.mean for point in steps]
        axes.plot(starts, means, drawstyle="steps-post", color=_BLUE, linewidth=1.5, label=f"mean of {by}")
    size = _marker_size(len(drawn.readings))
    if drawn.readings:
        times = [to_datetime(reading.time_us) for reading in drawn.readings]
        values = [reading.value for reading in drawn.readings]
        dots = {"linestyle": "none", "marker": ".", "markersize": size, "markeredgewidth": 0, "color": _VERMILLION}
        axes.plot(times, values, **dots, clip_on=False, label="event")
    ticks = time_ticks(start, end, _PNG_WIDTH)
    axes.set_xticks([to_datetime(time_us) for time_us in ticks], list(ticks.values()))
    axes.set_xlim(to_datetime(start), to_datetime(end))
    bottom, top = _value_axis(drawn)
    axes.set_ylim(bottom, top)
    axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-4, 12))
    if _THOUSANDS <= max(abs(bottom), abs(top)) < 1e12:  # which has room beside the axis
        axes.yaxis.set_major_formatter(f"{{x:{_value_format(bottom, top)}}}")
    axes.set_xlabel(_span_text(start, end))
    # Not as formulas, which a sensor's id with a dollar sign would be.
    axes.set_ylabel(_shortened(chart.label, 28), parse_math=False)
    axes.set_title(_shortened(chart.title, 72), loc="left", parse_math=False)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, markerscale=8.0 / size)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, format="png", dpi=150)


def _drawable(chart: Chart, span_us: tuple[int, int], most: int) -> Chart:
    """The same with values that axes can be reckoned for, and in steps of which about so many fill the time axis.

    A step is as long as so many windows; its mean is the mean of theirs.
    """
    band: Iterable[BandPoint] = (
        BandPoint(
            point.start_us,
            _clamped(point.minimum),
            _clamped(point.mean) if math.isfinite(point.mean) else math.nan,
            _clamped(point.maximum),
        )
        for point in chart.band
    )
    windows = -(-(span_us[1] - span_us[0]) // (chart.window_us * most))
    step_us = chart.window_us * max(windows, 1)
    grouped = groupby(band, key=lambda point: point.start_us // step_us)
    steps = [_together(index * step_us, list(points)) for index, points in grouped]
    readings = [reading._replace(value=_clamped(reading.value)) for reading in chart.readings]
    return replace(chart, band=steps, window_us=step_us, readings=readings)


def _together(start_us: int, points: list[BandPoint]) -> BandPoint:
    return BandPoint(
        start_us,
        min(point.minimum for point in points),
        fmean(point.mean for point in points),
        max(point.maximum for point in points),
    )


def _clamped(value: float) -> float:
    return max(-_GREATEST, min(value, _GREATEST))


class _Dot(NamedTuple):
    x: float  # of the time axis, from 0 to 1
    y: float


def _dots(chart: Chart, span_us: tuple[int, int], step: float, columns: int) -> tuple[list[_Dot], list[_Dot]]:
    """The band and the mean as dots so dense that they meet every character that they cover."""
    start, end = span_us
    shade, means = [], []
    for point in chart.band:
        within = (max(point.start_us, start), min(point.start_us + chart.window_us, end))
        first, last = ((time_us - start) / (end - start) * columns for time_us in within)
        for column in range(math.ceil(first), max(math.ceil(last), math.ceil(first) + 1)):
            x = column / columns
            levels = int((point.maximum - point.minimum) / step)
            shade += [_Dot(x, point.minimum + step * level) for level in range(levels + 1)]
            shade.append(_Dot(x, point.maximum))
            if math.isfinite(point.mean):
                means.append(_Dot(x, point.mean))
    return shade, means


def _steps(chart: Chart) -> Iterator[BandPoint]:
    """The windows, and where one is missing behind one, that one again at its end, and then one that is not drawn."""
    starts = [point.start_us for point in chart.band[1:]]
    for point, next_us in zip_longest(chart.band, starts):
        yield point
        end_us = point.start_us + chart.window_us
        if next_us != end_us:
            yield point._replace(start_us=end_us)
            yield BandPoint(end_us, math.nan, math.nan, math.nan)


def _value_axis(chart: Chart) -> tuple[float, float]:
    """From a little below everything to a little above it."""
    values = [reading.value for reading in chart.readings]
    least = min(values + [point.minimum for point in chart.band])
    most = max(values + [point.maximum for point in chart.band])
    greatest = max(abs(least), abs(most))
    if greatest < _TINY:
        return -1.0, 1.0
    margin = (most - least if most - least > greatest * 1e-13 else greatest) / 20
    return least - margin, most + margin


def _value_ticks(bottom: float, top: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return list(MaxNLocator(6).tick_values(bottom, top))


def _value_format(bottom: float, top: float) -> str:
    """How labels of an axis between these values are written, all alike: with commas where some of them are long."""
    return ",.15g" if max(abs(bottom), abs(top)) >= _THOUSANDS else ".15g"


def _span_text(start_us: int, end_us: int) -> str:
    start, end = (format_time(time_us).removesuffix("Z").replace("T", " ") for time_us in (start_us, end_us))
    if start.endswith(":00") and end.endswith(":00"):
        start, end = start.removesuffix(":00"), end.removesuffix(":00")
    return f"{start} to {end}, UTC"


def _marker_size(count: int) -> float:
    return 8.0 if count <= 200 else 5.0 if count <= 800 else 3.5


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
