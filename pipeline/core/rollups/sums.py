"""What windows of several sensors have together, and how it is encoded: the statistics of each metric, side by side.

They are merged by columns, many at a time: merging one after the other takes several times as long.

Little-endian:

    sums    version; size of the text, size of the names of metrics; the text; the names, separated by commas; number
            of sensors, number of events; for each metric its count, sum, minimum, maximum, average and deviation as
            doubles; [for each metric the size of its parts, and they, as
            :mod:`pipeline.core.statistics.parts` describes]
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pipeline.core.statistics.parts import merged_all, parts_bytes, read_parts
from pipeline.core.statistics.window_stats import MetricStats, WindowStats

VERSION = 1

WIDTH = 6
"""The number of statistics of a metric, in the order of the encoding."""

NOTHING_OF = (0.0, 0.0, math.inf, -math.inf, 0.0, 0.0)
"""The statistics of a metric without readings."""

HEAD = struct.Struct("<BII")

_SIZE = struct.Struct("<I")
_HEAD_SIZE, _TEXT_SIZE = HEAD.size, HEAD.unpack_from
_LEAST, _MOST = 1e-250, 1e250  # between these, squares neither underflow nor overflow
_FAR = 1e4  # times the variance: rounding then changes a deviation by no more than 1e-11 of it
_FEW = 12
_NO_PARTS: Mapping[str, Any] = {}
_new = tuple.__new__

Moments = tuple[float, float, float, float, float, float]
"""The statistics of a metric, in the order of the encoding."""

Parts = Mapping[str, Mapping[str, Any]]
"""The parts of each metric that has any."""


class Sums(NamedTuple):
    """What windows have together.

    Attributes:
        moments: :data:`WIDTH` statistics for each metric.
        parts: the parts of metrics that have any.
    """

    sensors: int
    events: int
    names: tuple[str, ...]
    moments: Sequence[float]
    parts: Parts = _NO_PARTS


NO_SUMS = Sums(0, 0, (), ())


def moments_of(stats: MetricStats) -> Moments:
    """Returns the statistics of a metric in the order of the encoding."""
    return stats.count, stats.total, stats.minimum, stats.maximum, stats.average, stats.deviation


def merge(found: Sequence[Sums]) -> Sums:
    """Returns what all have together."""
    if len(found) < 2:
        return found[0] if found else NO_SUMS
    sensors = events = 0
    names, same, has_parts = found[0].names, True, False
    for sums in found:
        sensors += sums.sensors
        events += sums.events
        same = same and sums.names == names
        has_parts = has_parts or bool(sums.parts)
    if not same:
        names = tuple(sorted({name for sums in found for name in sums.names}))
    moments = _merged_rows([aligned(sums, names) for sums in found], len(names))
    return Sums(sensors, events, names, moments, merged_parts(names, found) if has_parts else _NO_PARTS)


def merge_encoded(prefix: bytes, datas: Sequence[bytes]) -> Sums:
    """Returns what all have together, given what all of them begin with. Raises like :func:`read_after`."""
    names, layout = _shape_of(prefix)
    end = len(prefix) + layout.size
    if len(datas) < 2 or any(len(data) != end for data in datas):
        return merge([read_after(prefix, data) for data in datas])
    unpack_from, begin = layout.unpack_from, len(prefix)
    rows = [unpack_from(data, begin) for data in datas]
    moments = _merged_rows(rows, len(names), 2)
    return Sums(sum([row[0] for row in rows]), sum([row[1] for row in rows]), names, moments)


def _merged_rows(rows: Sequence[Sequence[float]], metrics: int, begin: int = 0) -> list[float]:
    """Returns the moments that rows have together, each of which contains its own from some place on."""
    places = range(begin, begin + WIDTH * metrics, WIDTH)
    if len(rows) <= _FEW:
        return [value for at in places for value in _merged_few(rows, at)]
    columns = list(zip(*rows, strict=True))
    return [value for at in places for value in merged_moments(columns[at : at + WIDTH])]


def aligned(sums: Sums, names: tuple[str, ...]) -> Sequence[float]:
    """Returns the moments of these metrics."""
    if sums.names == names:
        return sums.moments
    moments = sums.moments
    known = {name: moments[WIDTH * index : WIDTH * (index + 1)] for index, name in enumerate(sums.names)}
    return [value for name in names for value in known.get(name, NOTHING_OF)]


def merged_moments(columns: Sequence[Sequence[float]], about: float = math.nan, spread: float = math.nan) -> Moments:
    """Returns the statistics of a metric out of those of several sensors, as :meth:`MetricStats.merge` merges them.

    Args:
        columns: the counts, the sums, and so on.
        about: a value near the average, if one is known.
        spread: the sum of squares of the distances of all values from that one.
    """
    counts, totals, minima, maxima, averages, deviations = columns
    count, total = sum(counts), sum(totals)
    if not count:
        return NOTHING_OF
    width = sum(maxima) - sum(minima)
    found = moments_of_totals(count, total, min(minima), max(maxima), width, about, spread)
    if found is None:
        about = total / count
        spread = sum(
            [
                one * ((apart := mean - about) * apart + deviation * deviation)
                for one, mean, deviation in zip(counts, averages, deviations, strict=True)
            ]
        )
        found = moments_of_totals(count, total, min(minima), max(maxima), width, about, spread)
    if found is None:
        merged = MetricStats()
        for moments in zip(*columns, strict=True):
            merged.merge(stats_of_metric(moments))
        found = moments_of(merged)
    return found


def _merged_few(rows: Sequence[Sequence[float]], at: int) -> Moments:
    """Returns what :func:`merged_moments` does, faster for a few: takes rows, and where those of a metric begin."""
    count = total = width = spread = 0.0
    about, minimum, maximum = math.nan, math.inf, -math.inf
    for row in rows:
        one, its_total, its_minimum, its_maximum, average, deviation = row[at : at + WIDTH]
        if one:
            if not count:
                about = average
            count += one
            total += its_total
            width += its_maximum - its_minimum
            if its_minimum < minimum:
                minimum = its_minimum
            if its_maximum > maximum:
                maximum = its_maximum
            apart = average - about
            spread += one * (apart * apart + deviation * deviation)
    if not count:
        return NOTHING_OF
    found = moments_of_totals(count, total, minimum, maximum, width, about, spread)
    return found or merged_moments([[row[index] for row in rows] for index in range(at, at + WIDTH)])


def moments_of_totals(
    count: float, total: float, minimum: float, maximum: float, width: float, about: float, spread: float
) -> Moments | None:
    """Returns a metric's statistics; None if they would not be exact, or something is not known, which is NaN.

    Args:
        count: the count.
        total: the sum.
        minimum: the minimum.
        maximum: the maximum.
        width: the sum of distances between minima and maxima.
        about: the value for ``spread``.
        spread: the sum of squares of the distances of all values from ``about``.
    """
    if not -math.inf < total < math.inf or width != width:
        return None
    average = min(max(total / count, minimum), maximum)
    if minimum == maximum:
        return count, total, minimum, maximum, average, 0.0
    apart = total / count - about
    off = apart * apart  # a power would raise OverflowError
    variance = spread / count - off
    if _LEAST < variance < _MOST and off < _FAR * variance:
        return count, total, minimum, maximum, average, math.sqrt(variance)
    return None


def stats_of_metric(moments: Sequence[float], parts: Mapping[str, Any] | None = None) -> MetricStats:
    """Returns a metric's statistics."""
    stats = MetricStats()
    count, stats.total, stats.minimum, stats.maximum, stats.average, stats.deviation = moments
    stats.count = int(count)
    stats.parts = parts
    return stats


