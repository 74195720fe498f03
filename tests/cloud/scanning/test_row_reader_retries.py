import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.scanning import row_reader
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.rows.rows import Cell, KeyRange, Row
from tests.support.row_server import (
    EVERYTHING,
    FAKE,
    Responses,
    Script,
    Server,
    breaking,
    chunk,
    chunks_of,
    correct,
    ending_within,
    numbered,
    response,
    sending,
    silent,
)

MEGABYTE = 1_000_000


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


def test_the_client_sends_its_features(server: Server, faked: RowReader) -> None:
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
        [breaking(2, grpc.StatusCode.CANCELLED)],
        [breaking(2, grpc.StatusCode.DEADLINE_EXCEEDED)],
        [breaking(2, grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2")],
        [ending_within(0)],
        [ending_within(1), breaking(1), ending_within(0)],
    ],
)
def test_a_broken_stream_resumes_behind_its_last_row(
    server: Server,
    faked: RowReader,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Script],
    limit: int | None,
    reverse: bool,
) -> None:
    """However a stream breaks, every row comes once, and the server sends none again."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    server.rows = numbered(8)
    server.scripts = [*failures]
    expected = sorted(server.rows, reverse=reverse)[:limit]
    assert list(faked.read(EVERYTHING, limit=limit, reverse=reverse)) == expected
    assert faked.requests == len(server.requests)
    assert (faked.rows_read, faked.cells_read) == (len(expected), 2 * len(expected))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_retry_requests_the_missing_rows(server: Server, faked: RowReader, reverse: bool) -> None:
    """It requests the range behind the last row, with the rest of the limit."""
    server.rows = numbered(8)
    server.scripts = [breaking(2), breaking(1)]
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


RANGES = [KeyRange(b"k0001", b"k0003"), KeyRange(b"k0004", b"k0005"), KeyRange(b"k0006", b"k0008")]


@pytest.mark.parametrize(
    ("reverse", "expected"),
    [
        (False, [[(b"k0001\x00", b"k0003"), *RANGES[1:]], [(b"k0004\x00", b"k0005"), RANGES[2]], [RANGES[2]]]),
        (True, [[(b"k0006", b"k0007"), RANGES[1], RANGES[0]], [RANGES[0]], [RANGES[0]]]),
    ],
)
def test_a_retry_requests_the_ranges_that_are_missing(
    server: Server, faked: RowReader, reverse: bool, expected: list[list[tuple[bytes, bytes]]]
) -> None:
    """Those behind the last row, whether others follow in its range or not, and behind the last scanned row, even if
    that is between two ranges. Each row comes once."""
    server.rows = numbered(8)
    scanned = sending(response(last_scanned_row_key=b"k0005x"), then=breaking(0))
    server.scripts = [breaking(1), breaking(2), scanned]
    rows = [server.rows[n] for n in (1, 2, 4, 6, 7)]
    assert list(faked.read(RANGES, reverse=reverse)) == (rows[::-1] if reverse else rows)
    asked = [[(each.start_key_closed, each.end_key_open) for each in r.rows.row_ranges] for r in server.requests]
    assert asked[1:] == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_that_were_left_out_are_not_scanned_again(server: Server, faked: RowReader, reverse: bool) -> None:
    """After a failure, a page resumes behind the last scanned row, which does not count towards the limit."""
    server.scripts = [sending(response(last_scanned_row_key=b"m"), then=breaking(0))]
    list(faked.read(KeyRange(b"k", b"z"), limit=5, reverse=reverse))
    [asked] = server.requests[1].rows.row_ranges
    expected = (b"k", b"m") if reverse else (b"m\x00", b"z")
    assert (asked.start_key_closed, asked.end_key_open, server.requests[1].rows_limit) == (*expected, 5)
    assert faked.rows_read == 0


@pytest.mark.parametrize(
    ("key_range", "limit", "expected"), [(EVERYTHING, 3, [0, 1, 2]), (KeyRange(b"k0002", b"k0002\x00"), None, [2])]
)
def test_a_failure_behind_the_last_row_is_ignored(
    server: Server, faked: RowReader, key_range: KeyRange, limit: int | None, expected: list[int]
) -> None:
    """If all requested rows have arrived, nothing is requested again."""
    server.rows = numbered(8)
    server.scripts = [breaking(3)]
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
def test_a_permanent_error_is_raised_at_once(
    server: Server, faked: RowReader, monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode, message: str
) -> None:
    """One attempt, and an error of one line after the rows of earlier pages."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    server.rows = numbered(8)
    server.scripts = [correct, breaking(1, code, "no\nentry")]
    rows = faked.read(EVERYTHING)
    assert list(itertools.islice(rows, 3)) == server.rows[:3]
    with pytest.raises(ServerError, match=f"^table {FAKE}: {message}$"):
        next(rows)
    assert faked.requests == 2


