"""The proxies fail as scripted, and are transparent otherwise."""

import socket
import time
from contextlib import ExitStack, contextmanager

import google.cloud.bigtable
import grpc
import pytest
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import MutateRowsRequest, Mutation, ReadRowsRequest
from grpc import StatusCode

from pipeline.core.schema.table_schema import TableSchema
from pipeline.local.emulators import BIGTABLE
from tests.faults.bigtable_proxy import BigtableProxy, MutationsAction, ReadAction, breaking, failing, first, refusing
from tests.faults.tcp_proxy import TcpProxy
from tests.job.running import PROJECT
from tests.support.lasting import lasting
from tests.support.waiting import eventually


@pytest.fixture
def table(resources):
    return str(resources.table_of(lasting(TableSchema.default())))


@contextmanager
def client_of(address):
    """Returns a client of the data API without the usual retries."""
    with grpc.insecure_channel(address) as channel:
        yield BigtableClient(transport=BigtableGrpcTransport(host=address, channel=channel))


def write(client, table, keys, timeout=10):
    """Returns the status codes by entry, as far as they were answered, and how the call ended."""
    cell = Mutation.SetCell(family_name="raw", column_qualifier=b"t", timestamp_micros=0, value=b"1")
    entries = [MutateRowsRequest.Entry(row_key=key.encode(), mutations=[Mutation(set_cell=cell)]) for key in keys]
    answered = {}
    try:
        for answer in client.mutate_rows(table_name=table, entries=entries, timeout=timeout, retry=None):
            answered |= {entry.index: entry.status.code for entry in answer.entries}
    except Exception as error:  # noqa: BLE001 (the test examines whichever error it is)
        return answered, error.grpc_status_code
    return answered, None


def keys_of(client, table):
    return {
        chunk.row_key.decode()
        for answer in client.read_rows(request=ReadRowsRequest(table_name=table), retry=None)
        for chunk in answer.chunks
        if chunk.row_key and not chunk.row_key.startswith(b"schema#")
    }


def test_everything_else_passes_through(bigtable, monkeypatch):
    """Tables, rows and errors are the same as without a proxy."""
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv(BIGTABLE.variable, proxy.address)
        client = google.cloud.bigtable.Client(project=PROJECT, admin=True)
        table = client.instance("instance").table(f"t-{time.time_ns()}")
        assert not table.exists()
        table.create(column_families={"raw": None})
        assert table.exists()
        row = table.direct_row(b"a")
        row.set_cell("raw", "t", b"x" * 3_000_000)
        row.commit()
        assert [len(each.cells["raw"][b"t"][0].value) for each in table.read_rows()] == [3_000_000]
        assert {"CreateTable", "GetTable", "ReadRows", "MutateRow"} <= proxy.calls.keys()


def test_entries_are_refused_one_by_one(bigtable, table):
    """Refused entries get their status at their index and are not written; the others are."""
    with BigtableProxy(bigtable) as proxy, client_of(proxy.address) as client:
        proxy.mutations = first(
            1, lambda entries: MutationsAction(refused={0: StatusCode.UNAVAILABLE, 2: StatusCode.DEADLINE_EXCEEDED})
        )
        assert write(client, table, "abcd") == ({0: 14, 1: 0, 2: 4, 3: 0}, None)
        assert keys_of(client, table) == {"b", "d"}
        assert write(client, table, "abcd") == (dict.fromkeys(range(4), 0), None)
        proxy.mutations = refusing(StatusCode.ABORTED, share=0.5)
        answered, _ = write(client, table, "efgh")
        assert sorted(answered.values()) == [0, 0, 10, 10]
    assert proxy.refused == {StatusCode.UNAVAILABLE: 1, StatusCode.DEADLINE_EXCEEDED: 1, StatusCode.ABORTED: 2}
    assert (proxy.calls["MutateRows"], proxy.entries) == (3, 12)


def test_a_call_fails_or_breaks(bigtable, table):
    """A call fails with nothing written, or breaks off with more written than answered."""
    with BigtableProxy(bigtable) as proxy, client_of(proxy.address) as client:
        proxy.mutations = failing(StatusCode.RESOURCE_EXHAUSTED)
        assert write(client, table, "abcd") == ({}, StatusCode.RESOURCE_EXHAUSTED)
        assert keys_of(client, table) == set()
        proxy.mutations = breaking(StatusCode.UNAVAILABLE, applied=0.5, answered=0.25)
        assert write(client, table, "abcd") == ({0: 0}, StatusCode.UNAVAILABLE)
        assert keys_of(client, table) == {"a", "b"}
    assert proxy.failed == {StatusCode.RESOURCE_EXHAUSTED: 1, StatusCode.UNAVAILABLE: 1}


def test_a_delayed_answer(bigtable, table):
    """A client that stops waiting does not learn what was written."""
    with BigtableProxy(bigtable) as proxy, client_of(proxy.address) as client:
        proxy.mutations = first(1, lambda entries: MutationsAction(answer_delay_s=30))
        assert write(client, table, "ab", timeout=0.5) == ({}, StatusCode.DEADLINE_EXCEEDED)
        assert keys_of(client, table) == {"a", "b"}
        assert proxy.delayed == 1


def test_reads_fail(bigtable, table):
    """A read fails at once, or after some of its messages."""
    with BigtableProxy(bigtable) as proxy, client_of(proxy.address) as client:
        write(client, table, "ab")
        proxy.reads = lambda request: ReadAction(StatusCode.UNAVAILABLE)
        with pytest.raises(Exception, match="failed on purpose"):
            keys_of(client, table)
        proxy.reads = None
        assert keys_of(client, table) == {"a", "b"}


@contextmanager
def echo():
    """Yields the address of a server that echoes everything."""
    with ExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = closing.enter_context(TcpProxy(f"127.0.0.1:{listener.getsockname()[1]}"))
        yield listener, proxy


def connect(proxy):
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_a_cut_connection():
    """A cut closes connections and refuses new ones; healing accepts them at the same address."""
    with echo() as (listener, proxy):
        with connect(proxy) as client:
            server, _ = listener.accept()
            client.sendall(b"hello")
            assert server.recv(5) == b"hello"
            proxy.cut()
            with server:
                assert server.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                connect(proxy)
        proxy.heal()
        with connect(proxy), listener.accept()[0]:
            eventually(lambda: proxy.connections == 2)


def test_a_stalled_connection():
    """While stalled, nothing arrives; after healing, everything does."""
    with echo() as (listener, proxy), connect(proxy) as client:
        server, _ = listener.accept()
        with server:
            proxy.hold()
            client.sendall(b"hello")
            server.settimeout(0.5)
            with pytest.raises(TimeoutError):
                server.recv(5)
            proxy.heal()
            assert server.recv(5) == b"hello"
