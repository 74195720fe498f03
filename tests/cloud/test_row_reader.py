import itertools
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import closing

import grpc
import pytest
from google.api_core.exceptions import Aborted, DataLoss
from google.cloud.bigtable import Client, data
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse, RowFilter
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cloud import row_reader
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.cloud.row_reader import RowReader, merged
from pipeline.core.rows import Cell, KeyRange, Row

EVERYTHING = KeyRange(b"", b"")
MEGABYTE = 1_000_000
FAKE = TableName("test-project", "test-instance", "faked")


def numbered(count: int) -> list[Row]:
    return [Row(b"k%04d" % n, [Cell("f", b"a", 1000, b"%d" % n), Cell("f", b"b", 2000, b"")]) for n in range(count)]


def only(**condition) -> RowFilter:
    return RowFilter(**condition)


@pytest.fixture
def name(bigtable: str) -> TableName:
    """An empty table of the emulator, with no schema: rows are rows."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")
    table = {"column_families": {"f": {}, "g": {}}}
    with Client(project=name.project, admin=True).table_admin_client as admin:
        admin.create_table({"parent": name.parent, "table_id": name.table, "table": table})
    return name


@pytest.fixture
def reader(name: TableName) -> Iterator[RowReader]:
    with RowReader.open(name) as reader:
        yield reader


def write(name: TableName, rows: Iterable[Row]) -> None:
    """Writes rows with Google's client alone."""
    entries = [
        data.RowMutationEntry(
            row.key, [data.SetCell(cell.family, cell.qualifier, cell.value, cell.timestamp_us) for cell in row.cells]
        )
        for row in rows
    ]
    with data.BigtableDataClient(project=name.project) as client:
        client.get_table(name.instance, name.table).bulk_mutate_rows(entries)


# On the emulator


def test_rows_come_as_they_were_written(name: TableName, reader: RowReader) -> None:
    """Keys and cells come back, every version of a cell, in the order of keys or against it; families in any order."""
    versions = [Cell("f", b"\x00\xff", 3000, b"new"), Cell("f", b"\x00\xff", 1000, b"old"), Cell("g", b"", 0, b"")]
    written = [Row(b"\x00", versions), *numbered(3), Row(b"\xff\xff", [Cell("g", b"q", 5000, bytes(range(256)))])]
    write(name, written)
    for reverse in (False, True):
        found = [
            Row(key, sorted(cells, key=lambda cell: cell.family))
            for key, cells in reader.read(EVERYTHING, reverse=reverse)
        ]
        assert found == (written[::-1] if reverse else written)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"k0001", b"k0003", [1, 2]),
        (b"k0001\x00", b"k0003\x00", [2, 3]),
        (b"", b"k0001", [0]),
        (b"k0003", b"", [3, 4]),
        (b"k0002", b"k0002", []),
        (b"k0003", b"k0001", []),
        (b"l", b"m", []),
        (b"l", b"", []),
    ],
)
def test_a_range_holds_its_start_and_not_its_end(
    name: TableName, reader: RowReader, start: bytes, end: bytes, expected: list[int], reverse: bool
) -> None:
    """[start, end), where an empty end is the table's; the same rows in either direction."""
    rows = numbered(5)
    write(name, rows)
    found = list(reader.read(KeyRange(start, end), reverse=reverse))
    assert found == [rows[n] for n in sorted(expected, reverse=reverse)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("limit", "requests"), [(None, 3), (0, 0), (1, 1), (3, 1), (5, 2), (6, 2), (7, 3), (8, 3), (100, 3)]
)
def test_a_long_range_comes_in_pages(
    name: TableName,
    reader: RowReader,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    requests: int,
    reverse: bool,
) -> None:
    """Rows come a page a request, each once; the limit counts over all pages, and no more than that is sent."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    rows = numbered(8)
    write(name, rows)
    expected = sorted(rows, reverse=reverse)[:limit]
    assert list(reader.read(EVERYTHING, limit=limit, reverse=reverse)) == expected
    assert (reader.requests, reader.rows_read, reader.cells_read) == (requests, len(expected), 2 * len(expected))


def test_a_page_is_requested_when_its_first_row_is_wanted(
    name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read costs nothing before its first row, and no second page before the first one is used up."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 2)
    write(name, numbered(4))
    rows = reader.read(EVERYTHING)
    assert reader.requests == 0
    assert [reader.requests for _ in rows] == [1, 1, 2, 2]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_filter_chooses_cells(
    name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """The server leaves out cells, and rows without any; pages and limits count the rows that are left."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 2)
    rows = numbered(40)
    write(name, rows)
    of_tens = RowFilter(
        chain=RowFilter.Chain(filters=[only(row_key_regex_filter=b"k...0"), only(column_qualifier_regex_filter=b"a")])
    )
    expected = [Row(rows[n].key, rows[n].cells[:1]) for n in (0, 10, 20, 30)]
    if reverse:
        expected.reverse()
    assert list(reader.read(EVERYTHING, of_tens, reverse=reverse)) == expected
    assert (reader.rows_read, reader.cells_read) == (4, 4)
    assert list(reader.read(EVERYTHING, of_tens, 3, reverse=reverse)) == expected[:3]


