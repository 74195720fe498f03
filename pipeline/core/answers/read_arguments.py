"""Checks the arguments of reads: sensors, metrics and a range of time."""

from collections.abc import Iterable
from datetime import timedelta

from pipeline.core.events.event import LATEST_US, checked_sensor_id
from pipeline.core.notation.times import UTC_ZONE, Time, checked_zone, shown_time, to_us
from pipeline.core.windows import Window

OPEN_FOR = timedelta(minutes=15)
"""The time after its end in which a window counts as open: the job's allowed lateness, and time for its panes."""

MAX_ROWS = 200_000
"""The most rows that an answer reads by default: of raw rows, a day of two sensors at 1 Hz."""


def named_metrics(metrics: Iterable[str] | None) -> tuple[str, ...] | None:
    """Returns the names without repetition, or None for all metrics. Raises ValueError for an empty list or name."""
    if metrics is None:
        return None
    named = (metrics,) if isinstance(metrics, str) else tuple(dict.fromkeys(metrics))
    if not named or not all(named):
        raise ValueError("metrics contains no name; leave it out for all of them")
    return named


def listed_sensors(sensors: Iterable[str]) -> list[str]:
    """Returns the sensor ids without repetition. Raises ValueError for a text that can't be one."""
    listed = list(dict.fromkeys(sensors))
    for sensor_id in listed:
        checked_sensor_id(sensor_id)  # another text could lead to other rows
    return listed


def zone_for(time_zone: str | None, tier: Window | None = None) -> str:
    """Returns the zone of times without an offset: the one asked for, else that of the tier, else UTC.

    Raises ValueError for a text that is no zone.
    """
    return checked_zone(time_zone) if time_zone else tier.zone if tier else UTC_ZONE


def within_keys(start: Time, end: Time, time_zone: str | None = None, tier: Window | None = None) -> tuple[int, int]:
    """Returns the range in microseconds, limited to the times that row keys contain; empty if it lies outside them.

    Times without an offset have the zone that :func:`zone_for` returns. Raises ValueError if the range does not end
    after it starts, or for a text that is no zone.
    """
    zone = zone_for(time_zone, tier)
    start_us, end_us = to_us(start, zone), to_us(end, zone)
    if start_us >= end_us:
        raise ValueError(f"the range is empty: {shown_time(start_us)} is not before {shown_time(end_us)}")
    return min(max(start_us, 0), LATEST_US + 1), min(max(end_us, 0), LATEST_US + 1)
