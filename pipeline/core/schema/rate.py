"""The expected rate of sensors, and the groups into which a job puts them by it."""

from dataclasses import dataclass
from zlib import crc32

from pipeline.core.windows import Window

_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US

_MOST_GROUPS = 1 << 17
_MOST_SPAN_EVENTS, _MOST_SPAN_WINDOWS = 2000, 168  # of a sensor
_SHARDS, _FEW_SHARDS, _SENSORS_OF_SHARD = 256, 64, 2000

MAX_SHARDS = 4096
"""The greatest number of shards: each has a part of each group, and a group's parts are merged together."""


@dataclass(frozen=True)
class Rate:
    """The expected data rate of one sensor, used to estimate sizes.

    Args:
        every_us: microseconds from one event to the next.
        metrics: readings per event.
        metadata: metadata fields per event.
        event_bytes: the size of a serialized event; None to estimate it from the others.
        sensors: the number of sensors, from which a job's number of groups follows; None if unknown.
    """

    every_us: int
    metrics: int = 1
    metadata: int = 0
    event_bytes: int | None = None
    sensors: int | None = None


def groups_for(rate: Rate | None) -> int:
    """Returns the number of groups, a power of two, for sensors with this rate and number.

    It limits how many threads can aggregate at the same time, and how much a firing reads and writes: the windows of a
    group. Sensors that send often hold more, so fewer of them share a group.
    """
    if rate is None or rate.every_us >= 10 * _SECOND_US:
        least, sensors_of_group = 256, 1000
    elif rate.every_us >= _SECOND_US:
        least, sensors_of_group = 1024, 125
    else:
        least, sensors_of_group = 4096, 15
    needed = -(-(rate.sensors or 0) // sensors_of_group) if rate else 0
    return min(max(least, 1 << (needed - 1).bit_length() if needed else 0), _MOST_GROUPS)


def shards_for(rate: Rate | None) -> int:
    """Returns the number of shards of roll-ups, a power of two, for the number of sensors.

    A shard with few sensors of a roll-up's group merges little, and every shard costs each group a part.
    """
    if rate is None or rate.sensors is None:
        return _SHARDS
    needed = -(-rate.sensors // _SENSORS_OF_SHARD)
    return min(max(_FEW_SHARDS, 1 << (needed - 1).bit_length()), MAX_SHARDS)


def phases_for(shards: int) -> int:
    """Returns the number of different times at which groups fire early panes.

    The groups of a shard fire together. With few shards there are more times, so that not all groups fire together.
    """
    return max(shards, _FEW_SHARDS)


def groups_of_batch(rate: Rate | None, window: Window) -> int:
    """Returns the number of groups for a batch job, which has the readings of a group in one window in memory.

    Windows longer than an hour have groups that are smaller by as much.
    """
    return groups_for(rate) * max(1, window.length_us // _HOUR_US)


def span_of_batch(rate: Rate | None, window: Window) -> int:
    """Returns the length in µs of the span in which a batch job computes a sensor's windows together.

    It is one of the window's length or several: its readings are in memory, and reading a span is one request.
    """
    every_us = rate.every_us if rate is not None else 60 * _SECOND_US
    return max(1, min(_MOST_SPAN_EVENTS * every_us // window.length_us, _MOST_SPAN_WINDOWS)) * window.length_us


def group_of(sensor_id: bytes, groups: int) -> int:
    """Returns the group of a sensor, from 0. It never changes: state is kept by it."""
    return crc32(sensor_id) % groups
