"""The tracks of a group of sensors, as bytes that are kept in the state of a step.

Most sensors have none: their readings fire nothing. Of the others, each is decoded only when something comes.

Little-endian:

    state   version; the time of the watermark's timer and of the clock's; the watermark of the last look for silent
            sensors; the number of the rules; number of rules; for each the size of the id and the id; records until the
            end
    record  sizes of the sensor's id and of its tracks; the id; the tracks
    track   index of the rule; phase, plus 4 if the alert was told; the numbers of :class:`Track`; number of readings
            that wait; for each the time and the value
"""

import struct
from collections.abc import Iterator

from pipeline.core.alerts.machine import CALM, FIRING, NEVER_US, PENDING, Kind, Track, Value

NEVER_DUE_US = 1 << 62

_VERSION = 4
_HEADER = struct.Struct("<BqqqqB")
_RECORD = struct.Struct("<HI")
_TRACK = struct.Struct("<BBqdqqdqqH")
_VALUE = struct.Struct("<qd")
_PHASES: tuple[Kind, ...] = (CALM, PENDING, FIRING)
_TOLD = 4


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
        self._encoded: dict[str, bytes] = {}
        self._decoded: dict[str, dict[str, Track]] = {}
        self._rules: list[str] = []
        self.begins = data is None or data[0] != _VERSION
        if data is None or self.begins:
            return
        _, self.due_us, self.wake_us, self.looked_us, self.rules_number, count = _HEADER.unpack_from(data)
        begin = _HEADER.size
        for _ in range(count):
            end = begin + 1 + data[begin]
            self._rules.append(data[begin + 1 : end].decode())
            begin = end
        while begin < len(data):
            id_size, size = _RECORD.unpack_from(data, begin)
            tracks = begin + _RECORD.size + id_size
            sensor_id = data[tracks - id_size : tracks].decode()
            begin = tracks + size
            self._encoded[sensor_id] = data[tracks:begin]

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
            tracks = _read(self._encoded.pop(sensor_id, b""), self._rules)
            found = self._decoded[sensor_id] = {track.rule_id.partition("@")[0]: track for track in tracks}
        return found

    def all(self) -> Iterator[tuple[str, str, Track]]:
        """Yields each track with its sensor and the name of its rule. Tracks may be removed meanwhile."""
        for sensor_id in [*self._encoded, *self._decoded]:
            for name, track in list(self.of(sensor_id).items()):
                yield sensor_id, name, track

    def to_bytes(self) -> bytes:
        """Encodes the tracks."""
        # When rules have changed, all tracks were decoded: then the list begins again.
        rules = {rule_id: index for index, rule_id in enumerate(self._rules if self._encoded else ())}
        for sensor_id, tracks in self._decoded.items():
            if tracks:
                self._encoded[sensor_id] = b"".join(_written(track, rules) for track in tracks.values())
        self._decoded.clear()
        self._rules = list(rules)
        header = self.due_us, self.wake_us, self.looked_us, self.rules_number, len(rules)
        parts = [_HEADER.pack(_VERSION, *header), *(bytes([len(each)]) + each.encode() for each in rules)]
        for sensor_id, encoded in self._encoded.items():
            parts += (_RECORD.pack(len(sensor_id), len(encoded)), sensor_id.encode(), encoded)
        return b"".join(parts)


def _written(track: Track, rules: dict[str, int]) -> bytes:
    index, phase = rules.setdefault(track.rule_id, len(rules)), _PHASES.index(track.phase) | track.told * _TOLD
    numbers = track.since_us, track.value, track.time_us, track.newest_us, track.newest, track.version, track.written_us
    held = [_VALUE.pack(*value[:2]) for value in track.held]
    return b"".join((_TRACK.pack(index, phase, *numbers, len(held)), *held))


def _read(data: bytes, rules: list[str]) -> Iterator[Track]:
    begin = 0
    while begin < len(data):
        index, phase, *numbers, held = _TRACK.unpack_from(data, begin)
        begin += _TRACK.size
        end = begin + held * _VALUE.size
        values = [Value(*each) for each in _VALUE.iter_unpack(data[begin:end])] if held else []
        begin = end
        since_us, value, time_us, newest_us, newest, version, written_us = numbers
        yield Track(
            rules[index], _PHASES[phase & 3], since_us, value, time_us, newest_us, newest, version, phase >= _TOLD,
            written_us, values,
        )  # fmt: skip
