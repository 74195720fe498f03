"""Decides what a step does with each element of a group of sensors, and with each timer. The step only keeps state.

An element is one of these, by its first byte:

- readings, as :mod:`pipeline.core.panes.grouped_readings` encodes them;
- :data:`BEGIN`, which begins a group when a job starts, so that it knows the alerts of the job before;
- sensors that are silent;
- statistics of windows that are over.

A reading that moves no state costs a comparison. One that may move a state is held for two seconds with those that
follow it, since readings of a sensor may come in another order than that of their times. Then the table tells the
sensor's newest reading, and whether another alert was before: a late reading moves nothing.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pipeline.core.accumulation.reading_columns import time_of_key
from pipeline.core.alerts.alert_messages import Alert, alert_of
from pipeline.core.alerts.alert_rows import AlertRecord, alert_row
from pipeline.core.alerts.group_tracks import NEVER_DUE_US, GroupTracks
from pipeline.core.alerts.machine import (
    CALM,
    FIRING,
    NEVER_US,
    PENDING,
    RESOLVED,
    Track,
    Transition,
    Value,
    evaluate,
    fire_if_due,
    step,
)
from pipeline.core.alerts.rule_set import RuleSet, may_fire
from pipeline.core.alerts.rules import Rule
from pipeline.core.panes.firing import END_US, IN_FLIGHT_US
from pipeline.core.panes.grouped_readings import VERSION, Readings, read_group_readings, read_group_values
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.table_schema import TableSchema

BEGIN = b"\x00"
_SILENT, _WINDOWS = b"\x02", b"\x03"  # the version of readings is 1
_BEGIN = CALM, NEVER_US
_HOLD_US = 2_000_000
_WAIT_US = 60_000_000  # a mute may end early, and so may quiet hours if clocks change
_MOST_HELD = 5_000  # readings of a sensor and rule

AlertKey = tuple[str, str]
"""The name of a rule, and a sensor."""
SensorMetric = tuple[str, str]
"""A sensor and a metric."""


class SilentSensors(NamedTuple):
    """All sensors of a group that are silent under a rule, in a range of ids.

    Attributes:
        rule_id: the id of the rule.
        watermark_us: the time by which they are silent: the watermark, or one by the clock while the watermark stands.
        after: the id before the range; empty for the first range.
        until: the last id of the range; None for the last range.
        newest_us: the time of each sensor's newest reading; None for one that never sent.
    """

    rule_id: str
    watermark_us: int
    after: str
    until: str | None
    newest_us: dict[str, int | None]

    def spans(self, sensor_id: str) -> bool:
        """Returns whether a sensor's id is in the range."""
        return self.after < sensor_id and (self.until is None or sensor_id <= self.until)


class WindowValue(NamedTuple):
    """A statistic of a window that is over.

    Attributes:
        sensor_id: the sensor.
        rule_id: the id of the rule.
        value: the statistic.
    """

    sensor_id: str
    rule_id: str
    value: Value


def silent_part(silent: SilentSensors) -> bytes:
    """Encodes silent sensors of a group as an element."""
    return _SILENT + json.dumps(silent, separators=(",", ":")).encode()


def windows_part(values: Sequence[WindowValue]) -> bytes:
    """Encodes statistics of a group's windows as an element."""
    return _WINDOWS + json.dumps(values, separators=(",", ":")).encode()


class StoredAlerts(NamedTuple):
    """The alerts of a group by the table when the job begins.

    Attributes:
        open: the alerts that fire, or are about to.
        unsure: alerts whose last message may not have been published, because the process before was killed.
    """

    open: list[AlertRecord]
    unsure: list[AlertRecord]


