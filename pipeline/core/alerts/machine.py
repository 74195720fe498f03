"""The states that a sensor's values lead to under a rule.

:func:`transitions` is the definition: what happens if all values of a sensor are known, in the order of their event
times. :class:`Track` computes the same from values that come late, twice and in any order. It keeps the values of the
allowed lateness, and the state before them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pipeline.core.alerts.conditions import CLEARS, FIRES
from pipeline.core.alerts.rules import Rule

PENDING: "Kind" = "pending"
CALM: "Kind" = "calm"
FIRING: "Kind" = "firing"
RESOLVED: "Kind" = "resolved"
Kind = Literal["pending", "calm", "firing", "resolved"]
"""What a transition leads to. ``pending`` and ``calm`` are the begin and the end of a condition that did not last."""

NEVER_US = -(1 << 62)  # before all times
_MOST_VALUES = 5_000  # of a track
_MOST_HISTORY = 100  # transitions of a track that was restored


class Value(NamedTuple):
    """A value at an event time in µs. For a rule on windows, the time is the window's end."""

    time_us: int
    value: float


class Transition(NamedTuple):
    """A change of state.

    Attributes:
        time_us: the event time.
        kind: the state that it leads to.
        value: the value that led to it: for ``firing``, the first one that met the condition. None without one.
        since_us: the time from which the condition has held, for ``firing``; else the event time.
    """

    time_us: int
    kind: Kind
    value: float | None
    since_us: int


class State(NamedTuple):
    """A state: firing, pending since a value, or neither."""

    firing: bool = False
    pending: Value | None = None


BEGIN = State()


def transitions(
    rule: Rule, values: Iterable[Value], watermark_us: int = NEVER_US, state: State = BEGIN
) -> tuple[list[Transition], State]:
    """Returns the transitions that values lead to, and the last state.

    Args:
        rule: a rule with a condition.
        values: a sensor's values, by their times, each time once.
        watermark_us: the time before which no more values are expected.
        state: the state before the values.
    """
    condition, for_us = rule.condition, rule.for_us
    assert condition is not None  # noqa: S101 (for the type checker)
    found: list[Transition] = []
    firing, pending = state
    for value in values:
        time_us, of_class = value.time_us, condition.classify(value.value)
        if pending is not None:
            due_us = pending.time_us + for_us
            if time_us > due_us or (time_us == due_us and of_class == FIRES):
                found.append(Transition(due_us, FIRING, pending.value, pending.time_us))
                firing, pending = True, None
            elif of_class != FIRES:
                found.append(Transition(time_us, CALM, value.value, time_us))
                pending = None
        if firing:
            if of_class == CLEARS:
                found.append(Transition(time_us, RESOLVED, value.value, time_us))
                firing = False
        elif of_class == FIRES and pending is None:
            if for_us:
                found.append(Transition(time_us, PENDING, value.value, time_us))
                pending = value
            else:
                found.append(Transition(time_us, FIRING, value.value, time_us))
                firing = True
    if pending is not None and watermark_us > pending.time_us + for_us:
        found.append(Transition(pending.time_us + for_us, FIRING, pending.value, pending.time_us))
        firing, pending = True, None
    return found, State(firing, pending)


class Changes(NamedTuple):
    """What new values change.

    Attributes:
        added: transitions that are new.
        withdrawn: transitions that did not take place after all, as a late value shows.
        told: the transitions to tell about, in order.
    """

    added: list[Transition]
    withdrawn: list[Transition]
    told: list[Transition]


NO_CHANGES = Changes([], [], [])


