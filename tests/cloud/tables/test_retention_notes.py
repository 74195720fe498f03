"""Losses to garbage collection, with the emulator's own collection, and the notes that a table stores about them."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.tables import retention_notes, tables
from pipeline.cloud.tables.retention_notes import (
    KnownRetention,
    record_added_tiers,
    record_job,
    record_lateness,
    record_losses,
    retention_of,
)
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.completion.work_list import work_key, work_row
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell
from pipeline.core.schema.gc_policies import MaxAge, Never, parse_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.lasting import lasting
from tests.support.tables import created, keys_of, unused_name

HOUR = 3_600_000_000
DAY = 24 * HOUR
SCHEMA = parse_schema(
    "tiers = { 1h = 'hourly', 1d = 'daily' }\npolicies = { hourly = 'maxage=2d', daily = 'never', raw = 'maxage=30d' }"
)


@pytest.fixture
def name(bigtable):
    name = unused_name()
    tables.create(name, SCHEMA)
    return name


def now_us():
    return time.time_ns() // 1000


def test_the_work_list_outlives_the_aggregates(name):
    """Whatever the policy of its family: the window still needs a repair."""
    hour, day = SCHEMA.tiers
    start_us = hour.window.start_of(now_us() - 3 * DAY)
    stats = WindowStats()
    stats.add({"t": 1.0})
    rows = [aggregate_row(tier.window, "a", tier.window.start_of(start_us), stats, tier.family) for tier in (hour, day)]
    with BulkWriter.open(name) as writer:
        writer.add_all([*rows, work_row(hour, "a", start_us)])
        assert not writer.finish()
    changed = {"hourly": parse_policy("maxage=2d"), "more": parse_policy("never")}
    tables.apply(name, tables.differences(tables.describe(name), changed))  # and the emulator collects
    deadline = time.monotonic() + 60
    while rows[0].key in (found := keys_of(name)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert rows[0].key not in found
    assert {rows[1].key, work_key(hour.window, "a", start_us)} <= set(found)


def from_days(retention):
    """Returns for raw rows and hours from how many whole days ago on all cells are certain to exist."""
    now = now_us()
    return [
        round((now - us) / DAY)
        for us in (retention.readings_from_us(now), retention.aggregates_from_us(SCHEMA.tiers[0], now))
    ]


def test_the_shortest_policy_counts(name):
    """The schema's, or a changed one of the table; with a day to spare."""
    policies = tables.describe(name)
    assert from_days(retention_of(name, SCHEMA, policies)) == [29, 1]
    assert from_days(retention_of(name, SCHEMA, {**policies, "raw": parse_policy("maxage=6d")})) == [5, 1]
    assert from_days(retention_of(name, SCHEMA, {**policies, "raw": parse_policy("never")})) == [29, 1]
    without = {family: policy for family, policy in policies.items() if family != "tidetable"}
    assert from_days(retention_of(name, SCHEMA, {**without, "raw": parse_policy("maxage=60d")})) == [59, 1]


def test_a_policy_that_was_shorter(name):
    """A longer policy does not bring back what a shorter one collected: the table notes it."""
    policies = tables.describe(name)
    short = retention_of(name, SCHEMA, {**policies, "raw": parse_policy("maxage=6d")})
    record_losses(name, SCHEMA, short, policies)
    assert from_days(retention_of(name, SCHEMA, policies)) == [5, 1]
    record_losses(name, SCHEMA, retention_of(name, SCHEMA, policies), policies)
    assert from_days(retention_of(name, SCHEMA, policies)) == [5, 1]


def test_a_policy_that_stays_shorter(name, monkeypatch):
    """It counts until a check finds that it has ended, whenever it was first seen."""
    policies = tables.describe(name)
    short = {**policies, "raw": parse_policy("maxage=6d")}
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 20 * DAY * 1000)
    record_losses(name, SCHEMA, retention_of(name, SCHEMA, short), short)
    monkeypatch.undo()
    assert from_days(retention_of(name, SCHEMA, policies)) == [5, 1]  # and not 25
    record_losses(name, SCHEMA, retention_of(name, SCHEMA, policies), policies)
    monkeypatch.setattr(time, "time_ns", lambda: real() + 20 * DAY * 1000)
    assert from_days(retention_of(name, SCHEMA, policies)) == [25, 1]  # it has ended


