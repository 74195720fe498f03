"""Reads for requests: they end with the time, and with the client; and long answers, page by page."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pipeline.cloud.scanning.row_reader import ReadStopped
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_stored, write_schema
from pipeline.core.events.event import Event
from pipeline.core.schema.toml import parse_schema
from pipeline.local.emulators import BIGTABLE
from pipeline.serve import reads as reads_module
from pipeline.serve.reads import ClientLeft, Reads, TookTooLong, page_by_time, searched_page
from tests.faults.tcp_proxy import TcpProxy
from tests.serve.serving import get, serving, table_of
from tests.support.waiting import eventually

T = time.time_ns() // 1000
EVENTS = [Event("a", T - n * 1_000_000, {"t": 1.0}, {}) for n in range(3000)]


class Client:
    """A client that leaves when ``gone`` is set."""

    def __init__(self):
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


def run(coroutine):
    """Runs it in a thread of its own: a browser's driver may have a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


@pytest.fixture
def reads(bigtable):
    opened = Reads.open(table_of(EVENTS), 30)
    yield opened
    opened.close()


def test_a_result_and_an_error(reads):
    """A read's result or error reaches the request."""
    assert run(reads.answer(Client(), lambda table: len(list(table.events("a", 0, T + 1))))) == 3000
    with pytest.raises(ValueError, match="the range is empty"):
        run(reads.answer(Client(), lambda table: table.events("a", 1, 0)))


def test_units_of_the_last_minute(reads, monkeypatch):
    """A unit that the table declares later reaches the next answers; a change of the rows does not."""
    later = parse_schema('tiers = { 1d = "days" }\n[metrics.t]\nunit = "K"')
    assert write_schema(reads.name, later, over=read_stored(reads.name).text)
    known = run(reads.answer(Client(), lambda table: table.schema))
    assert known.units == {}
    monkeypatch.setattr(reads_module, "_DECLARED_S", 0)
    assert run(reads.answer(Client(), lambda table: table.schema)) == replace(known, declared=reads.schema.declared)
    assert reads.schema.units == {"t": "K"}


def test_a_client_that_leaves_ends_the_read(reads):
    """A read ends as soon as its client is gone."""
    started, ended = threading.Event(), []

    def read(table):
        try:
            for _ in table.events("a", 0, T + 1):
                started.set()
                time.sleep(0.001)  # three pages would take seconds
        except ReadStopped:
            ended.append(table.rows.rows_read)

    async def leave():
        client = Client()
        answer = asyncio.ensure_future(reads.answer(client, read))
        await asyncio.to_thread(started.wait)
        client.gone.set()
        await answer

    with pytest.raises(ClientLeft):
        run(leave())
    assert eventually(lambda: ended)[0] <= 1000  # the page that it had begun


def test_a_read_that_takes_too_long(reads):
    """A read beyond the timeout is stopped."""
    reads.timeout_s = 0.2
    stopped = threading.Event()

    def read(table):
        while not table.rows._stopped.is_set():  # as a server that sends nothing
            time.sleep(0.01)
        stopped.set()

    with pytest.raises(TookTooLong):
        run(reads.answer(Client(), read))
    assert stopped.wait(10)


def test_bigtable_out_of_reach_slow_and_back(bigtable):
    """503 while nothing listens, and 503 or 504 while nothing answers; then it serves on."""
    name = table_of(EVENTS[:1])
    with (
        TcpProxy(bigtable) as line,
        serving(name, "--timeout=2", environment={BIGTABLE.variable: line.address}) as address,
    ):
        asked = f"{address}/api/v1/latest"
        assert get(asked).status == 200
        line.cut()
        away = get(asked)
        assert (away.status, away.headers["retry-after"]) == (503, "5")
        assert f"table {name}: the server cannot be reached" in away.json["error"]
        line.heal()
        eventually(lambda: get(asked).status == 200)
        line.hold()
        assert get(asked).status in (503, 504)
        line.heal()
        assert eventually(lambda: get(asked).status == 200)


def test_a_table_that_is_gone(bigtable):
    """A table that was deleted meanwhile is an answer with its name."""
    name = table_of([])
    with serving(name) as address:
        tables.delete(name)
        answer = get(f"{address}/api/v1/latest")
        assert (answer.status, "does not exist" in answer.json["error"]) == (503, True)


def reading(records):
    asked = []

    def read(limit):
        asked.append(limit)
        return iter(records)

    return read, asked


@pytest.mark.parametrize(
    ("times", "limit", "page", "last", "asked"),
    [
        ([], 2, 0, None, [3]),
        ([9, 8], 2, 2, None, [3]),
        ([9, 8, 7], 2, 2, 8, [3]),
        ([9, 8, 8, 8, 7], 2, 4, 8, [3, None]),  # all that share the last time, read on without a limit
        ([9, 8, 8], 2, 3, None, [3, None]),
    ],
)
def test_pages_by_time(times, limit, page, last, asked):
    """A page ends at a change of time, so that the next one continues there."""
    read, seen = reading(times)
    assert page_by_time(read, limit, lambda time_us: time_us) == (times[:page], last)
    assert seen == asked


def test_too_many_of_one_time():
    """More records of one time than a page may have are refused."""
    with pytest.raises(ValueError, match="more records share a time"):
        page_by_time(reading([1] * 20_000)[0], 5, lambda time_us: time_us)


@pytest.mark.parametrize(
    ("limit", "text", "most", "found", "last"),
    [
        (2, "", 100, ["Aa", "b"], "b"),
        (9, "A", 100, ["Aa", "ca"], None),
        (1, "a", 100, ["Aa"], "Aa"),
        (9, "a", 2, ["Aa"], "b"),
        (3, "", 100, ["Aa", "b", "ca"], None),
    ],
)
def test_searched_pages(limit, text, most, found, last):
    """A search stops after a number of names, and the next page continues there."""
    assert searched_page(["Aa", "b", "ca"], limit, str, text, most) == (found, last)
