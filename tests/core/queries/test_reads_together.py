"""Selections that are read together, from a table in memory."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.queries import reads
from pipeline.core.queries.reads import RowSelection, RowsTogether
from pipeline.core.rows.rows import Cell, KeyRange, Row, disjoint
from pipeline.core.schema.layouts import CellSelection
from tests.support.memory import Memory

CELLS = CellSelection(("f",))
TABLE = Memory(Row(b"%03d" % n, [Cell("f", b"q", 0, b"%d" % n)]) for n in range(100))
KEYS = st.integers(0, 99).map(lambda n: b"%03d" % n)
RANGES = st.lists(st.builds(KeyRange, KEYS, KEYS | st.just(b"")), max_size=6)


def selection(start, end, *, reverse=False):
    return RowSelection(KeyRange(b"%03d" % start, b"%03d" % end), CELLS, reverse=reverse)


@given(RANGES)
def test_disjoint_ranges(ranges):
    """They contain the same keys, in order, and each once."""
    found = disjoint(ranges)
    keys = [row.key for each in found for row in TABLE(RowSelection(each, CELLS))]
    assert keys == sorted({row.key for each in ranges for row in TABLE(RowSelection(each, CELLS))})
    assert all(one.end < other.start for one, other in pairwise(found))


@given(st.dictionaries(st.sampled_from("abcd"), st.none() | st.lists(RANGES.map(tuple), max_size=0) | st.lists(
    st.builds(selection, st.integers(0, 99), st.integers(0, 99), reverse=st.booleans()), max_size=3), max_size=4),
    st.integers(1, 9))  # fmt: skip
def test_answers_are_those_of_the_table(wanted, most_cells):
    """Whatever is read together, in either direction, and however little memory there is; also what overlaps."""
    rows = RowsTogether(TABLE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reads, "MOST_CELLS", most_cells)
        for batch in rows.batches(wanted):
            for name in batch:
                for each in wanted[name]:
                    assert list(rows(each)) == list(TABLE(each))
    assert not rows._known


def test_memory_is_bounded(monkeypatch):
    """Names come in batches, of which none has more cells than it may but for its last name's."""
    monkeypatch.setattr(reads, "MOST_CELLS", 10)
    rows, table = RowsTogether(TABLE), TABLE.reads
    batches = list(rows.batches({str(n): [selection(4 * n, 4 * n + 4)] for n in range(20)}))
    assert [len(each) for each in batches] == [3, 3, 3, 3, 3, 3, 2]
    assert TABLE.reads - table == 1


def test_requests_are_bounded(monkeypatch):
    """By the number of ranges and by their bytes, since Bigtable refuses large requests."""
    wanted = {str(n): [selection(n, n + 1)] for n in range(10)}
    for limit, most, requests in (("MOST_RANGES", 4, 3), ("MOST_RANGE_BYTES", 13, 5)):
        with monkeypatch.context() as patched:
            patched.setattr(reads, limit, most)
            before = TABLE.reads
            assert [name for batch in RowsTogether(TABLE).batches(wanted) for name in batch] == list(wanted)
            assert TABLE.reads - before == requests


def test_pages_of_wide_rows_grow():
    """A page of buckets is small until it is known how many cells a bucket has."""
    read = []

    def reading(each):
        read.append(each.page_rows)
        return TABLE(each)

    rows = RowsTogether(reading)
    for start in (0, 50):
        list(rows.batches({"a": [selection(start, start + 9)._replace(page_rows=8)]}))
    assert read == [8, 1000]
