"""A scripted Bigtable server for reads."""

import itertools
import threading
from collections.abc import Callable, Iterator

import grpc
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from pipeline.cloud.connection.names import TableName
from pipeline.core.rows.rows import Cell, KeyRange, Row

EVERYTHING = KeyRange(b"", b"")
FAKE = TableName("test-project", "test-instance", "faked")

Responses = Iterator[ReadRowsResponse]
Script = Callable[[Responses, grpc.ServicerContext], Responses]


def chunk(**fields) -> ReadRowsResponse.CellChunk:
    return ReadRowsResponse.CellChunk(**fields)


def response(*chunks: ReadRowsResponse.CellChunk, last_scanned_row_key: bytes = b"") -> ReadRowsResponse:
    return ReadRowsResponse(chunks=chunks, last_scanned_row_key=last_scanned_row_key)


def chunks_of(row: Row) -> list[ReadRowsResponse.CellChunk]:
    """Returns a complete chunk for each cell."""
    chunks = [
        chunk(row_key=row.key, family_name=family, qualifier=qualifier, timestamp_micros=timestamp_us, value=value)
        for family, qualifier, timestamp_us, value in row.cells
    ]
    chunks[-1].commit_row = True
    return chunks


def numbered(count: int) -> list[Row]:
    return [Row(b"k%04d" % n, [Cell("f", b"a", 1000, b"%d" % n), Cell("f", b"b", 2000, b"")]) for n in range(count)]


class Server:
    """A server of its own rows. Each stream of responses, one a row, passes through the next of ``scripts``, if any."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.scripts: list[Script] = []
        self.requests: list[ReadRowsRequest] = []
        self.features: list[str] = []

    def read_rows(self, serialized: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = ReadRowsRequest.deserialize(serialized)
        self.requests.append(request)
        self.features.append(dict(context.invocation_metadata())["bigtable-features"])
        responses = (response(*chunks_of(row)) for row in self.found(request))
        if self.scripts:
            responses = self.scripts.pop(0)(responses, context)
        yield from map(ReadRowsResponse.serialize, responses)

    def found(self, request: ReadRowsRequest) -> list[Row]:
        """Returns the rows that a request asks for."""
        found = [
            row
            for row in sorted(self.rows, reverse=request.reversed)
            if any(
                asked.start_key_closed <= row.key and (not asked.end_key_open or row.key < asked.end_key_open)
                for asked in request.rows.row_ranges
            )
        ]
        return found[: request.rows_limit or None]


def breaking(count: int, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, message: str = "moving") -> Script:
    """Sends the first ``count`` responses and then an error."""

    def script(responses: Responses, context: grpc.ServicerContext) -> Responses:
        yield from itertools.islice(responses, count)
        context.abort(code, message)

    return script


def correct(responses: Responses, _: grpc.ServicerContext) -> Responses:
    """Sends the correct responses."""
    return responses


def ending_within(count: int) -> Script:
    """Sends the first ``count`` rows and half of the next one, then ends the stream without an error."""

    def script(responses: Responses, _: grpc.ServicerContext) -> Responses:
        yield from itertools.islice(responses, count)
        yield response(next(responses).chunks[0])

    return script


def sending(*responses: ReadRowsResponse, then: Script | None = None) -> Script:
    """Sends these responses, then those of ``then``, which gets the correct ones."""

    def script(right: Responses, context: grpc.ServicerContext) -> Responses:
        yield from responses
        if then:
            yield from then(right, context)

    return script


def silent(_: Responses, context: grpc.ServicerContext) -> Responses:
    """Sends nothing until the client gives up."""
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait()
    yield from ()
