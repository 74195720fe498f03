"""A reference for what a table must contain, from plain sets, lists and fractions, without the project's code."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from zoneinfo import ZoneInfo

MS, SECOND = 1000, 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
MAX_FUTURE_US = HOUR

LENGTHS = {"15m": 15 * MINUTE, "1h": HOUR, "90m": 90 * MINUTE, "6h": 6 * HOUR, "1d": DAY}
LONGEST = {"1d": DAY + HOUR, "1w": 7 * DAY + HOUR, "1mo": 31 * DAY + HOUR}
"""The lengths of windows, those of a calendar without their zone."""


@dataclass(frozen=True)
class Published:
    """A published event, valid or not.

    The value of a reading follows from its sensor, its millisecond and its metric. Two values for one reading are a
    publisher's error, for which nothing is promised.
    """

    sensor_id: str
    time_us: int
    metrics: tuple[str, ...]
    location: str = ""  # metadata, unless it is empty
    event_id: str = ""
    fault: str = ""  # the expected reason for a dead letter

    @property
    def readings(self):
        return {metric: value_of(self.time_us, metric) for metric in self.metrics}

    def refused(self, now_us, kinds):
        """Returns why a job that writes these kinds of tables refuses the event, or "" if it does not."""
        if self.fault in ("UNPARSEABLE", "MISSING_SENSOR_ID"):
            return self.fault
        if self.time_us > now_us + MAX_FUTURE_US:
            return "EVENT_TIME_IN_FUTURE"
        if self.fault:
            return self.fault
        if any((kind.location and not self.location) or (kind.event_id and not self.event_id) for kind in kinds):
            return "MISSING_KEY_FIELD"
        return ""


@dataclass(frozen=True)
class Kind:
    """How a table distinguishes and stores events, derived by hand.

    Attributes:
        grain_us: the unit to which event times are floored.
        location: whether row keys contain the metadata "location".
        event_id: whether row keys contain the event_id.
        logs: whether the metric "u" has a family of its own.
    """

    grain_us: int
    location: bool = False
    event_id: bool = False
    logs: bool = False

    def identity(self, event):
        """Returns what distinguishes the event from all others."""
        return (
            event.sensor_id,
            event.time_us - event.time_us % self.grain_us,
            event.location if self.location else "",
            event.event_id if self.event_id else "",
        )

    def family(self, metric):
        return "logs" if self.logs and metric == "u" else "raw"


class Truth:
    """The readings of one table: all that it ever accepted, and those that still exist.

    Attributes:
        accepted: metrics by identity.
        held: the same, without what was collected.
    """

    def __init__(self, kind):
        self.kind = kind
        self.accepted = defaultdict(set)
        self.held = defaultdict(set)
        self._windows = {}

    def accept(self, event):
        """Adds an event; returns whether any part of it was there already."""
        identity = self.kind.identity(event)
        known = identity in self.accepted
        self.accepted[identity] |= set(event.metrics)
        self.held[identity] |= set(event.metrics)
        self._windows.clear()
        return known

    def collect(self, ages_us, now_us):
        """Removes readings older than their family's age; ages are by family, None means forever."""
        for identity in list(self.held):
            cell_us = identity[1] - identity[1] % MS
            left = set()
            for metric in self.held[identity]:
                age_us = ages_us[self.kind.family(metric)]
                if age_us is None or cell_us >= now_us - age_us:
                    left.add(metric)
            if left:
                self.held[identity] = left
            else:
                del self.held[identity]
        self._windows.clear()

    def windows(self, text, *, held=False):
        """Returns the expected content of each aggregate row, by sensor and start."""
        found = self._windows.get((text, held))
        if found is None:
            found = self._windows[text, held] = _windows(self.held if held else self.accepted, text)
        return found

    def before(self, sensor_id, metric, start_us):
        """Returns the time of a sensor's last reading of a metric before a window; None without one."""
        times = self._times.get((sensor_id, metric), [])
        place = bisect_left(times, start_us)
        return times[place - 1] if place else None

    @property
    def _times(self):
        if "times" not in self._windows:
            found = self._windows["times"] = defaultdict(set)
            for identity, metrics in self.accepted.items():
                for metric in metrics:
                    found[identity[0], metric].add(identity[1])
            self._windows["times"] = {key: sorted(times) for key, times in found.items()}
        return self._windows["times"]

    def increase(self, sensor_id, metric, start_us, text):
        """Returns by how much a counter rises in a window, from the last reading before it."""
        times = self._times.get((sensor_id, metric), [])
        first, end = bisect_left(times, start_us), bisect_left(times, end_of(start_us, text))
        course = [Fraction(value_of(time_us, metric)) for time_us in times[max(first - 1, 0) : end]]
        return sum((b - a if b >= a else max(b, Fraction(0)) for a, b in pairwise(course)), Fraction(0))


