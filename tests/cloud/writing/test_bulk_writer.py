"""Whatever a server does, every row is confirmed, returned as refused, or counted by an error."""

import threading
import time
from itertools import product

import grpc
import pytest
from google.api_core.exceptions import from_grpc_status
from google.cloud.bigtable_v2.types import MutateRowsRequest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from grpc import StatusCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.writing import bulk_writer
from pipeline.cloud.writing.bulk_writer import BulkWriter, Limits, MutateRowsResult, RateLimiter, RequestRetrier
from pipeline.core.rows.rows import Cell, KeyRange, Row, mutations_of, request_header
from pipeline.core.schema.gc_policies import Never
from tests.faults.bigtable_proxy import (
    BigtableProxy,
    MutationsAction,
    breaking,
    failing,
    first,
    refusing,
    refusing_rows,
    slow,
)
from tests.faults.tcp_proxy import TcpProxy
from tests.support.exhaustive import examples
from tests.support.tables import unused_name

Entry = MutateRowsRequest.Entry.pb()
TRANSIENT = [
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.ABORTED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.CANCELLED,
]


class WatchingProxy(BigtableProxy):
    """Also records the sizes of requests and the maximum of concurrent ones."""

    def __init__(self, target):
        super().__init__(target)
        self.sizes = []
        self.now = self.most = 0
        self.metadata = {}

    def _mutate_rows(self, method, data, context):
        with self._lock:
            self.sizes.append(len(data))
            self.metadata = dict(context.invocation_metadata())
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield from super()._mutate_rows(method, data, context)
        finally:
            with self._lock:
                self.now -= 1


@pytest.fixture
def name(bigtable):
    return new_table()


@pytest.fixture
def proxy(name, bigtable, monkeypatch):
    with WatchingProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        yield proxy


def new_table():
    name = unused_name()
    tables.create_bare(name, {"raw": Never()})
    return name


def row(key, value=b"v", cells=1, family="raw"):
    return Row(key, [Cell(family, b"q%d" % i, 1_771_329_600_000_000, value) for i in range(cells)])


def rows_of(name):
    with RowReader.open(name) as reader:
        return {row.key: row.cells for row in reader.read(KeyRange(b"", b""))}


def table_of(rows):
    """The table after these rows were written one after the other."""
    cells = {}
    for key, added in rows:
        cells.setdefault(key, {}).update({cell[:3]: cell for cell in added})
    return {key: [of_row[column] for column in sorted(of_row)] for key, of_row in sorted(cells.items())}


ROWS = [row(b"%04d" % i, b"%d" % i, cells=1 + i % 3) for i in range(500)]


def test_writing(name, proxy):
    """When finish returns, the table contains every row that was added, and the statistics count them."""
    with BulkWriter.open(name, mutations=100) as writer:
        for each in ROWS[:200]:
            writer.add(each)
        writer.add_all([*ROWS[200:], Row(b"nothing", [])])
        assert writer.finish() == []
        assert rows_of(name) == table_of(ROWS)
        assert writer.finish() == []
        tally = writer.take_tally()
    assert (tally.rows, tally.requests, dict(tally.statuses)) == (500, proxy.calls["MutateRows"], {0: 500})
    assert tally.size_bytes == sum(proxy.sizes)
    assert len(tally.latencies_ms) == len(tally.rows_in_flight) == tally.requests
    assert "x-goog-api-client" in proxy.metadata
    assert f"table_name=projects/test-project/instances/test-instance/tables/{name.table}" in proxy.metadata[
        "x-goog-request-params"
    ].replace("%2F", "/")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(fault, code, id=f"{fault.__name__}-{code.name}", marks=pytest.mark.exhaustive if n % 2 else ())
        for n, (fault, code) in enumerate(product((refusing, breaking, failing), TRANSIENT))
    ],
)
def test_transient_failures_are_retried(name, proxy, fault, code):
    """Every row arrives, through entries that fail, streams that break and calls that fail."""
    proxy.mutations = first(12, fault(code))
    with BulkWriter.open(name, mutations=150) as writer:
        writer.add_all(ROWS)
        assert writer.finish() == []
        tally = writer.take_tally()
    assert rows_of(name) == table_of(ROWS)
    assert tally.rows == 500
    assert tally.retries[code.name] >= 12


