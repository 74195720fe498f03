"""The windows of many sensors, read together, are what each is by itself."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings, window_bytes
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.events.event import Event
from pipeline.core.queries import reads
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.core.queries.feeds import each_schema
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE
from tests.support.memory import Memory
from tests.support.served import InBlocks

TIERS = (Tier(HOURLY, "hours"), Tier(DAILY, "days"))
SENSORS = [f"s{n}" for n in range(8)]
T = MIDNIGHT + 10 * HOUR
SCHEMA = parse_schema('[tiers]\n1h = "hours"\n1d = "days"')


def event(sensor_id, minute, value=1.0):
    return Event(sensor_id, T + minute * MINUTE, {"t": value, "h": value}, {"location": "x", "model": "y"}, "id")


def row_of(tier, sensor_id, minute, count):
    stats = WindowStats()
    for _ in range(count):
        stats.add({"t": 1.0, "h": 1.0})
    return aggregate_row(tier.window, sensor_id, tier.window.start_of(T + minute * MINUTE), stats, tier.family)


def computed(schema, table, tier, sensor_ids, start_us, *, one_by_one=False):
    """Returns what is computed of each sensor's window, as bytes; "foreign" with a foreign row."""
    completion = Completion(schema, Retention.of(schema), table).tiers[tier]
    nothing = WindowReadings() if tier == schema.tiers[0] else {}

    def of(window):
        try:
            found = completion.completed(*window, T + DAY, nothing)
        except ForeignRow:
            return "foreign"
        return found and window_bytes(found.stats)

    windows = [(sensor_id, start_us) for sensor_id in sensor_ids]
    found = {window: of(window) for window in windows} if one_by_one else completion.each(of, windows, T + DAY)
    return {sensor_id: each for (sensor_id, _), each in found.items()}


STORED = st.dictionaries(
    st.tuples(st.sampled_from(SENSORS), st.integers(-70, 130)), st.sampled_from([1.0, -2.5]), max_size=30
)
ROWS = st.dictionaries(
    st.tuples(st.sampled_from(TIERS), st.sampled_from(SENSORS), st.sampled_from([0, 60])), st.integers(1, 3), max_size=8
)


@each_schema
@settings(max_examples=examples(3), deadline=None)
@given(STORED, ROWS, st.sampled_from([1, 20, 10_000]))
def test_reading_together_is_reading_one_by_one(schema, stored, rows, most_cells):
    """In every layout, of windows with raw rows, with an aggregate row or without, however little is in memory."""
    schema = replace(schema, tiers=TIERS, rate=None)
    table = Memory(row for (sensor_id, minute), x in stored.items() for row in schema.rows(event(sensor_id, minute, x)))
    for (tier, sensor_id, minute), count in rows.items():
        table.write(row_of(tier, sensor_id, minute, count))
    for tier, start_us in ((TIERS[0], T), (TIERS[0], T + HOUR), (TIERS[1], MIDNIGHT)):
        expected = computed(schema, table, tier, SENSORS, start_us, one_by_one=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(reads, "MOST_CELLS", most_cells)
            for read in (table, InBlocks(table, 50)):
                assert computed(schema, read, tier, SENSORS, start_us) == expected


@pytest.mark.parametrize(
    ("tier", "requests"), [(SCHEMA.tiers[0], 2), (SCHEMA.tiers[1], 4)], ids=["hours", "days from hours"]
)
def test_many_windows_cost_few_requests(tier, requests):
    """One request for two hundred sensors, or two if hours without rows are read too."""
    sensors = [f"s{n}" for n in range(400)]
    table = Memory(row for sensor_id in sensors[::2] for row in SCHEMA.rows(event(sensor_id, 5)))
    found = computed(SCHEMA, table, tier, sensors, tier.window.start_of(T))
    assert table.reads == requests
    assert found == computed(SCHEMA, table, tier, sensors, tier.window.start_of(T), one_by_one=True)


@pytest.mark.parametrize("tier", SCHEMA.tiers)
def test_a_foreign_row_holds_back_its_own_sensor(tier):
    """Another program's row, raw or of a shorter window, is no matter to the sensors that are read with it."""
    table = Memory(row for sensor_id in SENSORS for row in SCHEMA.rows(event(sensor_id, 5)))
    table.write(Row(SCHEMA.rows(event("s2", 7))[0].key, [Cell("raw", b"t", T, b"no number")]))
    hours = SCHEMA.tiers[0]
    table.write(Row(row_of(hours, "s4", 0, 1).key, [Cell(hours.family, b"sum_t", T, b"no number")]))
    found = computed(SCHEMA, table, tier, SENSORS, tier.window.start_of(T))
    assert [sensor_id for sensor_id in SENSORS if found[sensor_id] == "foreign"] == (
        ["s2"] if tier is hours else ["s2", "s4"]
    )


def test_raw_rows_without_readings():
    """A window of metadata alone is none: a longer window does not count it as one of its shorter windows."""
    alone = event("a", 60)._replace(readings={})
    table = Memory(row for each in (event("a", 0), alone) for row in SCHEMA.rows(each))
    completion = Completion(SCHEMA, Retention.of(SCHEMA), table)
    assert list(completion.readings("a", T, T + 2 * HOUR, HOURLY)) == [T]
