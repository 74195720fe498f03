import random
import socket
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing

import pytest
from google.cloud.bigtable import Client
from google.cloud.bigtable_v2.types import RowFilter

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning import row_reader
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import Cell, KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from tests.support.row_server import EVERYTHING, FAKE, numbered
from tests.support.tables import unused_name, write

pytestmark = pytest.mark.on_both

MEGABYTE = 1_000_000


def only(**condition) -> RowFilter:
    return RowFilter(**condition)


@pytest.fixture
def name(bigtable: str) -> TableName:
    """An empty table of the emulator, without a schema."""
    name = unused_name()
    table = {"column_families": {"f": {}, "g": {}}}
    with Client(project=name.project, admin=True).table_admin_client as admin:
        admin.create_table({"parent": name.parent, "table_id": name.table, "table": table})
    return name


@pytest.fixture
def reader(name: TableName) -> Iterator[RowReader]:
    with RowReader.open(name) as reader:
        yield reader


def test_rows_come_as_they_were_written(name: TableName, reader: RowReader) -> None:
    """Keys, cells and all versions come back, in the order of keys or in reverse; families in any order."""
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
def test_a_range_includes_its_start_and_excludes_its_end(
    name: TableName, reader: RowReader, start: bytes, end: bytes, expected: list[int], reverse: bool
) -> None:
    """[start, end), where an empty end is the end of the table; the same rows in either direction."""
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
    """A request returns a page, each row comes once. The limit applies to all pages; the server sends no more."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    rows = numbered(8)
    write(name, rows)
    expected = sorted(rows, reverse=reverse)[:limit]
    assert list(reader.read(EVERYTHING, limit=limit, reverse=reverse)) == expected
    assert (reader.requests, reader.rows_read, reader.cells_read) == (requests, len(expected), 2 * len(expected))


def test_a_page_is_requested_for_its_first_row(
    name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read sends no request before its first row, and none for a page before the last one is used up."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 2)
    write(name, numbered(4))
    rows = reader.read(EVERYTHING)
    assert reader.requests == 0
    assert [reader.requests for _ in rows] == [1, 1, 2, 2]


@pytest.mark.parametrize("reverse", [False, True])
def test_several_ranges_are_one_read(
    name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """In any order, overlapping or empty: each row comes once, in the order of keys, page by page."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 3)
    rows = numbered(40)
    write(name, rows)
    bounds = [(30, 33), (7, 7), (2, 4), (20, 24), (22, 26), (35, 32), (4, 5), (60, 70)]
    ranges = tuple(KeyRange(b"k%04d" % start, b"k%04d" % end) for start, end in bounds)
    expected = sorted([*rows[2:5], *rows[20:26], *rows[30:33]], reverse=reverse)
    found = reader.read_selection(RowSelection(ranges, CellSelection(("f",)), reverse=reverse))
    assert list(found) == expected
    assert reader.requests == (4 if reverse else 5)  # the last range is empty
    assert list(reader.read([*ranges, KeyRange(b"k0038", b"")], limit=5, reverse=True)) == [
        *rows[:37:-1], *rows[32:29:-1],
    ]  # fmt: skip
    assert list(reader.read([])) == []


@pytest.mark.parametrize("reverse", [False, True])
def test_a_filter_selects_cells(
    name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """The server leaves out cells, and rows without any. Pages and limits count only the rows it sends."""
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


@pytest.mark.parametrize("reverse", [False, True])
def test_a_selection_is_read(
    name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """Range, columns, pattern, page size and direction all reach the server."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 100)
    rows = numbered(40)
    write(name, rows)
    expected = [Row(rows[n].key, rows[n].cells[:1]) for n in (10, 20, 30)]
    keys, cells = KeyRange(b"k0001", b""), CellSelection(("f",), (b"a",))
    found = reader.read_selection(RowSelection(keys, cells, "k00[0-9]0", 2, reverse))
    assert list(found) == (expected[::-1] if reverse else expected)
    assert (reader.requests, reader.cells_read) == (2, 3)


def test_large_values_and_many_cells_come_whole(name: TableName, reader: RowReader) -> None:
    """A value of several megabytes, and a row of thousands of cells."""
    large = Row(b"large", [Cell("f", b"q", 0, random.Random(1).randbytes(3 * MEGABYTE))])
    many = Row(b"many", [Cell("f", b"%05d" % n, 1000 * n, b"%d" % n) for n in range(5000)])
    write(name, [large])
    write(name, [many])
    assert list(reader.read(EVERYTHING)) == [large, many]
    assert list(reader.read(EVERYTHING, reverse=True)) == [many, large]


def test_a_row_of_many_megabytes_comes_whole(name: TableName, reader: RowReader) -> None:
    """More than gRPC's default limit of 4 MB."""
    cells = [Cell("f", b"%d" % n, 0, random.Random(n).randbytes(MEGABYTE)) for n in range(6)]
    write(name, [Row(b"large", cells)])
    assert list(reader.read(EVERYTHING)) == [Row(b"large", cells)]


def test_threads_share_a_reader(name: TableName, reader: RowReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread gets all rows in its own direction, and the counters include all of them."""
    monkeypatch.setattr(row_reader, "PAGE_ROWS", 7)
    rows = numbered(200)
    write(name, rows)
    directions = [False, True] * 3
    with futures.ThreadPoolExecutor(len(directions)) as threads:
        found = list(threads.map(lambda reverse: list(reader.read(EVERYTHING, reverse=reverse)), directions))
    assert found == [rows[::-1] if reverse else rows for reverse in directions]
    assert (reader.rows_read, reader.cells_read) == (6 * 200, 6 * 400)


def test_an_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a closed port, a read gives up in time, with an error of one line."""
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{nobody.getsockname()[1]}")
        with RowReader.open(FAKE, patience_s=1.0) as reader, pytest.raises(ServerError) as caught:
            next(reader.read(EVERYTHING))
    assert str(caught.value).startswith(f"table {FAKE}: the server cannot be reached: failed to connect")
    assert "\n" not in str(caught.value)


def test_columns_that_are_left_out(name: TableName, reader: RowReader) -> None:
    """The server leaves out columns that begin with one of these texts, and sends all others."""
    columns = [b"", b"m", b"member", b"member_t", b"memory", b"sketch_t", b"skew_t", "größe".encode(), b"sum_member"]
    write(name, [Row(b"r", [Cell("f", column, 1000, b"1") for column in columns])])
    [row] = reader.read_selection(RowSelection(EVERYTHING, CellSelection(("f",), without=(b"member", b"sketch"))))
    assert {cell.qualifier for cell in row.cells} == {*columns} - {b"member", b"member_t", b"sketch_t"}
