"""Draws metrics of sensors over time, as text for a terminal or as a PNG.

Aggregates are drawn as a band from minimum to maximum with the mean as a line, in steps as wide as their windows: every
event lies in the band of its window. Missing windows leave a gap.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, datetime, timedelta
from datetime import time as time_of_day
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click

from pipeline.core.notation.durations import format_interval
from pipeline.core.notation.times import UTC_ZONE, format_time, from_datetime, to_datetime, to_local, zone_of
from pipeline.core.windows import HOURLY, Window

MAX_SERIES = 8  # people can't tell more apart

_SPARSE = 100  # on an axis this many times longer than the data, the data would be a dot
_MIN_AXIS_US = 1_000_000  # labels of a shorter time axis would overlap
_THOUSANDS = 10_000  # labels have thousands separators from here on
_MAX_VALUE = 1e300  # larger values are clamped: the arithmetic of axes needs headroom
_TINY = 1e-200  # treated as zero


EndOf = Callable[[int], int]
"""Returns the end of the window that starts at a time, in microseconds."""

_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US
_CLOCKS_US = 15 * _MINUTE_US  # clocks change at multiples of it
_DAY_US = 86_400 * _SECOND_US
_YEAR_US = 365 * _DAY_US
_BLANKS = 4  # between labels: rounding to a character may move one closer to the next


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


class Series(NamedTuple):
    """One metric of one sensor.

    Attributes:
        name: the name in the legend, if the chart has several series.
        band: the windows, oldest first.
        readings: the readings of single events, in any order.
    """

    name: str = ""
    band: Sequence[BandPoint] = ()
    readings: Sequence[Reading] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of up to :data:`MAX_SERIES` series on one value axis, with at least one window or reading.

    Args:
        title: the chart's title.
        label: the label of the value axis.
        series: the series to draw.
        window_us: the length of each window, in microseconds; the longest if they differ.
        calendar: the windows, if they differ in length.
        band: the bands' name in the legend; empty if the windows have lines alone.
        line: the lines' name in the legend.
        requested_us: the requested time range, in microseconds since the epoch; by default the extent of the data.
        limits: the ends of the value axis; None where the data determine it.
        zone: the name of the time zone of the time axis.
    """

    title: str
    label: str
    series: Sequence[Series]
    window_us: int = HOURLY.length_us
    requested_us: tuple[int, int] | None = None
    limits: tuple[float | None, float | None] = (None, None)
    calendar: Window | None = None
    band: str = "minimum to maximum"
    line: str = "mean"
    zone: str = UTC_ZONE

    @property
    def by(self) -> str:
        """The length of a window, as the legend names it."""
        return self.calendar.text if self.calendar else format_interval(self.window_us)

    def end_of(self, start_us: int) -> int:
        """Returns the end of the window that starts then, in microseconds."""
        return self.calendar.end_of(start_us) if self.calendar else start_us + self.window_us

    def shows_something(self) -> bool:
        """Whether a value is within the limits."""
        bottom, top = self.limits
        return any(
            (top is None or least <= top) and (bottom is None or most >= bottom)
            for least, most in _extents(self.series)
        )


def common_span_us(charts: Sequence[Chart]) -> tuple[int, int]:
    """Returns the time axis: the requested range, or the extent of the data if that is under 1 % of it."""
    windows = [(point.start_us, chart) for chart in charts for each in chart.series for point in each.band]
    times = [reading.time_us for chart in charts for each in chart.series for reading in each.readings]
    least = min([start for start, _ in windows] + times)
    most = max([chart.end_of(start) for start, chart in windows] + times)
    length = max(most - least, _MIN_AXIS_US)
    start, end = charts[0].requested_us or (least, most)
    if end - start > _SPARSE * max(length, charts[0].window_us):
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


