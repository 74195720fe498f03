"""Every row of a sensor, and of no other, in every layout."""

from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.queries.reads import raise_foreign
from pipeline.core.queries.rows_of_sensor import AGGREGATES, LATEST, LISTED, RAW, rows_of_sensor
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.windows import parse_window
from tests.core.queries.feeds import SCHEMAS, each_schema
from tests.support.memory import Memory
from tests.support.rows import decoded

T = 1_767_225_600_000_000
MINUTE = 60_000_000
# Each is a prefix of another, sorts between another and its rows, or means something in a regular expression.
SENSORS = ["a", "a!", "a.", "ab", "a-1", "b", ".*", "aa#".rstrip("#")]


def cell(key):
    return Row(key, [Cell("stats", b"count_t", 0, b"1")])


def table_of(schema):
    """Returns a table, and the keys of each sensor by kind."""
    table, keys = Memory(), {}
    for sensor in SENSORS:
        events = [Event(sensor, T + n * 7 * MINUTE, {"t": 1.0, "u": 2.0}, METADATA, f"id-{n}") for n in range(12)]
        newest = NewestReadings()
        newest.add(sensor, T, [("t", 1.0)])
        of_sensor = {
            RAW: [row for event in events for row in schema.rows(event)],
            # A tier of the schema, one that it has no longer, and one of a time zone.
            AGGREGATES: [
                cell(aggregate_key(parse_window(text), sensor, parse_window(text).start_of(T)))
                for text in ("1h", "15m", "1d@Europe/Berlin", "1mo")
            ],
            LATEST: [decoded(row) for row in newest.rows("latest")],
            LISTED: [work_row(tier, sensor, T) for tier in schema.tiers[:1]],
        }
        for rows in of_sensor.values():
            for row in rows:
                table.write(row)
        keys[sensor] = {kind: {row.key for row in rows} for kind, rows in of_sensor.items()}
    table.write(cell(b"schema#v1"))
    return table, keys


METADATA = {"location": "north", "model": "m1", "site": "s", "plant": "p", "line": "1"}


@each_schema
def test_rows_of_a_sensor(schema):
    """Every row of a sensor is found once with its kind, and none of another sensor."""
    table, keys = table_of(schema)
    for sensor in SENSORS:
        found = {kind: set() for kind in (RAW, AGGREGATES, LATEST, LISTED)}
        for kind, key in rows_of_sensor(schema, table, sensor, raise_foreign):
            assert key not in found[kind]
            found[kind].add(key)
        assert found == keys[sensor]
    assert not list(rows_of_sensor(schema, table, "c", raise_foreign))


def test_rows_of_other_programs_stay():
    """They are named: a key in the sensor's range that the schema does not write."""
    schema = SCHEMAS["wide {sensor_id}#{reverse_us} text"]
    foreign = [b"a#notes", b"agg#hourly#a#summary", b"agg#", b"agg#x"]
    problems = []
    table = Memory(cell(key) for key in foreign)
    assert not list(rows_of_sensor(schema, table, "a", problems.append))
    assert [problem.key for problem in problems] == foreign[:2]


def test_rows_read():
    """A sensor's own rows, one for each tier of the table, and no other sensor's."""
    schema = SCHEMAS["wide {sensor_id}#{reverse_us} text"]
    table, keys = table_of(schema)
    table.rows = 0
    assert len(list(rows_of_sensor(schema, table, "a", raise_foreign))) == sum(map(len, keys["a"].values()))
    assert table.rows == sum(map(len, keys["a"].values())) + 4
