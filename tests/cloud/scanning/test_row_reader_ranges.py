"""What is left to read of several ranges when a stream breaks."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from pipeline.cloud.scanning import row_reader
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.rows.rows import KeyRange
from tests.support.row_server import FAKE, Server, chunks_of, numbered, response

RANGES = [KeyRange(b"k0001", b"k0003"), KeyRange(b"k0004", b"k0005"), KeyRange(b"k0006", b"k0008")]


class Client:
    """A client of a server whose first streams break after so many rows, each with the key of the last scanned row."""

    def __init__(self, breaks: list[tuple[int, bytes]]) -> None:
        self.asked: list[list[tuple[bytes, bytes]]] = []
        self._breaks = breaks
        self._server = Server()
        self._server.rows = numbered(8)

    def read_rows(self, request: ReadRowsRequest, **_: Any) -> Iterator[ReadRowsResponse]:
        self.asked.append([(each.start_key_closed, each.end_key_open) for each in request.rows.row_ranges])
        found = self._server.found(request)
        rows, scanned = self._breaks.pop(0) if self._breaks else (len(found), None)
        yield from (response(*chunks_of(row)) for row in found[:rows])
        if scanned is not None:
            yield response(last_scanned_row_key=scanned)
            raise ServiceUnavailable("moving")


@pytest.mark.parametrize(
    ("reverse", "asked"),
    [
        (False, [[(b"k0001\x00", b"k0003"), *RANGES[1:]], [(b"k0004\x00", b"k0005"), RANGES[2]], [RANGES[2]]]),
        (True, [[(b"k0006", b"k0007"), RANGES[1], RANGES[0]], [RANGES[0]], [RANGES[0]]]),
    ],
)
def test_a_retry_requests_the_ranges_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, reverse: bool, asked: list[list[tuple[bytes, bytes]]]
) -> None:
    """Those behind the last row, whether others follow in its range or not, and behind the last scanned row, even if
    that is between two ranges. Each row comes once."""
    monkeypatch.setattr(row_reader, "_FIRST_DELAY_S", 0.001)
    client = Client([(1, b""), (2, b""), (0, b"k0005x")])
    expected = [numbered(8)[n] for n in (1, 2, 4, 6, 7)]
    found = RowReader(client, FAKE).read(RANGES, reverse=reverse)  # type: ignore[arg-type]
    assert list(found) == (expected[::-1] if reverse else expected)
    assert client.asked[1:] == asked