class AlertTable(Protocol):
    """A table, as the decisions about alerts read it."""

    def rules(self, least: int = 0) -> RuleSet:
        """Returns the rules, whose number is at least this one."""

    def restored(self, group: int) -> StoredAlerts:
        """Returns the alerts of a group when the job begins."""

    def records(self, keys: Sequence[AlertKey]) -> Mapping[AlertKey, AlertRecord]:
        """Returns the alerts that have rows."""

    def newest(self, came: Mapping[SensorMetric, Sequence[Value]]) -> Mapping[SensorMetric, Value]:
        """Returns the newest reading of each sensor beside those that came.

        Where the keys of raw rows do not locate a sensor, it is the newest of all, in whole milliseconds.
        """

    def newer_windows(self, rule: Rule, newest: Mapping[str, Value]) -> Collection[str]:
        """Returns the sensors of which the table has a newer window than this one, or a newer version of it."""

    def unchanged_since(self, rule: Rule, sensor_id: str, value: float, before_us: int) -> int:
        """Returns the time since which a sensor's readings before a time have not moved from a value."""

    def fitting(self, rule: Rule, newest_us: Mapping[str, int]) -> Collection[str]:
        """Returns the sensors whose metadata is what a rule asks for, given the times of their newest readings."""

    def stored(self, rule: Rule, sensors: Sequence[str]) -> tuple[Mapping[str, int], Collection[str]]:
        """Returns the times of the newest readings of sensors, and those sensors that have a row of the alert."""


class AlertState(NamedTuple):
    """The state of a group.

    Attributes:
        read: returns the group's tracks; None at first.
        write: replaces them.
        set_due: sets the timer of the watermark, in µs.
        set_wake: sets the timer of the clock, in µs.
    """

    read: Callable[[], bytes | None]
    write: Callable[[bytes], None]
    set_due: Callable[[int], None]
    set_wake: Callable[[int], None]


@dataclass
class Found:
    """What a decision leads to.

    Attributes:
        rows: the rows of alerts.
        alerts: the transitions to tell about.
    """

    rows: EncodedRows = field(default_factory=EncodedRows)
    alerts: list[Alert] = field(default_factory=list)


class GroupAlerts:
    """Decides for groups of sensors.

    Args:
        name: the id of the table.
        table: the table, with the rules.
        schema: the table's schema, for the units of metrics.
    """

    def __init__(self, name: str, table: AlertTable, schema: TableSchema) -> None:
        self._name, self._table, self._schema = name, table, schema

    def process(self, group: int, part: bytes, state: AlertState, now_us: int) -> Found:
        """Decides about an element."""
        data = state.read()
        tracks = GroupTracks(data)
        rules = self._table.rules(tracks.rules_number)  # another process may have read newer ones than this one
        has_readings = part[0] == VERSION
        if has_readings and tracks.is_empty and tracks.rules_number == rules.number and not rules.may_fire(part):
            return Found()
        decision = self._begin(group, tracks, rules, now_us)
        if has_readings:
            decision.add_readings(part)
        elif part.startswith(_SILENT):
            silent = SilentSensors(*json.loads(part[1:]))
            if (rule := rules.by_id.get(silent.rule_id)) is not None:
                decision.add_silent(rule, silent)
        elif part.startswith(_WINDOWS):
            decision.add_windows(
                (rules.by_id.get(rule_id), sensor_id, Value(*value))
                for sensor_id, rule_id, value in json.loads(part[1:])
            )
        return decision.end(state)

    def settle(
        self, group: int, state: AlertState, now_us: int, watermark_us: int | None = None, *, ends: bool = False
    ) -> Found:
        """Decides about held readings, tells what had to wait, and fires what is due by the watermark.

        Args:
            group: the group.
            state: the group's state.
            now_us: the current time.
            watermark_us: the watermark, for its timer; None for the timer of the clock.
            ends: whether the job drains or stops. Then no condition is taken to have held, and no timer follows.
        """
        tracks = GroupTracks(state.read())
        by_watermark = watermark_us is not None
        if by_watermark:
            tracks.due_us = NEVER_DUE_US
        decision = self._begin(group, tracks, self._table.rules(tracks.rules_number), now_us)
        decision.settle(NEVER_US if watermark_us is None or ends else watermark_us)
        if ends:  # a drain would wait for timers
            tracks.wake_us = NEVER_DUE_US
            tracks.due_us = NEVER_DUE_US if by_watermark else tracks.due_us
        return decision.end(state)

    def _begin(self, group: int, tracks: GroupTracks, rules: RuleSet, now_us: int) -> "_Decision":
        decision = _Decision(self._name, self._table, self._schema, tracks, rules, now_us)
        if tracks.begins:
            decision.restore(self._table.restored(group))
        decision.change_rules()
        return decision


