"""Draws charts as text for a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.charts.charts import (
    MAX_SERIES,
    BandPoint,
    Chart,
    EndOf,
    Series,
    common_span_us,
    drawable,
    shortened,
    span_text,
    time_ticks,
    value_axis,
    value_format,
)

_MARKS = "•x+o*#%@"  # one for each of several series: text has no colours
assert len(_MARKS) == MAX_SERIES  # noqa: S101


class _Dot(NamedTuple):
    x: float  # position on the time axis, from 0 to 1
    y: float


def terminal_chart(charts: Sequence[Chart], width: int = 80, height: int = 18) -> str:
    """Returns the charts as text below each other, each ``width`` characters wide and ``height`` lines high.

    They share the time axis. The last line of each is its legend. ``width`` must be at least 60.
    """
    span = common_span_us(charts)
    return "\n\n".join(_chart(chart, span, width, height) for chart in charts)


def _chart(chart: Chart, span_us: tuple[int, int], width: int, height: int) -> str:
    drawn = drawable(chart, span_us, max_steps=width)
    bottom, top = value_axis(drawn)
    if len(drawn.series) == 1:
        marked = _one(drawn, span_us, (top - bottom) / (2 * height), width)
    else:
        marked = _several(drawn, span_us, width)
    within = {label: [dot for dot in dots if bottom <= dot.y <= top] for label, dots in marked.items()}
    visible = {label: dots for label, dots in within.items() if dots}
    plot = _plot(visible, span_us, (bottom, top), width, height - 3, chart.zone)
    title, span = shortened(chart.title, width), span_text(*span_us, chart.zone)
    lines = [title.center(width), *plot, span.center(width), *_legend(list(visible), width)]
    return "\n".join(line.rstrip() for line in lines)


def _plot(
    dots: Mapping[str, Sequence[_Dot]],
    span_us: tuple[int, int],
    values: tuple[float, float],
    width: int,
    height: int,
    zone: str,
) -> list[str]:
    """Returns the lines of a plot with its axes. The first character of each label marks its dots."""
    import plotext

    (start, end), (bottom, top) = span_us, values
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.xlim(0, 1)
    plotext.ylim(bottom, top)
    for label, those in dots.items():
        plotext.scatter([dot.x for dot in those], [dot.y for dot in those], marker=label[0])
    levels = [value for value in _value_ticks(bottom, top) if bottom <= value <= top]
    plotext.yticks(levels, [format(value, value_format(bottom, top)) for value in levels])
    ticks = time_ticks(start, end, width, zone)
    plotext.xticks([(time_us - start) / (end - start) for time_us in ticks], list(ticks.values()))
    return plotext.uncolorize(plotext.build()).splitlines()


def _one(chart: Chart, span_us: tuple[int, int], step: float, width: int) -> dict[str, list[_Dot]]:
    """Returns the dots of a single series by their label in the legend, whose first character marks them."""
    [series] = chart.series
    by = chart.by
    shade, means = _dots(series.band, chart.end_of, span_us, step, 2 * width)
    events = _events(series, span_us)
    # Later marks cover earlier ones; many events would cover the mean.
    line = f"━ {chart.line} of {by}"
    marked = {f"░ {chart.band} of {by}": shade if chart.band else [], line: means, "• event": events}
    if len(events) > 2 * width:
        marked[line] = marked.pop(line)
    return {label: dots for label, dots in marked.items() if dots}


def _several(chart: Chart, span_us: tuple[int, int], width: int) -> dict[str, list[_Dot]]:
    """Returns the means of each series, or its events if it has no windows."""
    by = chart.by
    marked = {}
    for mark, series in zip(_MARKS, chart.series, strict=False):
        if series.band:
            _, means = _dots(series.band, chart.end_of, span_us, math.inf, width)
            marked[f"{mark} {series.name}, {chart.line} of {by}"] = means
        elif series.readings:
            marked[f"{mark} {series.name}, events"] = _events(series, span_us)
    return marked


def _events(series: Series, span_us: tuple[int, int]) -> list[_Dot]:
    start, end = span_us
    return [_Dot((reading.time_us - start) / (end - start), reading.value) for reading in series.readings]


def _dots(
    band: Sequence[BandPoint], end_of: EndOf, span_us: tuple[int, int], step: float, columns: int
) -> tuple[list[_Dot], list[_Dot]]:
    """Returns the band and the mean as dots, dense enough to fill every character cell that they cover."""
    start, end = span_us
    shade, means = [], []
    for point in band:
        within = (max(point.start_us, start), min(end_of(point.start_us), end))
        first, last = ((time_us - start) / (end - start) * columns for time_us in within)
        for column in range(math.ceil(first), max(math.ceil(last), math.ceil(first) + 1)):
            x = column / columns
            levels = int((point.maximum - point.minimum) / step)
            shade += [_Dot(x, point.minimum + step * level) for level in range(levels + 1)]
            shade.append(_Dot(x, point.maximum))
            if math.isfinite(point.mean):
                means.append(_Dot(x, point.mean))
    return shade, means


def _legend(labels: list[str], width: int) -> list[str]:
    """Returns the legend: in one line, or in a line for each label if it is too long."""
    line = "   ".join(labels)
    lines = [line] if len(line) <= width else [shortened(label, width) for label in labels]
    return [each.center(width) for each in lines]


def _value_ticks(bottom: float, top: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return list(MaxNLocator(6).tick_values(bottom, top))
