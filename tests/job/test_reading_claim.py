"""Tests of the claim of a subscription: who has it, for how long, and who gets it next."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.compared_cell import ComparedCell
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.job import reading_claim
from pipeline.job.reading_claim import Process, ReadingClaim
from pipeline.job.settings import Target
from tests.support.tables import created
from tests.support.waiting import eventually

SCHEMA = TableSchema.for_new_table()
SUBSCRIPTION = "projects/test-project/subscriptions/s"


@pytest.fixture
def name(bigtable):
    return created(SCHEMA)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Claims that are renewed often. The ends of leases stay far away, but where a test moves them."""
    monkeypatch.setattr(reading_claim, "_RENEW_S", 0.05)
    monkeypatch.setattr(reading_claim, "_LOOK_S", 0.05)
    monkeypatch.setattr(reading_claim, "_ENDING_S", 0.2)


def claim_of(*names, schema=SCHEMA, subscription=SUBSCRIPTION, machine=None):
    """Returns a claim of this process, or of one on another machine."""
    said = []
    targets = [Target(name, schema, Retention.unknown(schema)) for name in names]
    claim = ReadingClaim(SimpleNamespace(input_subscription=subscription), targets, said.append)
    if machine is not None:
        claim._process = claim._process._replace(machine=machine, host=machine)
    claim.said = said
    return claim


def stored(name):
    with RowReader.open(name) as reader:
        return [
            cell.value for row in reader.read(KeyRange(b"", b"")) if row.key == b"schema#reader" for cell in row.cells
        ]


def test_a_claim_is_taken_and_released(name):
    """The next process after a stop in order learns of nothing."""
    for _ in range(2):
        claim = claim_of(name)
        assert claim.take() is None
        assert len(stored(name)) == 1
        claim.keep(pytest.fail)
        claim.release()
        assert stored(name) == []


def test_another_process_of_this_machine_is_refused(name):
    """It need not wait: the system tells that the first one runs. Another subscription is not concerned."""
    claim_of(name).take()
    other = claim_of(name)
    with pytest.raises(
        ServerError, match=rf"^subscription {SUBSCRIPTION} .* into table {name} by process {os.getpid()} on"
    ):
        other.take()
    assert other.said == []
    assert claim_of(name, subscription=f"{SUBSCRIPTION}-2").take() is None
    assert claim_of(name, subscription=None).take() is None
    assert len(stored(name)) == 2


def test_a_process_on_another_machine_is_refused_once_the_first_renews(name):
    """Only a renewal tells that the first one runs."""
    first, second = claim_of(name), claim_of(name, machine="other")
    first.take()
    first.keep(pytest.fail)
    with pytest.raises(ServerError, match="so stop that one first"):
        second.take()
    assert second.said[0].startswith("waiting for up to 30 s to see whether process")
    assert first.is_held()
    first.release()


def test_a_claim_that_is_not_renewed_is_over(name, monkeypatch):
    """Another process takes it then. The first one reads no more, and learns that it has lost the claim."""
    monkeypatch.setattr(reading_claim, "LEASE_S", 0.1)
    first, second, why = claim_of(name), claim_of(name, machine="other"), []
    first.take()
    assert abs(second.take() - time.time_ns() // 1000) < 60_000_000
    monkeypatch.setattr(reading_claim, "_READ_S", 0)
    first.keep(why.append)
    assert not first.is_held()
    eventually(lambda: why)
    assert why[0].startswith(f"subscription {SUBSCRIPTION} has been taken over by process")
    first.release()
    assert [Process.of(value).machine for value in stored(name)] == ["other"]


def test_a_process_that_is_gone(name):
    """A process of this machine that has ended is not waited for, whatever process has its number now."""
    claim = claim_of(name)
    claim._process = claim._process._replace(started="1")
    claim.take()
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    after = claim_of(name)
    after._process = after._process._replace(pid=int(ended.stdout))
    assert after.take() is not None
    last = claim_of(name)
    assert last.take() is not None
    assert after.said == last.said == []


def test_a_machine_that_slept(name, monkeypatch):
    """After it wakes, its process does not read before it has renewed the claim."""
    claim = claim_of(name)
    claim.take()
    assert claim.is_held()
    awake_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime", lambda _: awake_s + 25)
    assert not claim.is_held()


def test_who_cannot_renew_does_not_read(name, monkeypatch):
    """It goes on as soon as it can, if nobody else has taken the claim, even if the answer to a renewal was lost."""
    claim = claim_of(name)
    claim.take()
    replace, away = ComparedCell.replace, threading.Event()

    def replace_or_fail(cell, *arguments, **more):
        written = replace(cell, *arguments, **more)
        if away.is_set():
            raise ServerError("away")
        return written

    monkeypatch.setattr(ComparedCell, "replace", replace_or_fail)
    away.set()
    monkeypatch.setattr(reading_claim, "_READ_S", 0.2)
    claim.keep(pytest.fail)
    eventually(lambda: not claim.is_held())
    eventually(lambda: claim.said)
    assert claim.said == ["reading waits until the claim of the subscription can be renewed: away"]
    monkeypatch.setattr(reading_claim, "_READ_S", 60)
    before_s = claim._renewed_s
    away.clear()
    eventually(lambda: claim._renewed_s > before_s)
    claim.release()
    assert stored(name) == []


def test_several_tables_are_claimed_together(name, bigtable):
    """If one of them is another process's, none is claimed."""
    theirs = created(SCHEMA)
    claim_of(theirs).take()
    with pytest.raises(ServerError, match=f"into table {theirs}"):
        claim_of(name, theirs).take()
    assert stored(name) == []


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"x\n9" * 40, b"token\n-1\n" + b"9" * 5000 + b"\n\n\n", b"t\n1\n1\n\n\n" + b"\x1b[2J" * 9000]
)
def test_a_claim_that_nobody_wrote(name, monkeypatch, text):
    """What is no claim is waited for like one of another machine, and named in one line of bounded length."""
    monkeypatch.setattr(reading_claim, "LEASE_S", 0.1)
    claim = claim_of(name)
    cell = ComparedCell(name, b"schema#reader", SCHEMA.families[0], SUBSCRIPTION.encode())
    assert cell.replace(None, text)
    claim.take()
    assert len(claim.said) == 1
    assert len(claim.said[0]) < 500


@pytest.mark.parametrize(
    "text", ['key = "{metadata.place}#{sensor_id}#{iso_us}"', 'layout = "serialized"', "tiers = {}"]
)
def test_tables_of_every_schema(bigtable, text):
    """Also one that stores no schema, and so lacks the family of its own rows. Readers see no row of a claim."""
    schema = parse_schema(text)
    bare = TableName("test-project", "test-instance", f"t-{os.urandom(6).hex()}")
    tables.create_bare(bare, {family: schema.policies[family] for family in schema.families})
    for name in (bare, created(schema)):
        claim_of(name, schema=schema).take()
        assert len(stored(name)) == 1
    with SensorTable.open(name.project, name.instance, name.table, on_foreign=pytest.fail) as table:
        assert list(table.sensors()) == []
