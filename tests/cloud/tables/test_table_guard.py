"""A table that is deleted, created again or changed while a job writes to it."""

import itertools
import logging
from dataclasses import replace

import pytest
from grpc import StatusCode

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import table_guard, tables
from pipeline.cloud.tables.retention_notes import noted_id
from pipeline.cloud.tables.schema_store import read_schema, write_schema
from pipeline.cloud.tables.table_guard import AnotherTable, TableGuard
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.local.emulators import BIGTABLE
from tests.faults.bigtable_proxy import BigtableProxy, ReadAction, first
from tests.support.tables import created, unused_name

DEFAULT = TableSchema.for_new_table()


@pytest.fixture
def name(bigtable: str) -> TableName:
    return created(DEFAULT)


def guard_of(name, every_s=0.0, *, schema=DEFAULT, noted=True):
    return TableGuard.of(name, schema, noted_id(name) if noted else b"", every_s)


def recreate(name, schema=DEFAULT):
    """Deletes a table and creates it again; without a schema, as Terraform does."""
    tables.delete(name)
    if schema is None:
        tables.create_bare(name, tables.policies_of(DEFAULT))
    else:
        tables.create(name, schema)


def test_the_same_table(name):
    """A table that stays is the same for each of the jobs that note its id, whichever was first."""
    first_job, second_job = guard_of(name), guard_of(name)
    for guard in (first_job, second_job, guard_of(name, noted=False)):
        guard.check()
        guard.check_now()
    assert first_job.table_id == second_job.table_id


@pytest.mark.parametrize(
    "text",
    [
        'key = "{salt:2}#{sensor_id}#{reverse_us}"',
        'layout = "tall"\nkey = "{sensor_id}#{metric}#{reverse_us}"',
        'values = "float64"',
        '[metrics]\nothers = ["*"]',
        '[metadata]\nothers = ["*"]',
        '[tiers]\n15m = "stats"',
        'latest = "others"\n[tiers]\n1h = "stats"',
    ],
)
@pytest.mark.parametrize("noted", [True, False], ids=["with an id", "without an id"])
def test_another_schema(name, text, noted):
    """A job whose keys or cells do not fit the table's schema by now is told, also if no id tells the tables apart."""
    guard = guard_of(name, noted=noted)
    guard.check()
    recreate(name, parse_schema(text))
    with pytest.raises(AnotherTable) as caught:
        guard.check()
    message = str(caught.value)
    assert "has a schema that the job's rows do not fit: " in message
    assert ("was deleted and created again" in message) is noted
    assert "rows that this worker wrote since 20" in message


@pytest.mark.parametrize("schema", [DEFAULT, None], ids=["with the same schema", "without a schema"])
def test_created_again(name, schema):
    """A new table of the same schema, or without any, has none of the rows that the job's windows are made of."""
    guard = guard_of(name)
    guard.check()
    recreate(name, schema)
    with pytest.raises(AnotherTable, match="was deleted and created again while the job ran; rows"):
        guard.check()
    guard_of(name).check()  # the next job


def test_deleted(name):
    """A table that is gone is gone, until it is created again: then it is another one."""
    guard = guard_of(name)
    tables.delete(name)
    with pytest.raises(AnotherTable, match="was deleted while the job ran; start another job"):
        guard.check()
    tables.create(name, DEFAULT)
    with pytest.raises(AnotherTable, match="was deleted and created again"):
        guard.check()


