"""Accumulators as bytes: what runners store and hand on, so that every byte is one of each sensor and window.

Little-endian, without padding:

    readings    flags (1: readings are kept, 2: whole, 4: statistics were recalled), statistics, [those recalled],
                [number of columns, columns]
    column      number of metrics, their names; number of events, first event time in µs, bytes of a time behind it,
                these times; values as doubles, event by event
    statistics  number of events, number of metrics; for each its name, count, sum, minimum, maximum, mean and m2
    windows     whole, number of windows; for each its start in µs and its statistics
    name        length, UTF-8
"""

import struct
import sys
from array import array
from collections import defaultdict
from collections.abc import Mapping

from pipeline.core.stats import MetricStats, WindowStats

_COUNT = struct.Struct("<I")
_EVENTS = struct.Struct("<QI")
_METRIC = struct.Struct("<Qddddd")
_TIMES = struct.Struct("<IqB")
_START = struct.Struct("<q")

_SHORT, _LONG = array("I"), array("Q")
if _SHORT.itemsize != 4 or _LONG.itemsize != 8 or sys.byteorder != "little":
    raise ImportError("this machine's integers are not those that accumulators are stored with")


class Reader:
    """Takes values from bytes, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        """The next so many bytes."""
        begin = self._position
        self._position += size
        if self._position > len(self._data):
            raise ValueError("an accumulator ends before its end")
        return self._data[begin : self._position]

    def unpack(self, form: struct.Struct) -> tuple:
        """The next values of that form."""
        return form.unpack(self.take(form.size))

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def count(self) -> int:
        """The next number of things."""
        return int(self.unpack(_COUNT)[0])

    def name(self) -> str:
        """The next name."""
        return self.take(self.byte()).decode()


def stats_bytes(stats: WindowStats) -> bytes:
    """The statistics."""
    parts = [_EVENTS.pack(stats.events, len(stats.metrics))]
    for metric, of_metric in stats.metrics.items():
        parts.append(_name(metric))
        parts.append(
            _METRIC.pack(
                of_metric.count,
                of_metric.total,
                of_metric.minimum,
                of_metric.maximum,
                of_metric.mean,
                of_metric.m2,
            )
        )
    return b"".join(parts)


def read_stats(reader: Reader) -> WindowStats:
    """What :func:`stats_bytes` wrote."""
    stats = WindowStats()
    stats.events, metrics = reader.unpack(_EVENTS)
    for _ in range(metrics):
        of_metric = stats.metrics[reader.name()] = MetricStats()
        (
            of_metric.count,
            of_metric.total,
            of_metric.minimum,
            of_metric.maximum,
            of_metric.mean,
            of_metric.m2,
        ) = reader.unpack(_METRIC)
    return stats


def events_bytes(events: Mapping[int, Mapping[str, float]]) -> bytes:
    """Readings by event time: eight bytes a value, and four or eight a time."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for time_us, readings in events.items():
        alike[tuple(sorted(readings))].append(time_us)
    parts = [_COUNT.pack(len(alike))]
    for metrics, times_us in alike.items():
        first_us = min(times_us)
        form = "I" if max(times_us) - first_us < 1 << 32 else "Q"
        behind = array(form, [time_us - first_us for time_us in times_us])
        parts.append(_COUNT.pack(len(metrics)))
        parts += map(_name, metrics)
        parts.append(_TIMES.pack(len(times_us), first_us, behind.itemsize))
        parts.append(behind.tobytes())
        parts.append(array("d", [events[time_us][metric] for time_us in times_us for metric in metrics]).tobytes())
    return b"".join(parts)


def read_events(reader: Reader) -> dict[int, Mapping[str, float]]:
    """What :func:`events_bytes` wrote."""
    events: dict[int, Mapping[str, float]] = {}
    for _ in range(reader.count()):
        metrics = [reader.name() for _ in range(reader.count())]
        count, first_us, size = reader.unpack(_TIMES)
        behind = array("I" if size == 4 else "Q", reader.take(count * size))
        each = iter(array("d", reader.take(count * len(metrics) * 8)))
        for time_us, of_event in zip(behind, zip(*[each] * len(metrics), strict=True), strict=True):
            events[first_us + time_us] = dict(zip(metrics, of_event, strict=True))
    return events


def windows_bytes(windows: Mapping[int, WindowStats], *, whole: bool) -> bytes:
    """Statistics by the start of their window."""
    parts = [bytes([whole]), _COUNT.pack(len(windows))]
    for start_us, stats in windows.items():
        parts += (_START.pack(start_us), stats_bytes(stats))
    return b"".join(parts)


def read_windows(reader: Reader) -> tuple[dict[int, WindowStats], bool]:
    """What :func:`windows_bytes` wrote."""
    whole = bool(reader.byte())
    return {reader.unpack(_START)[0]: read_stats(reader) for _ in range(reader.count())}, whole


def _name(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded  # at most 128, by the contract
