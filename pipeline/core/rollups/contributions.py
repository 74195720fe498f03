"""What one sensor contributes to the roll-ups of a window: its metadata, and its statistics in a form that merges.

Little-endian:

    contribution  version; size of the member text; the text; statistics, as
                  :mod:`pipeline.core.accumulation.accumulator_bytes` describes
    batch         version; the time at which the job began in µs; the number of batches of rows that the group of
                  sensors had written before; records until the end
    record        index of the tier; start in µs; sizes of the sensor's id and of its contribution; both
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pipeline.core.accumulation.accumulator_bytes import Reader, read_stats, stats_bytes
from pipeline.core.statistics.courses import Risen, increase, rate
from pipeline.core.statistics.definitions import WindowSpan
from pipeline.core.statistics.window_stats import MetricStats, WindowStats

VERSION = 1

_HEAD = struct.Struct("<BH")
_BATCH = struct.Struct("<BQQ")
_RECORD = struct.Struct("<BqHI")
_MOST_BYTES = 2 << 20  # of a batch
_NO_FIELDS = "{}"


class Order(NamedTuple):
    """The order of a job's contributions: of two by the same job, the one with the greater number counts."""

    began_us: int
    number: int


class Contribution(NamedTuple):
    """What a sensor has in a window.

    Attributes:
        member: the metadata of its newest event, as text; see :mod:`pipeline.core.statistics.member`.
        stats: its statistics, of which only parts are left that merge with those of other sensors.
    """

    member: str
    stats: WindowStats


class Contributed(NamedTuple):
    """A sensor's contribution to a window, encoded.

    Attributes:
        tier: the index of the tier.
        start_us: the window's start.
        sensor_id: the sensor.
        data: the contribution; empty for a sensor that has nothing in the window any more.
    """

    tier: int
    start_us: int
    sensor_id: str
    data: bytes


def contribution_bytes(stats: WindowStats, span: WindowSpan, wanted: Callable[[str], bool]) -> bytes:
    """Encodes what a sensor contributes.

    Args:
        stats: the sensor's statistics of the window.
        span: the window.
        wanted: returns whether any roll-up merges a metric.
    """
    text = (stats.member.text if stats.member else _NO_FIELDS).encode()
    kept = WindowStats()
    kept.events = stats.events
    for metric, of_metric in stats.metrics.items():
        if wanted(metric):
            kept.metrics[metric] = of_metric if not of_metric.parts else _mergeable(of_metric, span)
    return b"".join((_HEAD.pack(VERSION, len(text)), text, stats_bytes(kept)))


def member_in(data: bytes) -> bytes:
    """Returns the member text of a contribution, without decoding the statistics."""
    return data[_HEAD.size : _HEAD.size + _HEAD.unpack_from(data)[1]]


def read_contribution(data: bytes) -> Contribution:
    """Decodes :func:`contribution_bytes`. Raises ValueError for other bytes."""
    if data[:1] != bytes([VERSION]):
        raise ValueError("another release wrote this contribution to roll-ups, or it is none")
    reader = Reader(data)
    _, size = reader.unpack(_HEAD)
    member = reader.take(size).decode()
    stats = read_stats(reader)
    reader.end()
    return Contribution(member, stats)


def batches_of(contributed: Iterable[Contributed], order: Order) -> Iterator[bytes]:
    """Yields contributions in batches of limited size."""
    parts, size = [_BATCH.pack(VERSION, *order)], 0
    for tier, start_us, sensor_id, data in contributed:
        encoded = sensor_id.encode()
        parts += (_RECORD.pack(tier, start_us, len(encoded), len(data)), encoded, data)
        size += len(data)
        if size >= _MOST_BYTES:
            yield b"".join(parts)
            parts, size = [_BATCH.pack(VERSION, *order)], 0
    if len(parts) > 1:
        yield b"".join(parts)


def read_batch(batch: bytes) -> tuple[Order, list[Contributed]]:
    """Decodes what :func:`batches_of` yields. Raises ValueError for other bytes."""
    version, began_us, number = _BATCH.unpack_from(batch)
    if version != VERSION:
        raise ValueError("another release wrote these contributions; drain the job that wrote them and start a new one")
    found: list[Contributed] = []
    end = _BATCH.size
    while end < len(batch):
        tier, start_us, id_size, size = _RECORD.unpack_from(batch, end)
        begin = end + _RECORD.size
        middle, end = begin + id_size, begin + id_size + size
        found.append(Contributed(tier, start_us, batch[begin:middle].decode(), batch[middle:end]))
    return Order(began_us, number), found


def _mergeable(stats: MetricStats, span: WindowSpan) -> MetricStats:
    """Returns the statistics with those parts that merge with other sensors'."""
    found = MetricStats()
    found.count, found.total, found.average, found.deviation = stats.count, stats.total, stats.average, stats.deviation
    found.minimum, found.maximum = stats.minimum, stats.maximum
    parts = stats.parts or {}
    found.parts = {"sketch": parts["sketch"]} if "sketch" in parts else {}
    if "rises" in parts:
        found.parts["risen"] = Risen(increase(parts["rises"]), rate(parts["rises"], span.start_us, span.end_us))
    return found
