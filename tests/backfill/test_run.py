"""Backfills write the rows of streaming, in every schema; repeating one changes nothing."""

import time
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from google.cloud.bigtable import data

from pipeline.backfill.request import Backfill
from pipeline.backfill.run import load
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.work_list import work_key
from pipeline.core.events.event import Event, deserialized
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.formats.values import EventMaker, FileColumns
from pipeline.job.settings import Target
from pipeline.transforms import metrics
from tests.support import courses
from tests.support.exhaustive import cases
from tests.support.lasting import lasting
from tests.support.records import write_delimited
from tests.support.streams import Script, event_at
from tests.support.tables import created, write
from tests.support.wrong_rollups import wrong_rollups

T = parse_time("2026-02-17T10:00:00Z")
MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = timedelta(days=1)
SENSORS = ("a", "a-1")

SCHEMAS = {
    "wide": "{sensor_id}#{reverse_us}",
    "wide by location": "{metadata.location}#{sensor_id}#{reverse_us}",
    "wide by sensor and location": "{sensor_id}#{metadata.location}#{reverse_ms}",
    "wide time first": "{reverse_ms}#{sensor_id}",
    "tall float64": "{metric}#{metadata.location}#{sensor_id}#{reverse_us}",
    "serialized by location": "{metadata.location}#{sensor_id}#{iso_ms}",
    "bucket_cells": "{salt:1}#{sensor_id}#{bucket:1w}",
    "bucket_columns by location": "{metadata.location}#{sensor_id}#{bucket:1d}#{metric}",
    "bucket_serialized": "{sensor_id}#{bucket:1h}",
}


def schema_called(name: str) -> TableSchema:
    layout, _, more = name.partition(" ")
    return lasting(
        parse_schema(
            f"key = '{SCHEMAS[name]}'\nlayout = '{layout}'\n"
            + ("values = 'float64'\n" if more == "float64" else "")
            + "tiers = { 1h = 'hours', 6h = 'shifts', 1d = 'days' }\n"
        )
    )


def plan(name: TableName, schema: TableSchema, *paths: object, lateness: timedelta = DAY) -> Backfill:
    policies = tables.describe(name)
    return Backfill(
        {str(path): Path(str(path)).stat().st_size for path in paths},
        EventMaker(FileColumns()),
        Target(name, schema),
        Expiry.of(schema, policies),
        timedelta(hours=1),
        lateness,
        timedelta(minutes=1),
        None,
        str,
        ["--runner=DirectRunner"],
    )


def read(name: TableName) -> dict[bytes, dict[tuple[str, bytes, int], bytes]]:
    """Returns every cell except the schema's; of aggregate rows, the newest of every column."""
    with data.BigtableDataClient(project=name.project) as client:
        found = client.get_table(name.instance, name.table).read_rows(data.ReadRowsQuery())
    return {
        row.row_key: {(cell.family, cell.qualifier, cell.timestamp_micros): cell.value for cell in cells_of(row)}
        for row in found
        if not row.row_key.startswith(b"schema#")
    }


def cells_of(row: data.Row) -> list[data.Cell]:
    """Returns the cells that count: a server may have yet to collect older versions of aggregates."""
    newest = {(cell.family, cell.qualifier): cell for cell in sorted(row, key=lambda cell: cell.timestamp_micros)}
    return list(newest.values() if row.row_key.startswith(b"agg#") else row)


def rows_of(schema: TableSchema, events: list[Event]) -> dict[bytes, dict[tuple[str, bytes, int], object]]:
    """Returns the rows that the events should become, each event once, with numbers for aggregates."""
    rows = [row for event in events for row in schema.rows(event)]
    expected: dict = defaultdict(dict)
    for row in rows:
        expected[row.key] |= {cell[:3]: cell.value for cell in row.cells}
    for tier in schema.tiers:
        windows: dict = defaultdict(WindowStats)
        for event in sorted(events, key=lambda event: event.event_time_us):
            windows[event.sensor_id, tier.window.start_of(event.event_time_us)].add(event.readings)
        for (sensor, start_us), stats in windows.items():
            row = aggregate_row(tier.window, sensor, start_us, stats, tier.family)
            expected[row.key] = {cell[:3]: pytest.approx(float(cell.value), rel=1e-9) for cell in row.cells}
    return dict(expected)


