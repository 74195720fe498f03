"""Evaluates rules on silence for a group of sensors.

A look at the rows of newest readings finds the silent sensors. It tells each group all of them, in ranges of ids: so a
group also sees which of its alerts have ended, whatever order the ranges come in. What the look can't see is a reading
that is on its way to the table. But the group has heard it.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.accumulation.reading_columns import time_of_key
from pipeline.core.alerts.group_tracks import GroupTracks
from pipeline.core.alerts.machine import BEGIN, FIRING, NEVER_US, RESOLVED, Changes, State, Track, Transition
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.stored_alerts import AlertTable
from pipeline.core.panes.grouped_readings import Readings, read_group_readings

Tell = Callable[[Rule, str, Changes, Track, bool], None]
"""Tells the changes of a sensor's track, and records them in its row if the last argument says so."""


class SilentSensors(NamedTuple):
    """All sensors of a group that are silent under a rule, in a range of ids.

    Attributes:
        rule_id: the id of the rule.
        watermark_us: the time by which they are silent: the watermark, or one by the clock while the watermark stands.
        after: the id before the range; empty for the first range.
        until: the last id of the range; None for the last range.
        newest_us: the time of each sensor's newest reading.
    """

    rule_id: str
    watermark_us: int
    after: str
    until: str | None
    newest_us: dict[str, int]

    @classmethod
    def from_bytes(cls, data: bytes) -> "SilentSensors":
        """Decodes :meth:`to_bytes`."""
        return cls(*json.loads(data))

    def to_bytes(self) -> bytes:
        """Encodes the sensors."""
        return json.dumps(self, separators=(",", ":")).encode()

    def spans(self, sensor_id: str) -> bool:
        """Returns whether a sensor's id is in the range."""
        return self.after < sensor_id and (self.until is None or sensor_id <= self.until)