def test_rows_of_a_request_that_failed_are_counted(server: Server, faked: RowReader) -> None:
    """The counters include rows that the server sent and the caller never got."""
    server.rows = numbered(8)
    server.scripts = [breaking(3, grpc.StatusCode.PERMISSION_DENIED)]
    with pytest.raises(ServerError):
        next(faked.read(EVERYTHING))
    assert (faked.requests, faked.rows_read, faked.cells_read) == (1, 3, 6)


@pytest.mark.parametrize(
    ("scripts", "cause"),
    [
        ([silent], "Deadline Exceeded"),
        ([breaking(1, message="the tablet is moving"), silent], "the tablet is moving"),
        ([breaking(1, message="one"), breaking(0, message="two"), silent], "two"),
    ],
)
def test_a_read_that_runs_out_of_time_names_the_last_cause(
    server: Server, faked: RowReader, monkeypatch: pytest.MonkeyPatch, scripts: list[Script], cause: str
) -> None:
    """The error has the last message that is more than a timeout."""
    monkeypatch.setattr(row_reader, "TIMEOUT_S", 1.0)
    server.rows = numbered(8)
    server.scripts = [*scripts]
    with pytest.raises(ServerError, match=f"^table {FAKE}: the server cannot be reached: {cause}$"):
        next(faked.read(EVERYTHING))
    assert faked.requests == len(scripts)


@pytest.mark.parametrize(
    ("cut", "scanned", "reverse"),
    [(False, False, False), (False, True, True), (True, False, True), (True, True, False)],
)
def test_progress_restarts_the_timeout(
    server: Server, faked: RowReader, monkeypatch: pytest.MonkeyPatch, cut: bool, scanned: bool, reverse: bool
) -> None:
    """A page may take many times the timeout if every request returns a row or a scanned key."""
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
    server.scripts = [little] * 5
    begin = time.monotonic()
    found = list(faked.read(KeyRange(b"a", b"b"), limit=100, reverse=reverse))
    assert time.monotonic() - begin > 2 * row_reader.TIMEOUT_S
    expected = rows[::-1] if reverse else rows
    assert found == (expected[5:] if scanned else expected)
    assert faked.requests == 6


def test_rows_are_assembled_over_responses(server: Server, faked: RowReader) -> None:
    """A split value of six megabytes, names left out, a row that is reset, and two rows in a response."""
    large = random.Random(2).randbytes(6 * MEGABYTE)
    pieces = [large[at : at + MEGABYTE] for at in range(0, len(large), MEGABYTE)]
    begin = chunk(row_key=b"a", family_name="f", qualifier=b"q", timestamp_micros=1000, value_size=len(large))
    begin.value = pieces[0]
    server.scripts = [
        sending(
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
def test_rows_out_of_order_are_refused(server: Server, faked: RowReader, keys: list[bytes], reverse: bool) -> None:
    """Keys in the wrong direction, repeated or outside the range would lose rows."""
    server.scripts = [sending(*(response(*chunks_of(Row(key, [Cell("f", b"q", 0, b"")]))) for key in keys))]
    with pytest.raises(ServerError, match="out of order"):
        list(faked.read(KeyRange(b"a", b"z"), reverse=reverse))
    assert faked.requests == 1
