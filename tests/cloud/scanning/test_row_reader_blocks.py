"""Rows in blocks are the rows that chunks tell one by one, whatever these contain."""

import struct

import pytest
from google.api_core.exceptions import ServiceUnavailable
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cloud.connection.problems import ServerError
from pipeline.cloud.scanning import row_reader
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import BlockOfRows, Cell, KeyRange, Row, one_by_one, split
from pipeline.core.schema.layouts import CellSelection
from tests.support.row_server import chunk, response
from tests.support.served import Responses, blocks_in, parts_of, reader_of, terse_chunks

TIME_US = 1_771_324_200_000_000
COLUMNS = (b"humidity", b"q" * 128, b"t")

numbers = st.sampled_from([b"1", b"-2.5", b"1e-7", b"20.125", b"12345678"])
doubles = st.floats(allow_nan=False).map(lambda value: struct.pack(">d", value))


@st.composite
def tables(draw):
    """Draws rows of the same columns, of which some lack columns, and a few contain anything else."""
    values = draw(st.sampled_from([numbers, doubles]))
    rows = []
    for n in sorted(draw(st.sets(st.integers(0, 99), max_size=12))):
        columns = draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1).map(sorted))
        rows.append(Row(b"s#%016d" % n, [Cell("f", column, TIME_US + 1000 * n, draw(values)) for column in columns]))
    for n in draw(st.sets(st.integers(0, len(rows) - 1), max_size=2)) if rows else ():
        key, cells = rows[n]
        last = cells[-1]
        rows[n] = draw(
            st.sampled_from(
                [
                    Row(key + b"\x00\xff", cells),
                    Row(key, [Cell("g", *last[1:])]),
                    Row(key, [*cells, Cell("g", *last[1:])]),
                    Row(key, [*cells, last._replace(timestamp_us=1000)]),
                    Row(key, [last._replace(timestamp_us=time_us) for time_us in (TIME_US, 0, -1000)]),
                    Row(key, [last._replace(qualifier=b"")]),
                    *(Row(key, [*cells[:-1], last._replace(value=value)]) for value in _odd_values(cells)),
                ]
            )
        )
    return rows


def _odd_values(cells):
    """Returns values that are no numbers, also ones that look like the chunks of another cell or row."""
    of_row = response(*terse_chunks(Row(b"s#%016d" % 7, cells)))
    encoded = type(of_row).serialize(of_row)
    return [b"", b"x", b"8", b"1H\x01", b"1" + encoded, encoded, encoded[:-2], b"1" * 200, b"1\n2"]


def cut(chunks, size):
    return [response(*chunks[n : n + size]) for n in range(0, len(chunks), size)]


def told(parts):
    """Returns the keys and the values of the rows, from the columns of blocks."""
    for part in parts:
        if not isinstance(part, BlockOfRows):
            yield part.key, [(cell.family, cell.qualifier, cell.value) for cell in part.cells]
            continue
        for key, *values in zip(part.keys, *part.values, strict=True):
            named = zip(part.families, part.qualifiers, values, strict=True)
            yield key, [each for each in named if each[2]]


@given(tables(), st.integers(1, 40), st.booleans(), st.sampled_from([1, 10, 256]))
def test_blocks_contain_the_rows(rows, size, names, together):
    """However chunks are spread over responses, whether they repeat names, and whatever bytes values contain."""
    responses = cut([each for row in rows for each in terse_chunks(row, names=names)], size)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_reader, "_CHUNKS", together)
        parts = parts_of(responses)
    assert list(one_by_one(parts)) == rows
    assert list(told(parts)) == [(row.key, [(cell[0], cell[1], cell[3]) for cell in row.cells]) for row in rows]


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("value", [b"20.5", struct.pack(">d", 20.5)])
def test_rows_of_the_same_columns_are_one_block(names, size, value):
    """Also those that lack columns, if a response is one row, and if chunks repeat the key and the family."""
    full = [Cell("f", column, TIME_US, value) for column in COLUMNS]
    rows = [Row(b"s#%016d" % n, full[: 1 + n % 3]) for n in range(30)]
    responses = [
        response(*(each for row in rows[n : n + size] for each in terse_chunks(row, names=names)))
        for n in range(0, len(rows), size)
    ]
    [block] = blocks_in(parts_of(responses))
    assert len(block.keys) == 30


