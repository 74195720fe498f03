"""Evaluates rules for a group of sensors: its tracks, what comes, and the rows and messages that follow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.alerts.alert_messages import Alert, alert_of
from pipeline.core.alerts.alert_rows import alert_row, restored
from pipeline.core.alerts.conditions import FIRES
from pipeline.core.alerts.group_tracks import NEVER_DUE_US, GroupTracks
from pipeline.core.alerts.machine import CALM, NEVER_US, RESOLVED, Changes, Track, Transition, Value
from pipeline.core.alerts.rule_set import RuleSet, may_fire
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import Silence, SilentSensors, silent_track
from pipeline.core.alerts.stored_alerts import AlertTable, StoredAlerts, ValuesWanted
from pipeline.core.panes.firing import IN_FLIGHT_US, MOST_SPREAD_US
from pipeline.core.panes.grouped_readings import Readings, read_group_readings
from pipeline.core.rows.rows import EncodedRows


@dataclass
class Found:
    """What an evaluation found.

    Attributes:
        rows: the rows of alerts.
        alerts: the transitions to tell about.
    """

    rows: EncodedRows = field(default_factory=EncodedRows)
    alerts: list[Alert] = field(default_factory=list)


# After the watermark has passed its end, a window's row is complete by then.
_ROWS_WRITTEN_US = MOST_SPREAD_US + 60_000_000


class Evaluation:
    """Evaluates rules for a group of sensors.

    Args:
        rules: the rules.
        tracks: the group's tracks, which are changed in place.
        name: the id of the table.
        lateness_us: the time by which a reading may be late.
        recents: returns the readings that the step keeps of the group.
        table: the table.
        now_us: the current time.

    Attributes:
        rules: see above.
        found: the rows and messages so far.
        changed: whether the tracks changed.
    """

    def __init__(
        self,
        rules: RuleSet,
        tracks: GroupTracks,
        name: str,
        lateness_us: int,
        recents: Callable[[], Iterable[bytes]],
        table: AlertTable,
        now_us: int,
    ) -> None:
        self.rules, self._tracks, self._name, self._lateness_us = rules, tracks, name, lateness_us
        self._recents, self._table, self._now_us = recents, table, now_us
        self._silence = Silence(tracks, recents, table, self._tell)
        self.found = Found()
        self.changed = False

    def restore(self, stored: StoredAlerts) -> None:
        """Restores the tracks of alerts that fire, or are about to, from their rows. Tells unsure ones once more."""
        for record in stored.unsure:
            if (told := record.last_told) is not None:
                gone = Rule(record.rule, severity=record.severity, gone=True)
                of = self.rules.by_name.get(record.rule, gone)
                self.found.alerts.append(alert_of(of, record.sensor_id, told, self._name, record.version))
        for record in stored.open:
            rule, last = self.rules.by_name.get(record.rule), record.transitions[-1]
            if rule is not None and rule.silent_for_us and rule.revision == record.revision:
                track = silent_track(rule, last.since_us, last.time_us, record.version)
            else:
                track = restored(record, record.revision)
                if rule is not None and rule.revision == record.revision:
                    self._expect(rule, track)
            self._tracks.of(record.sensor_id)[record.rule] = track
        for (name, sensor_id), last_us in stored.over.items():
            rule = self.rules.by_name.get(name)
            if rule is not None and rule.condition is not None:
                self._tracks.of(sensor_id)[name] = Track(after_us=last_us, unread=True)
        self.changed = True

    def change_rules(self) -> None:
        """Ends the alerts of rules that are no longer there, or fire for something else now."""
        tracks, rules = self._tracks, self.rules
        if tracks.rules_number == rules.number:
            return
        tracks.rules_number = rules.number
        self.changed = True
        if rules.on_windows:
            tracks.due_us = min(tracks.due_us, self._now_us)  # until it passes, nobody knows which windows are over
        for sensor_id in tracks.sensors():
            for name, track in list(tracks.of(sensor_id).items()):
                rule = rules.by_name.get(name)
                if track.revision and (rule is None or rule.revision != track.revision):
                    self._end(name, sensor_id, track)

    def add(self, part: bytes) -> bool:
        """Evaluates readings. Returns whether any rule looks at them, so that they have to be kept."""
        rules, tracks = self.rules, self._tracks
        checks_of, any_silent, any_tracks = rules.checks, bool(rules.on_silence), not tracks.is_empty
        concerned, wanted = False, set[str]()
        for readings in read_group_readings(part):
            sensor_id, metrics, values = readings.sensor_id, readings.metrics, readings.values
            checks = checks_of(sensor_id, metrics)
            if checks:
                concerned = True
                if (any_tracks and sensor_id in tracks) or may_fire(checks, len(metrics), values):
                    wanted.add(sensor_id)
            elif any_silent:
                concerned = concerned or rules.listens(sensor_id)
                if any_tracks and sensor_id in tracks:
                    wanted.add(sensor_id)
        found: dict[str, list[Readings]] = {}
        for readings in read_group_readings(part) if wanted else ():  # events with other metrics may end what fires
            if readings.sensor_id in wanted:
                found.setdefault(readings.sensor_id, []).append(readings)
        if found:
            if any_silent:
                self.changed |= self._silence.hear(rules.on_silence, found, self._now_us)
            self._add({sensor_id: _joined(rules, readings) for sensor_id, readings in found.items()})
        return concerned

    def pass_watermark(self, watermark_us: int) -> None:
        """Fires alerts whose conditions have held for long enough by the watermark."""
        self._tracks.watermark_us = max(self._tracks.watermark_us, watermark_us)
        self._tracks.over_us = max(self._tracks.over_us, watermark_us - _ROWS_WRITTEN_US)
        self._tracks.due_us = NEVER_DUE_US
        self.changed = True
        updates = [
            _Update(rule, sensor_id, [])
            for sensor_id in self._tracks.sensors()
            for name, track in self._tracks.of(sensor_id).items()
            if (rule := self.rules.by_name.get(name)) is not None
            and rule.condition is not None
            and not (track.is_new and track.state.pending is None)
        ]
        self._update(updates)

    def add_windows(self, found: Iterable[tuple[Rule, str, Value]]) -> None:
        """Evaluates statistics of sensors' windows that are over."""
        values: dict[str, dict[str, list[Value]]] = {}
        for rule, sensor_id, value in found:
            self.changed |= value.time_us > self._tracks.over_us
            self._tracks.over_us = max(self._tracks.over_us, value.time_us)
            values.setdefault(sensor_id, {}).setdefault(rule.name, []).append(value)
        self._add(values)

    def drop_idle(self) -> None:
        """Drops the tracks that contain nothing of use any more."""
        self.changed = True
        for sensor_id in self._tracks.sensors():
            of_sensor = self._tracks.of(sensor_id)
            for name in [name for name, track in of_sensor.items() if self._is_idle(name, track)]:
                del of_sensor[name]

    def add_silent(self, rule: Rule, silent: SilentSensors) -> None:
        """Evaluates a look for silent sensors."""
        self.changed |= self._silence.look(rule, silent)

    def _add(self, values: Mapping[str, Mapping[str, list[Value]]]) -> None:
        """Evaluates values, by sensor and the name of the rule that looks at them."""
        updates = []
        for sensor_id, of_sensor in values.items():
            tracks = self._tracks.of(sensor_id)
            for name, new in of_sensor.items():
                rule, track = self.rules.by_name[name], tracks.get(name)
                if (track is not None and not track.is_new) or self._begins(rule, sensor_id, track, new):
                    updates.append(_Update(rule, sensor_id, new))
                elif track is not None and track.unread and min(new).time_us > track.after_us + self._lateness_us:
                    del tracks[name]  # its row stays as it is
                    self.changed = True
        self._update(updates)

    def _begins(self, rule: Rule, sensor_id: str, track: Track | None, new: Sequence[Value]) -> bool:
        """Returns whether values of a rule without a track, or with one that is new, may lead to a transition."""
        floor_us = NEVER_US
        if track is not None:
            # A value of the time before the last transition may show that it did not take place.
            if track.is_open or (track.unread and min(new).time_us <= track.after_us):
                return True
            floor_us = track.floor_us
        classify = rule.condition.classify if rule.condition is not None else None
        fires = classify and any(value.time_us > floor_us and classify(value.value) == FIRES for value in new)
        return bool(fires) and self._table.fits(sensor_id, rule)

    def _update(self, updates: Sequence["_Update"]) -> None:
        """Adds values to their tracks, of which some begin: together, as a request costs as much as many rows."""
        self._begin([each for each in updates if self._is_new(each)])
        for rule, sensor_id, new in updates:
            tracks = self._tracks.of(sensor_id)
            track = tracks[rule.name]
            changes = track.update(rule, new, self._tracks.watermark_us, self._lateness_us)
            self.changed = True
            self._tell(rule, sensor_id, changes, track)
            if self._is_idle(rule.name, track):
                del tracks[rule.name]
            else:
                self._expect(rule, track)

    def _is_new(self, update: "_Update") -> bool:
        track = self._tracks.of(update.sensor_id).get(update.rule.name)
        return track is None or track.is_new

    def _begin(self, begins: Sequence["_Update"]) -> None:
        """Begins tracks with what is known: their rows, the values of the table, and those that the step keeps."""
        if not begins:
            return
        self._read_rows(begins)
        kept = self._kept(begins)
        wanted = []
        for rule, sensor_id, new in begins:
            track = self._tracks.of(sensor_id)[rule.name]
            to_us = self._rewound_us(track, new)
            begin_us = max(min(track.after_us, to_us) + 1, to_us - rule.for_us)
            until_us = max([self._tracks.over_us, *(value.time_us for value in new)])
            wanted.append(ValuesWanted(rule, sensor_id, max(begin_us, 0), until_us))
        for (rule, sensor_id, new), (from_us, stored) in zip(begins, self._table.values(wanted), strict=True):
            track, times_us = self._tracks.of(sensor_id)[rule.name], {value.time_us for value in new}
            # Where the table can't tell all values, what the row says of their time stays.
            track.rewind(max(self._rewound_us(track, new), from_us - 1))
            known = [*stored, *kept.get(sensor_id, {}).get(rule.name, ())]  # of two values at a time, the last counts
            track.know(value for value in known if value.time_us not in times_us)

    def _rewound_us(self, track: Track, new: Sequence[Value]) -> int:
        """Returns the time to which a track is taken back: values that come later may be as late."""
        first_us = min((value.time_us for value in new), default=track.after_us)
        return max(first_us - self._lateness_us, track.floor_us)

    def _read_rows(self, begins: Sequence["_Update"]) -> None:
        """Gives tracks that begin what their rows tell."""
        unread = []
        for rule, sensor_id, _ in begins:
            track = self._tracks.of(sensor_id).get(rule.name)
            if track is None or track.unread:
                unread.append((rule, sensor_id))
        records = self._table.records([(rule.name, sensor_id) for rule, sensor_id in unread])
        for rule, sensor_id in unread:
            record = records.get((rule.name, sensor_id))
            if record is not None and record.is_open and record.revision != rule.revision:
                self._end(rule.name, sensor_id, restored(record, record.revision))
            else:
                track = Track() if record is None else restored(record, rule.revision)
                self._tracks.of(sensor_id)[rule.name] = track

    def _kept(self, begins: Sequence["_Update"]) -> dict[str, dict[str, list[Value]]]:
        """Returns the values of sensors that the step keeps, by sensor and the name of the rule."""
        sensors = {sensor_id for rule, sensor_id, _ in begins if rule.of is None}
        encoded = [sensor_id.encode() for sensor_id in sensors]
        found: dict[str, list[Readings]] = {}
        for part in self._recents() if sensors else ():
            if any(each in part for each in encoded):
                for readings in read_group_readings(part):
                    if readings.sensor_id in sensors:
                        found.setdefault(readings.sensor_id, []).append(readings)
        return {sensor_id: _joined(self.rules, readings) for sensor_id, readings in found.items()}

    def _is_idle(self, name: str, track: Track) -> bool:
        """Returns whether nothing of a track has to be kept. Until its row is written, nobody can read it."""
        if track.unread or track.is_open or self._now_us < track.written_us + IN_FLIGHT_US:
            return False
        rule = self.rules.by_name.get(name)
        return track.is_new or rule is None or rule.condition is None or track.is_idle(rule)

    def _expect(self, rule: Rule, track: Track) -> None:
        if (due_us := track.due_us(rule)) is not None:
            self._tracks.due_us = min(self._tracks.due_us, due_us)

    def _end(self, name: str, sensor_id: str, track: Track) -> None:
        """Ends an alert whose rule is gone."""
        time_us = max(track.newest_us, track.told_us)  # not before it fired, if the watermark showed that
        ended = [Transition(time_us, RESOLVED if track.told else CALM, None, time_us)]
        track.version += 1
        gone, changes = Rule(name, severity=track.severity, gone=True), Changes(ended, [], ended if track.told else [])
        self._tell(gone, sensor_id, changes, track)
        self._tracks.of(sensor_id)[name] = track.ended(time_us)

    def _tell(self, rule: Rule, sensor_id: str, changes: Changes, track: Track, recorded: bool = True) -> None:
        if recorded and (changes.added or changes.withdrawn):
            self.found.rows.append(alert_row(rule, sensor_id, changes.added, changes.withdrawn, track))
            track.written_us = self._now_us
        first = track.version - len(changes.told) + 1
        self.found.alerts += [
            alert_of(rule, sensor_id, each, self._name, number) for number, each in enumerate(changes.told, first)
        ]


class _Update(NamedTuple):
    """Values of a sensor, in any order, and a rule that looks at them."""

    rule: Rule
    sensor_id: str
    new: Sequence[Value]


def _joined(rules: RuleSet, readings: Iterable[Readings]) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for each in readings:
        for name, values in rules.values_of(each).items():
            found.setdefault(name, []).extend(values)
    return found
