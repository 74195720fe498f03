"""Reads the values that rules look at from a table: readings of raw rows, and statistics of windows."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from pipeline.core.alerts.machine import MOST_VALUES, Value
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.stored_alerts import FOREVER_US, StoredValues, ValuesWanted
from pipeline.core.queries.events import Query, events_of, selections_of
from pipeline.core.queries.reads import ReadRows, RowSelection, RowsTogether, in_batches
from pipeline.core.rows.aggregate_rows import aggregate_range, as_read, parse_aggregate_key
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import qualifier_of

_SECOND_US = 1_000_000
_NOTHING = StoredValues(FOREVER_US, ())

_Found = Iterator[tuple[str, StoredValues]]  # by sensor


def known_values(
    schema: TableSchema, retention: Retention, read: ReadRows, wanted: Sequence[ValuesWanted], now_us: int
) -> list[StoredValues]:
    """Returns the answer to each question. Sensors are read together, as a request costs as much as many rows."""
    by_rule: dict[Rule, dict[str, ValuesWanted]] = defaultdict(dict)
    for each in wanted:
        by_rule[each.rule][each.sensor_id] = each
    found: dict[tuple[Rule, str], StoredValues] = {}
    for rule, of_sensors in by_rule.items():
        known = _readings if rule.of is None else _windows
        for sensor_id, stored in known(schema, retention, read, rule, of_sensors, now_us):
            found[rule, sensor_id] = stored
    return [found.get((each.rule, each.sensor_id), _NOTHING) for each in wanted]


def _readings(
    schema: TableSchema,
    retention: Retention,
    read: ReadRows,
    rule: Rule,
    wanted: Mapping[str, ValuesWanted],
    now_us: int,
) -> _Found:
    """Yields the readings of sensors: the newest ones, if they are very many."""
    if not schema.finds_sensors:
        return
    metric, complete_us = str(rule.metric), retention.has_events_from_us(now_us)
    queries = {sensor: Query(each.from_us, metrics=(metric,), limit=MOST_VALUES) for sensor, each in wanted.items()}
    every_us = schema.rate.every_us if schema.rate else _SECOND_US
    together = RowsTogether(read)
    batches = together.batches(
        {
            sensor: selections_of(schema, sensor, query)
            for sensor, query in queries.items()
            if (now_us - query.start_us) // every_us <= MOST_VALUES  # all of them come: the limit would not help
        }
    )
    left = dict(queries)
    for sensors in chain(batches, ([sensor] for sensor in queries if sensor in left)):
        for sensor in sensors:
            query = left.pop(sensor)
            events = events_of(schema, together, sensor, query, _left_out)
            values = [Value(each.event_time_us, each.readings[metric]) for each in events if metric in each.readings]
            first_us = min(values).time_us if len(values) == MOST_VALUES else query.start_us
            yield sensor, StoredValues(max(first_us, complete_us), values)


def _windows(
    schema: TableSchema,
    retention: Retention,
    read: ReadRows,
    rule: Rule,
    wanted: Mapping[str, ValuesWanted],
    now_us: int,
) -> _Found:
    """Yields the statistic of sensors' windows that are over."""
    tier = next((tier for tier in schema.tiers if tier.window.text == rule.tier), None)
    if tier is None:
        return
    window, metric = tier.window, str(rule.metric)
    column, *extremes = (qualifier_of(name, metric) for name in (str(rule.of), "min", "max"))
    columns = tuple({each.encode() for each in (column, *extremes)})
    complete_us = retention.has_windows_from_us(tier, now_us) + window.length_us
    values: dict[str, list[Value]] = {sensor: [] for sensor in wanted}
    ranges = [
        aggregate_range(window, each.sensor_id, window.start_of(each.from_us - 1), each.until_us)
        for each in wanted.values()
    ]
    for some in in_batches(ranges):
        for row in read(RowSelection(some, CellSelection((tier.family,), columns, versions=1))):
            key = parse_aggregate_key(window, row.key)
            end_us, of_sensor = window.end_of(key.start_us), wanted[key.sensor_id]
            if of_sensor.from_us <= end_us <= of_sensor.until_us:
                texts = {cell.qualifier.decode(): cell.value for cell in row.cells}
                if column in texts:
                    values[key.sensor_id].append(Value(end_us, as_read(column, float(texts[column]), texts)))
    for sensor, found in values.items():
        yield sensor, StoredValues(max(wanted[sensor].from_us, complete_us), found)


def _left_out(_: object) -> None:
    """Leaves out a row that the schema does not write."""
