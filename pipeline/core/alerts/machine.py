"""The states that a sensor's values lead to under a rule.

The newest value moves the state, and what happened is never rewritten. :func:`step` is the definition: what one value
does that is newer than all before it. A value of a rule on readings is a reading; of a rule on windows, a statistic at
the window's end.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pipeline.core.alerts.rules import BETWEEN, CLEARS, FIRES, Rule

PENDING: "Kind" = "pending"
CALM: "Kind" = "calm"
FIRING: "Kind" = "firing"
RESOLVED: "Kind" = "resolved"
Kind = Literal["pending", "calm", "firing", "resolved"]
"""What a transition leads to. ``pending`` and ``calm`` are the begin and the end of a condition that did not last."""

NEVER_US = -(1 << 62)  # before all times
REORDER_US = 30_000_000
"""The event time by which a reading may be behind the sensor's newest one and still count."""


class Value(NamedTuple):
    """A value at an event time in µs. For a rule on windows, the time is the window's end.

    Attributes:
        time_us: the event time.
        value: the value.
        version: the version of the window's row, which is greater after a correction; 0 for a reading.
        readings: the number of readings in the window; None for a reading.
        coverage: the share of the readings that were expected in the window; None if nothing tells it.
    """

    time_us: int
    value: float
    version: int = 0
    readings: int | None = None
    coverage: float | None = None


class Transition(NamedTuple):
    """A change of state. Those of a sensor and rule have growing times, so the time is also the alert's number.

    Attributes:
        time_us: the event time.
        kind: the state that it leads to.
        value: the value that led to it: for ``firing``, the first one that met the condition. None without one.
        since_us: the time from which the condition has held, for ``firing``; else the event time.
        window: the window's value that led to it, for a rule on windows.
    """

    time_us: int
    kind: Kind
    value: float | None
    since_us: int
    window: Value | None = None


@dataclass(slots=True)
class Track:
    """What is known of a sensor under a rule.

    Attributes:
        rule_id: the id of the rule.
        phase: the state: ``calm``, ``pending`` or ``firing``.
        since_us: the time from which the condition has held, or the value has not moved.
        value: the first value that met the condition, or that has not moved.
        time_us: the time of the last transition.
        newest_us: the time of the newest value that the state has seen.
        newest: the newest value that the state has seen; NaN without one.
        version: the version of the newest value.
        told: whether the last message said that the alert fires, or may have said it in the job before.
        waits: whether the message waits that the alert fires.
        written_us: the time of the clock at which the last transition was written.
        held: readings that wait for others, since they may come in another order than that of their times.
    """

    rule_id: str
    phase: Kind = CALM
    since_us: int = NEVER_US
    value: float = 0.0
    time_us: int = NEVER_US
    newest_us: int = NEVER_US
    newest: float = math.nan
    version: int = 0
    told: bool = False
    waits: bool = False
    written_us: int = NEVER_US
    held: list[Value] = field(default_factory=list)

    def has_seen(self, value: Value) -> bool:
        """Returns whether a value is not newer than what the state has seen, nor corrects the newest window."""
        if value.time_us == self.newest_us:
            return value.version < self.version or not value.version
        return value.time_us < self.newest_us

    def may_move(self, rule: Rule, value: Value) -> bool:
        """Returns whether a value may change the state under a rule with a condition."""
        of_class = rule.condition.classify(value.value) if rule.condition else BETWEEN
        if self.phase == CALM:
            moves = of_class == FIRES
        elif self.phase == FIRING:
            moves = of_class == CLEARS
        else:
            moves = of_class != FIRES or value.time_us >= self.since_us + rule.for_us
        return moves and not self.has_seen(value)

    def move(
        self, kind: Kind, time_us: int, value: float | None, since_us: int, window: Value | None = None
    ) -> Transition:
        """Changes the state, later than the last time, and returns the transition."""
        self.time_us = max(time_us, self.time_us + 1)
        self.phase = CALM if kind == RESOLVED else kind
        if kind in (PENDING, FIRING):
            self.since_us, self.value = since_us, value or 0.0
        return Transition(self.time_us, kind, value, since_us, window)


def step(rule: Rule, track: Track, value: Value) -> list[Transition]:
    """Moves the state by one value, which is newer than all before it. Returns the transitions, at most two."""
    if rule.unchanged_for_us:
        found = _unchanged(rule, track, value)
    elif rule.per_us:
        rate = (value.value - track.newest) / (value.time_us - track.newest_us) * rule.per_us
        found = [] if math.isnan(track.newest) else _compared(rule, track, Value(value.time_us, rate))
    else:
        found = _compared(rule, track, value)
    track.newest_us, track.newest, track.version = value.time_us, value.value, value.version
    return found


def evaluate(rule: Rule, track: Track, values: Iterable[Value], newest: Value | None = None) -> list[Transition]:
    """Moves the state by values that came together, in the order of their times.

    Args:
        rule: the rule.
        track: the track, which is changed.
        values: the values.
        newest: the newest reading of the sensor beside those that came. Values that are behind it by more than
            :data:`REORDER_US` change nothing.
    """
    by_time = {value.time_us: value for value in sorted(values, key=lambda each: each.version)}
    ordered = [by_time[time_us] for time_us in sorted(by_time)]
    if newest is not None:
        ordered = [value for value in ordered if value.time_us >= newest.time_us - REORDER_US]
        if not ordered or newest.time_us > ordered[-1].time_us:
            ordered.append(newest)
    return [found for value in ordered if not track.has_seen(value) for found in step(rule, track, value)]


def fire_if_due(rule: Rule, track: Track, watermark_us: int) -> list[Transition]:
    """Fires an alert whose condition has held for long enough by the watermark."""
    due_us = track.since_us + rule.for_us
    if track.phase != PENDING or watermark_us <= due_us:
        return []
    return [track.move(FIRING, due_us, track.value, track.since_us)]


def _compared(rule: Rule, track: Track, value: Value) -> list[Transition]:
    condition, time_us = rule.condition, value.time_us
    assert condition is not None  # noqa: S101 (for the type checker)
    of_class, found, window = condition.classify(value.value), list[Transition](), value if rule.of else None
    if track.phase == PENDING:
        due_us = track.since_us + rule.for_us
        if time_us > due_us or (time_us == due_us and of_class == FIRES):
            found.append(track.move(FIRING, due_us, track.value, track.since_us, window))
        elif of_class != FIRES:
            return [track.move(CALM, time_us, value.value, time_us)]
    if track.phase == FIRING and of_class == CLEARS:
        found.append(track.move(RESOLVED, time_us, value.value, time_us, window))
    elif track.phase == CALM and of_class == FIRES:
        found.append(track.move(PENDING if rule.for_us else FIRING, time_us, value.value, time_us, window))
    return found


def _unchanged(rule: Rule, track: Track, value: Value) -> list[Transition]:
    if track.since_us == NEVER_US or abs(value.value - track.value) > rule.tolerance:
        found = [track.move(RESOLVED, value.time_us, value.value, value.time_us)] if track.phase == FIRING else []
        track.since_us, track.value = value.time_us, value.value
        return found
    due_us = track.since_us + rule.unchanged_for_us
    if track.phase == FIRING or value.time_us < due_us:
        return []
    return [track.move(FIRING, due_us, track.value, track.since_us)]
