"""Tests of the values that rules look at, as a table tells them."""

from dataclasses import replace

from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.known_values import known_values
from pipeline.core.alerts.machine import MOST_VALUES, Value
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.stored_alerts import FOREVER_US, StoredValues, ValuesWanted
from pipeline.core.events.event import Event
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.lasting import lasting
from tests.support.memory import Memory
from tests.support.tables import HOUR, T, raw_row, window_row

_SCHEMA = TableSchema.for_new_table()
_KEPT = Retention.of(lasting(_SCHEMA))
_CONDITION = AlertCondition("above", 10, 10)
_WARM = Rule("warm", metric="t", condition=_CONDITION)
_COLD = Rule("cold", metric="u", condition=_CONDITION)
_MEAN = Rule("mean", metric="t", condition=_CONDITION, of="avg", tier="1h")
_SECOND = 1_000_000


def _of_readings(count: int, metrics: tuple[str, ...] = ("t",)) -> Memory:
    events = [Event("a", T + step * _SECOND, dict.fromkeys(metrics, float(step)), {}) for step in range(count)]
    return Memory(raw_row(event, _SCHEMA) for event in events)


def _wanted(rule: Rule, sensor_id: str = "a", from_us: int = T, until_us: int = 0) -> ValuesWanted:
    return ValuesWanted(rule, sensor_id, from_us, until_us)


def test_readings_since_a_time() -> None:
    """Each rule gets the readings of its metric since the time that it asks for; in reply to each question."""
    memory = _of_readings(4, ("t", "u"))
    wanted = [_wanted(_COLD, from_us=T + 2 * _SECOND), _wanted(_WARM, "b"), _wanted(_WARM, from_us=T + _SECOND)]
    cold, none, warm = known_values(_SCHEMA, _KEPT, memory, wanted, T + HOUR)
    assert (cold.from_us, sorted(cold.values)) == (T + 2 * _SECOND, [Value(T + n * _SECOND, n) for n in (2, 3)])
    assert (warm.from_us, sorted(warm.values)) == (T + _SECOND, [Value(T + n * _SECOND, n) for n in (1, 2, 3)])
    assert none == StoredValues(T, [])


def test_a_storm_costs_few_requests() -> None:
    """The readings, or the windows, of a thousand sensors take some ten requests."""
    sensors = [f"s{number}" for number in range(1000)]
    memory = Memory(raw_row(Event(each, T + 1, {"t": 5.0}, {}), _SCHEMA) for each in sensors)
    for each in sensors:
        memory.write(window_row(_SCHEMA.tiers[0].window, each, T, {"t": 1.0}))
    for rule in (_WARM, _MEAN):
        memory.reads = 0
        wanted = [_wanted(rule, each, until_us=T + HOUR) for each in sensors]
        found = known_values(_SCHEMA, _KEPT, memory, wanted, T + HOUR)
        assert all(len(each.values) == 1 for each in found)
        assert memory.reads < 20


def test_a_quantile_of_an_earlier_release() -> None:
    """A quantile above the maximum of its row is the maximum, as all readers show it."""
    schema, window = parse_schema('[statistics]\nother = ["min", "max", "p95"]'), _SCHEMA.tiers[0].window
    values = {"reading_count": b"3", "count_t": b"3", "min_t": b"88", "max_t": b"90", "p95_t": b"90.44"}
    cells = [Cell(schema.tiers[0].family, name.encode(), T, value) for name, value in values.items()]
    memory = Memory([Row(aggregate_key(window, "a", T), cells)])
    (found,) = known_values(schema, _KEPT, memory, [_wanted(replace(_MEAN, of="p95"), until_us=T + HOUR)], T + HOUR)
    assert found.values == [Value(T + HOUR, 90.0)]


def test_what_the_table_cannot_tell() -> None:
    """Where readings are collected, very many, or not to be found, the answer says since when it has them."""
    memory, now_us = _of_readings(MOST_VALUES + 5), T + 2 * HOUR
    collected = replace(_KEPT, since={"raw": T + 7 * _SECOND})
    assert known_values(_SCHEMA, collected, memory, [_wanted(_WARM)], now_us)[0].from_us == T + 7 * _SECOND
    (many,) = known_values(_SCHEMA, _KEPT, memory, [_wanted(_WARM)], now_us)
    assert (many.from_us, len(many.values)) == (T + 5 * _SECOND, MOST_VALUES)
    by_time = replace(_SCHEMA, key=KeyTemplate.parse("{time:%Y-%m-%dT%H:%M:%S}#{sensor_id}"))
    assert known_values(by_time, _KEPT, memory, [_wanted(_WARM)], now_us) == [StoredValues(FOREVER_US, ())]


def test_windows_that_are_over() -> None:
    """Of windows, those count that end in the span that is asked for: none in progress."""
    memory = Memory(window_row(_SCHEMA.tiers[0].window, "a", T + number * HOUR, {"t": 1.0}) for number in range(4))
    wanted = [_wanted(_MEAN, from_us=T + 2 * HOUR, until_us=T + 3 * HOUR)]
    (found,) = known_values(_SCHEMA, _KEPT, memory, wanted, T + 9 * HOUR)
    assert sorted(time_us for time_us, _ in found.values) == [T + 2 * HOUR, T + 3 * HOUR]
