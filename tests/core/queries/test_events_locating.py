import pytest

from pipeline.core.events.event import Event
from pipeline.core.queries.events import SensorLocator
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.toml import parse_schema
from tests.support.memory import Memory

T = 1_771_315_200_000_000


def schema_of(key, layout="wide"):
    return parse_schema(f"key = '{key}'\nlayout = '{layout}'\n")


def table(schema, *places):
    """Returns a table with events; ``("a", "attic", "1")`` is an event of sensor a, in the attic, on floor 1."""
    own = [Row(b"agg#hourly#a#x", [Cell("stats", b"q", 0, b"")]), Row(b"schema#current", [Cell("t", b"q", 0, b"")])]
    events = [
        Event(sensor, T + n, {"m": 1.0, "z": 2.0}, {"room": room, "floor": floor})
        for n, (sensor, room, floor) in enumerate(places)
    ]
    return Memory([*own, *(row for event in events for row in schema.rows(event))])


PLACES = [("a", "attic", "2"), ("a", "cellar", "0"), ("b", "attic", "2"), ("b", "hall", "1"), ("a", "attic", "3")]


@pytest.mark.parametrize(
    ("key", "layout", "found_places"),
    [
        ("{sensor_id}#{reverse_us}", "wide", [{}]),
        ("{sensor_id}#{reverse_us}#{metadata.room}", "wide", [{}]),
        ("{reverse_us}#{sensor_id}", "wide", [{}]),
        ("{sensor_id}#{metadata.room}#{reverse_us}", "wide", [{"room": "attic"}, {"room": "cellar"}]),
        ("{sensor_id}#{metric}#{metadata.room}#{reverse_us}", "tall", [{"room": "attic"}, {"room": "cellar"}]),
        ("s#{salt:2}#{sensor_id}#{metadata.room}#{iso_us}", "wide", [{"room": "attic"}, {"room": "cellar"}]),
        (
            "{metadata.room}#{sensor_id}#{reverse_us}",
            "wide",
            [{"room": "attic"}, {"room": "cellar"}, {"room": "hall"}],
        ),
        (
            "{sensor_id}#{metadata.room}#{metadata.floor}#{reverse_us}",
            "wide",
            [
                {"room": "attic", "floor": "2"},
                {"room": "attic", "floor": "3"},
                {"room": "cellar", "floor": "0"},
            ],
        ),
    ],
)
def test_every_place_of_a_sensor_is_found(key, layout, found_places):
    """If keys begin with the sensor, only its own places are returned; otherwise those of all sensors."""
    schema = schema_of(key, layout)
    assert SensorLocator(schema, table(schema, *PLACES)).of("a") == found_places


def test_each_place_costs_one_seek_once():
    """A lookup takes a seek for each room, of which a request takes many, and is cached."""
    schema = schema_of("{metadata.room}#{sensor_id}#{reverse_us}")
    memory = table(schema, *PLACES)
    locator = SensorLocator(schema, memory)
    locator.of("a")
    assert memory.reads == 1
    assert len(locator.of("b")) == 3
    assert memory.reads == 1


def test_foreign_rows_are_no_places():
    """Foreign rows before, between and behind the others are passed over, and hide none of them."""
    schema = schema_of("{metadata.room}#{sensor_id}#{reverse_us}")
    memory = table(schema, *PLACES)
    for key in (b"!", b"agg", b"attic#a#1", b"attic2", b"cellar", b"hall#b#x", b"zzz", b"\xff\xff"):
        memory.write(Row(key, [Cell("raw", b"q", 0, b"")]))
    assert SensorLocator(schema, memory).of("a") == [{"room": "attic"}, {"room": "cellar"}, {"room": "hall"}]
