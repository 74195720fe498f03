"""Estimates the state of a group of sensors, for the launch and for ``tidetable plan``.

Every firing writes back all open windows of its group, so they have to fit into a commit; see
:class:`pipeline.core.panes.firing.CommitLimits`.

Assumes names and ids of 16 bytes, and readings like a sensor's, which can be compressed and packed. A test compares the
sizes with those of the state that groups write.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.core.accumulation.accumulator import SEAL_AT
from pipeline.core.accumulation.reading_columns import FEW
from pipeline.core.panes.firing import Aggregation, CommitLimits
from pipeline.core.panes.group_state import PACKED_BYTES
from pipeline.core.schema.rate import Rate, groups_for

MARK_BYTES = 25
"""What a late event adds to the state of its group."""

_PART_BYTES = 60  # of a sensor's readings in a bundle, beside the readings
_STEPS = 60  # of a window, at which its state is computed


class SensorBytes(NamedTuple):
    """The state of one sensor.

    Attributes:
        peak: the windows, when they take most.
        mean_fired: those that each firing reads or writes, averaged over time.
    """

    peak: float
    mean_fired: float


@dataclass(frozen=True)
class GroupSizes:
    """The sizes of the groups of a fleet. All but ``groups`` are those of the largest group.

    Attributes:
        groups: the number of groups.
        sensors: the number of sensors.
        windows_bytes: the windows, when they take most.
        waiting_bytes: the readings that wait for the next firing.
        firings_per_second: the number of its firings in a second.
        traffic_per_second: the bytes of windows that firings read and write in a second.
    """

    groups: int
    sensors: int
    windows_bytes: float
    waiting_bytes: float
    firings_per_second: float
    traffic_per_second: float


def group_sizes(aggregation: Aggregation, rate: Rate) -> GroupSizes:
    """Returns the sizes of the groups of a table for a rate with a number of sensors."""
    groups = groups_for(rate)
    sensors = largest_group(rate.sensors or 1, groups)
    of_sensor = sensor_bytes(aggregation, rate)
    firing_us, length_us = _firing_us(aggregation), aggregation.firing.window.length_us
    early = min(1 / firing_us, sensors / rate.every_us) if aggregation.firing.early_us else 0
    at_end = 2 / max(length_us, rate.every_us / sensors)  # on time, and when a window closes
    at_ends = 2 * at_end if early else at_end  # read and written; without early panes, written on time and read at last
    return GroupSizes(
        groups=groups,
        sensors=sensors,
        windows_bytes=sensors * of_sensor.peak,
        waiting_bytes=sensors * firing_us / rate.every_us * waiting_event_bytes(rate.metrics),
        firings_per_second=1_000_000 * (early + at_end),
        traffic_per_second=1_000_000 * sensors * (2 * early * of_sensor.mean_fired + at_ends * of_sensor.peak),
    )


def largest_group(sensors: int, groups: int) -> int:
    """Returns how many sensors the largest group has, very probably: Bernstein's bound for a random distribution."""
    mean, spread = sensors / groups, math.log(groups)
    return min(sensors, math.ceil(mean + math.sqrt(2 * mean * spread) + spread / 3))


def waiting_event_bytes(metrics: int) -> int:
    """Returns the bytes of an event that waits for a firing, if it is its sensor's only one in a bundle."""
    return _PART_BYTES + 8 + 8 * metrics


def sensor_bytes(aggregation: Aggregation, rate: Rate) -> SensorBytes:
    """Returns the state of one sensor.

    A window is open until lateness has passed. See :mod:`pipeline.core.panes.group_state`.
    """
    firing_us, length_us = _firing_us(aggregation), aggregation.firing.window.length_us
    statistics = aggregation.tiers[0].statistics
    edges = 12 * rate.metrics if statistics.carries else 0

    def of_window(us: int) -> float:
        events = us / rate.every_us
        per_firing = firing_us / rate.every_us
        return min(1, events) * _readings_bytes(max(1, events), rate.metrics, per_firing) + edges

    full, opened = of_window(length_us), list[float]()
    for step in range(1, _STEPS + 1):
        at_us = length_us * step // _STEPS
        newest = of_window(at_us if step == _STEPS else at_us // firing_us * firing_us)
        opened.append(newest + max(0, (aggregation.firing.lateness_us - at_us) // length_us + 1) * full)
    return SensorBytes(max(opened), sum(opened) / _STEPS)


def _firing_us(aggregation: Aggregation) -> int:
    """Returns the time between two panes of a window."""
    length_us = aggregation.firing.window.length_us
    return min(aggregation.firing.early_us or length_us, length_us)


def _readings_bytes(events: float, metrics: int, per_firing: float) -> float:
    """Returns the bytes of a sensor's window, given its events and how many arrive from one firing to the next.

    Events wait until a firing finds enough of them to pack. benchmarks/sizes.py measures packed ones.
    """
    if events < FEW:
        return 10 + events * (4.1 + 2.8 * metrics)
    loose = events % (per_firing * math.ceil(SEAL_AT / per_firing))
    packed = (events - loose) * (0.95 + 0.77 * metrics)
    plain = 78 + 69 * metrics + packed + loose * (4 + 8 * metrics)
    compressed = 12 + 32 * metrics + packed + loose * (4.1 + 2.8 * metrics)
    return compressed if plain < PACKED_BYTES else plain


def commit_problem(aggregation: Aggregation, rate: Rate | None) -> str | None:
    """Returns why Dataflow could not commit a firing at the declared rate; None if no reason is known."""
    if rate is None or not rate.sensors:
        return None
    sizes = group_sizes(aggregation, rate)
    most_bytes = CommitLimits().state_bytes
    if sizes.windows_bytes <= most_bytes:
        return None
    return (
        f"the largest of {sizes.groups:,} groups may have {sizes.sensors:,} sensors × "
        f"{sizes.windows_bytes / sizes.sensors:,.0f} bytes of windows = {sizes.windows_bytes / 1e6:,.0f} MB of state, "
        f"over the {most_bytes // 10**6} MB that a firing can commit on Dataflow; declare a shorter first tier, or "
        "write fewer metrics or sensors to a table"
    )