def test_versions_that_were_collected(name):
    """If versions of a cell are events, a policy by versions may collect any of them."""
    schema = parse_schema("key = '{sensor_id}#{bucket:1h}'\nlayout = 'bucket_cells'\ntiers = { 1h = 'hourly' }")
    policies = schema.policies | {"tidetable": parse_policy("never")}
    by_versions = {**policies, "raw": parse_policy("maxversions=9")}
    record_losses(name, schema, retention_of(name, schema, by_versions), by_versions)
    assert retention_of(name, schema, policies).readings_from_us(now_us()) > now_us()


def test_a_tier_that_was_added(name):
    """It has no rows for windows before the first job that writes it."""
    policies = tables.describe(name)
    hour, day = SCHEMA.tiers

    def counted(start_us):
        retention = retention_of(name, SCHEMA, policies)
        return [retention.counts(tier, start_us) for tier in (hour, day)]

    assert counted(0) == [True, True]
    record_added_tiers(name, ["hourly"])
    assert counted(now_us()) == [False, True]
    for latest_us in (1000, 2000):
        record_job(name, latest_us)
        assert (counted(999), counted(1000)) == ([False, True], [True, True])


def test_the_lateness_of_jobs(name, monkeypatch):
    """That of an earlier job counts until its windows are written: the next job may be an update of it."""
    policies, begin_us = tables.describe(name), now_us()
    ten, hour, two = timedelta(minutes=10), timedelta(hours=1), timedelta(hours=2)

    def at(minutes):
        clock = SimpleNamespace(time_ns=lambda: (begin_us + minutes * HOUR // 60) * 1000)
        monkeypatch.setattr(retention_notes, "time", clock)
        return retention_of(name, SCHEMA, policies).lateness_of_jobs(ten, ten)

    assert at(0) == (ten, ten)
    record_lateness(name, two, timedelta(minutes=1), hour)
    assert at(1) == at(100_000) == (two, ten)
    assert retention_of(name, SCHEMA, policies).newest_every == hour
    for _ in range(2):
        record_lateness(name, ten, hour)
        at(100_001)
    assert at(100_180) == (two, hour)
    assert at(100_182) == (ten, hour)
    assert retention_of(name, SCHEMA, policies).lateness_of_jobs(timedelta(0), ten) == (timedelta(0), ten)
    record_lateness(name, two, ten)
    at(100_240)
    record_lateness(name, ten, ten)
    assert at(100_241) == (two, hour)  # of the jobs before


def test_the_lateness_of_a_job_whose_launch_had_another_clock(name, monkeypatch):
    """A job launched later counts, although the clock of an earlier launch was ahead."""
    policies, ten, two = tables.describe(name), timedelta(minutes=10), timedelta(hours=2)
    began_us = now_us()

    def set_clock(ahead_us):
        clock = SimpleNamespace(time_ns=lambda: (began_us + ahead_us) * 1000)
        monkeypatch.setattr(retention_notes, "time", clock)

    for ahead_us, allowed in ((HOUR, ten), (0, two)):
        set_clock(ahead_us)
        record_lateness(name, allowed, ten)
    set_clock(99 * HOUR)
    assert retention_of(name, SCHEMA, policies).lateness_of_jobs(ten, ten) == (two, ten)


@pytest.mark.parametrize(
    ("key", "column", "value"),
    [
        (b"schema#lateness", b"soon", b"1 2"),
        (b"schema#lateness", b"0000000000000001", b"1"),
        (b"schema#kept", b"raw", b"soon"),
        (b"schema#added", b"hourly", b"soon"),
    ],
)
def test_an_invalid_note(name, key, column, value):
    """The error names the row."""
    with Rewriter.open(name) as rewriter:
        rewriter.replace([Replacement(key, "tidetable", (Cell("tidetable", column, 0, value),))])
    with pytest.raises(ServerError, match=f"row {key.decode()} contains .* instead of a number; delete it"):
        retention_of(name, SCHEMA, tables.describe(name))


# Readers

PLAIN = lasting(TableSchema.default())


def test_a_reader_follows_the_table(bigtable):
    """A reader notices a policy that somebody sets by hand a minute later."""
    name, clock = created(PLAIN), [0.0]
    retention = KnownRetention(name, PLAIN, lambda: clock[0])
    assert retention().ages["stats"] is None
    tables.apply(name, [tables.Difference("stats", Never(), MaxAge(timedelta(days=1)))])
    clock[0] = 59
    assert retention().ages["stats"] is None
    clock[0] = 60
    assert retention().ages["stats"] == timedelta(days=1)


def test_a_reader_without_permission(monkeypatch):
    """Nothing is certain of a table whose policies can't be read; its rows can still be."""

    def refuse(_):
        raise ServerError("permission denied")

    monkeypatch.setattr(tables, "describe", refuse)
    assert not KnownRetention(None, PLAIN)().known
