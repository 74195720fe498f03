"""Events and messages of the tests here, and what refuses them."""

import pytest

from pipeline.core.events.event import validate
from pipeline.core.events.message import Message, sensor_event
from pipeline.core.events.reasons import BadData

NOW_US = 1_771_324_200_000_000
HOUR_US = 3_600_000_000


def event(**changes):
    parts = {"sensor_id": "balloon-7", "event_time_us": NOW_US, "readings": {"temperature": 23.5}, "metadata": {}}
    return sensor_event(**parts | changes)


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