def found_in(name: TableName) -> dict[bytes, dict[tuple[str, bytes, int], object]]:
    return {
        key: {cell: float(value) for cell, value in cells.items() if cell[1] != b"window_sizes"}
        if key.startswith(b"agg#")
        else cells
        for key, cells in read(name).items()
        if not key.startswith(b"repair#")
    }


def feed() -> list[Event]:
    """Four hours of two days, an event of two sensors every twenty minutes; one moves in the middle of an hour."""
    return [
        Event(
            sensor,
            T + 12 * HOUR + step * 20 * MINUTE + 1000 * (index + 1),
            {"t": 20.1 + step, **({"wind": step / 7} if step % 3 == 0 else {})},
            {"location": "north" if step < 7 or index else "south", "model": f"m{step % 2}"},
        )
        for index, sensor in enumerate(SENSORS)
        for step in range(12)
    ]


@pytest.mark.parametrize("name", cases(list(SCHEMAS), ["tall float64", "bucket_serialized"]))
def test_the_table_is_that_of_all_events(bigtable, tmp_path, name):
    """Aggregates count the table's readings and the files' once each; a second run changes nothing."""
    schema = schema_called(name)
    table = created(schema)
    events = feed()
    first, second = (
        write_delimited(tmp_path / "first.binpb", [event for n, event in enumerate(events) if n % 3 != 1]),
        write_delimited(tmp_path / "second.pb", [event for n, event in enumerate(events) if n % 3 != 0]),
    )
    outcome = load(plan(table, schema, first))
    assert outcome.totals["events"] == outcome.totals["records"] == 16
    load(plan(table, schema, second))
    expected = rows_of(schema, events)
    assert found_in(table) == expected
    again = read(table)
    load(plan(table, schema, first, second))
    assert found_in(table) == expected
    assert read(table).keys() == again.keys()


def test_days_and_months_of_a_time_zone(bigtable, tmp_path):
    """Days of 23 and 25 hours, weeks and months are those of all events, in two backfills."""
    schema = lasting(
        parse_schema(
            "tiers = { 30m = 'halves', 1d = 'days', '1d@Europe/Berlin' = 'berlin', '1w@Asia/Kolkata' = 'weeks', "
            "'1mo@Europe/Berlin' = 'months' }"
        )
    )
    table = created(schema)
    events = [
        Event("a", parse_time(change) + step * HOUR, {"t": 20.1 + step}, {})
        for change in ("2026-03-29", "2026-10-25")
        for step in range(-26, 26)
    ]
    load(plan(table, schema, write_delimited(tmp_path / "first.pb", events[::2])))
    outcome = load(plan(table, schema, write_delimited(tmp_path / "second.pb", events[1::2])))
    assert outcome.totals["events"] == 52
    assert found_in(table) == rows_of(schema, events)
    counts = {
        key: float(cells["berlin", b"reading_count", time_us])
        for key, cells in read(table).items()
        if key.startswith(b"agg#daily@Europe/Berlin#a#")
        for time_us in {time_us for *_, time_us in cells}
    }
    assert counts[b"agg#daily@Europe/Berlin#a#2026-03-29"] == 23
    assert counts[b"agg#daily@Europe/Berlin#a#2026-10-25"] == 25


