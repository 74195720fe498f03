"""The tracks of a group of sensors, as bytes that are kept in the state of a step.

Most sensors have none: their readings fire nothing. Of the others, each is decoded only when something comes.

Little-endian:

    state   version, which is one more while the bags of readings have changed places; the watermark; the time of the
            timer; the start of the newer readings that are kept; the end of the last windows; the watermark of the last
            look for silent sensors; the number of the rules; records until the end
    record  sizes of the sensor's id and of its tracks; the id; the tracks as JSON, by the name of their rules
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from pipeline.core.alerts.machine import NEVER_US, State, Track, Transition, Value

NEVER_DUE_US = 1 << 62

_VERSION = 2
_HEADER = struct.Struct("<Bqqqqqq")
_RECORD = struct.Struct("<HI")
_VALUES = [field.name for field in fields(Track)].index("values")


class GroupTracks:
    """The tracks of a group of sensors.

    Args:
        data: the bytes of :meth:`to_bytes`; None for a group that begins.

    Attributes:
        watermark_us: the watermark as far as the group knows.
        due_us: the watermark at which an alert fires next unless a reading contradicts; or :data:`NEVER_DUE_US`.
        newer_us: the time since which the newer of two bags of readings is filled.
        over_us: the greatest end of a window that is over, as far as the group knows.
        looked_us: the watermark of the last look for silent sensors.
        rules_number: the number of the rules that the tracks are of.
        turned: whether the two bags of readings have changed places.
        begins: whether the group begins.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self.watermark_us = self.newer_us = self.over_us = self.looked_us = NEVER_US
        self.due_us = NEVER_DUE_US
        self.rules_number, self.turned = -1, False
        self.begins = data is None
        self._encoded: dict[str, bytes] = {}
        self._decoded: dict[str, dict[str, Track]] = {}
        if data is None:
            return
        version, *times_us, self.rules_number = _HEADER.unpack_from(data)
        self.watermark_us, self.due_us, self.newer_us, self.over_us, self.looked_us = times_us
        self.turned = version == _VERSION + 1
        if version != _VERSION + self.turned:
            raise ValueError("another release wrote these alerts; drain the job that wrote them and start a new one")
        begin = _HEADER.size
        while begin < len(data):
            id_size, tracks_size = _RECORD.unpack_from(data, begin)
            begin += _RECORD.size
            tracks = begin + id_size
            sensor_id = data[begin:tracks].decode()
            begin = tracks + tracks_size
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
            encoded = self._encoded.pop(sensor_id, None)
            found = {} if encoded is None else {rule: _track(each) for rule, each in json.loads(encoded).items()}
            self._decoded[sensor_id] = found
        return found

    def fires(self, sensor_id: str, name: str) -> bool:
        """Returns whether the alert of a rule on silence fires, without decoding any track."""
        if sensor_id in self._decoded:
            return name in self._decoded[sensor_id] and self._decoded[sensor_id][name].state.firing
        # A track begins with its state. What is not a name has no colon after it.
        return f'"{name}":[[true,'.encode() in self._encoded.get(sensor_id, b"")

    def firing(self, name: str) -> Iterator[str]:
        """Yields the sensors whose alerts of a rule on silence fire."""
        return (sensor_id for sensor_id in self.sensors() if self.fires(sensor_id, name))

    def sensors(self) -> Iterator[str]:
        """Yields the sensors that have tracks."""
        yield from list({**self._encoded, **self._decoded})

    def to_bytes(self) -> bytes:
        """Encodes the tracks."""
        for sensor_id, tracks in self._decoded.items():
            if tracks:
                content = {rule: _content(track) for rule, track in tracks.items()}
                self._encoded[sensor_id] = json.dumps(content, separators=(",", ":")).encode()
        self._decoded.clear()
        times_us = self.watermark_us, self.due_us, self.newer_us, self.over_us, self.looked_us
        parts = [_HEADER.pack(_VERSION + self.turned, *times_us, self.rules_number)]
        for sensor_id, encoded in self._encoded.items():
            parts += (_RECORD.pack(len(sensor_id), len(encoded)), sensor_id.encode(), encoded)
        return b"".join(parts)


def _content(track: Track) -> list[Any]:
    content = list(vars(track).values())
    content[_VALUES] = [part for value in track.values for part in value]
    return content


def _track(content: list[Any]) -> Track:
    track = Track(*content)
    firing, pending = content[0]
    track.state = State(firing, None if pending is None else Value(*pending))
    numbers = content[_VALUES]
    track.values = [Value(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    track.history = [Transition(*each) for each in track.history]
    return track
