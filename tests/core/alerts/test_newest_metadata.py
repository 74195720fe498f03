"""Tests of the newest metadata of sensors, as rules of alerts ask for it."""

from dataclasses import replace

import pytest

from pipeline.core.alerts import newest_metadata
from pipeline.core.alerts.newest_metadata import NewestMetadata
from pipeline.core.events.event import Event
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.table_schema import TableSchema
from tests.support.memory import Memory
from tests.support.rows import decoded
from tests.support.tables import T, raw_row

_SCHEMA = TableSchema.for_new_table()
_NORTH, _SOUTH = {"site": "north"}, {"site": "south"}


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock, as a list of its time."""
    now_s = [1000.0]
    monkeypatch.setattr(newest_metadata.time, "monotonic", lambda: now_s[0])
    return now_s


def test_metadata_of_a_new_sensor(clock):
    """What was not found is looked for again soon: the first row of a new sensor may be on its way."""
    memory = Memory()
    metadata = NewestMetadata(_SCHEMA, memory)
    assert metadata.of("a") == metadata.of("a") == {}
    assert memory.reads == 1
    memory.write(raw_row(Event("a", T, {"t": 1.0}, _NORTH), _SCHEMA))
    clock[0] += 1
    assert metadata.of("a") == _NORTH
    memory.write(raw_row(Event("a", T + 1, {"t": 1.0}, _SOUTH), _SCHEMA))
    clock[0] += 59
    assert metadata.of("a") == _NORTH
    clock[0] += 1
    assert metadata.of("a") == _SOUTH


@pytest.mark.parametrize("alone", [True, False])
def test_many_sensors_are_read_together(alone, clock):
    """The metadata of a thousand sensors takes some ten requests."""
    schema = replace(_SCHEMA, metadata_alone=alone)
    memory, newest = Memory(), NewestReadings()
    times_us = {f"s{number}": T + 1234567 * number for number in range(1000)}
    for sensor_id, time_us in times_us.items():
        site = {"site": sensor_id}
        memory.write(raw_row(Event(sensor_id, time_us, {"t": 1.0}, site), schema))
        memory.write(raw_row(Event(sensor_id, time_us - 1000, {"t": 1.0}, _NORTH), schema))
        newest.add_metadata(sensor_id, time_us, site)
    if alone:
        for row in newest.rows("latest"):
            memory.write(decoded(row))
    metadata = NewestMetadata(schema, memory)
    metadata.learn({sensor_id: time_us - time_us % 1000 for sensor_id, time_us in times_us.items()})
    assert all(metadata.of(sensor_id) == {"site": sensor_id} for sensor_id in times_us)
    assert memory.reads < 20


def test_metadata_alone(clock):
    """Where events may have metadata alone, the newest raw row may have readings alone: the newest texts count."""
    schema, newest = replace(_SCHEMA, metadata_alone=True), NewestReadings()
    newest.add("a", T + 1, [("t", 1.0)])
    newest.add_metadata("a", T, _NORTH)
    assert NewestMetadata(schema, Memory(map(decoded, newest.rows("latest")))).of("a") == _NORTH


def test_keys_that_do_not_locate_sensors(clock):
    """Nothing is read where a sensor's rows can't be found."""
    schema, memory = replace(_SCHEMA, key=KeyTemplate.parse("{time:%Y-%m-%dT%H:%M:%S}#{sensor_id}")), Memory()
    metadata = NewestMetadata(schema, memory)
    metadata.learn({"a": T})
    assert metadata.of("a") == {}
    assert not memory.reads