class Silence:
    """Evaluates rules on silence for a group of sensors.

    Args:
        tracks: the group's tracks, which are changed in place.
        recents: returns the readings that the step keeps of the group.
        table: the table.
        tell: tells and records what changes.
    """

    def __init__(
        self,
        tracks: GroupTracks,
        recents: Callable[[], Iterable[bytes]],
        table: AlertTable,
        tell: Tell,
    ) -> None:
        self._tracks, self._recents, self._table, self._tell = tracks, recents, table, tell

    def look(self, rule: Rule, silent: SilentSensors) -> bool:
        """Fires the alerts of silent sensors, and ends those of others. Returns whether the tracks changed."""
        if silent.watermark_us < self._tracks.looked_us:
            return False  # a later look knows better
        self._tracks.looked_us = silent.watermark_us
        new = [each for each in silent.newest_us if not self._tracks.fires(each, rule.name)]
        if new:
            self._fire(rule, silent, new)
        over = [each for each in self._tracks.firing(rule.name) if silent.spans(each)]
        if over := [each for each in over if each not in silent.newest_us]:
            self._end(rule, silent.watermark_us, over)
        return True

    def hear(self, rules: Iterable[Rule], found: Mapping[str, Sequence[Readings]], now_us: int) -> bool:
        """Resolves alerts of sensors that send. Returns whether the tracks changed.

        A reading that is itself so old that its sensor would be silent resolves none.
        """
        changed = False
        for sensor_id, readings in found.items():
            tracks = self._tracks.of(sensor_id)
            for rule in [rule for rule in rules if rule.name in tracks and tracks[rule.name].told]:
                times_us = sorted(time_of_key(time) for each in readings for time in each.times)
                track = tracks[rule.name]
                newer = [time_us for time_us in times_us if time_us > track.after_us]
                if not newer:
                    continue
                changed = True
                heard_us = next((time_us for time_us in newer if time_us + rule.silent_for_us >= now_us), None)
                if heard_us is None:
                    track.after_us = newer[-1]
                else:
                    self._resolve(rule, sensor_id, heard_us)
        return changed

    def _fire(self, rule: Rule, silent: SilentSensors, sensors: Iterable[str]) -> None:
        newest_us = {sensor_id: silent.newest_us[sensor_id] for sensor_id in sensors}
        for part in self._recents():
            for readings in read_group_readings(part):
                known_us = newest_us.get(readings.sensor_id)
                if known_us is not None:
                    newest_us[readings.sensor_id] = max(known_us, *map(time_of_key, readings.times))
        until_us = silent.watermark_us - rule.silent_for_us
        fitting = self._table.fitting(rule, {each: at_us for each, at_us in newest_us.items() if at_us < until_us})
        before = self._before(rule, fitting)
        for sensor_id in fitting:
            since_us, (version, told_us) = newest_us[sensor_id], before[sensor_id]
            fired_us = max(since_us + rule.silent_for_us, told_us + 1)  # after what a rule of that name told last
            track = silent_track(rule, since_us, fired_us, max(version + 1, since_us))
            self._tracks.of(sensor_id)[rule.name] = track
            fired = [Transition(fired_us, FIRING, None, since_us)]
            self._tell(rule, sensor_id, Changes(fired, [], fired), track, True)

    def _before(self, rule: Rule, sensors: Collection[str]) -> dict[str, tuple[int, int]]:
        """Returns the version of each sensor's alert, and the time of what was told last."""
        found = dict[str, tuple[int, int]]()
        for sensor_id in sensors:
            track = self._tracks.of(sensor_id).get(rule.name)
            if track is not None:
                found[sensor_id] = track.version, track.told_us
        records = self._table.records([(rule.name, each) for each in sensors if each not in found])
        found |= {sensor_id: (each.version, each.told_us) for (_, sensor_id), each in records.items()}
        return {sensor_id: found.get(sensor_id, (0, NEVER_US)) for sensor_id in sensors}

    def _end(self, rule: Rule, watermark_us: int, sensors: Sequence[str]) -> None:
        """Ends alerts of sensors that have sent, which the group may not have heard, and of those that are gone."""
        stored = self._table.sensors(rule, sensors)
        for sensor_id in sensors:
            newest_us, since_us = stored.newest_us.get(sensor_id), _since(rule, self._tracks.of(sensor_id)[rule.name])
            if newest_us is None:
                # Without a row of newest readings, it was forgotten, perhaps, and then nothing is to be written of it.
                self._resolve(rule, sensor_id, since_us, recorded=sensor_id in stored.with_alerts)
            elif newest_us > since_us and newest_us + rule.silent_for_us >= watermark_us:
                self._resolve(rule, sensor_id, newest_us)

    def _resolve(self, rule: Rule, sensor_id: str, heard_us: int, *, recorded: bool = True) -> None:
        tracks = self._tracks.of(sensor_id)
        track = tracks[rule.name]
        track.version = max(track.version + 1, heard_us)
        resolved_us = max(heard_us, track.told_us)  # not before it fired
        track.state, track.told, track.told_us = BEGIN, False, resolved_us
        resolved = [Transition(resolved_us, RESOLVED, None, resolved_us)]
        self._tell(rule, sensor_id, Changes(resolved, [], resolved), track, recorded)
        if not recorded:
            del tracks[rule.name]  # else it is kept until its row is written


def silent_track(rule: Rule, since_us: int, fired_us: int, version: int) -> Track:
    """Returns the track of a sensor that is silent since a reading, and whose alert has fired."""
    return Track(
        State(firing=True),
        since_us,
        watermark_us=since_us + rule.silent_for_us,
        told=True,
        told_us=fired_us,
        version=version,
        is_new=False,
        revision=rule.revision,
        severity=rule.severity,
    )


def _since(rule: Rule, track: Track) -> int:
    """Returns the time of the reading since which a sensor is silent."""
    return track.watermark_us - rule.silent_for_us