TEXTS = st.sampled_from(
    [b"north", b"H", b"us-west2", b"12", "süd".encode(), b"x" * 127, b"a\nb", b"x" * 128, b"H\x01", b""]
)
CELLS = st.dictionaries(st.sampled_from([("raw", b"t"), ("raw", b"u"), ("meta", b"t"), ("meta", b"site")]), TEXTS)


@given(st.lists(CELLS, max_size=12), st.integers(1, 40), st.booleans(), st.sampled_from([1, 10, 256]))
def test_rows_of_two_families(tables, size, names, together):
    """Whatever texts they contain, and whichever columns and families they lack."""
    rows = [
        Row(
            b"s#%016d" % n,
            [Cell(*column, TIME_US, b"1" if column[0] == "raw" else cells[column]) for column in sorted(cells)],
        )
        for n, cells in enumerate(tables)
        if cells
    ]
    responses = cut([each for row in rows for each in terse_chunks(row, names=names)], size)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_reader, "_CHUNKS", together)
        parts = parts_of(responses)
    assert list(one_by_one(parts)) == rows
    assert list(told(parts)) == [(row.key, [(cell[0], cell[1], cell[3]) for cell in row.cells]) for row in rows]


def test_readings_and_metadata_are_one_block():
    """Also of rows that lack metadata, and of texts that look like numbers at first."""
    metadata = [[], [(b"site", b"12")], [(b"model", b"m1"), (b"site", b"north")]]
    rows = [
        Row(
            b"s#%016d" % n,
            [
                *(Cell("meta", *cell[:1], TIME_US, cell[1]) for cell in metadata[n % 3]),
                Cell("raw", b"t", TIME_US, b"20.5"),
            ],
        )
        for n in range(30)
    ]
    [block] = blocks_in(parts_of([response(*(each for row in rows for each in terse_chunks(row)))]))
    assert (block.families, block.qualifiers) == (("meta", "meta", "raw"), (b"model", b"site", b"t"))
    assert len(block.keys) == 30


def test_what_is_counted():
    """Readers count the rows and the cells in blocks."""
    rows = [Row(b"s#%016d" % n, [Cell("f", column, TIME_US, b"1") for column in COLUMNS[n % 2 :]]) for n in range(4)]
    reader = reader_of([response(*(each for row in rows for each in terse_chunks(row)))])
    [block] = blocks_in(reader.read_selection(RowSelection(KeyRange(b"", b""), CellSelection(("f",)))).parts)
    assert (reader.rows_read, reader.cells_read) == (4, 10)
    before, after = split(block, rows[1].key)
    assert [*before.rows()] == rows[:1]
    assert [*after.rows()] == rows[1:]
    assert split(after, rows[3].key)[1].rows() == rows[3:]


@pytest.mark.parametrize("keys", [(b"b", b"a"), (b"a", b"a"), (b"a", b"x", b"c"), (b"a", b"d")])
def test_rows_out_of_order_are_refused(keys):
    """Or outside the ranges that were requested: nobody knows which rows are missing."""
    rows = [Row(key, [Cell("f", b"t", TIME_US, b"1")]) for key in keys]
    sent = response(*(each for row in rows for each in terse_chunks(row)))
    ranges = (KeyRange(b"a", b"c"), KeyRange(b"e", b"z"), KeyRange(b"zz", b""))
    reader = reader_of([sent])
    with pytest.raises(ServerError):
        list(reader.read_selection(RowSelection(ranges, CellSelection(("f",)))).parts)


def test_a_broken_stream_continues_after_the_last_row(monkeypatch):
    """Rows that came before it broke are not requested again."""
    monkeypatch.setattr(row_reader, "_FIRST_DELAY_S", 0.001)
    rows = [Row(b"s%d" % n, [Cell("f", b"t", TIME_US, b"%d" % n)]) for n in range(5)]

    starts = []

    class Breaking(Responses):
        def read_rows(self, request, **_):
            [asked] = request.rows.row_ranges
            starts.append(asked.start_key_closed)
            left = [row for row in rows if row.key >= asked.start_key_closed]
            yield from (response(*terse_chunks(row)) for row in left[:3])
            if len(left) > 3:
                yield response(chunk(row_key=left[3].key, family_name="f", qualifier=b"t", timestamp_micros=1000))
                raise ServiceUnavailable("moving")

    reader = reader_of([])
    reader._client = Breaking([])
    parts = reader.read_selection(RowSelection(KeyRange(b"", b""), CellSelection(("f",)))).parts
    assert list(one_by_one(parts)) == rows
    assert starts == [b"", b"s2\x00"]
