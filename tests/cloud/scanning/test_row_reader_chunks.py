import itertools
import random

import pytest
from google.api_core.exceptions import Aborted, DataLoss
from google.cloud.bigtable_v2.types import ReadRowsResponse
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cloud.scanning.row_reader import assembled_rows
from pipeline.core.rows.rows import Cell, Row, one_by_one
from tests.support.row_server import chunk, response
from tests.support.served import parts_of

FULL = {"row_key": b"a", "family_name": "f", "qualifier": b"q"}


def merge(*responses: ReadRowsResponse) -> list[Row]:
    return list(assembled_rows(map(ReadRowsResponse.pb, responses)))


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
def test_invalid_chunks_are_refused(chunks: list[ReadRowsResponse.CellChunk]) -> None:
    """A missing key, family or column, or a second key within a row, is an error."""
    with pytest.raises(DataLoss):
        merge(response(*chunks))


def test_a_partial_row_is_an_error() -> None:
    """A stream that ends within a row is retried; one that continues with another row is broken."""
    with pytest.raises(Aborted):
        merge(response(chunk(**FULL)))
    with pytest.raises(DataLoss):
        merge(response(chunk(**FULL)), response(last_scanned_row_key=b"b"))


@st.composite
def rows_and_chunks(draw: st.DrawFn) -> tuple[list[Row], list[ReadRowsResponse]]:
    """Draws rows and one of the ways in which a server may send them."""
    cells = st.builds(
        Cell, st.sampled_from(["", "f", "g"]), st.sampled_from([b"", b"p", b"q"]), st.integers(0, 2), st.binary()
    )
    keys = sorted(draw(st.sets(st.binary(min_size=1, max_size=3), max_size=5)))
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
    """Returns a row's chunks, with split values and without names that repeat those of the chunk before."""
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
def test_any_split_yields_the_same_rows(sent: tuple[list[Row], list[ReadRowsResponse]]) -> None:
    """Random rows in random chunks of random responses arrive unchanged, also if they are read in blocks."""
    rows, responses = sent
    assert merge(*responses) == rows
    assert list(one_by_one(parts_of(responses))) == rows
