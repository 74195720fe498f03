"""A Bigtable server with rows of its own that fails when it is told to."""

import itertools
import threading
from collections.abc import Callable, Iterator

import grpc
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from pipeline.cloud.names import TableName
from pipeline.core.rows import Cell, KeyRange, Row

EVERYTHING = KeyRange(b"", b"")
FAKE = TableName("test-project", "test-instance", "faked")

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


def numbered(count: int) -> list[Row]:
    return [Row(b"k%04d" % n, [Cell("f", b"a", 1000, b"%d" % n), Cell("f", b"b", 2000, b"")]) for n in range(count)]


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
