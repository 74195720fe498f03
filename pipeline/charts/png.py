"""Draws charts as a PNG."""

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipeline.charts.charts import (
    BandPoint,
    Chart,
    EndOf,
    Reading,
    common_span_us,
    drawable,
    shortened,
    span_text,
    time_ticks,
    value_axis,
    value_format,
)
from pipeline.core.notation.times import to_datetime

_MAX_STEPS = 400  # a year of hourly steps would be a blot
_WIDTH = 90  # characters of labels along the time axis
_INCHES = 9.0  # the width of the picture
_INCHES_HIGH, _INCHES_MORE = 4.2, 2.8  # the height of the first chart, and of each below it

# Okabe and Ito's palette, https://jfly.uni-koeln.de/color/, safe for colour-blind readers; grey instead of its yellow.
_BLUE, _VERMILLION = "#0072B2", "#D55E00"
_COLOURS = (_BLUE, _VERMILLION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_GREY = "#666666"


def save_chart(charts: Sequence[Chart], path: Path) -> None:
    """Writes the charts as one PNG, below each other. They share the time axis; a series has one colour in all of them.

    Raises:
        OSError: the file can't be written.
    """
    from matplotlib.figure import Figure

    span = common_span_us(charts)
    figure = Figure(figsize=(_INCHES, _INCHES_HIGH + _INCHES_MORE * (len(charts) - 1)), layout="constrained")
    every_axes: Any = figure.subplots(len(charts), sharex=True, squeeze=False)[:, 0]
    names = list(dict.fromkeys(each.name for chart in charts for each in chart.series))
    colours = dict(zip(names, _COLOURS, strict=False))
    legend: dict[str, Any] = {}
    for chart, axes in zip(charts, every_axes, strict=True):
        drawn = drawable(chart, span, max_steps=_MAX_STEPS)
        if len(names) == 1:
            _draw_one(axes, drawn, legend)
        else:
            _draw_several(axes, drawn, colours, legend)
        _label(axes, drawn, span)
    every_axes[-1].set_xlabel(span_text(*span, charts[0].zone))
    # Without set_parse_math, matplotlib takes an id with dollar signs for a formula.
    shown = figure.legend(
        legend.values(), [shortened(label, 48) for label in legend], loc="outside lower center", ncols=3, frameon=False
    )
    for text in shown.get_texts():
        text.set_parse_math(False)
    figure.savefig(path, format="png", dpi=150)


def _draw_one(axes: Any, chart: Chart, legend: dict[str, Any]) -> None:
    """Draws a single series: its band and means in one colour, its events in another."""
    [series] = chart.series
    by = chart.by
    if series.band:
        band, mean = _draw_band(axes, series.band, chart.end_of, _BLUE, alpha=0.25)
        legend |= ({f"{chart.band} of {by}": band} if chart.band else {}) | {f"{chart.line} of {by}": mean}
    if series.readings:
        _draw_events(axes, chart, series.readings, _VERMILLION)
        legend["event"] = _dot(_VERMILLION)


def _draw_several(axes: Any, chart: Chart, colours: dict[str, str], legend: dict[str, Any]) -> None:
    """Draws each series in its colour; the legend explains the marks in grey."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    by = chart.by
    explained: dict[str, Any] = {}
    for series in chart.series:
        colour = colours[series.name]
        if series.band:
            _draw_band(axes, series.band, chart.end_of, colour, alpha=0.15)
            explained[f"{chart.line} of {by}"] = Line2D([], [], color=_GREY, linewidth=1.5)
            if chart.band:
                explained[f"{chart.band} of {by}"] = Patch(color=_GREY, alpha=0.25)
        if series.readings:
            _draw_events(axes, chart, series.readings, colour)
            explained["event"] = _dot(_GREY)
        legend.setdefault(series.name, Patch(color=colour))
    for label, mark in explained.items():  # after the series
        legend.pop(label, None)
        legend[label] = mark


def _draw_band(axes: Any, band: Sequence[BandPoint], end_of: EndOf, colour: str, alpha: float) -> tuple[Any, Any]:
    steps = list(_interrupted(band, end_of))
    starts = [to_datetime(point.start_us) for point in steps]
    lower, upper = [point.minimum for point in steps], [point.maximum for point in steps]
    shade = axes.fill_between(starts, lower, upper, step="post", color=colour, alpha=alpha, linewidth=0.8)
    means = [point.mean for point in steps]
    [line] = axes.plot(starts, means, drawstyle="steps-post", color=colour, linewidth=1.5)
    return shade, line


def _draw_events(axes: Any, chart: Chart, readings: Sequence[Reading], colour: str) -> None:
    times = [to_datetime(reading.time_us) for reading in readings]
    values = [reading.value for reading in readings]
    axes.plot(
        times,
        values,
        linestyle="none",
        marker=".",
        markersize=_marker_size(len(readings)),
        markeredgewidth=0,
        color=colour,
        clip_on=chart.limits != (None, None),  # a dot on the edge of the data is drawn as a whole
    )


def _dot(colour: str) -> Any:
    """Returns an event's mark for the legend, always of the same size."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle="none", marker=".", markersize=8, markeredgewidth=0)


def _label(axes: Any, chart: Chart, span_us: tuple[int, int]) -> None:
    start, end = span_us
    ticks = time_ticks(start, end, _WIDTH, chart.zone)
    axes.set_xticks([to_datetime(time_us) for time_us in ticks], list(ticks.values()))
    axes.set_xlim(to_datetime(start), to_datetime(end))
    bottom, top = value_axis(chart)
    axes.set_ylim(bottom, top)
    axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-4, 12))
    if "," in value_format(bottom, top) and max(abs(bottom), abs(top)) < 1e12:  # longer labels don't fit at the axis
        axes.yaxis.set_major_formatter(f"{{x:{value_format(bottom, top)}}}")
    axes.set_ylabel(shortened(chart.label, 28), parse_math=False)
    axes.set_title(shortened(chart.title, 72), loc="left", parse_math=False)
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _interrupted(band: Sequence[BandPoint], end_of: EndOf) -> Iterator[BandPoint]:
    """Yields the windows. Before a gap, repeats the last one at its end and adds a NaN, which interrupts the line."""
    starts = [point.start_us for point in band[1:]]
    for point, next_us in zip_longest(band, starts):
        yield point
        end_us = end_of(point.start_us)
        if next_us != end_us:
            yield point._replace(start_us=end_us)
            yield BandPoint(end_us, math.nan, math.nan, math.nan)


def _marker_size(count: int) -> float:
    return 8.0 if count <= 200 else 5.0 if count <= 800 else 3.5
