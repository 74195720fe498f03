import math

import pytest

from pipeline.core.decoding.message_types import BuiltIn, MappedType, TableRules
from pipeline.core.events.event import LATEST_US, serialized
from pipeline.core.events.invalid_readings import Invalid, RangeCheck
from pipeline.core.events.message import Message, message_of, sensor_event
from pipeline.core.events.reasons import Reason
from pipeline.proto.sensor_event_pb2 import SensorEvent

T = 1_771_324_200_000_000
MAPPING = """
message = "json"
each = "[]"
sensor = ".s"
time = { path = ".t", unit = "us" }
[readings]
a = { path = ".a", valid = [0, 9] }
b = { path = ".b", invalid = "drop reading" }
"""
RANGES = RangeCheck([{"a": (0.0, 9.0), "c": (-1.0, 5.0)}, {"a": (5.0, 99.0)}])


def decoded(*readings, checks=(RANGES,), **options):
    """Decodes a batch of events of one sensor."""
    events = [sensor_event("s", T + position, of_event, {}) for position, of_event in enumerate(readings)]
    return BuiltIn().decode(message_of(events), LATEST_US, TableRules(checks, **options))


def losses(found):
    return [{metric: str(problem) for metric, problem in lost.items()} for _, lost in found.losses]


def test_an_event_loses_invalid_readings_and_keeps_the_others():
    """A reading has to be finite, and in the range of every table; the first of each metric and reason is told."""
    found = decoded({"a": 5.0, "b": math.nan}, {"a": 9.5, "b": math.inf, "c": 5.0}, {"a": 4.0, "b": 0.0}, {"a": 9.0})
    assert [event.readings for event in found.events] == [{"a": 5.0}, {"c": 5.0}, {"b": 0.0}, {"a": 9.0}]
    assert (found.refused, found.dropped) == ([], 4)
    assert losses(found) == [
        {"b": "NON_FINITE_VALUE: reading b is nan"},
        {"a": "OUT_OF_RANGE: reading a is 9.5, not in [5, 9]"},
    ]
    alone = [SensorEvent.FromString(message.data).event_time.nanos for message, _ in found.losses]
    assert alone == [0, 1000]


def test_an_event_without_valid_readings_is_refused():
    """The first problem is the reason; another problem of the event counts. Metadata may be an event of its own."""
    late = sensor_event("s", LATEST_US + 1, {"a": math.nan, "b": 1.0}, {})
    of_name = sensor_event("s", T, {"a": math.nan, "no name": 1.0}, {})
    lost = sensor_event("s", T, {"a": 100.0, "b": math.nan}, {"m": "x"})
    found = BuiltIn().decode(message_of([late, of_name, lost]), LATEST_US, TableRules([RANGES]))
    assert (found.events, found.dropped) == ([], 0)
    reasons = [problem.reason for _, problem in found.refused]
    assert reasons == [Reason.EVENT_TIME_IN_FUTURE, Reason.INVALID_METRIC_NAME, Reason.NON_FINITE_VALUE]
    (kept,) = BuiltIn().decode(message_of([lost]), LATEST_US, TableRules([RANGES], metadata_alone=True)).events
    assert (kept.readings, kept.metadata) == ({}, {"m": "x"})


def test_a_schema_may_refuse_the_event():
    """With `invalid = "refuse event"`, one such reading refuses its event, and no other of the batch."""
    found = decoded({"a": 1.0, "b": 1.0}, {"a": 5.0, "b": math.nan}, {"a": 5.0}, invalid=Invalid.REFUSE_EVENT)
    assert [event.readings for event in found.events] == [{"a": 5.0}]
    assert [problem.reason for _, problem in found.refused] == [Reason.OUT_OF_RANGE, Reason.NON_FINITE_VALUE]
    assert found.dropped == 0


def test_what_is_stored_whole_lacks_the_reading():
    """A serialized event keeps fields that this release does not know, and not the reading."""
    event = sensor_event("s", T, {"a": 5.0, "b": math.nan}, {})
    unknown = b"\x78\x01"
    message = message_of([event])._replace(data=event.SerializeToString() + unknown)
    (kept,) = BuiltIn().decode(message, LATEST_US).events
    assert serialized(kept) == sensor_event("s", T, {"a": 5.0}, {}).SerializeToString() + unknown


def test_metrics_that_are_told_are_bounded():
    """A message with very many kinds of losses tells of a thousand; all are counted."""
    names = [[f"m{number}_{event}" for number in range(900)] for event in range(3)]
    found = decoded(*({"a": 5.0} | dict.fromkeys(of_event, math.nan) for of_event in names))
    assert found.dropped == 2700
    assert [len(lost) for _, lost in found.losses] == [900, 100]


@pytest.mark.parametrize(
    ("elements", "readings", "lost"),
    [
        ('{"a": 9.5, "b": 1}', {"b": 1.0}, "OUT_OF_RANGE: readings.a is 9.5, not in [0, 9]"),
        ('{"a": 9, "b": "x"}', {"a": 9.0}, "NOT_A_NUMBER: readings.b is 'x', not a number"),
        ('{"a": 9.5}, {"b": 2}, {"a": 3}', {"a": 3.0, "b": 2.0}, None),  # one event, in which another element has it
        ('{"a": 3}, {"a": 9.5, "b": 2}', {"a": 3.0, "b": 2.0}, None),
    ],
)
def test_readings_that_a_mapping_leaves_out(elements, readings, lost):
    """What a mapping leaves out is told; a value of another element of the event stands for it."""
    mapped = MappedType("m.toml", MAPPING)
    data = f"[{elements}]".replace("{", f'{{"s": "s", "t": {T}, ').encode()
    message = Message(data, {})
    found = mapped.decode(message, LATEST_US)
    assert [event.readings for event in found.events] == [readings]
    assert (found.refused, losses(found)) == ([], [{lost[lost.index("readings.") + 9]: lost}] if lost else [])
    assert [message.data for message, _ in found.losses] == [data] * found.dropped
