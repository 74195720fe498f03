"""Events and messages of the tests here, valid ones and ones that are refused."""

import math

import pytest

from pipeline.core.events.event import EARLIEST_US, LATEST_US, validate
from pipeline.core.events.message import Message, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEvent

NOW_US = 1_771_324_200_000_000
HOUR_US = 3_600_000_000


def event(**changes):
    parts = {"sensor_id": "balloon-7", "event_time_us": NOW_US, "readings": {"temperature": 23.5}, "metadata": {}}
    return sensor_event(**parts | changes)


def at(seconds=NOW_US // 1_000_000, nanos=0):
    proto = event()
    proto.event_time.seconds, proto.event_time.nanos = seconds, nanos
    return proto


def check(proto):
    return validate(proto, NOW_US + HOUR_US)


def refusal(action, *args):
    with pytest.raises(BadData) as caught:
        action(*args)
    assert caught.value.detail
    assert "\n" not in caught.value.detail
    return caught.value.reason


def message(data, **attributes):
    return Message(data, attributes)


_LONG = {"x": "x" * 4096, "ü": "ü" * 2048, "🏔": "🏔" * 1024}  # 4 KiB of UTF-8
VALID = [
    *(event(sensor_id=text) for text in ("a", "!", "~", '"$%', "x" * 256, "agg1", "AGG", "schema-2", "a/b.c:d")),
    *(event(event_time_us=time_us) for time_us in (EARLIEST_US, EARLIEST_US + 1, NOW_US, NOW_US + HOUR_US)),
    *(event(readings={"x": value}) for value in (-0.0, 5e-324, 1e308, -1e308)),
    *(event(readings={name: 1.0}) for name in ("t", "_", "Temp.2-x_y", "m" * 128)),
    event(readings={f"m{number}": 1.0 for number in range(1000)}),
    event(metadata={"location": "Zürich 🏔", "note": ""}),
    event(metadata={f"k{number}": "v" for number in range(100)}),
    *(event(metadata={"note": text}) for text in _LONG.values()),
]
"""Events at the limits of each rule."""
REFUSED = {
    Reason.MISSING_SENSOR_ID: [event(sensor_id=text) for text in ("", " ", "\t\n")],
    Reason.INVALID_SENSOR_ID: [
        *(event(sensor_id=text) for text in ("a#b", "#", "a b", "a\n", "\na", "a\x00", "a\x1f", "a\x7f", "é")),
        *(event(sensor_id=text) for text in ("x" * 257, "agg", "schema", "repair")),
    ],
    Reason.MISSING_EVENT_TIME: [SensorEvent(sensor_id="a", readings={"t": 1})],
    Reason.INVALID_EVENT_TIME: [at(nanos=nanos) for nanos in (-1, 1_000_000_000, -(2**31))],
    Reason.EVENT_TIME_TOO_EARLY: [*(event(event_time_us=us) for us in (EARLIEST_US - 1, 0)), at(-(2**63))],
    Reason.EVENT_TIME_IN_FUTURE: [
        *(event(event_time_us=us) for us in (NOW_US + HOUR_US + 1, LATEST_US + 1)),
        at(2**63 - 1),
    ],
    Reason.NO_READINGS: [event(readings={})],
    Reason.TOO_MANY_READINGS: [event(readings={f"m{number}": 1.0 for number in range(1001)})],
    Reason.INVALID_METRIC_NAME: [
        event(readings={name: 1.0}) for name in ("", "m" * 129, "2m", "-m", ".m", "a b", "a:b", "°C", "a\n", "a#b")
    ],
    Reason.INVALID_READING: [event(readings={"x": value}) for value in (math.nan, math.inf, -math.inf)],
    Reason.TOO_MUCH_METADATA: [event(metadata={f"m{number}": "x" for number in range(101)})],
    Reason.INVALID_METADATA_NAME: [event(metadata={name: "v"}) for name in ("", "k" * 129, "a b")],
    Reason.METADATA_TOO_LONG: [event(metadata={"note": text + last}) for last, text in _LONG.items()],
}
"""Events just beyond the limits, by the reason for which they are refused."""