@dataclass(frozen=True)
class Counted:
    """A window's number of events, and the values of each metric."""

    events: int
    values: tuple[tuple[str, tuple[float, ...]], ...]

    def agrees(self, row):
        """Returns whether an aggregate row, values by column, equals this window."""
        return _agrees(self, tuple(sorted(row.items())))

    def includes(self, row):
        """Returns whether an aggregate row may count some of these readings, each once."""
        values = dict(self.values)
        counts = {name.removeprefix("count_"): int(row[name]) for name in row if name.startswith("count_")}
        return row["reading_count"] <= self.events and all(
            round(row[f"sum_{metric}"], 6) in _sums(values.get(metric, ()), count) for metric, count in counts.items()
        )


def value_of(time_us, metric):
    """Returns a fixed value with decimals."""
    return (time_us // MS % 997 - 400) / 7 + ord(metric) / 10


def _sums(values, count):
    """Returns the sums of any so many of the values, rounded."""
    found = {0: {0.0}}
    for value in values:
        for fewer in sorted(found, reverse=True):
            found.setdefault(fewer + 1, set()).update(each + value for each in found[fewer])
    return {round(each, 6) for each in found.get(count, ())}


def less(row, other):
    """Returns whether a row counts less of anything than another one."""
    return any(row.get(name, 0) < count for name, count in other.items())


def counts_of(row):
    """Returns the counts among a row's values."""
    return {name: value for name, value in row.items() if name == "reading_count" or name.startswith("count_")}


def start_of(time_us, text):
    """Returns the start of the window that contains the time."""
    if text in LENGTHS:
        return time_us - time_us % LENGTHS[text]
    return _calendar_start(time_us // HOUR, text)


def end_of(start_us, text):
    """Returns the end of the window that starts then."""
    if text in LENGTHS:
        return start_us + LENGTHS[text]
    return _calendar_start((start_us + LONGEST[text.partition("@")[0]]) // HOUR, text)


@lru_cache(maxsize=1 << 14)
def _calendar_start(hour, text):
    """Returns the start of the window that contains an hour, by the calendar on the wall."""
    unit, _, zone = text.partition("@")
    local = datetime.fromtimestamp(hour * 3600, UTC).astimezone(ZoneInfo(zone or "UTC"))
    day = local.replace(hour=0, tzinfo=None)
    if unit == "1w":
        day -= timedelta(day.weekday())
    elif unit == "1mo":
        day = day.replace(day=1)
    return round(day.replace(tzinfo=local.tzinfo).timestamp()) * SECOND


def _windows(readings, text):
    identities = defaultdict(list)
    for identity, metrics in readings.items():
        identities[identity[0], start_of(identity[1], text)].append((identity, metrics))
    found = {}
    for window, members in identities.items():
        values = defaultdict(list)
        for identity, metrics in sorted(members):
            for metric in metrics:
                values[metric].append(value_of(identity[1], metric))
        found[window] = Counted(len(members), tuple((metric, tuple(values[metric])) for metric in sorted(values)))
    return found


@lru_cache(maxsize=1 << 14)
def _agrees(counted, row):
    row = dict(row)
    expected = {"reading_count": Fraction(counted.events)}
    tolerances = {}
    for metric, values in counted.values:
        count, exact = len(values), [Fraction(value) for value in values]
        total = sum(exact)
        tolerance = sum(map(abs, exact)) / 10**9
        variance = sum((value - total / count) ** 2 for value in exact) / count
        expected |= {
            f"count_{metric}": Fraction(count),
            f"min_{metric}": min(exact),
            f"max_{metric}": max(exact),
            f"sum_{metric}": total,
            f"avg_{metric}": total / count,
            f"stddev_{metric}": _root(variance),
        }
        tolerances |= {f"sum_{metric}": tolerance, f"avg_{metric}": tolerance / count}
        tolerances[f"stddev_{metric}"] = tolerance / count
    return row.keys() == expected.keys() and all(
        abs(Fraction(row[name]) - value) <= tolerances.get(name, 0) for name, value in expected.items()
    )


def _root(square):
    """Returns the square root, more exact than a double."""
    return Fraction(isqrt(int(square * 10**60)), 10**30)
