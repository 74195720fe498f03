import pytest

from pipeline.core.events import Event
from pipeline.core.rows import Cell, Row
from pipeline.core.schema.sensor_locator import SensorLocator
from pipeline.core.schema.toml import parse_schema
from tests.core.schema.memory import Memory

T = 1_771_315_200_000_000


def schema_of(key, layout="wide"):
    return parse_schema(f"key = '{key}'\nlayout = '{layout}'\n")


def table(schema, *places):
    """Events of sensors in places: ``("a", "attic", "1")`` is of sensor a, in the attic, on floor 1."""
    own = [Row(b"agg#hourly#a#x", [Cell("stats", b"q", 0, b"")]), Row(b"schema#current", [Cell("t", b"q", 0, b"")])]
    events = [
        Event(sensor, T + n, {"m": 1.0, "z": 2.0}, {"room": room, "floor": floor})
        for n, (sensor, room, floor) in enumerate(places)
    ]
    return Memory([*own, *(row for event in events for row in schema.rows(event))])


PLACES = [("a", "attic", "2"), ("a", "cellar", "0"), ("b", "attic", "2"), ("b", "hall", "1"), ("a", "attic", "3")]


@pytest.mark.parametrize(
    ("key", "layout", "homes"),
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
def test_every_place_that_rows_of_a_sensor_may_have_is_found(key, layout, homes):
    """Where the sensor comes first, its own places; else those of all sensors, in which it is then looked for."""
    schema = schema_of(key, layout)
    assert SensorLocator(schema, table(schema, *PLACES)).of("a") == homes


def test_each_costs_a_seek_and_is_looked_up_once():
    """One for each room, one behind the last, and one over the table's own rows; for a second sensor none."""
    schema = schema_of("{metadata.room}#{sensor_id}#{reverse_us}")
    memory = table(schema, *PLACES)
    homes = SensorLocator(schema, memory)
    homes.of("a")
    assert memory.reads == 3 + 1 + 2
    assert len(homes.of("b")) == 3
    assert memory.reads == 6


def test_rows_with_other_keys_are_nobodys_homes():
    """Before, between and behind the others they are passed, and hide none of them."""
    schema = schema_of("{metadata.room}#{sensor_id}#{reverse_us}")
    memory = table(schema, *PLACES)
    for key in (b"!", b"agg", b"attic#a#1", b"attic2", b"cellar", b"hall#b#x", b"zzz", b"\xff\xff"):
        memory.write(Row(key, [Cell("raw", b"q", 0, b"")]))
    assert SensorLocator(schema, memory).of("a") == [{"room": "attic"}, {"room": "cellar"}, {"room": "hall"}]