def drawable(chart: Chart, span_us: tuple[int, int], max_steps: int) -> Chart:
    """Returns the chart with finite values and windows merged into steps, at most about ``max_steps`` of them.

    A step has the length of a whole number of windows; its mean is the mean of their means.
    """
    windows = -(-(span_us[1] - span_us[0]) // (chart.window_us * max_steps))
    step_us = chart.window_us * max(windows, 1)
    calendar = None if windows > 1 else chart.calendar
    series = [
        each._replace(
            band=_steps(each.band, step_us, calendar),
            readings=[reading._replace(value=_clamped(reading.value)) for reading in each.readings],
        )
        for each in chart.series
    ]
    return replace(chart, series=series, window_us=step_us, calendar=calendar)


def _steps(band: Iterable[BandPoint], step_us: int, calendar: Window | None) -> list[BandPoint]:
    finite = [
        BandPoint(
            point.start_us,
            _clamped(point.minimum),
            _clamped(point.mean) if math.isfinite(point.mean) else math.nan,
            _clamped(point.maximum),
        )
        for point in band
    ]
    if calendar:
        return finite
    grouped = groupby(finite, key=lambda point: point.start_us // step_us)
    return [_merged(index * step_us, list(points)) for index, points in grouped]


def _merged(start_us: int, points: list[BandPoint]) -> BandPoint:
    return BandPoint(
        start_us,
        min(point.minimum for point in points),
        fmean(point.mean for point in points),
        max(point.maximum for point in points),
    )


def _clamped(value: float) -> float:
    return max(-_MAX_VALUE, min(value, _MAX_VALUE))


def _extents(series: Iterable[Series]) -> list[tuple[float, float]]:
    """Returns the least and greatest value of each window and reading."""
    bands = [(point.minimum, point.maximum) for each in series for point in each.band]
    return bands + [(reading.value, reading.value) for each in series for reading in each.readings]


def value_axis(chart: Chart) -> tuple[float, float]:
    """Returns the ends of the value axis: the chart's limits, or the range of the data with a margin."""
    bottom, top = chart.limits
    extents = _extents(chart.series)
    least, most = min(least for least, _ in extents), max(most for _, most in extents)
    greatest = max(abs(least), abs(most))
    margin = (most - least if most - least > greatest * 1e-13 else greatest) / 20 if greatest >= _TINY else 1.0
    return least - margin if bottom is None else bottom, most + margin if top is None else top


def value_format(bottom: float, top: float) -> str:
    """Returns the number format of all labels on an axis: with thousands separators if any label is long."""
    return ",.15g" if max(abs(bottom), abs(top)) >= _THOUSANDS else ".15g"


def span_text(start_us: int, end_us: int, zone: str = UTC_ZONE) -> str:
    """Returns the ends of the time axis as text: to the second, unless the axis is shorter than a minute."""
    grain_us = 1_000_000 if end_us - start_us >= 60_000_000 else 1
    ends = (time_us // grain_us * grain_us for time_us in (start_us, end_us))
    local = (to_local(time_us, zone).replace(tzinfo=None) for time_us in ends)
    start, end = (format_time(from_datetime(each)).removesuffix("Z").replace("T", " ") for each in local)
    if start.endswith(":00") and end.endswith(":00"):
        start, end = start.removesuffix(":00"), end.removesuffix(":00")
    return f"{start} to {end}, {zone}"


def shortened(text: str, length: int) -> str:
    """Returns the text, at most ``length`` characters of it."""
    return text if len(text) <= length else text[: length - 1] + "…"


def time_ticks(start_us: int, end_us: int, width: int, zone: str = UTC_ZONE) -> dict[int, str]:
    """Returns ticks from ``start_us`` to ``end_us``, both inclusive, with their labels: as many as fit.

    Args:
        start_us: the start of the axis, in microseconds since the epoch.
        end_us: the end of the axis, at least a second later.
        width: the length of the axis, in characters.
        zone: the time zone whose clocks the ticks follow.
    """
    ticks: dict[int, str] = {}
    for step in _STEPS:
        if (end_us - start_us) // step.length_us < width:
            ticks = {time_us: step.label(time_us, zone) for time_us in step.between(start_us, end_us, zone)}
            if sum(len(label) + _BLANKS for label in ticks.values()) <= width:
                break
    return ticks


class _TickStep(NamedTuple):
    """The distance between ticks: a fixed length, or a number of months at least that long."""

    length_us: int
    months: int = 0

    def between(self, start_us: int, end_us: int, zone: str) -> Iterator[int]:
        if self.length_us < _DAY_US:
            yield from self._times(start_us, end_us, zone)
            return
        for local in self._months(start_us, end_us, zone) if self.months else self._days(start_us, end_us, zone):
            if start_us <= (time_us := from_datetime(local.replace(tzinfo=zone_of(zone)))) <= end_us:
                yield time_us

    def _times(self, start_us: int, end_us: int, zone: str) -> Iterator[int]:
        at_us = start_us
        while at_us <= end_us:
            offset_us = _offset_us(at_us, zone)
            tick_us = -(-(at_us + offset_us) // self.length_us) * self.length_us - offset_us
            if tick_us > end_us:
                break
            if _offset_us(tick_us, zone) == offset_us:
                yield tick_us
                at_us = tick_us + 1
            else:  # clocks change before
                at_us += _CLOCKS_US - at_us % _CLOCKS_US
                if _starts_day(at_us, zone) and at_us <= end_us:  # they skip midnight
                    yield at_us
                    at_us += 1

    def _days(self, start_us: int, end_us: int, zone: str) -> Iterator[datetime]:
        start_us, end_us = (time_us + _offset_us(time_us, zone) for time_us in (start_us, end_us))
        for day in range(-(-start_us // self.length_us), end_us // self.length_us + 1):
            yield to_datetime(day * self.length_us)

    def _months(self, start_us: int, end_us: int, zone: str) -> Iterator[datetime]:
        start, end = to_local(start_us, zone), to_local(end_us, zone)
        first, last = ((time.year * 12 + time.month - 1) // self.months for time in (start, end))
        for step in range(max(first, 1), last + 1):
            year, month = divmod(step * self.months, 12)
            if 1 <= year <= MAXYEAR:
                yield datetime(year, month + 1, 1)

    def label(self, time_us: int, zone: str) -> str:
        time = to_local(time_us, zone)
        if self.length_us >= _YEAR_US:
            return f"{time.year}"
        if self.months:
            return f"{time.year}-{time:%m}"
        if self.length_us >= _DAY_US or _starts_day(time_us, zone):
            return f"{time:%m-%d}"
        if self.length_us >= _MINUTE_US:
            return f"{time:%H:%M}"
        return f"{time:%H:%M:%S}" if self.length_us >= _SECOND_US else f"{time:%H:%M:%S.%f}"[:10]


def _starts_day(time_us: int, zone: str) -> bool:
    time = to_local(time_us, zone)
    return time.time() == time_of_day() or time.date() > to_local(time_us - 1, zone).date()


def _offset_us(time_us: int, zone: str) -> int:
    return (to_local(time_us, zone).utcoffset() or timedelta(0)) // timedelta(microseconds=1)


_STEPS = [
    *(_TickStep(tenths * _SECOND_US // 10) for tenths in (1, 2, 5, 10, 20, 50, 100, 150, 300)),
    *(_TickStep(minutes * _MINUTE_US) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)),
    *(_TickStep(days * _DAY_US) for days in (1, 2, 4, 7, 14)),
    *(_TickStep(months * 28 * _DAY_US, months) for months in (1, 2, 3, 6)),
    *(_TickStep(years * _YEAR_US, years * 12) for years in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)),
]