def test_a_schema_of_another_release(name):
    """A schema that this release can't read may have any keys."""
    guard = guard_of(name)
    recreate(name, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.cloud.tables.schema_store.text_of", lambda _: b'keys = "later"')
        write_schema(name, DEFAULT)
    with pytest.raises(AnotherTable, match=r"release can't read: .* there is no such key"):
        guard.check()


@pytest.mark.parametrize(
    "text",
    ['latest = "newest"', '[metrics]\nraw = ["*"]\nmore = ["x*"]', "[rate]\nevery = '1m'\nmetrics = 3"],
)
def test_a_change_that_fits(name, caplog, text):
    """A change that leaves the job's rows right is named once, and the job goes on."""
    before = parse_schema("latest = false")
    guard = guard_of(created(before), schema=before)
    write_schema(guard.name, parse_schema(text if "latest" in text else f"latest = false\n{text}"), guard.text)
    with caplog.at_level(logging.WARNING):
        guard.check()
        guard.check()
    [record] = caplog.records
    assert "its schema has changed since the job was launched: " in record.getMessage()
    assert "start the job again, or update it" in record.getMessage()


def test_a_change_of_units(name, caplog):
    """No row depends on a unit, so the job says nothing."""
    stored = read_schema(name)
    guard = guard_of(name, schema=stored)
    write_schema(name, replace(stored, declared={"t": DeclaredMetric(unit="m")}), guard.text)
    with caplog.at_level(logging.WARNING):
        guard.check()
    assert not caplog.records


def test_a_first_schema(bigtable):
    """A table without a schema may get the one that the job has, or one that its rows fit."""
    name = unused_name()
    tables.create_bare(name, tables.policies_of(DEFAULT))
    guard = guard_of(name, schema=TableSchema.default())
    guard.check()
    write_schema(name, DEFAULT)
    guard.check()
    recreate(name, parse_schema('values = "float64"'))
    with pytest.raises(AnotherTable, match="values was 'text' and is 'float64'"):
        guard.check()


def test_without_its_own_family(bigtable):
    """A table without the family of schemas stores nothing that could change."""
    name = unused_name()
    tables.create_bare(name, {"raw": DEFAULT.policies["raw"]})
    guard_of(name, noted=False).check()


@pytest.fixture
def proxy(name, bigtable, monkeypatch):
    monkeypatch.setattr(table_guard, "_QUOTA_S", 0)
    monkeypatch.setattr(table_guard, "TIMEOUT_S", 0.1)
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv(BIGTABLE.variable, proxy.address)
        yield proxy


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED, StatusCode.ABORTED])
def test_away(name, proxy, code):
    """A server that is away for a while is waited for, and tells nothing about the table."""
    guard = guard_of(name)
    proxy.reads = first(3, lambda _: ReadAction(code))
    guard.check()
    assert proxy.failed[code] == 3
    proxy.reads = lambda _: ReadAction(StatusCode.UNAVAILABLE)
    guard.check_now()  # something failed, and has a reason of its own
    proxy.reads = None
    recreate(name)
    with pytest.raises(AnotherTable):
        guard.check()


def test_without_permission(name, proxy, caplog):
    """A worker that may only write goes on, and says what it can't notice."""
    guard = guard_of(name)
    proxy.reads = lambda _: ReadAction(StatusCode.PERMISSION_DENIED)
    with caplog.at_level(logging.WARNING):
        guard.check()
        guard.check()
    [record] = caplog.records
    assert "this worker would not notice if the table were created again" in record.getMessage()


def test_how_often(name, proxy, monkeypatch):
    """All steps of a process read the table once in the interval, whatever they find."""
    clock = itertools.count(1000.0, 0.0)
    monkeypatch.setattr(table_guard.time, "monotonic", lambda: next(clock))

    def reads():
        before = proxy.calls["ReadRows"]
        for _ in range(3):
            guard = TableGuard.of(name, DEFAULT, table_id, 5.0)  # as each step has its own, from its pickle
            try:
                guard.check()
                guard.check()
            except AnotherTable:
                refused.append(guard)
        return proxy.calls["ReadRows"] - before

    table_id, refused = noted_id(name), []
    assert (reads(), len(refused)) == (1, 0)
    clock = itertools.count(1004.0, 0.0)
    recreate(name)
    assert (reads(), len(refused)) == (0, 0)
    clock = itertools.count(1005.0, 0.0)
    assert (reads(), len(refused)) == (1, 3)
    clock = itertools.count(1010.0, 0.0)
    assert (reads(), len(refused)) == (1, 6)