def window_stats_of(sums: Sums) -> WindowStats:
    """Returns the statistics of all metrics with readings, sorted by name."""
    stats = WindowStats()
    stats.events = sums.events
    for index, name in sorted(enumerate(sums.names), key=lambda each: each[1]):
        moments = sums.moments[WIDTH * index : WIDTH * (index + 1)]
        if moments[0]:
            stats.metrics[name] = stats_of_metric(moments, sums.parts.get(name))
    return stats


def merged_parts(names: Iterable[str], found: Iterable[Sums]) -> Parts:
    """Returns the parts of the metrics that are known of all sums in which the metric has readings."""
    of_names: dict[str, list[Mapping[str, Any]]] = {}
    for sums in found:
        for index, name in enumerate(sums.names):
            if sums.moments[WIDTH * index]:
                of_names.setdefault(name, []).append(sums.parts.get(name, _NO_PARTS))
    merged = ((name, merged_all(of_names[name])) for name in names if name in of_names)
    return {name: parts for name, parts in merged if parts}


def selected(sums: Sums, names: tuple[str, ...]) -> Sums:
    """Returns the sums of these metrics alone, of which it has all."""
    if names == sums.names:
        return sums
    parts = {name: sums.parts[name] for name in names if name in sums.parts}
    return Sums(sums.sensors, sums.events, names, aligned(sums, names), parts)


