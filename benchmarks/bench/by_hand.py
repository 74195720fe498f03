"""Code shared by programs without Tidetable: statistics of sensors' hours, and the text of keys and values."""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

HOUR_US = 3_600_000_000
LAST_US = 9_999_999_999_999_999


class Hours:
    """Count, sum, minimum, maximum, mean and squared deviations (Welford) of every sensor, hour and metric."""

    def __init__(self) -> None:
        self._hours: dict[tuple[str, int], list] = {}

    def add(self, sensor_id: str, time_us: int, readings: Iterable[tuple[str, float]]) -> None:
        key = sensor_id, time_us // HOUR_US
        hour = self._hours.get(key)
        if hour is None:
            hour = self._hours[key] = [0, {}]
        hour[0] += 1
        metrics = hour[1]
        for metric, value in readings:
            stats = metrics.get(metric)
            if stats is None:
                metrics[metric] = [1, value, value, value, value, 0.0]
                continue
            stats[0] = count = stats[0] + 1
            stats[1] += value
            if value < stats[2]:
                stats[2] = value
            elif value > stats[3]:
                stats[3] = value
            delta = value - stats[4]
            stats[4] = mean = stats[4] + delta / count
            stats[5] += delta * (value - mean)

    def rows(self) -> Iterator[tuple[bytes, int, list[tuple[bytes, bytes]]]]:
        """Yields each hour's key, time in microseconds, and columns with their values."""
        for (sensor_id, hour), (events, metrics) in self._hours.items():
            yield aggregate_key(sensor_id, hour), hour * HOUR_US, columns(events, metrics)


def columns(events: int, metrics: Mapping[str, list]) -> list[tuple[bytes, bytes]]:
    """Returns an aggregate row's columns with their values."""
    found = [(b"reading_count", b"%d" % events)]
    for metric, (count, total, least, most, _, squares) in metrics.items():
        statistics = {
            "count": count,
            "sum": total,
            "min": least,
            "max": most,
            "avg": total / count,
            "stddev": math.sqrt(squares / count),
        }
        found += [(f"{name}_{metric}".encode(), text(value)) for name, value in statistics.items()]
    return found


def raw_key(sensor_id: str, time_us: int) -> bytes:
    return f"{sensor_id}#{LAST_US - time_us}".encode()


def aggregate_key(sensor_id: str, hour: int) -> bytes:
    return f"agg#hourly#{sensor_id}#{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H}".encode()


def text(value: float) -> bytes:
    """Returns the text of a cell's value."""
    return repr(value).removesuffix(".0").encode()
