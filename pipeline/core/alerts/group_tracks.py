"""The tracks of a group of sensors, as bytes that are kept in the state of a step.

Most sensors have none: their readings fire nothing. Of the others, each is decoded only when something comes.

Little-endian:

    state   version; the watermark; the time of the timer; the start of the older and of the newer readings that are
            kept; the watermark of the last look for silent sensors; the revisions of the rules, preceded by their size;
            records until the end
    record  sizes of the sensor's id and of its tracks; the id; the tracks as JSON, by the id of their rules
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

from pipeline.core.alerts.machine import NEVER_US, State, Track, Transition, Value

NEVER_DUE_US = 1 << 62

_VERSION = 1
_HEADER = struct.Struct("<BqqqqqI")
_RECORD = struct.Struct("<HI")


class GroupTracks:
    """The tracks of a group of sensors.

    Args:
        data: the bytes of :meth:`to_bytes`; None for a group that begins.

    Attributes:
        watermark_us: the watermark as far as the group knows.
        due_us: the watermark at which an alert fires next unless a reading contradicts; or :data:`NEVER_DUE_US`.
        older_us: the time since which the older of two bags of readings was filled.
        newer_us: the time since which the newer one is filled.
        looked_us: the watermark of the last look for silent sensors.
        revisions: the revisions of the rules that the tracks are of.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self.watermark_us = self.older_us = self.newer_us = self.looked_us = NEVER_US
        self.due_us = NEVER_DUE_US
        self.revisions = ""
        self._encoded: dict[str, bytes] = {}
        self._decoded: dict[str, dict[str, Track]] = {}
        if data is None:
            return
        version, *times_us, size = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise ValueError("another release wrote these alerts; drain the job that wrote them and start a new one")
        self.watermark_us, self.due_us, self.older_us, self.newer_us, self.looked_us = times_us
        begin = _HEADER.size + size
        self.revisions = data[_HEADER.size : begin].decode()
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
        """Returns the sensor's tracks by the ids of their rules. Changes to it are kept."""
        found = self._decoded.get(sensor_id)
        if found is None:
            encoded = self._encoded.pop(sensor_id, None)
            found = {} if encoded is None else {rule: _track(each) for rule, each in json.loads(encoded).items()}
            self._decoded[sensor_id] = found
        return found

    def has(self, sensor_id: str, rule_id: str) -> bool:
        """Returns whether a sensor has a track of a rule, without decoding any."""
        if sensor_id in self._decoded:
            return rule_id in self._decoded[sensor_id]
        return f'"{rule_id}":'.encode() in self._encoded.get(sensor_id, b"")  # no other text in it has an @

    def sensors_of(self, rule_id: str) -> Iterator[str]:
        """Yields the sensors that have a track of a rule."""
        return (sensor_id for sensor_id in self.sensors() if self.has(sensor_id, rule_id))

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
        revisions = self.revisions.encode()
        times_us = self.watermark_us, self.due_us, self.older_us, self.newer_us, self.looked_us
        parts = [_HEADER.pack(_VERSION, *times_us, len(revisions)), revisions]
        for sensor_id, encoded in self._encoded.items():
            parts += (_RECORD.pack(len(sensor_id), len(encoded)), sensor_id.encode(), encoded)
        return b"".join(parts)


def _content(track: Track) -> list[Any]:
    firing, pending = track.state
    values = [part for value in track.values for part in value]
    return [
        firing,
        pending,
        track.after_us,
        track.watermark_us,
        track.told,
        track.version,
        track.is_new,
        track.history,
        values,
    ]


def _track(content: list[Any]) -> Track:
    firing, pending, after_us, watermark_us, told, version, is_new, history, values = content
    return Track(
        State(firing, None if pending is None else Value(*pending)),
        after_us,
        [Value(*pair) for pair in zip(values[::2], values[1::2], strict=True)],
        watermark_us,
        told,
        version,
        is_new,
        [Transition(*each) for each in history],
    )
