"""The tracks of a group of sensors, as bytes that are kept in the state of a step.

Most sensors have none: their readings fire nothing. Of the others, each is decoded only when its state may change.

Little-endian:

    state   version; the time of the watermark's timer and of the clock's; the watermark of the last look for silent
            sensors; the number of the rules; number of rules; number of sensors; size of the ids of rules and sensors;
            these ids, separated by line feeds; for each sensor the size of its tracks; the tracks
    track   index of the rule; phase, plus 4 if the alert was told, and 8 if its message waits; number of readings that
            wait; the numbers of :class:`Track`; for each reading that waits the time and the value
"""

import struct
from collections.abc import Iterator
from itertools import accumulate, pairwise

from pipeline.core.alerts.machine import CALM, FIRING, NEVER_US, PENDING, Kind, Track, Value

NEVER_DUE_US = 1 << 62

_VERSION = 5
_HEADER = struct.Struct("<BqqqqHII")
_TRACK = struct.Struct("<HBHqdqqdqq")
_BEGIN = struct.Struct("<HBHq")  # of a track
_VALUE = struct.Struct("<qd")
_PHASES: tuple[Kind, ...] = (CALM, PENDING, FIRING)
_FIRING = _PHASES.index(FIRING)
_TOLD, _WAITS = 4, 8


class GroupTracks:
    """The tracks of a group of sensors.

    Args:
        data: the bytes of :meth:`to_bytes`; None for a group that begins. It begins too if another release wrote them:
            the table has what they say.

    Attributes:
        due_us: the watermark at which an alert fires next unless a reading contradicts; or :data:`NEVER_DUE_US`.
        wake_us: the time of the clock at which held readings are due, or messages that wait; or :data:`NEVER_DUE_US`.
        looked_us: the watermark of the last look for silent sensors.
        rules_number: the number of the rules that the tracks are of.
        begins: whether the group begins.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self.due_us = self.wake_us = NEVER_DUE_US
        self.looked_us, self.rules_number = NEVER_US, -1
        self._encoded: dict[str, tuple[int, int]] = {}  # the places of tracks in the data
        self._decoded: dict[str, dict[str, Track]] = {}
        self._rules: list[str] = []
        self._data = data or b""
        self.begins = data is None or data[0] != _VERSION
        if data is None or self.begins:
            return
        _, self.due_us, self.wake_us, self.looked_us, self.rules_number, rules, count, size = _HEADER.unpack_from(data)
        ids = data[_HEADER.size : _HEADER.size + size].decode().split("\n")
        self._rules = ids[:rules]
        sizes = struct.unpack_from(f"<{count}I", data, _HEADER.size + size)
        ends = list(accumulate(sizes, initial=_HEADER.size + size + 4 * count))
        self._encoded = dict(zip(ids[rules:], pairwise(ends), strict=False))

    def __contains__(self, sensor_id: str) -> bool:
        return sensor_id in self._encoded or sensor_id in self._decoded

    @property
    def is_empty(self) -> bool:
        """Whether no sensor has tracks."""
        return not (self._encoded or self._decoded)

    def of(self, sensor_id: str) -> dict[str, Track]:
        """Returns the sensor's tracks by the names of their rules. Changes to it are kept."""
        found = self._decoded.get(sensor_id)
        if found is None:
            begin, end = self._encoded.pop(sensor_id, (0, 0))
            tracks = _read(self._data[begin:end], self._rules)
            found = self._decoded[sensor_id] = {track.rule_id.partition("@")[0]: track for track in tracks}
        return found

    def phases(self, sensor_id: str) -> dict[str, tuple[Kind, int]] | None:
        """Returns a sensor's states, and since when they last, by the ids of rules; None if readings wait.

        It does not decode the tracks.
        """
        if sensor_id in self._decoded:
            tracks = self._decoded[sensor_id].values()
            waits = any(track.held for track in tracks)
            return None if waits else {track.rule_id: (track.phase, track.since_us) for track in tracks}
        begin, end = self._encoded.get(sensor_id, (0, 0))
        data, rules, found = self._data, self._rules, dict[str, tuple[Kind, int]]()
        for place in range(begin, end, _TRACK.size):
            index, phase, held, since_us = _BEGIN.unpack_from(data, place)
            if held:
                return None
            found[rules[index]] = _PHASES[phase & 3], since_us
        return found

    def all(self, *, at_rest: bool = True) -> Iterator[tuple[str, str, Track]]:
        """Yields each track with its sensor and the name of its rule. Tracks may be removed meanwhile.

        Without those at rest, it leaves out sensors whose alerts fire, are told and hold no reading.
        """
        for sensor_id in [*self._encoded, *self._decoded]:
            if at_rest or not self._rests(sensor_id):
                for name, track in list(self.of(sensor_id).items()):
                    yield sensor_id, name, track

    def _rests(self, sensor_id: str) -> bool:
        begin, end = self._encoded.get(sensor_id, (0, 0))
        if begin == end or (end - begin) % _TRACK.size:
            return False
        tracks = _TRACK.iter_unpack(self._data[begin:end])
        return all(not held and phase & ~_TOLD == _FIRING for _, phase, held, *_ in tracks)

    def to_bytes(self) -> bytes:
        """Encodes the tracks."""
        # When rules have changed, all tracks were decoded: then the list begins again.
        rules = {rule_id: index for index, rule_id in enumerate(self._rules if self._encoded else ())}
        encoded = {sensor_id: self._data[begin:end] for sensor_id, (begin, end) in self._encoded.items()}
        for sensor_id, tracks in self._decoded.items():
            if tracks:
                encoded[sensor_id] = b"".join(_written(track, rules) for track in tracks.values())
        ids = "\n".join([*rules, *encoded]).encode()
        numbers = self.due_us, self.wake_us, self.looked_us, self.rules_number, len(rules), len(encoded), len(ids)
        sizes = struct.pack(f"<{len(encoded)}I", *map(len, encoded.values()))
        return b"".join((_HEADER.pack(_VERSION, *numbers), ids, sizes, *encoded.values()))


def _written(track: Track, rules: dict[str, int]) -> bytes:
    index, phase = rules.setdefault(track.rule_id, len(rules)), _PHASES.index(track.phase)
    phase |= track.told * _TOLD | track.waits * _WAITS
    numbers = track.since_us, track.value, track.time_us, track.newest_us, track.newest, track.version, track.written_us
    held = [_VALUE.pack(*value[:2]) for value in track.held]
    return b"".join((_TRACK.pack(index, phase, len(held), *numbers), *held))


def _read(data: bytes, rules: list[str]) -> Iterator[Track]:
    begin = 0
    while begin < len(data):
        index, phase, held, *numbers = _TRACK.unpack_from(data, begin)
        begin += _TRACK.size + held * _VALUE.size
        values = [Value(*each) for each in _VALUE.iter_unpack(data[begin - held * _VALUE.size : begin])]
        since_us, value, time_us, newest_us, newest, version, written_us = numbers
        of_state = since_us, value, time_us, newest_us, newest, version, bool(phase & _TOLD), bool(phase & _WAITS)
        yield Track(rules[index], _PHASES[phase & 3], *of_state, written_us, values)
