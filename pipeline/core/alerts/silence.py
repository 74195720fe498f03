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
from pipeline.core.alerts.machine import FIRING, RESOLVED, Changes, State, Track, Transition
from pipeline.core.alerts.rules import Rule
from pipeline.core.panes.grouped_readings import Readings, read_group_readings

Fitting = Callable[[Rule, Mapping[str, int]], Iterable[str]]
"""Returns the sensors whose metadata is what a rule asks for, given the times of their newest readings."""
Tell = Callable[[Rule, str, Changes, Track, bool], None]
"""Tells the changes of a sensor's track, and records them in its row if the last argument says so."""


class SilentSensors(NamedTuple):
    """All sensors of a group that are silent under a rule, in a range of ids.

    Attributes:
        rule_id: the id of the rule.
        watermark_us: the watermark by which they are silent.
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


class StoredSensors(NamedTuple):
    """What the table stores of some sensors.

    Attributes:
        newest_us: the times of their newest readings.
        with_alerts: those that have a row of the alert.
    """

    newest_us: Mapping[str, int]
    with_alerts: Collection[str]


StoredOf = Callable[[Rule, Sequence[str]], StoredSensors]
"""Returns what the table stores of sensors and their alerts of a rule."""


class Silence:
    """Evaluates rules on silence for a group of sensors.

    Args:
        tracks: the group's tracks, which are changed in place.
        recents: returns the readings that the step keeps of the group.
        fitting: returns the sensors whose metadata fits a rule.
        stored: returns what the table stores of sensors.
        tell: tells and records what changes.
    """

    def __init__(
        self,
        tracks: GroupTracks,
        recents: Callable[[], Iterable[bytes]],
        fitting: Fitting,
        stored: StoredOf,
        tell: Tell,
    ) -> None:
        self._tracks, self._recents, self._fitting = tracks, recents, fitting
        self._stored, self._tell = stored, tell

    def look(self, rule: Rule, silent: SilentSensors) -> bool:
        """Fires the alerts of silent sensors, and ends those of others. Returns whether the tracks changed."""
        if silent.watermark_us < self._tracks.looked_us:
            return False  # a later look knows better
        self._tracks.looked_us = silent.watermark_us
        new = [each for each in silent.newest_us if not self._tracks.has(each, rule.id)]
        if new:
            self._fire(rule, silent, new)
        over = [each for each in self._tracks.sensors_of(rule.id) if silent.spans(each)]
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
            for rule in [rule for rule in rules if rule.id in tracks]:
                times_us = sorted(time_of_key(time) for each in readings for time in each.times)
                track = tracks[rule.id]
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
            for sensor_id, _, times, _ in read_group_readings(part):
                known_us = newest_us.get(sensor_id)
                if known_us is not None:
                    newest_us[sensor_id] = max(known_us, *map(time_of_key, times))
        until_us = silent.watermark_us - rule.silent_for_us
        fitting = self._fitting(rule, {each: time_us for each, time_us in newest_us.items() if time_us < until_us})
        for sensor_id in fitting:
            since_us = newest_us[sensor_id]
            track = self._tracks.of(sensor_id)[rule.id] = silent_track(rule, since_us, since_us)
            fired = [Transition(since_us + rule.silent_for_us, FIRING, None, since_us)]
            self._tell(rule, sensor_id, Changes(fired, [], fired), track, True)

    def _end(self, rule: Rule, watermark_us: int, sensors: Sequence[str]) -> None:
        """Ends alerts of sensors that have sent, which the group may not have heard, and of those that are gone."""
        stored = self._stored(rule, sensors)
        for sensor_id in sensors:
            newest_us, since_us = stored.newest_us.get(sensor_id), _since(rule, self._tracks.of(sensor_id)[rule.id])
            if newest_us is None:
                # Without a row of newest readings, it was forgotten, perhaps, and then nothing is to be written of it.
                self._resolve(rule, sensor_id, since_us, recorded=sensor_id in stored.with_alerts)
            elif newest_us > since_us and newest_us + rule.silent_for_us >= watermark_us:
                self._resolve(rule, sensor_id, newest_us)

    def _resolve(self, rule: Rule, sensor_id: str, heard_us: int, *, recorded: bool = True) -> None:
        track = self._tracks.of(sensor_id).pop(rule.id)
        track.version = max(track.version + 1, heard_us)
        resolved_us = max(heard_us, track.watermark_us)  # not before it fired
        resolved = [Transition(resolved_us, RESOLVED, None, resolved_us)]
        self._tell(rule, sensor_id, Changes(resolved, [], resolved), track, recorded)


def silent_track(rule: Rule, newest_us: int, version: int) -> Track:
    """Returns the track of a sensor that is silent since its newest reading."""
    fired_us = newest_us + rule.silent_for_us
    return Track(State(firing=True), newest_us, watermark_us=fired_us, told=True, version=version, is_new=False)


def _since(rule: Rule, track: Track) -> int:
    """Returns the time of the reading since which a sensor is silent."""
    return track.watermark_us - rule.silent_for_us