@dataclass
class Track:
    """What is known of a sensor under a rule.

    Attributes:
        state: the state before the values.
        after_us: the time up to which values are in the state. Earlier ones that come now are too late to matter.
        values: the values after that time, in order.
        watermark_us: the watermark at the last update.
        told: whether the last message about the sensor said that the alert fires.
        version: a number that grows with each update that changes anything, which orders what they write.
        is_new: whether nothing of the values was written yet.
        history: the last transitions in the row of a track that was restored, until its values are known again.
    """

    state: State = BEGIN
    after_us: int = NEVER_US
    values: list[Value] = field(default_factory=list)
    watermark_us: int = NEVER_US
    told: bool = False
    version: int = 0
    is_new: bool = True
    history: list[Transition] = field(default_factory=list)

    @classmethod
    def restored(cls, history: Sequence[Transition], version: int = 0) -> "Track":
        """Returns the track after the transitions that a row contains, and the row's greatest version."""
        last = history[-1]
        told = last.kind == FIRING
        return cls(_after(last), last.time_us, told=told, version=version, history=[*history[-_MOST_HISTORY:]])

    def rewind(self, to_us: int) -> None:
        """Takes a restored track back to an earlier time, from which its values have to become known again."""
        before = [each for each in self.history if each.time_us <= to_us]
        if len(self.history) == _MOST_HISTORY and not before:
            before = self.history[:1]  # what was before is not known
            to_us = before[0].time_us
        if self.history and to_us < self.after_us:
            self.state, self.after_us = _after(before[-1]) if before else BEGIN, to_us

    def know(self, values: Iterable[Value]) -> None:
        """Adds values that were known before, to a track that is new."""
        self._add(values)

    def update(self, rule: Rule, values: Iterable[Value], watermark_us: int, lateness_us: int) -> Changes:
        """Adds values.

        Args:
            rule: the rule.
            values: the values.
            watermark_us: the watermark.
            lateness_us: the time for which a value may be behind the sensor's newest one, to change anything.
        """
        newest_us = self.newest_us
        if not self.is_new:
            before, _ = transitions(rule, self.values, self.watermark_us, self.state)
        else:  # the values may tell another story than the row
            before = [each for each in self.history if each.time_us > self.after_us]
        self.is_new, self.history = False, []
        self._add(values)
        self.watermark_us = max(self.watermark_us, watermark_us)
        after, last = transitions(rule, self.values, self.watermark_us, self.state)
        changes = NO_CHANGES
        if after != before or last.firing != self.told:
            changes = Changes(
                [each for each in after if each not in before],
                [each for each in before if each not in after],
                self._to_tell(before, after, newest_us, firing=last.firing),
            )
            self.told = last.firing
            self.version = max(self.version + 1, self.newest_us)
        self._forget(rule, lateness_us)
        return changes

    @property
    def newest_us(self) -> int:
        """The time of the newest value."""
        return self.values[-1].time_us if self.values else self.after_us

    def due_us(self, rule: Rule) -> int | None:
        """Returns the watermark at which the alert fires unless a value contradicts; None if there is none."""
        _, last = transitions(rule, self.values, self.watermark_us, self.state)
        return None if last.pending is None else last.pending.time_us + rule.for_us + 1

    def is_idle(self, rule: Rule) -> bool:
        """Returns whether the values lead to no transition, so that nothing has to be kept."""
        return self.state == BEGIN and not self.told and not transitions(rule, self.values, self.watermark_us)[0]

    def _add(self, values: Iterable[Value]) -> None:
        for value in values:
            if value.time_us <= self.after_us:
                continue
            index = bisect_left(self.values, value.time_us, key=_time_of)
            if index == len(self.values) or self.values[index].time_us != value.time_us:
                self.values.insert(index, value)
            else:
                self.values[index] = value  # a correction: the last one counts

    def _to_tell(
        self, before: Sequence[Transition], after: Sequence[Transition], newest_us: int, *, firing: bool
    ) -> list[Transition]:
        """Returns the transitions after what was known, and one that tells the state if that is another then.

        So what a late value shows to have begun and ended in the past is not told.
        """
        alerts = [each for each in after if each.kind in (FIRING, RESOLVED)]
        told: list[Transition] = []
        believed = self.told
        for each in alerts:
            if each.time_us > newest_us and each not in before and (each.kind == FIRING) is not believed:
                told.append(each)
                believed = not believed
        if believed is firing:
            return told
        if alerts and (alerts[-1].kind == FIRING) is firing:
            return [*told, alerts[-1]]
        withdrawn = [each.time_us for each in before if each.kind in (FIRING, RESOLVED)]
        time_us = max([*withdrawn, self.after_us])
        return [*told, Transition(time_us, FIRING if firing else RESOLVED, None, time_us)]

    def _forget(self, rule: Rule, lateness_us: int) -> None:
        """Drops values that no late one can change, and keeps the state after them."""
        count = bisect_left(self.values, self.newest_us - lateness_us, key=_time_of)
        count = max(count, len(self.values) - _MOST_VALUES)
        if count > 0:
            dropped = self.values[:count]
            _, self.state = transitions(rule, dropped, state=self.state)
            self.after_us = dropped[-1].time_us
            del self.values[:count]


def _after(transition: Transition) -> State:
    """Returns the state that a transition leads to."""
    pending = Value(transition.time_us, transition.value or 0.0) if transition.kind == PENDING else None
    return State(transition.kind == FIRING, pending)


def _time_of(value: Value) -> int:
    return value.time_us
