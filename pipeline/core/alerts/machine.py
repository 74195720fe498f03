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

_ALERTS = (FIRING, RESOLVED)

NEVER_US = -(1 << 62)  # before all times
MOST_VALUES = 5_000
"""The most values of a track."""


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
        told_us: the greatest time of an alert that was told.
        version: a number that grows with each update that changes anything and each alert that is told. It orders what
            is written and told. It is no less than the event time: so it grows too if the row was collected meanwhile.
        is_new: whether nothing of the values was written yet.
        history: the last transitions in the row of a track that was restored, until its values are known again.
        floor_us: the time up to which a new track may not be taken back: what was before is not known, or another
            rule's.
        revision: the revision of the rule; empty if the track has not begun, or its rule was changed or removed.
        unread: whether the row is yet to be read: of an alert that was over when the job began, by ``after_us``.
        written_us: the time at which the last row was written, by the clock.
        severity: the severity of the rule, for the message that ends the alert if the rule is gone.
    """

    state: State = BEGIN
    after_us: int = NEVER_US
    values: list[Value] = field(default_factory=list)
    watermark_us: int = NEVER_US
    told: bool = False
    told_us: int = NEVER_US
    version: int = 0
    is_new: bool = True
    history: list[Transition] = field(default_factory=list)
    floor_us: int = NEVER_US
    revision: str = ""
    unread: bool = False
    written_us: int = NEVER_US
    severity: str = ""

    def ended(self, time_us: int) -> "Track":
        """Returns the track after its rule was changed or removed. Only values after that time count for the next."""
        return Track(
            after_us=time_us, floor_us=time_us, told_us=time_us, version=self.version, written_us=self.written_us
        )

    @property
    def is_open(self) -> bool:
        """Whether the alert fires, or the state before the values is that it will unless a value contradicts."""
        return self.told or self.state.pending is not None

    def rewind(self, to_us: int) -> None:
        """Takes a restored track back to an earlier time, from which its values have to become known again."""
        if to_us < self.after_us:
            before = [each for each in self.history if each.time_us <= to_us]
            self.state, self.after_us = state_after(before[-1]) if before else BEGIN, to_us

    def know(self, values: Iterable[Value]) -> None:
        """Adds values that were known before, to a track that is new."""
        self._add(values)

    def update(self, rule: Rule, values: Iterable[Value], watermark_us: int, lateness_us: int) -> Changes:
        """Adds values. The last of the transitions that are told has the number :attr:`version`, those before it less.

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
        self.is_new, self.history, self.revision, self.severity = False, [], rule.revision, rule.severity
        self._add(values)
        self.watermark_us = max(self.watermark_us, watermark_us)
        after, last = transitions(rule, self.values, self.watermark_us, self.state)
        changes = NO_CHANGES
        if after != before or last.firing != self.told:
            added = [each for each in after if each not in before]
            withdrawn = [each for each in before if each not in after]
            told = self._to_tell(after, added, withdrawn, newest_us, firing=last.firing)
            changes = Changes(added, withdrawn, told)
            self.told = last.firing
            self.told_us = max([self.told_us, *(each.time_us for each in told)])
            self.version = max(self.version + max(1, len(told)), self.newest_us)
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
        self,
        after: Sequence[Transition],
        added: Sequence[Transition],
        withdrawn: Sequence[Transition],
        newest_us: int,
        *,
        firing: bool,
    ) -> list[Transition]:
        """Returns the transitions after what was known, and one that tells the state if that is another then.

        So what a late value shows to have begun and ended in the past is not told. What is told is never older than
        what was told before, or turned out not to have taken place.
        """
        least_us = max([self.told_us, *(each.time_us for each in withdrawn if each.kind in _ALERTS)])
        alerts = [each for each in after if each.kind in _ALERTS]
        told: list[Transition] = []
        believed = self.told
        for each in alerts:
            if each.time_us > newest_us and each in added and (each.kind == FIRING) is not believed:
                told.append(each)
                believed = not believed
        if believed is not firing:
            last = alerts[-1] if alerts and (alerts[-1].kind == FIRING) is firing else None
            if last is None or (last.kind == RESOLVED and last not in added):  # something did not take place after all
                time_us = max(least_us, self.after_us)
                last = Transition(time_us, FIRING if firing else RESOLVED, None, time_us)
            told.append(last)
        return [each._replace(time_us=max(each.time_us, least_us)) for each in told]

    def _forget(self, rule: Rule, lateness_us: int) -> None:
        """Drops values that no late one can change, and keeps the state after them."""
        count = bisect_left(self.values, self.newest_us - lateness_us, key=_time_of)
        count = max(count, len(self.values) - MOST_VALUES)
        if count > 0:
            dropped = self.values[:count]
            _, self.state = transitions(rule, dropped, state=self.state)
            self.after_us = dropped[-1].time_us
            del self.values[:count]


def state_after(transition: Transition) -> State:
    """Returns the state that a transition leads to."""
    pending = Value(transition.time_us, transition.value or 0.0) if transition.kind == PENDING else None
    return State(transition.kind == FIRING, pending)


def _time_of(value: Value) -> int:
    return value.time_us
