"""Queries for newest readings, in the rows that a job writes."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import Event
from pipeline.core.queries.newest import newest_rows, newest_rows_of, sensors_with_rows, silent_sensors
from pipeline.core.queries.reads import raise_foreign
from pipeline.core.rows.newest_row import (
    LatestRecord,
    NewestOfBundle,
    NewestReadings,
    latest_range,
    parse_latest_row,
)
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.schema.toml import document_of, parse_schema, schema_of
from pipeline.core.statistics.parts import At
from tests.support.exhaustive import examples
from tests.support.groups import MINUTE, Group
from tests.support.memory import Memory
from tests.support.rows import decoded

HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
MIDNIGHT = 20_501 * DAY
SCHEMA = parse_schema('latest = "now"\n[policies]\nraw = "never"')
EVENTS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "a-1", "b"]), st.integers(0, 5 * HOUR).map(lambda n: MIDNIGHT + n // 1000 * 1000)),
    st.dictionaries(st.sampled_from("tuv"), st.floats(-1e9, 1e9), min_size=1),
    min_size=1,
    max_size=15,
)


def found_in(table, prefix="", metrics=None):
    return {
        record.sensor_id: record
        for record in newest_rows("now", table, latest_range(prefix), metrics, None, raise_foreign)
    }


@settings(max_examples=examples(60), phases=[Phase.generate])
@given(EVENTS, st.randoms(use_true_random=False))
def test_the_newest_reading_of_each_metric(given_events, chance):
    """Whatever the order of events, late ones included; with a row for each sensor of a firing at most."""
    group = Group(SCHEMA, MIDNIGHT + DAY)
    waiting = [Event(*key, readings, {}) for key, readings in given_events.items()] * 2
    chance.shuffle(waiting)
    while waiting:
        group.receive(*[waiting.pop() for _ in range(min(len(waiting), chance.randint(1, 4)))])
        if chance.random() < 0.4:
            group.watermark(MIDNIGHT + chance.randint(0, 6) * HOUR)
        if chance.random() < 0.4:
            group.pass_time(2 * MINUTE)
    group.watermark(MIDNIGHT + DAY)
    group.pass_time(2 * MINUTE)
    expected: dict[str, dict[str, At]] = {}
    for (sensor_id, time_us), readings in sorted(given_events.items(), key=lambda item: item[0][1]):
        expected.setdefault(sensor_id, {}).update({metric: At(time_us, x) for metric, x in readings.items()})
    assert found_in(group.table) == {
        sensor_id: LatestRecord(sensor_id, dict(sorted(readings.items()))) for sensor_id, readings in expected.items()
    }


def test_a_table_without_the_family_has_no_such_rows():
    """A job writes no rows of newest readings unless the schema has their family."""
    group = Group(parse_schema(""), MIDNIGHT)
    group.receive(Event("a", MIDNIGHT, {"t": 1.0}, {}))
    group.watermark(MIDNIGHT + DAY)
    assert {row.key[:4] for row in group.written} == {b"agg#"}


def stored_then_lost(*, before_us=None):
    """A group whose earlier job wrote the raw rows of two events, and ended before their pane."""
    group = Group(SCHEMA, MIDNIGHT + DAY, before_us=before_us)
    group.store(Event("a", MIDNIGHT + 2000, {"t": 2.0, "u": 2.0}, {}), Event("a", MIDNIGHT + 3000, {"t": 3.0}, {}))
    return group


@pytest.mark.parametrize("closed", [False, True])
def test_what_an_earlier_job_could_not_write(closed):
    """A window that is restored, or computed again, brings the newest readings of its raw rows."""
    group = stored_then_lost(before_us=None if closed else MIDNIGHT + DAY)
    if closed:
        group.receive(Event("b", MIDNIGHT, {"t": 1.0}, {}))
        group.watermark(MIDNIGHT + DAY)
    group.receive(Event("a", MIDNIGHT + 1000, {"t": 1.0}, {}))
    group.watermark(MIDNIGHT + DAY)
    group.pass_time(2 * MINUTE)
    assert found_in(group.table)["a"].readings == {"t": At(MIDNIGHT + 3000, 3.0), "u": At(MIDNIGHT + 2000, 2.0)}


def test_events_that_more_than_their_time_distinguishes():
    """The newest event counts, whatever the rest of its identity."""
    schema = parse_schema('latest = "now"\nkey = "{sensor_id}#{reverse_us}#{event_id}"\n[policies]\nraw = "never"')
    group = Group(schema, MIDNIGHT)
    group.receive(*(Event("a", MIDNIGHT + n * 1000, {"t": float(n)}, {}, f"id-{n}") for n in (3, 7, 5)))
    group.watermark(MIDNIGHT + DAY)
    assert found_in(group.table)["a"].readings == {"t": At(MIDNIGHT + 7000, 7.0)}


def test_readings_that_would_be_collected_at_once_are_not_written():
    """A row would only come and go; each metric counts for itself."""
    schema, oldest_us = TableSchema.for_new_table(), MIDNIGHT - 730 * DAY
    group = Group(schema, MIDNIGHT)
    group.receive(Event("a", oldest_us - 1, {"t": 1.0, "u": 1.0}, {}), Event("a", oldest_us, {"t": 2.0}, {}))
    group.receive(Event("b", oldest_us - 1, {"t": 1.0}, {}))
    group.watermark(MIDNIGHT)
    written = [row for row in group.written if row.key.startswith(b"latest#")]
    assert [(row.key, [cell.qualifier for cell in row.cells]) for row in written] == [(b"latest#a", [b"t"])]
    assert parse_latest_row(written[0]).readings == {"t": At(oldest_us, 2.0)}


def test_selected_sensors_and_metrics():
    """Newest readings can be limited to sensors and metrics."""
    newest, table = NewestReadings(), Memory()
    for sensor_id, metric in (("a", "t"), ("a", "u"), ("a-1", "u"), ("b", "t")):
        newest.add(sensor_id, MIDNIGHT + 1234, [(metric, 1.5)])
    for row in newest.rows("now"):
        table.write(decoded(row))
    assert list(found_in(table)) == ["a", "a-1", "b"]
    assert list(found_in(table, "a")) == ["a", "a-1"]
    assert found_in(table, metrics=("u",))["a"].readings == {"u": At(MIDNIGHT + 1000, 1.5)}
    assert list(found_in(table, metrics=("t",))) == ["a", "b"]
    assert found_in(table)["a"].event_time_us == MIDNIGHT + 1000


def test_silent_sensors():
    """A sensor is silent if all that it sent, or all of the metrics that count, is older; foreign rows are left out."""
    newest, foreign = NewestReadings(), []
    for sensor_id, metric, time_us in (("a", "t", 1000), ("a", "u", 9000), ("b", "t", 4000), ("c", "t", 5000)):
        newest.add(sensor_id, MIDNIGHT + time_us, [(metric, 1.5)])
    newest.add_metadata("d", MIDNIGHT + 2000, {"site": "north"})
    table = Memory(map(decoded, newest.rows("now")))
    for key, column in ((b"latest#e e", b"t"), (b"latest#f", b"not a name"), (b"latest#g", b"##")):
        table.write(Row(key, [Cell("now", column, MIDNIGHT, b"1")]))

    def found(since_us, metrics=None, read=table):
        silent = silent_sensors("now", read, latest_range(), metrics, MIDNIGHT + since_us, foreign.append)
        return [(each.sensor_id, each.event_time_us - MIDNIGHT) for each in silent]

    assert found(5000) == [("b", 4000), ("d", 2000)]
    assert {problem.key for problem in foreign} == {b"latest#e e", b"latest#f", b"latest#g"}
    assert found(5001) == [("b", 4000), ("c", 5000), ("d", 2000)]
    assert found(5000, ("t",)) == [("a", 1000), ("b", 4000)]

    def careless(selection):  # the server sends more than it has to
        cells = selection.cells._replace(qualifiers=None, none_since_us=None)
        return table(selection._replace(cells=cells))

    assert found(5000, ("t",), careless) == [("a", 1000), ("b", 4000)]
    assert found(5000, None, careless) == found(5000)


def test_sensors_by_name():
    """Sensors are read in the order of their names in the request; keys alone tell which there are."""
    newest, foreign = NewestReadings(), []
    names = [f"s{number}" for number in range(450)]
    for name in names:
        newest.add(name, MIDNIGHT, [("t", 1.5)])
    table = Memory(map(decoded, newest.rows("now")))
    table.write(Row(b"latest#e e", [Cell("now", b"t", MIDNIGHT, b"1")]))
    wanted = ["s7", "nobody", *names[::-1]]
    found = newest_rows_of("now", table, wanted, None, raise_foreign)
    assert [each.sensor_id for each in found] == ["s7", *names[::-1]]
    assert table.reads == 3
    assert list(newest_rows_of("now", table, names, ("u",), raise_foreign)) == []
    assert list(sensors_with_rows("now", table, latest_range(), foreign.append)) == sorted(names)
    assert [problem.key for problem in foreign] == [b"latest#e e"]


def test_the_schema():
    """The family of newest readings is one of the schema's, with a policy of its own, and taken by nothing else."""
    assert SCHEMA.families == ("raw", "meta", "stats", "now")
    assert str(SCHEMA.policies["now"]) == str(parse_schema('latest="n"').policies["n"])
    assert schema_of(document_of(SCHEMA)) == SCHEMA
    for text, problem in (
        ('latest = "raw"', "family raw is already used by metrics"),
        ('latest = "x"\n[tiers]', "is written with aggregates, and the table has no tiers"),
        ('latest = ""', "is empty"),
    ):
        with pytest.raises(SchemaError, match=problem):
            parse_schema(text)


