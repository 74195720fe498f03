import pytest
from grpc import StatusCode

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.writing import rewriter
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.rows.rows import Cell
from pipeline.core.schema.gc_policies import Never
from tests.faults.bigtable_proxy import BigtableProxy, failing, first, refusing
from tests.support.bare_tables import rows_of, write
from tests.support.tables import unused_name


@pytest.fixture
def name(bigtable):
    name = unused_name()
    tables.create_bare(name, {"one": Never(), "two": Never()})
    return name


def cell(family, qualifier, timestamp_us=1000, value=b"x"):
    return Cell(family, qualifier, timestamp_us, value)


def test_replacing(name):
    """Stale columns and versions go, other families stay, and a repetition changes nothing."""
    write(name, {b"a": [cell("one", b"stale"), cell("one", b"q", 9000), cell("one", b"q", 1000)]})
    write(name, {b"a": [cell("two", b"q")]})
    for _ in range(2):
        write(name, {b"a": [cell("one", b"q", 1000, b"new"), cell("one", b"r")]})
        assert rows_of(name) == {b"a": [cell("one", b"q", 1000, b"new"), cell("one", b"r"), cell("two", b"q")]}


def test_a_row_without_cells_is_gone(name):
    """A replacement without cells deletes the row."""
    write(name, {b"a": [cell("one", b"q")], b"b": [cell("one", b"q")]})
    with Rewriter.open(name) as opened:
        opened.replace([Replacement(b"a", "one", ()), Replacement(b"c", "one", ())])
    assert list(rows_of(name)) == [b"b"]


def test_deleting_a_column(name):
    """It goes from these rows and from no others."""
    write(name, {key: [cell("one", b"q"), cell("one", b"r")] for key in (b"a", b"b")})
    with Rewriter.open(name) as opened:
        opened.delete_column([b"a", b"nowhere"], "one", b"q")
    assert rows_of(name) == {b"a": [cell("one", b"r")], b"b": [cell("one", b"q"), cell("one", b"r")]}


def test_rows_larger_than_a_request(name, bigtable, monkeypatch):
    """A row with more cells than a request of several rows has is still replaced in one atomic step."""
    monkeypatch.setattr(rewriter, "_MAX_MUTATIONS", 7)
    rows = {b"%02d" % i: [cell("one", b"%03d" % j) for j in range(i + 1)] for i in range(30)}
    write(name, {key: [cell("one", b"stale")] for key in rows})
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        write(name, rows)
        assert proxy.entries == len(rows)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
    assert rows_of(name) == rows


def test_a_refusal(name):
    """The error is one line with the server's message."""
    with pytest.raises(ServerError, match=f"^table {name}: .*unknown family") as caught:
        write(name, {b"a": [cell("one", b"q")], b"b": [cell("three", b"q")]})
    assert "\n" not in str(caught.value)
    nowhere = TableName(name.project, name.instance, "nowhere")
    with pytest.raises(ServerError, match=f"^{nowhere.is_missing}$"):
        write(nowhere, {b"a": [cell("one", b"q")]})


@pytest.mark.parametrize("code", [StatusCode.ABORTED, StatusCode.CANCELLED, StatusCode.RESOURCE_EXHAUSTED])
def test_a_transient_error_is_retried(name, bigtable, monkeypatch, code):
    """The error of a whole request, and of single rows."""
    rows = {b"%d" % n: [cell("one", b"q")] for n in range(9)}
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        for fault in (failing(code), refusing(code)):
            proxy.mutations = first(1, fault)
            write(name, rows)
        assert proxy.failed[code] == 1
        assert proxy.refused[code] > 0
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
    assert rows_of(name) == rows


def test_an_unreachable_server(name, monkeypatch):
    """The error comes when the time is up."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost:1")
    monkeypatch.setattr(rewriter, "_TIMEOUT_S", 1.0)
    with pytest.raises(ServerError, match=f"^table {name}: the server cannot be reached"):
        write(name, {b"a": [cell("one", b"q")]})