def test_only_failed_rows_are_retried(name, proxy):
    """Confirmed rows are not sent again."""
    proxy.mutations = first(1, refusing(StatusCode.UNAVAILABLE, share=0.1))
    with BulkWriter.open(name) as writer:
        writer.add_all(ROWS[:100])
        writer.finish()
    assert (proxy.calls["MutateRows"], proxy.entries) == (2, 110)


def test_missing_statuses(name, proxy):
    """A call that succeeds without a status for every entry: the entries without one are sent again."""

    def forgetful(entries):
        return MutationsAction(refused={0: StatusCode.UNAVAILABLE}, answer_delay_s=0.05)

    class Forgetful(BigtableProxy):
        def _mutate_rows(self, method, data, context):
            for count, answer in enumerate(super()._mutate_rows(method, data, context)):
                if count or self.calls["MutateRows"] > 3:
                    yield answer

    with Forgetful(proxy.address) as proxy_of_proxy:
        proxy_of_proxy.mutations = first(3, forgetful)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BIGTABLE_EMULATOR_HOST", proxy_of_proxy.address)
            with BulkWriter.open(name, mutations=400) as writer:
                writer.add_all(ROWS)
                assert writer.finish() == []
                assert writer.take_tally().retries["ABORTED"] >= 100
    assert rows_of(name) == table_of(ROWS)


def test_slow_responses(name, proxy):
    """An attempt that times out is retried."""
    proxy.mutations = first(3, slow(30))
    with BulkWriter.open(name, attempt_s=1.0, mutations=300) as writer:
        writer.add_all(ROWS)
        assert writer.finish() == []
        assert writer.take_tally().retries["DEADLINE_EXCEEDED"] > 0
    assert rows_of(name) == table_of(ROWS)


@pytest.mark.parametrize("how", ["cut", "hold"])
def test_a_server_that_goes_away_and_comes_back(name, bigtable, monkeypatch, how):
    """Every row arrives."""
    monkeypatch.setattr(bulk_writer, "_MAX_DELAY_S", 1.0)
    with TcpProxy(bigtable) as line:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", line.address)
        with BulkWriter.open(name, mutations=50, attempt_s=1.0) as writer:
            writer.add_all(ROWS[:100])
            writer.finish()
            getattr(line, how)()
            healing = threading.Timer(1.5, line.heal)
            healing.start()
            writer.add_all(ROWS)
            assert writer.finish() == []
            assert writer.take_tally().retries
            healing.join()
        assert rows_of(name) == table_of(ROWS)


def test_bad_rows_among_good_ones(name, proxy):
    """Each is returned with its key, the server's message and its entry. All other rows are written."""
    bad = [row(b"%04d" % i, b"bad", family="nowhere") for i in range(0, 500, 7)]
    mixed = [each for pair in zip(ROWS, bad + ROWS[: 500 - len(bad)], strict=True) for each in pair]
    with BulkWriter.open(name, mutations=200) as writer:
        writer.add_all(mixed)
        refused = writer.finish()
        assert writer.finish() == []
    assert rows_of(name) == table_of(ROWS)
    assert sorted(each.key for each in refused) == [each.key for each in bad]
    assert {each.message for each in refused} == {'unknown family "nowhere"'}
    entry = Entry.FromString(refused[0].entry)
    assert (entry.row_key, entry.mutations[0].set_cell.value) == (refused[0].key, b"bad")


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "INTERNAL"])
def test_statuses_of_a_bad_row(name, proxy, code):
    """Statuses that refuse the row and none of the others in its request."""
    proxy.mutations = refusing_rows(StatusCode[code], one_in=5)
    with BulkWriter.open(name, mutations=100) as writer:
        writer.add_all(ROWS)
        refused = writer.finish()
    assert {each.code for each in refused} == {code}
    assert rows_of(name) == table_of(each for each in ROWS if each.key not in {bad.key for bad in refused})


def test_a_row_that_makes_its_request_invalid(name, proxy):
    """It is found and refused; all others are written."""

    def invalid(entries):
        if any(entry.row_key in (b"0003", b"0444") for entry in entries):
            return MutationsAction(error=StatusCode.INVALID_ARGUMENT)
        return None

    proxy.mutations = invalid
    with BulkWriter.open(name) as writer:
        writer.add_all([*ROWS, row(b"0444", b"again", cells=4)])
        refused = writer.finish()
    assert sorted((each.key, each.code) for each in refused) == [
        (b"0003", "INVALID_ARGUMENT"),
        (b"0444", "INVALID_ARGUMENT"),
        (b"0444", "INVALID_ARGUMENT"),
    ]
    assert rows_of(name) == table_of(each for each in ROWS if each.key not in (b"0003", b"0444"))