def test_large_values_and_many_cells_come_whole(name: TableName, reader: RowReader) -> None:
    """A value of several megabytes, and a row of thousands of cells."""
    large = Row(b"large", [Cell("f", b"q", 0, random.Random(1).randbytes(3 * MEGABYTE))])
    many = Row(b"many", [Cell("f", b"%05d" % n, 1000 * n, b"%d" % n) for n in range(5000)])
    write(name, [large])
    write(name, [many])
    assert list(reader.read(EVERYTHING)) == [large, many]
    assert list(reader.read(EVERYTHING, reverse=True)) == [many, large]


def test_a_row_of_many_megabytes_comes_whole(name: TableName, reader: RowReader) -> None:
    """More than the 4 MB that gRPC takes where nobody says otherwise."""
    cells = [Cell("f", b"%d" % n, 0, random.Random(n).randbytes(MEGABYTE)) for n in range(6)]
    write(name, [Row(b"large", cells)])
    assert list(reader.read(EVERYTHING)) == [Row(b"large", cells)]


def test_threads_share_a_reader(name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads in several threads each see all rows in their own direction, and every one of them is counted."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 7)
    rows = numbered(200)
    write(name, rows)
    directions = [False, True] * 3
    with futures.ThreadPoolExecutor(len(directions)) as threads:
        found = list(threads.map(lambda reverse: list(reader.read(EVERYTHING, reverse=reverse)), directions))
    assert found == [rows[::-1] if reverse else rows for reverse in directions]
    assert (reader.rows_read, reader.cells_read) == (6 * 200, 6 * 400)


def test_a_table_that_does_not_exist_is_named(bigtable: str) -> None:
    """The first read tells, in a line."""
    missing = TableName("test-project", "test-instance", "missing")
    with RowReader.open(missing) as reader, pytest.raises(ServerProblem, match=f"^table {missing} does not exist$"):
        next(reader.read(EVERYTHING))
    assert reader.requests == 1


def test_an_unreachable_server_is_found_out_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing listens, a read gives up when its time is up, and one line says why."""
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setattr(row_reader, "TIMEOUT_S", 1.0)
        with RowReader.open(FAKE) as reader, pytest.raises(ServerProblem) as caught:
            next(reader.read(EVERYTHING))
    assert str(caught.value).startswith(f"table {FAKE}: the server cannot be reached: failed to connect")
    assert "\n" not in str(caught.value)


# On a server that fails when it is told to

Responses = Iterator[ReadRowsResponse]
Answer = Callable[[Responses, grpc.ServicerContext], Responses]


def chunk(**fields) -> ReadRowsResponse.CellChunk:
    return ReadRowsResponse.CellChunk(**fields)


def response(*chunks: ReadRowsResponse.CellChunk, last_scanned_row_key: bytes = b"") -> ReadRowsResponse:
    return ReadRowsResponse(chunks=chunks, last_scanned_row_key=last_scanned_row_key)


def chunks_of(row: Row) -> list[ReadRowsResponse.CellChunk]:
    """A chunk a cell, in full."""
    chunks = [
        chunk(row_key=row.key, family_name=family, qualifier=qualifier, timestamp_micros=timestamp_us, value=value)
        for family, qualifier, timestamp_us, value in row.cells
    ]
    chunks[-1].commit_row = True
    return chunks


class Server:
    """A server with rows of its own. Each of its answers, in turn, goes through one of ``answers`` as long as it has
    one: that gets the responses that would be right, one a row."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.answers: list[Answer] = []
        self.requests: list[ReadRowsRequest] = []
        self.features: list[str] = []

    def read_rows(self, serialized: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = ReadRowsRequest.deserialize(serialized)
        self.requests.append(request)
        self.features.append(dict(context.invocation_metadata())["bigtable-features"])
        responses = (response(*chunks_of(row)) for row in self._found(request))
        if self.answers:
            responses = self.answers.pop(0)(responses, context)
        yield from map(ReadRowsResponse.serialize, responses)

    def _found(self, request: ReadRowsRequest) -> list[Row]:
        [asked] = request.rows.row_ranges
        found = [
            row
            for row in sorted(self.rows, reverse=request.reversed)
            if asked.start_key_closed <= row.key and (not asked.end_key_open or row.key < asked.end_key_open)
        ]
        return found[: request.rows_limit or None]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    handlers = {"ReadRows": grpc.unary_stream_rpc_method_handler(server.read_rows)}
    rpc = grpc.server(
        futures.ThreadPoolExecutor(8), [grpc.method_handlers_generic_handler("google.bigtable.v2.Bigtable", handlers)]
    )
    port = rpc.add_insecure_port("127.0.0.1:0")
    rpc.start()
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{port}")
    monkeypatch.setattr(row_reader, "_FIRST_DELAY_S", 0.001)
    yield server
    rpc.stop(0).wait()


@pytest.fixture
def faked(server: Server) -> Iterator[RowReader]:
    with RowReader.open(FAKE) as reader:
        yield reader


def breaking(count: int, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, message: str = "moving") -> Answer:
    """The first ``count`` responses, and then an error."""

    def answer(responses: Responses, context: grpc.ServicerContext) -> Responses:
        yield from itertools.islice(responses, count)
        context.abort(code, message)

    return answer


def passed_on(responses: Responses, _: grpc.ServicerContext) -> Responses:
    """The right answer."""
    return responses


def stopping_within(count: int) -> Answer:
    """The first ``count`` rows, half of the next one, and the end, as if that were all."""

    def answer(responses: Responses, _: grpc.ServicerContext) -> Responses:
        yield from itertools.islice(responses, count)
        yield response(next(responses).chunks[0])

    return answer


def saying(*responses: ReadRowsResponse, then: Answer | None = None) -> Answer:
    """These responses; and only with ``then`` what would have been right."""

    def answer(right: Responses, context: grpc.ServicerContext) -> Responses:
        yield from responses
        if then:
            yield from then(right, context)

    return answer


def silent(_: Responses, context: grpc.ServicerContext) -> Responses:
    """Nothing, until the client has given up."""
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait()
    yield from ()


def test_the_server_is_told_what_the_client_can_do(server: Server, faked: RowReader) -> None:
    """FeatureFlags of reverse scans (field 1) and of the row last scanned (field 4), in websafe base64."""
    assert list(faked.read(EVERYTHING)) == []
    assert server.features == ["CAEgAQ=="]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [None, 5, 6, 9])
@pytest.mark.parametrize(
    "failures",
    [
        [breaking(0)],
        [breaking(1)],
        [breaking(2), breaking(0), breaking(1)],
        [breaking(2, grpc.StatusCode.ABORTED)],
        [breaking(2, grpc.StatusCode.DEADLINE_EXCEEDED)],
        [breaking(2, grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2")],
        [stopping_within(0)],
        [stopping_within(1), breaking(1), stopping_within(0)],
    ],
)
def test_a_broken_stream_is_taken_up_behind_its_last_row(
    server: Server,
    faked: RowReader,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Answer],
    limit: int | None,
    reverse: bool,
) -> None:
    """However a stream breaks, every row comes once, and none that is there is sent again."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    server.rows = numbered(8)
    server.answers = [*failures]
    expected = sorted(server.rows, reverse=reverse)[:limit]
    assert list(faked.read(EVERYTHING, limit=limit, reverse=reverse)) == expected
    assert faked.requests == len(server.requests)
    assert (faked.rows_read, faked.cells_read) == (len(expected), 2 * len(expected))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_retry_asks_for_what_is_missing(server: Server, faked: RowReader, reverse: bool) -> None:
    """The range behind the last row, and what is left of the limit."""
    server.rows = numbered(8)
    server.answers = [breaking(2), breaking(1)]
    list(faked.read(KeyRange(b"k", b"l"), limit=5, reverse=reverse))
    asked = [
        (key_range.start_key_closed, key_range.end_key_open, request.rows_limit)
        for request in server.requests
        for key_range in request.rows.row_ranges
    ]
    if reverse:
        assert asked == [(b"k", b"l", 5), (b"k", b"k0006", 3), (b"k", b"k0005", 2)]
    else:
        assert asked == [(b"k", b"l", 5), (b"k0001\x00", b"l", 3), (b"k0002\x00", b"l", 2)]


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_that_were_left_out_are_not_scanned_again(server: Server, faked: RowReader, reverse: bool) -> None:
    """After a failure a page goes on behind the row that the server scanned last, which is none of the limit's."""
    server.answers = [saying(response(last_scanned_row_key=b"m"), then=breaking(0))]
    list(faked.read(KeyRange(b"k", b"z"), limit=5, reverse=reverse))
    [asked] = server.requests[1].rows.row_ranges
    expected = (b"k", b"m") if reverse else (b"m\x00", b"z")
    assert (asked.start_key_closed, asked.end_key_open, server.requests[1].rows_limit) == (*expected, 5)
    assert faked.rows_read == 0


@pytest.mark.parametrize(
    ("key_range", "limit", "expected"), [(EVERYTHING, 3, [0, 1, 2]), (KeyRange(b"k0002", b"k0002\x00"), None, [2])]
)
def test_a_failure_behind_the_last_row_is_none(
    server: Server, faked: RowReader, key_range: KeyRange, limit: int | None, expected: list[int]
) -> None:
    """Where all that was asked for is there, nothing is asked again."""
    server.rows = numbered(8)
    server.answers = [breaking(3)]
    assert list(faked.read(key_range, limit=limit)) == [server.rows[n] for n in expected]
    assert faked.requests == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "permission denied: no entry"),
        (grpc.StatusCode.INVALID_ARGUMENT, "no entry"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "no entry"),
        (grpc.StatusCode.INTERNAL, "no entry"),
    ],
)
def test_a_permanent_error_is_told_at_once(
    server: Server, faked: RowReader, monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode, message: str
) -> None:
    """No second try, and one line, behind the rows of the pages before."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    server.rows = numbered(8)
    server.answers = [passed_on, breaking(1, code, "no\nentry")]
    rows = faked.read(EVERYTHING)
    assert list(itertools.islice(rows, 3)) == server.rows[:3]
    with pytest.raises(ServerProblem, match=f"^table {FAKE}: {message}$"):
        next(rows)
    assert faked.requests == 2


def test_rows_of_a_request_that_failed_are_counted(server: Server, faked: RowReader) -> None:
    """The counters say what the server sent, whether or not a reader got it."""
    server.rows = numbered(8)
    server.answers = [breaking(3, grpc.StatusCode.PERMISSION_DENIED)]
    with pytest.raises(ServerProblem):
        next(faked.read(EVERYTHING))
    assert (faked.requests, faked.rows_read, faked.cells_read) == (1, 3, 6)


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        ([silent], "Deadline Exceeded"),
        ([breaking(1, message="the tablet is moving"), silent], "the tablet is moving"),
        ([breaking(1, message="one"), breaking(0, message="two"), silent], "two"),
    ],
)
def test_a_read_that_runs_out_of_time_names_the_last_cause(
    server: Server, faked: RowReader, monkeypatch: pytest.MonkeyPatch, answers: list[Answer], cause: str
) -> None:
    """A server that says nothing any more is given up, with what it said last."""
    monkeypatch.setattr(row_reader, "TIMEOUT_S", 1.0)
    server.rows = numbered(8)
    server.answers = [*answers]
    with pytest.raises(ServerProblem, match=f"^table {FAKE}: the server cannot be reached: {cause}$"):
        next(faked.read(EVERYTHING))
    assert faked.requests == len(answers)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_read_that_comes_further_goes_on(
    server: Server, faked: RowReader, monkeypatch: pytest.MonkeyPatch, cut: bool, scanned: bool, reverse: bool
) -> None:
    """A page may take many times the timeout as long as every request brings a row, or one that was left out."""
    monkeypatch.setattr(row_reader, "TIMEOUT_S", 0.6)
    rows = [Row(b"a%d" % n, [Cell("f", b"q", 0, b"")]) for n in range(6)]
    slow = 0.3 if cut else 60.0  # within the timeout, or over it

    def little(responses: Responses, context: grpc.ServicerContext) -> Responses:
        first = next(responses)
        yield response(last_scanned_row_key=first.chunks[0].row_key) if scanned else first
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait(slow)
        context.abort(grpc.StatusCode.UNAVAILABLE, "moving")

    server.rows = rows
    server.answers = [little] * 5
    begin = time.monotonic()
    found = list(faked.read(KeyRange(b"a", b"b"), limit=100, reverse=reverse))
    assert time.monotonic() - begin > 2 * row_reader.TIMEOUT_S
    expected = rows[::-1] if reverse else rows
    assert found == (expected[5:] if scanned else expected)
    assert faked.requests == 6


def test_rows_are_put_together_over_responses(server: Server, faked: RowReader) -> None:
    """Six megabytes in pieces, names that are not repeated, a row that starts anew, and two rows in a response."""
    large = random.Random(2).randbytes(6 * MEGABYTE)
    pieces = [large[at : at + MEGABYTE] for at in range(0, len(large), MEGABYTE)]
    begin = chunk(row_key=b"a", family_name="f", qualifier=b"q", timestamp_micros=1000, value_size=len(large))
    begin.value = pieces[0]
    server.answers = [
        saying(
            response(chunk(row_key=b"a", family_name="g", qualifier=b"x", value=b"half"), chunk(reset_row=True)),
            response(begin),
            *(response(chunk(value=piece, value_size=len(large))) for piece in pieces[1:-1]),
            response(
                chunk(value=pieces[-1]),
                chunk(qualifier=b"", timestamp_micros=2000, value=b"2"),
                chunk(timestamp_micros=3000, value=b"3"),
                chunk(family_name="", qualifier=b"q", value=b"4", commit_row=True),
                *chunks_of(Row(b"b", [Cell("f", b"q", 0, b"5")])),
            ),
        )
    ]
    assert list(faked.read(EVERYTHING)) == [
        Row(b"a", [Cell("f", b"q", 1000, large), Cell("f", b"", 2000, b"2"), Cell("f", b"", 3000, b"3"),
                   Cell("", b"q", 0, b"4")]),
        Row(b"b", [Cell("f", b"q", 0, b"5")]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "reverse"), [([b"b", b"a"], False), ([b"a", b"b"], True), ([b"a", b"a"], False), ([b"z"], False)]
)
def test_a_server_that_goes_astray_is_refused(
    server: Server, faked: RowReader, keys: list[bytes], reverse: bool
) -> None:
    """Keys against the direction that was asked for, twice the same or outside of the range would lose rows."""
    server.answers = [saying(*(response(*chunks_of(Row(key, [Cell("f", b"q", 0, b"")]))) for key in keys))]
    with pytest.raises(ServerProblem, match="out of order"):
        list(faked.read(KeyRange(b"a", b"z"), reverse=reverse))
    assert faked.requests == 1


# Chunks

FULL = {"row_key": b"a", "family_name": "f", "qualifier": b"q"}


def merge(*responses: ReadRowsResponse) -> list[Row]:
    return list(merged(map(ReadRowsResponse.pb, responses)))


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(family_name="f", qualifier=b"q", commit_row=True)],
        [chunk(row_key=b"a", commit_row=True)],
        [chunk(row_key=b"a", qualifier=b"q", commit_row=True)],
        [chunk(row_key=b"a", family_name="f", commit_row=True)],
        [chunk(**FULL), chunk(family_name="g", commit_row=True)],
        [chunk(**FULL), chunk(row_key=b"b", commit_row=True)],
        [chunk(**FULL, value=b"1", value_size=2, commit_row=True)],
        [chunk(**FULL, commit_row=True), chunk(row_key=b"b", commit_row=True)],
        [chunk(**FULL), chunk(reset_row=True), chunk(row_key=b"a", commit_row=True)],
    ],
)
def test_chunks_that_make_no_row_are_refused(chunks: list[ReadRowsResponse.CellChunk]) -> None:
    """Nothing is made up for a key, a family or a column that is missing, and a row keeps its key."""
    with pytest.raises(DataLoss):
        merge(response(*chunks))


def test_a_row_in_part_is_an_error() -> None:
    """A stream that ends within a row can be tried again; one that goes on to another row makes no sense."""
    with pytest.raises(Aborted):
        merge(response(chunk(**FULL)))
    with pytest.raises(DataLoss):
        merge(response(chunk(**FULL)), response(last_scanned_row_key=b"b"))


@st.composite
def rows_and_chunks(draw: st.DrawFn) -> tuple[list[Row], list[ReadRowsResponse]]:
    """Rows, and one of the ways in which a server may send them."""
    cells = st.builds(
        Cell, st.sampled_from(["", "f", "g"]), st.sampled_from([b"", b"p", b"q"]), st.integers(0, 2), st.binary()
    )
    keys = draw(st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=5))
    rows = [Row(key, draw(st.lists(cells, min_size=1, max_size=5))) for key in keys]
    coin = random.Random(draw(st.integers(0, 2**32)))  # drawing every toss takes Hypothesis too long
    chunks = []
    for row in rows:
        while coin.random() < 0.3:  # begun, and dropped
            begun = _chunks_in_any_form(row, coin)
            chunks += [*begun[: coin.randrange(len(begun))], chunk(reset_row=True)]
        chunks += _chunks_in_any_form(row, coin)
    responses = [response()]
    for one in chunks:
        if coin.random() < 0.5:
            responses.append(response())
        responses[-1].chunks.append(one)
    return rows, responses


def _chunks_in_any_form(row: Row, coin: random.Random) -> list[ReadRowsResponse.CellChunk]:
    """A row's chunks, with values in pieces and names left out where they are the last chunk's."""
    chunks: list[ReadRowsResponse.CellChunk] = []
    family: str | None = None
    qualifier: bytes | None = None
    for cell in row.cells:
        first = chunk(timestamp_micros=cell.timestamp_us)
        if not chunks or coin.random() < 0.5:
            first.row_key = row.key
        if cell.family != family or coin.random() < 0.5:
            first.family_name = cell.family
            first.qualifier = cell.qualifier
        elif cell.qualifier != qualifier or coin.random() < 0.5:
            first.qualifier = cell.qualifier
        family, qualifier = cell.family, cell.qualifier
        cuts = sorted(coin.randrange(len(cell.value) + 1) for _ in range(coin.randrange(4) if cell.value else 0))
        pieces = [cell.value[start:end] for start, end in itertools.pairwise([0, *cuts, len(cell.value)])]
        of_cell = [first, *(chunk() for _ in pieces[1:])]
        for one, piece in zip(of_cell, pieces, strict=True):
            one.value = piece
            one.value_size = len(cell.value)
        of_cell[-1].value_size = 0
        chunks += of_cell
    chunks[-1].commit_row = True
    return chunks


@given(rows_and_chunks())
def test_rows_are_the_same_however_they_were_cut(sent: tuple[list[Row], list[ReadRowsResponse]]) -> None:
    """Random rows in random chunks of random responses come back as they are."""
    rows, responses = sent
    assert merge(*responses) == rows