class _Update(NamedTuple):
    """Values of a sensor, in any order, and a rule that looks at them."""

    rule: Rule
    sensor_id: str
    track: Track
    values: Sequence[Value]


class _Decision:
    """Decides about one element or timer of a group. For the arguments see :class:`GroupAlerts`."""

    def __init__(
        self, name: str, table: AlertTable, schema: TableSchema, tracks: GroupTracks, rules: RuleSet, now_us: int
    ) -> None:
        self._name, self._table, self._schema = name, table, schema
        self._tracks, self._rules, self._now_us = tracks, rules, now_us
        self._timers = tracks.due_us, tracks.wake_us
        self._changed = tracks.begins
        self._found = Found()

    def restore(self, stored: StoredAlerts) -> None:
        """Restores the tracks of alerts that fire, or are about to, from their rows. Tells unsure ones once more."""
        for record in stored.unsure:
            if (told := next(reversed(list(record.alerts)), None)) is not None:
                gone = Rule(record.rule, severity=record.severity, gone=True)
                rule = self._rules.by_id.get(record.track().rule_id, gone)
                if told.kind == RESOLVED or self._waits(rule, record.sensor_id) is None:
                    self._tell(rule, record.sensor_id, told)
        for record in stored.open:
            track = self._tracks.of(record.sensor_id)[record.rule] = record.track()
            known = self._rules.by_id.get(track.rule_id)
            if known is not None and known.follows:
                track.newest_us = track.time_us
            if known is not None and track.phase == FIRING:
                waited = self._rules.waits_until_us(known, record.sensor_id, track.time_us) is not None
                if waited or self._waits(known, record.sensor_id) is not None:  # it may be untold
                    self._tell_or_wait(known, record.sensor_id, track, record.last)
            elif known is not None:
                self._expect(known, track)

    def change_rules(self) -> None:
        """Ends the alerts of rules that are no longer there, or fire for something else now."""
        tracks, rules = self._tracks, self._rules
        if tracks.rules_number == rules.number:
            return
        tracks.rules_number, self._changed = rules.number, True
        ended = [each for each in tracks.all() if each[2].rule_id not in rules.by_id]
        open_ones = [each for each in ended if each[2].phase != CALM]
        records = self._table.records([(name, sensor_id) for sensor_id, name, _ in open_ones]) if open_ones else {}
        for sensor_id, name, track in open_ones:
            time_us, record = max(track.time_us, track.newest_us), records.get((name, sensor_id))
            gone = Rule(name, severity=record.severity, gone=True) if record else Rule(name, gone=True)
            kind = RESOLVED if track.phase == FIRING else CALM
            self._record(gone, sensor_id, track, [track.move(kind, time_us, None, time_us)])
        for sensor_id, name, track in ended:
            rule, of_sensor = rules.by_name.get(name), tracks.of(sensor_id)
            del of_sensor[name]
            if track.written_us + IN_FLIGHT_US > self._now_us:  # what was told may be on its way to the row
                rule_id, time_us = rule.id if rule else track.rule_id, track.time_us
                of_sensor[name] = Track(rule_id, time_us=time_us, newest_us=time_us, written_us=track.written_us)

    def add_readings(self, part: bytes) -> None:
        """Looks at readings, and holds those that may move a state."""
        rules, tracks, may_move = self._rules, self._tracks, self._may_move
        wanted = {each[0] for each in read_group_values(part) if may_move(*each)}
        found: dict[str, list[Readings]] = {}
        for readings in read_group_readings(part) if wanted else ():
            if readings.sensor_id in wanted:
                found.setdefault(readings.sensor_id, []).append(readings)
        updates = list[_Update]()
        for sensor_id, of_sensor in found.items():
            of_rules = tracks.of(sensor_id)
            if rules.on_silence:
                self._hear(sensor_id, of_rules, of_sensor)
            values: dict[str, list[Value]] = {}
            for readings in of_sensor:  # events with other metrics
                for name, new in rules.values_of(readings).items():
                    values.setdefault(name, []).extend(new)
            for name, new in values.items():
                rule, track = rules.by_name[name], of_rules.get(name)
                moves = track or Track(rule.id)
                if rule.follows:
                    of_rules[name] = moves
                    updates.append(_Update(rule, sensor_id, moves, new))
                elif moves.held or any(moves.may_move(rule, value) for value in new):
                    of_rules[name] = moves
                    moves.held = [*moves.held, *new][-_MOST_HELD:]
                    self._tracks.wake_us = min(self._tracks.wake_us, self._now_us + _HOLD_US)
                    self._changed = True
        self._follow(updates)

    def _may_move(self, sensor_id: str, metrics: tuple[str, ...], values: Sequence[float]) -> bool:
        """Returns whether readings of a sensor may move a state, whatever their times."""
        checks, width = self._rules.checks(sensor_id, metrics), len(metrics)
        if sensor_id not in self._tracks:
            return bool(checks) and may_fire(checks, width, values)
        phases = self._tracks.phases(sensor_id)
        if phases is None or any(phases.get(rule.id, _BEGIN)[0] == FIRING for rule in self._rules.on_silence):
            return True
        for column, _, _, of_metric in checks:
            for rule in of_metric:
                (phase, since_us), condition = phases.get(rule.id, _BEGIN), rule.condition
                if condition is None or rule.per_us:
                    return True
                if phase != PENDING:
                    moves = any(map(condition.cleared if phase == FIRING else condition.fires, values[column::width]))
                else:  # readings are as old as the clock says, at least
                    fires = all(map(condition.fires, values[column::width]))
                    moves = not fires or self._now_us >= since_us + rule.for_us
                if moves:
                    return True
        return False

    def add_windows(self, found: Iterable[tuple[Rule | None, str, Value]]) -> None:
        """Looks at statistics of sensors' windows that are over."""
        values: dict[tuple[Rule, str], list[Value]] = {}
        for rule, sensor_id, value in found:
            if rule is not None:
                values.setdefault((rule, sensor_id), []).append(value)
        updates = list[_Update]()
        for (rule, sensor_id), new in values.items():
            track = self._tracks.of(sensor_id).get(rule.name) or Track(rule.id)
            if any(track.may_move(rule, value) for value in new):
                updates.append(_Update(rule, sensor_id, track, new))
        for rule in {update.rule for update in updates}:
            of_rule = [update for update in updates if update.rule is rule]
            newest = {each.sensor_id: max(each.values, key=lambda one: (one.time_us, one.version)) for each in of_rule}
            late = self._table.newer_windows(rule, newest)
            updates = [each for each in updates if each.rule is not rule or each.sensor_id not in late]
        self._evaluate(updates, {})

    def add_silent(self, rule: Rule, silent: SilentSensors) -> None:
        """Fires the alerts of silent sensors, and ends those of sensors that are not silent any more."""
        tracks = self._tracks
        if silent.watermark_us < tracks.looked_us:
            return  # a later look knows better
        tracks.looked_us, self._changed = silent.watermark_us, True
        firing = {sensor_id for sensor_id, name, track in tracks.all() if name == rule.name and track.phase == FIRING}
        since_us = {each: time_us for each, time_us in silent.newest_us.items() if each not in firing}
        fitting = self._table.fitting(rule, {each: time_us or 0 for each, time_us in since_us.items()})
        begins = [_Update(rule, each, tracks.of(each).get(rule.name) or Track(rule.id), ()) for each in fitting]
        self._read_rows(begins)
        for _, sensor_id, track, _ in begins:
            tracks.of(sensor_id)[rule.name] = track
            newest_us = since_us[sensor_id]
            if newest_us is None:  # it never sent, and is silent since it has been expected
                fired_us = heard_us = self._rules.number
            else:
                fired_us, heard_us = newest_us + rule.silent_for_us, newest_us
                track.newest_us = newest_us
            self._record(rule, sensor_id, track, [track.move(FIRING, fired_us, None, heard_us)])
        over = [each for each in firing if silent.spans(each) and each not in silent.newest_us]
        heard, with_rows = self._table.stored(rule, over) if over else ({}, ())
        for sensor_id in over:
            track, last_us = tracks.of(sensor_id)[rule.name], heard.get(sensor_id)
            if last_us is None:  # it was forgotten, perhaps, and then nothing is to be written of it
                resolved = [track.move(RESOLVED, track.since_us, None, track.since_us)]
                self._record(rule, sensor_id, track, resolved, written=sensor_id in with_rows)
                del tracks.of(sensor_id)[rule.name]
            elif last_us > track.newest_us and last_us + rule.silent_for_us >= silent.watermark_us:
                self._record(rule, sensor_id, track, [track.move(RESOLVED, last_us, None, last_us)])

    def settle(self, watermark_us: int = NEVER_US) -> None:
        """Decides about held readings, fires what is due by the watermark, and tells what had to wait."""
        tracks, rules, updates = self._tracks, self._rules, list[_Update]()
        tracks.wake_us, self._changed = NEVER_DUE_US, True
        for sensor_id, name, track in tracks.all(at_rest=False):
            if track.held:
                updates.append(_Update(rules.by_name[name], sensor_id, track, track.held))
                track.held = []
        came: dict[SensorMetric, list[Value]] = {}
        for rule, sensor_id, _, values in updates:
            came.setdefault((sensor_id, str(rule.metric)), []).extend(values)
        # What came for one rule is known for all.
        updates = [each._replace(values=came[each.sensor_id, str(each.rule.metric)]) for each in updates]
        self._evaluate(updates, self._table.newest(came) if came else {})
        for sensor_id, name, track in tracks.all(at_rest=False):
            rule = rules.by_name.get(name) or Rule(name, gone=True)
            if watermark_us != NEVER_US:
                self._record(rule, sensor_id, track, fire_if_due(rule, track, watermark_us))
                self._expect(rule, track)
            if track.phase == FIRING and track.waits:
                value = None if rule.silent_for_us else track.value
                self._tell_or_wait(rule, sensor_id, track, Transition(track.time_us, FIRING, value, track.since_us))
            elif track.phase == CALM and not rule.follows and track.written_us + IN_FLIGHT_US < self._now_us:
                del tracks.of(sensor_id)[name]

    def end(self, state: AlertState) -> Found:
        """Sets timers and keeps what has changed. Returns what was found."""
        tracks, (due_us, wake_us) = self._tracks, self._timers
        if tracks.wake_us not in (wake_us, NEVER_DUE_US):
            state.set_wake(tracks.wake_us)
            if tracks.due_us == NEVER_DUE_US:
                state.set_due(END_US)  # for a drain
        if tracks.due_us not in (due_us, NEVER_DUE_US):
            state.set_due(tracks.due_us)
        if self._changed:
            state.write(tracks.to_bytes())
        return self._found

    def _follow(self, updates: Sequence[_Update]) -> None:
        """Compares readings with those before them."""
        for rule, sensor_id, track, values in updates:
            self._changed, since_us, was_calm = True, track.since_us, track.phase == CALM
            begins = was_calm and track.written_us == NEVER_US
            found = evaluate(rule, track, values)
            stands_us = track.newest_us - since_us if rule.unchanged_for_us and track.since_us == since_us else 0
            if begins and not found and stands_us and stands_us >= rule.unchanged_for_us // 4:
                # The job began while the value stood, perhaps. The table is asked once this has lasted for a while.
                track.since_us = self._table.unchanged_since(rule, sensor_id, track.value, since_us)
                track.written_us = self._now_us
                found = step(rule, track, Value(track.newest_us, track.newest))
            if begins and (found or track.written_us != NEVER_US):
                record = self._table.records([(rule.name, sensor_id)]).get((rule.name, sensor_id))
                last_us = record.last.time_us if record is not None else NEVER_US
                if last_us >= (found[0].time_us if found else track.since_us):  # the row tells of later readings
                    track = Track(rule.id, time_us=last_us, newest_us=last_us, written_us=self._now_us)
                    self._tracks.of(sensor_id)[rule.name] = track
                    found = evaluate(rule, track, values)
            if found and was_calm and rule.metadata and not self._table.fitting(rule, {sensor_id: track.newest_us}):
                track.phase, found = CALM, []
            self._record(rule, sensor_id, track, found)
            self._expect(rule, track)

    def _evaluate(self, updates: Sequence[_Update], newest: Mapping[SensorMetric, Value]) -> None:
        """Moves states by values that came together, unless the sensors are none of the rule's."""
        begins = [update for update in updates if update.track.newest_us == NEVER_US]
        self._read_rows(begins)
        others = set[AlertKey]()
        for rule in {update.rule for update in begins if update.rule.metadata}:
            known = {each.sensor_id: newest.get((each.sensor_id, str(rule.metric))) for each in begins}
            times_us = {
                each.sensor_id: max(value.time_us for value in (*each.values, known[each.sensor_id]) if value)
                for each in begins
                if each.rule is rule
            }
            fitting = self._table.fitting(rule, times_us)
            others |= {(rule.name, sensor_id) for sensor_id in times_us if sensor_id not in fitting}
        for rule, sensor_id, track, values in updates:
            of_sensor = self._tracks.of(sensor_id)
            of_sensor[rule.name] = track
            self._changed = True
            if (rule.name, sensor_id) not in others:
                beside = None if rule.of else newest.get((sensor_id, str(rule.metric)))
                self._record(rule, sensor_id, track, evaluate(rule, track, values, beside))
                self._expect(rule, track)
            if track.phase == CALM and track.written_us == NEVER_US:
                del of_sensor[rule.name]

    def _read_rows(self, begins: Sequence[_Update]) -> None:
        """Gives tracks that begin what their rows tell of alerts before."""
        records = self._table.records([(each.rule.name, each.sensor_id) for each in begins]) if begins else {}
        for rule, sensor_id, track, _ in begins:
            if (record := records.get((rule.name, sensor_id))) is not None:
                track.time_us = track.newest_us = max(track.time_us, record.last.time_us)

    def _hear(self, sensor_id: str, tracks: Mapping[str, Track], found: Sequence[Readings]) -> None:
        """Resolves the alerts of a silent sensor that sends, unless its readings are so old that it would be silent."""
        for rule in self._rules.on_silence:
            track = tracks.get(rule.name)
            if track is not None and track.phase == FIRING:
                least_us = max(track.newest_us + 1, self._now_us - rule.silent_for_us)
                times_us = [
                    time_us for each in found for time_us in map(time_of_key, each.times) if time_us >= least_us
                ]
                if times_us:
                    heard_us = min(times_us)
                    self._changed = True
                    self._record(rule, sensor_id, track, [track.move(RESOLVED, heard_us, None, heard_us)])

    def _expect(self, rule: Rule, track: Track) -> None:
        if track.phase == PENDING:
            self._tracks.due_us = min(self._tracks.due_us, track.since_us + rule.for_us + 1)

    def _record(
        self, rule: Rule, sensor_id: str, track: Track, found: Sequence[Transition], *, written: bool = True
    ) -> None:
        """Writes transitions, and tells those that are alerts."""
        if not found:
            return
        if written:
            self._found.rows.append(alert_row(rule, sensor_id, found))
            track.written_us = self._now_us
        for transition in found:
            if transition.kind == FIRING:
                self._tell_or_wait(rule, sensor_id, track, transition)
            elif transition.kind == RESOLVED and track.told:
                self._tell(rule, sensor_id, transition)
                track.told = False

    def _tell_or_wait(self, rule: Rule, sensor_id: str, track: Track, fired: Transition) -> None:
        until_us = self._waits(rule, sensor_id)
        track.waits = until_us is not None
        if until_us is None:
            track.told = True
            self._tell(rule, sensor_id, fired)
        else:
            self._tracks.wake_us = min(self._tracks.wake_us, until_us, self._now_us + _WAIT_US)

    def _waits(self, rule: Rule, sensor_id: str) -> int | None:
        return self._rules.waits_until_us(rule, sensor_id, self._now_us)

    def _tell(self, rule: Rule, sensor_id: str, transition: Transition) -> None:
        unit, label = rule.unit_in(self._schema), rule.label_in(self._schema)
        self._found.alerts.append(alert_of(rule, sensor_id, transition, self._name, unit, label))