@pytest.mark.parametrize(
    "code", ["INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED", "FAILED_PRECONDITION"]
)
def test_a_server_that_accepts_nothing(name, proxy, code):
    """The error is one line with the number of rows. The writer keeps none of them and can go on."""
    proxy.mutations = failing(StatusCode[code])
    with BulkWriter.open(name, mutations=10) as writer:
        with pytest.raises(
            ServerError, match=f"^table {name}: 9 rows could not be written: {code}: failed on purpose$"
        ):
            write(writer, [row(b"%d" % i) for i in range(9)])
        proxy.mutations = None
        writer.add_all(ROWS[:3])
        assert writer.finish() == []
    assert rows_of(name) == table_of(ROWS[:3])


def test_permission_denied_for_entries(name, proxy):
    """Rows are not at fault for a lack of permission: nothing is refused."""
    proxy.mutations = refusing(StatusCode.PERMISSION_DENIED, share=0.1)
    with (
        BulkWriter.open(name) as writer,
        pytest.raises(ServerError, match=r": 50 rows could not be written: PERMISSION_DENIED: refused on purpose$"),
    ):
        write(writer, ROWS)


def test_no_table(name, proxy):
    """The error comes at once, in one line."""
    nowhere = TableName(name.project, name.instance, "nowhere")
    with (
        BulkWriter.open(nowhere, mutations=50) as writer,
        pytest.raises(ServerError, match=rf"^table {nowhere}: \d+ rows could not be written: NOT_FOUND: ") as caught,
    ):
        write(writer, ROWS)
    assert "\n" not in str(caught.value)


def write(writer, rows):
    writer.add_all(rows)
    return writer.finish()


def test_the_deadline(name, proxy):
    """The error counts the rows that are left and names the first cause. The writer can go on."""
    proxy.mutations = refusing_rows(StatusCode.UNAVAILABLE, one_in=5)
    with BulkWriter.open(name, deadline_s=2.0) as writer:
        with pytest.raises(ServerError) as caught:
            write(writer, ROWS)
        stuck = 500 - len(rows_of(name))
        assert str(caught.value) == f"table {name}: {stuck} rows could not be written: UNAVAILABLE: refused on purpose"
        proxy.mutations = None
        assert write(writer, ROWS) == []
    assert rows_of(name) == table_of(ROWS)


def test_too_many_refusals(name, proxy):
    """Beyond the limit, the rows are not to blame: the writer raises."""
    with (
        BulkWriter.open(name, refused=99, mutations=10) as writer,
        pytest.raises(ServerError, match=r': more than 99 rows were refused: INTERNAL: unknown family "nowhere"$'),
    ):
        write(writer, [row(b"%d" % i, family="nowhere") for i in range(150)])


def test_limits(name, proxy):
    """Requests stay within mutations, bytes and the number in flight. A larger row goes alone."""
    mutations = []

    def count(entries):
        mutations.append(sum(len(entry.mutations) for entry in entries))
        return MutationsAction(answer_delay_s=0.02)

    proxy.mutations = count
    large = row(b"large", b"x" * 50_000)
    with BulkWriter.open(name, mutations=40, size_bytes=1_000, in_flight=3) as writer:
        write(writer, [*ROWS[:100], large, *ROWS[100:]])
    assert max(mutations) <= 40
    *others, largest = sorted(proxy.sizes)
    assert 800 < others[-1] <= 1_000
    assert 50_000 < largest < 50_300
    assert proxy.most == 3
    assert rows_of(name) == table_of([*ROWS, large])


def test_a_row_of_more_cells_than_a_request(name, proxy):
    """It goes in several requests, one after the other."""
    wide = row(b"wide", cells=95)
    with BulkWriter.open(name, mutations=10) as writer:
        write(writer, [wide])
    assert proxy.calls["MutateRows"] == 10
    assert proxy.most == 1
    assert rows_of(name) == table_of([wide])


def test_leaving_early(name, proxy):
    """An error ends the block and the threads, even with rows that are not confirmed."""
    proxy.mutations = failing(StatusCode.UNAVAILABLE)
    with pytest.raises(AttributeError), BulkWriter.open(name, mutations=10) as writer:
        writer.add_all([*ROWS[:15], None])  # three requests: as many as leave without waiting
    assert not any(thread.name.startswith(f"write {name.table}") for thread in threading.enumerate())