@settings(max_examples=examples(60), phases=[Phase.generate])
@given(EVENTS, st.randoms(use_true_random=False), st.sampled_from([0, 10 * MINUTE]))
def test_the_newest_of_bundles(given_events, chance, every_us):
    """Rows of a bundle have the newest readings; with a time in between, no metric is behind by more."""
    table, bundle = Memory(), NewestOfBundle("now", every_us, metadata=False)
    waiting = [Event(*key, readings, {}) for key, readings in given_events.items()]
    chance.shuffle(waiting)
    newest: dict[tuple[str, str], int] = {}
    while waiting:
        some = [waiting.pop() for _ in range(min(len(waiting), chance.randint(1, 4)))]
        bundle.add(some)
        for row in bundle.take(0):
            table.write(decoded(row))
        for event in some:
            for metric in event.readings:
                key = event.sensor_id, metric
                newest[key] = max(newest.get(key, 0), event.event_time_us)
        found = found_in(table)
        for (sensor_id, metric), time_us in newest.items():
            at = found[sensor_id].readings[metric]
            assert time_us - every_us <= at.time_us <= time_us
            assert at.value == given_events[sensor_id, at.time_us][metric]


def test_the_newest_of_a_bundle_is_as_others_write_it():
    """Rows are those of a pane; expired readings and a bundle that failed leave nothing."""
    event, panes, bundle = (
        Event("a", MIDNIGHT, {"t": 1.5, "u": 3.0}, {}),
        NewestReadings(),
        NewestOfBundle("f", 0, metadata=False),
    )
    panes.add("a", MIDNIGHT, event.readings.items())
    bundle.add([event])
    bundle.start()
    bundle.add([event])
    assert bundle.take(0) == list(panes.rows("f"))
    bundle.add([event])
    assert bundle.take(MIDNIGHT + 1) == bundle.take(0) == []
