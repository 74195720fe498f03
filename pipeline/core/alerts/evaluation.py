"""Evaluates rules for a group of sensors: its tracks, what comes, and the rows and messages that follow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.core.alerts.alert_messages import Alert, alert_of
from pipeline.core.alerts.alert_rows import AlertRecord, alert_row
from pipeline.core.alerts.group_tracks import NEVER_DUE_US, GroupTracks
from pipeline.core.alerts.machine import CALM, NEVER_US, RESOLVED, Changes, Track, Transition, Value
from pipeline.core.alerts.rule_set import RuleSet, may_fire
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import Fitting, Silence, SilentSensors, StoredOf, silent_track
from pipeline.core.panes.grouped_readings import Readings, read_group_readings
from pipeline.core.rows.rows import EncodedRows

_LEAST_KEPT_US = 60_000_000  # of readings, before those that the table has by now replace them

Fits = Callable[[str, Rule], bool]
"""Returns whether a sensor's metadata is what a rule asks for."""
Known = Callable[[str, Rule, int], tuple[int, Iterable[Value]]]
"""Returns what the table stores and the step does not keep: the greatest version of the cells of a sensor's alert, and
the sensor's values for the rule from a time on."""


@dataclass
class Found:
    """What an evaluation found.

    Attributes:
        rows: the rows of alerts.
        alerts: the transitions to tell about.
    """

    rows: EncodedRows = field(default_factory=EncodedRows)
    alerts: list[Alert] = field(default_factory=list)


