"""Draws one metric of one sensor over time, as text for a terminal or as a PNG.

Aggregates are drawn as a band from minimum to maximum with the mean as a line, in steps as wide as their windows: every
event lies in the band of its window. Missing windows leave a gap.
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

_SPARSE = 100  # on an axis this many times longer than the data, the data would be a dot
_MIN_AXIS_US = 1_000_000  # labels of a shorter time axis would overlap
_MAX_PNG_STEPS = 400  # a year of hourly steps would be a blot
_PNG_WIDTH = 90  # of a PNG's time axis, in label characters
_THOUSANDS = 10_000  # labels have thousands separators from here on
_MAX_VALUE = 1e300  # larger values are clamped: the arithmetic of axes needs headroom
_TINY = 1e-200  # treated as zero

# Okabe and Ito's palette, https://jfly.uni-koeln.de/color/, safe for colour-blind readers.
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
    """A chart with at least one window or reading.

    Args:
        title: the chart's title.
        label: the label of the value axis.
        band: the windows, oldest first.
        window_us: the length of each window, in microseconds.
        readings: the readings of single events, in any order.
        requested_us: the requested time range, in microseconds since the epoch; by default the extent of the data.
    """

    title: str
    label: str
    band: Sequence[BandPoint] = ()
    window_us: int = HOURLY.length_us
    readings: Sequence[Reading] = ()
    requested_us: tuple[int, int] | None = None

    def span_us(self) -> tuple[int, int]:
        """Returns the time axis: the requested range, or the extent of the data if that is under 1 % of it."""
        starts = [point.start_us for point in self.band]
        times = [reading.time_us for reading in self.readings]
        least, most = min(starts + times), max([start + self.window_us for start in starts] + times)
        length = max(most - least, _MIN_AXIS_US)
        start, end = self.requested_us or (least, most)
        if end - start > _SPARSE * max(length, self.window_us):
            start, end = least - length // 50, most + length // 50
        if end - start < _MIN_AXIS_US:
            start, end = start - _MIN_AXIS_US // 2, end + _MIN_AXIS_US // 2
        return start, end


class PngPath(click.Path):
    """A parameter type for the path of a PNG to write. Rejects a wrong suffix or a missing folder before drawing."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path."""
        path = Path(value)
        if path.suffix != ".png":
            self.fail(f"{path} must end in .png", param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"folder {path.absolute().parent} does not exist", param, ctx)
        return super().convert(path, param, ctx)


def terminal_chart(chart: Chart, width: int = 80, height: int = 18) -> str:
    """Returns the chart as text, ``width`` characters wide and ``height`` lines high; the last line is the legend.

    ``width`` must be at least 60.
    """
    import plotext

    start, end = chart.span_us()
    drawn = _drawable(chart, (start, end), max_steps=width)
    bottom, top = _value_axis(drawn)
    shade, means = _dots(drawn, (start, end), (top - bottom) / (2 * height), 2 * width)
    events = [_Dot((reading.time_us - start) / (end - start), reading.value) for reading in drawn.readings]
    by = format_interval(drawn.window_us)
    # Later markers cover earlier ones; many events would cover the mean.
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
    """Writes the chart as a PNG.

    Raises:
        OSError: the file can't be written.
    """
    from matplotlib.figure import Figure

    start, end = chart.span_us()
    drawn = _drawable(chart, (start, end), max_steps=_MAX_PNG_STEPS)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()  # Any: matplotlib accepts datetimes, but its types don't
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
    if _THOUSANDS <= max(abs(bottom), abs(top)) < 1e12:  # longer labels would not fit beside the axis
        axes.yaxis.set_major_formatter(f"{{x:{_value_format(bottom, top)}}}")
    axes.set_xlabel(_span_text(start, end))
    # Otherwise matplotlib parses an id with dollar signs as a formula.
    axes.set_ylabel(_shortened(chart.label, 28), parse_math=False)
    axes.set_title(_shortened(chart.title, 72), loc="left", parse_math=False)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, markerscale=8.0 / size)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, format="png", dpi=150)


def _drawable(chart: Chart, span_us: tuple[int, int], max_steps: int) -> Chart:
    """Returns the chart with finite values and windows merged into steps, at most about ``max_steps`` of them.

    A step has the length of a whole number of windows; its mean is the mean of their means.
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
    windows = -(-(span_us[1] - span_us[0]) // (chart.window_us * max_steps))
    step_us = chart.window_us * max(windows, 1)
    grouped = groupby(band, key=lambda point: point.start_us // step_us)
    steps = [_merged(index * step_us, list(points)) for index, points in grouped]
    readings = [reading._replace(value=_clamped(reading.value)) for reading in chart.readings]
    return replace(chart, band=steps, window_us=step_us, readings=readings)


def _merged(start_us: int, points: list[BandPoint]) -> BandPoint:
    return BandPoint(
        start_us,
        min(point.minimum for point in points),
        fmean(point.mean for point in points),
        max(point.maximum for point in points),
    )


def _clamped(value: float) -> float:
    return max(-_MAX_VALUE, min(value, _MAX_VALUE))


class _Dot(NamedTuple):
    x: float  # position on the time axis, from 0 to 1
    y: float


def _dots(chart: Chart, span_us: tuple[int, int], step: float, columns: int) -> tuple[list[_Dot], list[_Dot]]:
    """Returns the band and the mean as dots, dense enough to fill every character cell that they cover."""
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
    """Yields the windows. Before a gap, repeats the last one at its end and adds a NaN, which interrupts the line."""
    starts = [point.start_us for point in chart.band[1:]]
    for point, next_us in zip_longest(chart.band, starts):
        yield point
        end_us = point.start_us + chart.window_us
        if next_us != end_us:
            yield point._replace(start_us=end_us)
            yield BandPoint(end_us, math.nan, math.nan, math.nan)


def _value_axis(chart: Chart) -> tuple[float, float]:
    """Returns the value axis: the range of the data with a margin."""
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
    """Returns the number format of all labels on an axis: with thousands separators if any label is long."""
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
