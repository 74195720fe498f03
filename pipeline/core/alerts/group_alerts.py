"""Decides what a step does with each element of a group of sensors, and with each timer. The step only keeps state.

An element is one of these, by its first byte:

- readings, as :mod:`pipeline.core.panes.grouped_readings` encodes them;
- :data:`BEGIN`, which begins a group when a job starts, so that it knows the alerts of the job before;
- sensors that are silent;
- statistics of windows that are done.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pipeline.core.alerts.evaluation import Evaluation, Found
from pipeline.core.alerts.group_tracks import NEVER_DUE_US, GroupTracks
from pipeline.core.alerts.machine import Value
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.silence import SilentSensors
from pipeline.core.alerts.stored_alerts import AlertTable
from pipeline.core.panes.grouped_readings import VERSION

BEGIN = b"\x00"
_SILENT, _WINDOWS = b"\x02", b"\x03"  # the version of readings is 1
_NEWER_US = 60_000_000  # the least time for which readings are kept, besides the allowed lateness


class ReadingsBag(Protocol):
    """A bag of readings in the state."""

    def read(self) -> Iterable[bytes]:
        """Returns the readings."""

    def add(self, element: bytes) -> None:
        """Adds readings."""

    def clear(self) -> None:
        """Removes all."""


class AlertState(NamedTuple):
    """The state of a group.

    Attributes:
        read: returns the group's tracks; None at first.
        write: replaces them.
        bags: the newer and the older readings; or the older and the newer ones, if the bags have changed places.
        set_timer: sets the timer of the watermark, in µs.
    """

    read: Callable[[], bytes | None]
    write: Callable[[bytes], None]
    bags: tuple[ReadingsBag, ReadingsBag]
    set_timer: Callable[[int], None]


class WindowValue(NamedTuple):
    """A statistic of a window that is done.

    Attributes:
        sensor_id: the sensor.
        rule_id: the id of the rule.
        end_us: the end of the window.
        value: the statistic.
    """

    sensor_id: str
    rule_id: str
    end_us: int
    value: float


def silent_part(silent: SilentSensors) -> bytes:
    """Encodes silent sensors of a group as an element."""
    return _SILENT + silent.to_bytes()


def windows_part(values: Sequence[WindowValue]) -> bytes:
    """Encodes statistics of a group's windows as an element."""
    return _WINDOWS + json.dumps(values).encode()


class GroupAlerts:
    """Decides for groups of sensors.

    Args:
        name: the id of the table.
        lateness_us: the time by which a reading may be late.
        table: the table, with the rules.
    """

    def __init__(self, name: str, lateness_us: int, table: AlertTable) -> None:
        self._name, self._lateness_us, self._table = name, lateness_us, table
        self._kept_us = lateness_us + _NEWER_US

    def process(self, group: int, part: bytes, state: AlertState, now_us: int) -> Found:
        """Evaluates an element."""
        tracks, rules = self._read(state)
        is_calm = tracks.is_empty and tracks.rules_number == rules.number and now_us < tracks.newer_us + self._kept_us
        if part[0] == VERSION and is_calm:
            concerned, may_fire = rules.look(part)
            if not may_fire:
                if concerned:
                    _newer(tracks, state).add(part)
                return Found()
        evaluation, due_us = self._begin(group, state, tracks, rules, now_us)
        if part[0] == VERSION:
            concerned = evaluation.add(part)
            self._turn(tracks, state, evaluation, now_us)
            if concerned:
                _newer(tracks, state).add(part)
        elif part.startswith(_SILENT):
            silent = SilentSensors.from_bytes(part[1:])
            if (rule := rules.by_id.get(silent.rule_id)) is not None:
                evaluation.add_silent(rule, silent)
        elif part.startswith(_WINDOWS):
            windows = map(WindowValue._make, _content(part))
            evaluation.add_windows(
                (rule, window.sensor_id, Value(window.end_us, window.value))
                for window in windows
                if (rule := rules.by_id.get(window.rule_id)) is not None
            )
        return self._end(evaluation, tracks, state, due_us)

    def pass_watermark(self, group: int, watermark_us: int, state: AlertState, now_us: int) -> Found:
        """Evaluates what the passing of the watermark means."""
        tracks, rules = self._read(state)
        evaluation, _ = self._begin(group, state, tracks, rules, now_us)
        evaluation.pass_watermark(watermark_us)
        return self._end(evaluation, tracks, state, NEVER_DUE_US)

    def _read(self, state: AlertState) -> tuple[GroupTracks, RuleSet]:
        tracks = GroupTracks(state.read())
        return tracks, self._table.rules(tracks.rules_number)  # another process may have read newer ones than this one

    def _begin(
        self, group: int, state: AlertState, tracks: GroupTracks, rules: RuleSet, now_us: int
    ) -> tuple[Evaluation, int]:
        def recents() -> Iterable[bytes]:
            yield from _older(tracks, state).read()
            yield from _newer(tracks, state).read()

        evaluation = Evaluation(rules, tracks, self._name, self._lateness_us, recents, self._table, now_us)
        due_us = tracks.due_us
        if tracks.begins:
            tracks.newer_us = now_us
            evaluation.restore(self._table.restored(group))
        evaluation.change_rules()
        return evaluation, due_us

    def _turn(self, tracks: GroupTracks, state: AlertState, evaluation: Evaluation, now_us: int) -> None:
        """Drops the older readings, once the newer ones cover the time for which readings are kept."""
        if now_us < tracks.newer_us + self._kept_us:
            return
        _older(tracks, state).clear()
        tracks.turned = not tracks.turned
        tracks.newer_us = now_us
        evaluation.drop_idle()

    def _end(self, evaluation: Evaluation, tracks: GroupTracks, state: AlertState, due_us: int) -> Found:
        if tracks.due_us != due_us and tracks.due_us != NEVER_DUE_US:
            state.set_timer(tracks.due_us)
        if evaluation.changed:
            state.write(tracks.to_bytes())
        return evaluation.found


def _newer(tracks: GroupTracks, state: AlertState) -> ReadingsBag:
    return state.bags[tracks.turned]


def _older(tracks: GroupTracks, state: AlertState) -> ReadingsBag:
    return state.bags[not tracks.turned]


def _content(part: bytes) -> Any:
    return json.loads(part[1:])