class Evaluation:
    """Evaluates rules for a group of sensors.

    Args:
        rules: the rules.
        tracks: the group's tracks, which are changed in place.
        table: the id of the table.
        lateness_us: the time by which a reading may be late.
        recents: returns the readings that the step keeps of the group.
        known: returns the values that the table stores.
        fits: returns whether a sensor's metadata fits a rule.
        fitting: returns the sensors whose metadata fits a rule.
        stored: returns what the table stores of silent sensors.

    Attributes:
        found: the rows and messages so far.
        changed: whether the tracks changed.
    """

    def __init__(
        self,
        rules: RuleSet,
        tracks: GroupTracks,
        table: str,
        lateness_us: int,
        recents: Callable[[], Iterable[bytes]],
        known: Known,
        fits: Fits,
        fitting: Fitting,
        stored: StoredOf,
    ) -> None:
        self._rules, self._tracks, self._table, self._lateness_us = rules, tracks, table, lateness_us
        self._recents, self._known, self._fits = recents, known, fits
        self._silence = Silence(tracks, recents, fitting, stored, self._tell)
        self.found = Found()
        self.changed = False

    def restore(self, records: Iterable[AlertRecord]) -> None:
        """Restores the tracks of alerts that fire, or are about to, from their rows."""
        for record in records:
            last = record.transitions[-1]
            rule = self._rules.by_id.get(record.rule_id)
            if rule is not None and rule.silent_for_us:
                track = silent_track(rule, last.since_us, record.version)
            else:
                track = Track.restored(record.transitions, record.version)
                if rule is not None:
                    self._expect(rule, track)
            self._tracks.of(record.sensor_id)[record.rule_id] = track
        self.changed = True

    def change_rules(self) -> None:
        """Ends the alerts of rules that are no longer there, or fire for something else now."""
        tracks, rules = self._tracks, self._rules
        if tracks.revisions == rules.revisions:
            return
        tracks.revisions = rules.revisions
        self.changed = True
        for sensor_id in tracks.sensors():
            of_sensor = tracks.of(sensor_id)
            for rule_id in of_sensor.keys() - rules.by_id.keys():
                name, _, revision = rule_id.rpartition("@")
                self._end(Rule(name, gone=revision), sensor_id, of_sensor.pop(rule_id))

    def add(self, part: bytes, now_us: int) -> bool:
        """Evaluates readings. Returns whether any rule looks at them, so that they have to be kept."""
        rules, tracks = self._rules, self._tracks
        checks_of, any_silent, any_tracks = rules.checks, bool(rules.on_silence), not tracks.is_empty
        concerned = False
        found: dict[str, list[Readings]] = {}
        for readings in read_group_readings(part):
            sensor_id, metrics, _, values = readings
            checks = checks_of(sensor_id, metrics)
            if checks:
                concerned = True
                if (any_tracks and sensor_id in tracks) or may_fire(checks, len(metrics), values):
                    found.setdefault(sensor_id, []).append(readings)
            elif any_silent:
                concerned = concerned or rules.listens(sensor_id)
                if any_tracks and sensor_id in tracks:
                    found.setdefault(sensor_id, []).append(readings)
        if found:
            if any_silent:
                self.changed |= self._silence.hear(rules.on_silence, found, now_us)
            self._add(found)
        return concerned

    def pass_watermark(self, watermark_us: int) -> None:
        """Fires alerts whose conditions have held for long enough by the watermark."""
        self._tracks.watermark_us = max(self._tracks.watermark_us, watermark_us)
        self._tracks.due_us = NEVER_DUE_US
        self.changed = True
        for sensor_id in self._tracks.sensors():
            for rule_id, track in list(self._tracks.of(sensor_id).items()):
                rule = self._rules.by_id.get(rule_id)
                if rule is None or rule.condition is None:
                    continue
                if track.is_new and track.state.pending:
                    self._learn(rule, sensor_id, track, [], ())
                if not (track.is_new and track.state.firing):
                    self._update(rule, sensor_id, track, ())

    def add_values(self, rule: Rule, sensor_id: str, values: Iterable[Value]) -> None:
        """Evaluates statistics of a sensor's windows."""
        tracks, new = self._tracks.of(sensor_id), list(values)
        track = tracks.get(rule.id)
        if track is None:
            if not (self._begins(rule, new) and self._fits(sensor_id, rule)):
                return
            track = tracks[rule.id] = Track()
        if track.is_new:
            self._learn(rule, sensor_id, track, new, ())
        self._update(rule, sensor_id, track, new)

    def add_silent(self, rule: Rule, silent: SilentSensors) -> None:
        """Evaluates a look for silent sensors."""
        self.changed |= self._silence.look(rule, silent)

    def _add(self, found: Mapping[str, list[Readings]]) -> None:
        values = {sensor_id: _joined(self._rules, readings) for sensor_id, readings in found.items()}
        begins = [
            (sensor_id, rule_id)
            for sensor_id, of_sensor in values.items()
            for rule_id, of_rule in of_sensor.items()
            if rule_id not in self._tracks.of(sensor_id)
            and self._begins(self._rules.by_id[rule_id], of_rule)
            and self._fits(sensor_id, self._rules.by_id[rule_id])
        ]
        if begins:
            self._begin(begins, values)
        for sensor_id, of_sensor in values.items():
            for rule_id, track in list(self._tracks.of(sensor_id).items()):
                rule = self._rules.by_id.get(rule_id)
                if rule is not None and rule.condition is not None and rule.of is None and rule_id in of_sensor:
                    if track.is_new and track.version:
                        self._learn(rule, sensor_id, track, of_sensor[rule_id], ())  # it was restored
                    self._update(rule, sensor_id, track, of_sensor[rule_id])

    @staticmethod
    def _begins(rule: Rule, values: Iterable[Value]) -> bool:
        condition = rule.condition
        return condition is not None and any(condition.classify(value.value) > 0 for value in values)

    def _begin(self, begins: list[tuple[str, str]], values: Mapping[str, Mapping[str, list[Value]]]) -> None:
        """Begins tracks with the values that are known already: those that the step keeps, and those of the table."""
        sensors = {sensor_id for sensor_id, _ in begins}
        encoded = {sensor_id: sensor_id.encode() for sensor_id in sensors}
        recents: dict[str, list[Readings]] = {}
        for part in self._recents():
            if any(each in part for each in encoded.values()):
                for readings in read_group_readings(part):
                    if readings.sensor_id in sensors:
                        recents.setdefault(readings.sensor_id, []).append(readings)
        for sensor_id, rule_id in begins:
            rule, track, new = self._rules.by_id[rule_id], Track(), values[sensor_id][rule_id]
            kept = _joined(self._rules, recents.get(sensor_id, ())).get(rule_id, [])
            self._learn(rule, sensor_id, track, new, kept)
            self._tracks.of(sensor_id)[rule_id] = track

    def _learn(self, rule: Rule, sensor_id: str, track: Track, new: list[Value], kept: Iterable[Value]) -> None:
        """Tells a new track what was known before the values that come now."""
        tracks, times_us = self._tracks, {value.time_us for value in new}
        track.rewind(min([*times_us, track.after_us]) - self._lateness_us)
        begin_us = track.after_us + 1
        if times_us:
            begin_us = max(min(times_us) - rule.for_us - self._lateness_us, begin_us)
        kept_us = tracks.newer_us if tracks.older_us == NEVER_US else tracks.older_us
        known = [*kept]
        if (
            rule.of is not None or begin_us < kept_us + _LEAST_KEPT_US
        ):  # the step may have forgotten some, or the job that was here before
            version, stored = self._known(sensor_id, rule, max(begin_us, 0))
            track.version = max(track.version, version)
            known += stored
        track.know(value for value in known if value.time_us not in times_us)

    def _update(self, rule: Rule, sensor_id: str, track: Track, values: Iterable[Value]) -> None:
        changes = track.update(rule, values, self._tracks.watermark_us, self._lateness_us)
        self.changed = True
        if track.is_idle(rule):
            del self._tracks.of(sensor_id)[rule.id]
        else:
            self._expect(rule, track)
        self._tell(rule, sensor_id, changes, track)

    def _expect(self, rule: Rule, track: Track) -> None:
        if (due_us := track.due_us(rule)) is not None:
            self._tracks.due_us = min(self._tracks.due_us, due_us)

    def _end(self, rule: Rule, sensor_id: str, track: Track) -> None:
        """Ends an alert whose rule is gone."""
        time_us = max(track.newest_us, track.watermark_us)  # not before it fired, if the watermark showed that
        if track.told:
            ended = [Transition(time_us, RESOLVED, None, time_us)]
        else:
            ended = [Transition(time_us, CALM, None, time_us)]
        track.version += 1
        self._tell(rule, sensor_id, Changes(ended, [], ended if track.told else []), track)

    def _tell(self, rule: Rule, sensor_id: str, changes: Changes, track: Track, recorded: bool = True) -> None:
        if recorded and (changes.added or changes.withdrawn):
            self.found.rows.append(alert_row(rule, sensor_id, changes.added, changes.withdrawn, track))
        self.found.alerts += [alert_of(rule, sensor_id, each, self._table) for each in changes.told]


def _joined(rules: RuleSet, readings: Iterable[Readings]) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for each in readings:
        for rule_id, values in rules.values_of(each).items():
            found.setdefault(rule_id, []).extend(values)
    return found