def test_abandoning(name, proxy):
    """It counts and drops the rows added so far. Later rows are written."""
    with BulkWriter.open(name) as writer:
        writer.add_all(ROWS[:30])
        assert writer.abandon() == 30
        assert write(writer, ROWS[30:]) == []
    assert rows_of(name) == table_of(ROWS[30:])


def test_too_many_mutations():
    """A request has at most 100,000 mutations."""
    with pytest.raises(ValueError, match="1 to 100000 mutations, not 100001"):
        Limits(mutations=100_001)


def retried(send, entries, deadline_s=60):
    """Returns the retrier of these entries after it ran."""
    retrier = RequestRetrier(
        request_header("t", ""),
        entries,
        send,
        RateLimiter(4),
        deadline_s=deadline_s,
        attempt_s=60,
        stopping=threading.Event(),
        server_accepts=threading.Event(),
    )
    retrier.run()
    return retrier


def test_the_delay_of_the_server():
    """A retry waits as long as a status asks for, of an entry or a call, and gives up if that is past the deadline."""
    details = [RetryInfo(retry_delay=Duration(nanos=500_000_000))]
    exhausted = from_grpc_status(StatusCode.RESOURCE_EXHAUSTED, "slow down", details=details)
    results = [
        MutateRowsResult(b"\x01\x01", {1: exhausted}, None, None, 0.1),
        MutateRowsResult(b"\x00", {}, exhausted, None, 0.1),
        MutateRowsResult(b"\x01", {}, None, None, 0.1),
    ]
    entries = {key: [mutations_of(row(key).cells)] for key in (b"a", b"b")}
    left = iter(results)
    began = time.monotonic()
    retrier = retried(lambda *_: next(left), entries)
    assert time.monotonic() - began >= 1.0
    assert (retrier.rows_left, retrier.problem, retrier.tally.retries) == (0, None, {"RESOURCE_EXHAUSTED": 2})
    left = iter(results)
    retrier = retried(lambda *_: next(left), entries, deadline_s=0.4)
    assert (retrier.rows_left, retrier.problem) == (1, exhausted)


def test_a_row_too_large_for_grpc():
    """It is refused, although its status is that of an exhausted quota."""

    def send(request, entries, timeout_s):
        if len(request) < 1000:
            return MutateRowsResult(b"\x01" * entries, {}, None, None, 0.1)
        error = from_grpc_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (9 vs. 8)")
        return MutateRowsResult(b"\x00" * entries, {}, error, None, 0.1)

    entries = {b"%d" % i: [mutations_of(row(b"", b"x" * (5000 if i == 3 else 5)).cells)] for i in range(9)}
    retrier = retried(send, entries)
    assert [(each.key, each.code) for each in retrier.refused] == [(b"3", "RESOURCE_EXHAUSTED")]
    assert (retrier.rows_left, retrier.tally.rows, retrier.problem) == (0, 8, None)


def test_a_bug_is_raised(name, proxy):
    """As it is, not as a ServerError."""
    with BulkWriter.open(name) as writer:
        writer._send = lambda *_: 1 / 0
        writer.add_all(ROWS)
        with pytest.raises(ZeroDivisionError):
            writer.finish()


shares = st.floats(0, 1)
codes = st.sampled_from(TRANSIENT)
faults = st.one_of(
    st.none(),
    st.builds(refusing, codes, share=shares, seed=st.integers()),
    st.builds(breaking, codes, applied=shares, answered=shares),
    st.builds(slow, st.floats(0, 0.6)),
)
additions = st.lists(
    st.builds(row, st.sampled_from([b"%d" % i for i in range(25)]), st.binary(max_size=40), cells=st.integers(1, 5)),
    max_size=60,
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(faults, max_size=8), st.lists(additions, min_size=1, max_size=3), st.integers(3, 60))
def test_any_script(bigtable, proxy, script, bundles, mutations):
    """Whatever happens, the table ends as if every row had been written once, one after the other."""
    name = new_table()
    steps = iter(script)

    def fault(entries):
        step = next(steps, None)
        return step(entries) if step else None

    proxy.mutations = fault
    with BulkWriter.open(name, mutations=mutations, size_bytes=1000, attempt_s=0.4) as writer:
        for added in bundles:
            assert write(writer, added) == []
    assert rows_of(name) == table_of([each for added in bundles for each in added])