def sums_bytes(sums: Sums, text: str = "") -> bytes:
    """Encodes sums, with a text that :func:`text_in` returns."""
    prefix, layout = prefix_of(text, sums.names)
    data = prefix + layout.pack(sums.sensors, sums.events, *sums.moments)
    return data + parts_of_metrics_bytes(sums.names, sums.parts) if sums.parts else data


def parts_of_metrics_bytes(names: Iterable[str], parts: Parts) -> bytes:
    """Encodes the parts of metrics."""
    texts = [parts_bytes(parts.get(name)) for name in names]
    return b"".join([each for text in texts for each in (_SIZE.pack(len(text)), text)])


@lru_cache(maxsize=4096)
def prefix_of(text: str, names: tuple[str, ...]) -> tuple[bytes, struct.Struct]:
    """Returns what encoded sums begin with, and the layout of what follows."""
    encoded, of_names = text.encode(), ",".join(names).encode()
    return HEAD.pack(VERSION, len(encoded), len(of_names)) + encoded + of_names, layout_of(len(names))


@lru_cache(maxsize=256)
def layout_of(metrics: int) -> struct.Struct:
    """Returns the layout of the numbers of so many metrics."""
    return struct.Struct(f"<IQ{WIDTH * metrics}d")


def prefix_in(data: bytes) -> bytes:
    """Returns what encoded sums begin with: those with equal prefixes have the same text and metrics."""
    version, text_size, names_size = HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError("another release wrote this part of a roll-up, or it is none")
    return data[: HEAD.size + text_size + names_size]


def text_in(data: bytes) -> bytes:
    """Returns the text that sums were encoded with."""
    return data[_HEAD_SIZE : _HEAD_SIZE + _TEXT_SIZE(data)[1]]


def read_sums(data: bytes) -> Sums:
    """Parses what :func:`sums_bytes` returned. Raises ValueError for other bytes."""
    try:
        return read_after(prefix_in(data), data)
    except struct.error as error:
        raise ValueError("this part of a roll-up is cut off") from error


def is_sums(data: bytes) -> bool:
    """Returns whether :func:`read_sums` reads these bytes: another program may have written a cell."""
    try:
        read_sums(data)
    except ValueError:
        return False
    return True


def read_after(prefix: bytes, data: bytes) -> Sums:
    """Parses sums, given what they begin with. Raises ValueError or struct.error for other bytes."""
    names, layout = _shape_of(prefix)
    sensors, events, *moments = layout.unpack_from(data, len(prefix))
    end = len(prefix) + layout.size
    parts = _NO_PARTS if end == len(data) else _all_parts(names, data, end)
    return _new(Sums, (sensors, events, names, moments, parts))


@lru_cache(maxsize=4096)
def _shape_of(prefix: bytes) -> tuple[tuple[str, ...], struct.Struct]:
    _, text_size, names_size = HEAD.unpack_from(prefix)
    begin = HEAD.size + text_size
    text = prefix[begin : begin + names_size].decode()
    names = tuple(text.split(",")) if text else ()
    return names, layout_of(len(names))


def _all_parts(names: Iterable[str], data: bytes, begin: int) -> Parts:
    found, end = read_parts_of_metrics(names, data, begin)
    if end != len(data):
        raise ValueError("this part of a roll-up is cut off, or has bytes after its end")
    return found


def read_parts_of_metrics(names: Iterable[str], data: bytes, begin: int) -> tuple[Parts, int]:
    """Reads what :func:`parts_of_metrics_bytes` returned. Returns it, and where it ends. Raises like :func:`read_sums`.

    Args:
        names: the metrics.
        data: the bytes.
        begin: the place where the parts begin.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        (size,) = _SIZE.unpack_from(data, begin)
        end = begin + _SIZE.size + size
        if parts := read_parts(data[begin + _SIZE.size : end]):
            found[name] = parts
        begin = end
    return found, begin