@pytest.mark.parametrize(
    "text",
    [
        "key = '{sensor_id}#{reverse_us}#{event_id}'",
        "key = '{metadata.location}#{sensor_id}#{bucket:1h}'\nlayout = 'bucket_cells'",
    ],
)
def test_events_of_one_moment(bigtable, tmp_path, text):
    """Events that the table distinguishes count separately, in one backfill or in two."""
    schema = lasting(parse_schema(f"{text}\ntiers = {{ 1h = 'hours' }}\n"))
    table = created(schema)
    events = [
        Event("a", T + n // 2 * MINUTE, {"t": 20.0 + n}, {"location": ("north", "south")[n % 2]}, f"e-{n % 2}")
        for n in range(20)
    ]
    load(plan(table, schema, write_delimited(tmp_path / "north.pb", events[::2])))
    load(plan(table, schema, write_delimited(tmp_path / "both.pb", [*events[:4], *events[1::2]])))
    assert found_in(table) == rows_of(schema, events)


def test_a_longer_window_takes_the_others_from_the_table(bigtable, tmp_path):
    """A day takes the backfill's hours recomputed, and the others from their aggregate rows."""
    schema = schema_called("wide")
    table = created(schema)
    hour, *_ = schema.tiers
    for n, value in enumerate((1.0, 100.0)):
        stored = WindowStats()
        stored.add({"t": value})
        write(table, [aggregate_row(hour.window, "a", T + n * HOUR, stored, hour.family)])
    load(plan(table, schema, write_delimited(tmp_path / "a.pb", [Event("a", T, {"t": 1.0}, {})])))
    found = read(table)
    for key in (b"agg#6h#a#2026-02-17T06:00:00", b"agg#daily#a#2026-02-17"):
        values = {qualifier: float(value) for (_, qualifier, _), value in found[key].items()}
        assert (values[b"count_t"], values[b"sum_t"], values[b"stddev_t"]) == (2, 101, 49.5)


def listed(table: TableName) -> set[bytes]:
    return {key for key in read(table) if key.startswith(b"repair#")}


def test_windows_that_a_job_may_still_write_are_listed(bigtable, tmp_path):
    """A window of the shortest tier is listed while its allowed lateness lasts, and none if no job runs."""
    schema = lasting(parse_schema("tiers = { 1h = 'hours' }\n"))
    hour = schema.tiers[0].window
    now_us = int(time.time() * 1_000_000)
    open_us, closed_us = hour.start_of(now_us - 20 * HOUR), hour.start_of(now_us - 30 * HOUR)
    events = [Event("a", start_us + n, {"t": 1.0}, {}) for start_us in (open_us, closed_us) for n in range(3)]
    path = write_delimited(tmp_path / "a.pb", events)

    table = created(schema)
    outcome = load(plan(table, schema, path))
    assert listed(table) == {work_key(hour, "a", open_us)}
    assert outcome.totals["windows_woken"] == 1

    load(plan(other := created(schema), schema, path, lateness=timedelta(hours=1)))
    assert not listed(other)

    nowhere = lasting(parse_schema("key = '{metadata.site}#{sensor_id}#{time:%Y%m%d}'\ntiers = { 1h = 'hours' }\n"))
    at_a_site = [event._replace(metadata={"site": "x"}) for event in events]
    plan_of_them = plan(unread := created(nowhere), nowhere, write_delimited(tmp_path / "x.pb", at_a_site))
    load(plan_of_them)  # whose raw rows a job can't find
    assert listed(unread) == {work_key(hour, "a", open_us)}

    longer = lasting(parse_schema("tiers = { 1h = 'hours', 1d = 'days' }\n"))
    load(plan(days := created(longer), longer, path, lateness=timedelta(hours=30)))
    assert listed(days) == {work_key(hour, "a", each) for each in (open_us, closed_us)}  # days are in no job's state


def test_roll_ups_follow(bigtable, tmp_path):
    """The rows of roll-ups are the merge of aggregate rows, also of sensors that move; those of windows that a job may
    still write are left to the repair of the work list. A second run changes nothing."""
    schema = lasting(
        parse_schema(
            "tiers = { 1h = 'hours', 6h = 'shifts', 1d = 'days' }\n[rollups]\nshards = 4\n"
            "place = { by = ['metadata.location', 'metadata.model'] }\nfleet = { by = [], tiers = ['1h', '1d'] }\n"
        )
    )
    table = created(schema)
    events = [
        Event(f"{event.sensor_id}{n}", event.event_time_us + n, event.readings, event.metadata)
        for event in feed()
        for n in range(5)
    ]
    load(plan(table, schema, write_delimited(tmp_path / "first.pb", events[::2])))
    assert wrong_rollups(table, schema) == []
    outcome = load(plan(table, schema, write_delimited(tmp_path / "second.pb", events[1::2])))
    assert outcome.totals[metrics.ROLLUP_ROWS] > 0
    assert wrong_rollups(table, schema) == []
    load(plan(table, schema, tmp_path / "first.pb"))
    assert wrong_rollups(table, schema) == []

    now_us = int(time.time() * 1_000_000)
    recent = write_delimited(tmp_path / "now.pb", [Event("a0", now_us - 2 * HOUR, {"t": 1.0}, {"location": "x"})])
    load(plan(table, schema, recent))
    assert {key[1] for key, *_ in wrong_rollups(table, schema)} == {"fleet"}
    repair = ["repair", "--project", table.project, "--instance", table.instance, "--table", table.table]
    result = CliRunner().invoke(main, [*repair, "--listed", "--allowed-lateness", "0s"])
    assert result.exit_code == 0, result.output
    assert wrong_rollups(table, schema) == []
    assert not listed(table)


def test_it_is_the_table_of_streaming(bigtable, tmp_path):
    """The same events on the streaming graph make the same rows."""
    schema = lasting(TableSchema.default())
    table = created(schema)
    events = [event_at(n * 7 * 60, n / 8, sensor) for n in range(20) for sensor in SENSORS]
    path = write_delimited(tmp_path / "a.pb", [deserialized(event.SerializeToString()) for event in events])
    load(plan(table, schema, path))
    found = read(table)
    aggregates = {
        key.decode(): {qualifier: value.decode() for (_, qualifier, _), value in cells.items()}
        for key, cells in found.items()
        if key.startswith(b"agg#")
    }
    Script().arrive(*events).watermark(4 * 3600).run(
        raw=[key.decode() for key in found if not key.startswith(b"agg#")],
        aggregates=[(key, values[b"reading_count"], values[b"sum_t"]) for key, values in aggregates.items()],
    )


def counts(table: TableName, key: bytes) -> dict[bytes, bytes]:
    """Returns an aggregate row's counts, by column."""
    return {cell[1]: value for cell, value in read(table).get(key, {}).items() if b"count" in cell[1]}


def every(minutes: int, start_us: int, end_us: int, metric: str = "t") -> list[Event]:
    return [Event("a", time_us, {metric: 1.0}, {}) for time_us in range(start_us, end_us, minutes * MINUTE)]


TWO_TIERS = "tiers = { 1h = 'hours', 1d = 'days' }\n"


def test_a_day_whose_hours_have_no_rows(bigtable, tmp_path):
    """If the hours' tier is new, hours without new events are computed from their raw rows."""
    schema = lasting(parse_schema(TWO_TIERS))
    table = created(schema)
    day_us = parse_time("2026-02-17")
    before = replace(schema, tiers=schema.tiers[1:], policies={})
    load(plan(table, before, write_delimited(tmp_path / "a.pb", every(30, day_us, day_us + 24 * HOUR))))
    more = write_delimited(tmp_path / "b.pb", [Event("a", day_us + 5 * HOUR + MINUTE, {"t": 1.0}, {})])
    outcome = load(plan(table, schema, more))
    assert counts(table, b"agg#daily#a#2026-02-17") == {b"reading_count": b"49", b"count_t": b"49"}
    assert counts(table, b"agg#hourly#a#2026-02-17T05") == {b"reading_count": b"3", b"count_t": b"3"}
    assert "windows_unsure" not in outcome.totals


def test_a_window_that_is_collected_in_part(bigtable, tmp_path):
    """It stays unchanged and is listed if its row counts more than what is left; otherwise it is completed."""
    schema = parse_schema(
        f"metrics = {{ logs = ['log_*'], raw = ['*'] }}\n{TWO_TIERS}policies = {{ logs = 'maxage=7d' }}"
    )
    table = created(schema)  # nothing goes by itself
    day_us = schema.tiers[1].window.start_of(int(time.time() * 1_000_000)) - 20 * 24 * HOUR
    logs, others = every(5, day_us, day_us + HOUR, "log_x"), every(20, day_us + 10 * MINUTE, day_us + 2 * HOUR)
    load(plan(table, schema, write_delimited(tmp_path / "a.pb", logs + others), lateness=timedelta(0)))
    hour = schema.tiers[0].window
    first, second = (aggregate_key(hour, "a", day_us + n * HOUR) for n in (0, 1))
    day = aggregate_key(schema.tiers[1].window, "a", day_us)
    was = counts(table, first), counts(table, day)
    with data.BigtableDataClient(project=table.project) as client:
        target = client.get_table(table.instance, table.table)
        for event in logs:
            (row,) = schema.rows(event)
            target.mutate_row(row.key, data.DeleteAllFromFamily("logs"))
    more = [Event("a", day_us + n * HOUR + MINUTE, {"t": 1.0}, {}) for n in range(2)]
    path = write_delimited(tmp_path / "b.pb", more)
    for left in (1, 2):  # the same once more changes nothing; but that the second hour has these events is not sure
        outcome = load(plan(table, schema, path, lateness=timedelta(0)))
        assert counts(table, first) == was[0]
        assert counts(table, second) == {b"reading_count": b"4", b"count_t": b"4"}
        assert int(counts(table, day)[b"reading_count"]) == int(was[1][b"reading_count"]) + 1  # of its hours' rows
        assert outcome.totals["windows_unsure"] == left
        assert listed(table) == {work_key(hour, "a", day_us + n * HOUR) for n in range(left)}


def test_a_day_at_the_edge_of_retention(bigtable, tmp_path):
    """A day whose morning is collected keeps its counts."""
    schema = parse_schema("tiers = { 1d = 'days' }\npolicies = { raw = 'maxage=3d', days = 'never' }")
    table = created(schema)
    day_us = schema.tiers[0].window.start_of(int(time.time() * 1_000_000)) - 2 * 24 * HOUR
    events = every(60, day_us, day_us + 24 * HOUR)
    load(plan(table, schema, write_delimited(tmp_path / "a.pb", events)))
    with data.BigtableDataClient(project=table.project) as client:
        target = client.get_table(table.instance, table.table)
        for event in events[:12]:
            target.mutate_row(schema.rows(event)[0].key, data.DeleteAllFromRow())
    path = write_delimited(tmp_path / "b.pb", [Event("a", day_us + 20 * HOUR + MINUTE, {"t": 1.0}, {})])
    outcome = load(plan(table, schema, path, lateness=timedelta(0)))
    key = aggregate_key(schema.tiers[0].window, "a", day_us)
    assert counts(table, key) == {b"reading_count": b"24", b"count_t": b"24"}
    assert outcome.totals["windows_unsure"] == 1
    assert listed(table) == {work_key(schema.tiers[0].window, "a", day_us)}


@pytest.mark.parametrize("corrects", [False, True])
def test_two_at_once(bigtable, tmp_path, monkeypatch, corrects):
    """A backfill between another's read and write is not lost: the other checks its rows again.

    If both correct one value, the aggregate equals the raw rows, although neither backfill counts more.
    """
    schema = lasting(parse_schema(TWO_TIERS))
    table = created(schema)
    both = every(10, T, T + 2 * HOUR), every(10, T + MINUTE, T + 2 * HOUR)
    if corrects:
        first, *both = ([Event("a", T + MINUTE, {"t": value}, {})] for value in (1.0, 5.0, 3.0))
        load(plan(table, schema, write_delimited(tmp_path / "first.pb", first), lateness=timedelta(0)))
    one, other = (write_delimited(tmp_path / f"{n}.pb", events) for n, events in enumerate(both))
    write_rows, calls = Rewriter.write, []

    def write_later(rewriter, rows):
        calls.append(None)
        if len(calls) == 1:
            load(plan(table, schema, other, lateness=timedelta(0)))
        write_rows(rewriter, rows)

    monkeypatch.setattr(Rewriter, "write", write_later)
    load(plan(table, schema, one, lateness=timedelta(0)))
    assert len(calls) > 2
    assert found_in(table) == rows_of(schema, both[1] if corrects else [*both[0], *both[1]])


def test_a_foreign_row(bigtable, tmp_path):
    """A row hides an older cell that can't be read. A newer cell stays, and leaves its day unwritten and listed."""
    schema = lasting(parse_schema(TWO_TIERS))
    table = created(schema)
    older, newer = (f"agg#hourly#{sensor}#2026-02-17T10".encode() for sensor in ("a", "a-1"))
    write(table, [Row(older, [Cell("hours", b"reading_count", T, b"inf")])])
    write(table, [Row(newer, [Cell("hours", b"reading_count", T + HOUR, b"inf")])])
    events = [Event(sensor, T, {"t": 1.0}, {}) for sensor in SENSORS]
    outcome = load(plan(table, schema, write_delimited(tmp_path / "a.pb", events), lateness=timedelta(0)))
    one = {b"reading_count": b"1", b"count_t": b"1"}
    assert counts(table, older) == counts(table, b"agg#daily#a#2026-02-17") == one
    assert counts(table, newer)[b"reading_count"] == b"inf"
    assert not counts(table, b"agg#daily#a-1#2026-02-17")
    assert outcome.totals["windows_unsure"] == 1
    assert listed(table) == {work_key(schema.tiers[0].window, "a-1", schema.tiers[1].window.start_of(T))}


def test_statistics_that_depend_on_the_reading_before(bigtable, tmp_path):
    """A backfill corrects the windows after its own, too."""
    schema = lasting(parse_schema(courses.SCHEMA))
    table = created(schema)
    readings = {T + 20 * n * HOUR + MINUTE: {"t": float(9 * n % 7), "u": 1.5 * n} for n in range(9)}
    readings |= {T + n * 30 * MINUTE: {"t": float(n), "u": 2.0} for n in range(3)}
    events = [Event("a", time_us, of_event, {}) for time_us, of_event in readings.items()]
    load(plan(table, schema, write_delimited(tmp_path / "some.binpb", events[1::2])))
    load(plan(table, schema, write_delimited(tmp_path / "others.binpb", events[::2])))
    courses.check(courses.stored(table, schema), readings)


def test_windows_that_continue_from_a_backfill_while_their_rows_are_on_their_way(bigtable, tmp_path):
    """The hours after it that a job may still write are listed, up to the first that has a row with the metric."""
    schema = lasting(parse_schema('[tiers]\n1h = "hours"\n[statistics]\nt = ["increase"]'))
    hours, now_us = schema.tiers[0], time.time_ns() // 1000
    this_us = hours.window.start_of(now_us)
    for number, row_us in enumerate([None, this_us, this_us - HOUR]):
        table, sensor_id = created(schema), f"s-{number}"
        if row_us is not None:
            stats = schema.statistics.stats_of([row_us], {"t": [1.0]})
            write(table, [aggregate_row(hours.window, sensor_id, row_us, stats, hours.family, hours.statistics)])
        events = [Event(sensor_id, this_us - 5 * HOUR + n, {"t": 5.0}, {}) for n in range(2)]
        load(plan(table, schema, write_delimited(tmp_path / f"{number}.pb", events), lateness=timedelta(hours=1)))
        first_us = hours.window.start_of(now_us - HOUR - 21 * MINUTE)
        last_us = {None: this_us + HOUR, this_us: this_us, this_us - HOUR: this_us - HOUR}[row_us]
        starts = range(first_us, last_us + 1, HOUR)
        assert listed(table) == {work_key(hours.window, sensor_id, each_us) for each_us in starts}
    table = created(schema)
    path = write_delimited(tmp_path / "alone.pb", [Event("s", this_us - 5 * HOUR, {"t": 5.0}, {})])
    assert "windows_woken" not in load(plan(table, schema, path, lateness=timedelta(0))).totals  # no job, no such rows
    assert not listed(table)


def test_newest_readings(bigtable, tmp_path):
    """A backfill writes each sensor's newest readings, and an older file changes none."""
    schema = lasting(parse_schema('latest = "now"'))
    table = created(schema)
    load(plan(table, schema, write_delimited(tmp_path / "some.binpb", feed()[::-1])))
    load(plan(table, schema, write_delimited(tmp_path / "older.binpb", feed()[:3])))
    with SensorTable.open(table.project, table.instance, table.table) as reader:
        found = {record.sensor_id: record.readings for record in reader.latest_readings()}
    newest = {sensor: [event for event in feed() if event.sensor_id == sensor] for sensor in SENSORS}
    assert {sensor: readings["t"].value for sensor, readings in found.items()} == {
        sensor: events[-1].readings["t"] for sensor, events in newest.items()
    }
    assert all(readings["wind"].value < readings["t"].value for readings in found.values())


@pytest.mark.parametrize(
    ("age", "policy", "lateness", "left"),
    [
        (2 * DAY, "maxage=90d", timedelta(0), 0),
        (600 * DAY, "never", timedelta(0), 0),
        (timedelta(hours=2), "maxage=90d", DAY, 0),
        (20 * DAY, "maxage=9d", timedelta(0), 1),
    ],
)
def test_corrected_values(bigtable, tmp_path, age, policy, lateness, left):
    """The aggregates of all tiers follow if the raw rows are certainly complete; otherwise the window is left.

    Windows that a job may write from older values are listed, and so are those that are left.
    """
    schema = parse_schema(f"{TWO_TIERS}policies = {{ raw = '{policy}', meta = '{policy}' }}")
    table = created(schema)
    start_us = schema.tiers[0].window.start_of(int(time.time() * 1_000_000) - age // timedelta(microseconds=1))
    events, corrected = (
        [Event("a", start_us + n * MINUTE, {"t": factor * n}, {}) for n in range(1, 60)] for factor in (1.0, 7.5)
    )
    for name, some in (("a", events), ("b", corrected)):
        outcome = load(plan(table, schema, write_delimited(tmp_path / f"{name}.pb", some), lateness=lateness))
    assert outcome.totals.get("windows_unsure", 0) == left
    assert bool(listed(table)) == bool(left or lateness)
    found, expected = found_in(table), rows_of(schema, events if left else corrected)
    for tier in schema.tiers:
        key = aggregate_key(tier.window, "a", tier.window.start_of(start_us))
        assert found[key] == expected[key]
