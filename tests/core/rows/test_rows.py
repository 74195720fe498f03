import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rows.rows import (
    EncodedRow,
    EncodedRows,
    KeyRange,
    after_prefix,
    prefix_range,
    read_rows,
    rows_bytes,
    rows_size,
)

keys = st.binary(max_size=6) | st.lists(st.sampled_from(b"a\xfe\xff"), max_size=6).map(bytes)


@given(keys, keys)
def test_range_of_a_prefix(prefix, key):
    """A prefix's range contains exactly the keys that start with it."""
    start, end = prefix_range(prefix)
    assert (start <= key and (not end or key < end)) == key.startswith(prefix)


def test_a_prefix_without_end():
    """The range of the greatest bytes, and that of an empty prefix, reach to the table's end."""
    assert after_prefix(b"a\xff") == b"b"
    assert after_prefix(b"\xff\xff") == b""
    assert prefix_range(b"") == KeyRange(b"", b"")


ROWS = st.lists(st.builds(EncodedRow, st.binary(), st.binary(), st.integers(0, 100))).map(EncodedRows)


@given(ROWS)
def test_rows_are_read_back(rows):
    """Rows are read back from their bytes, whose size is known before."""
    data = rows_bytes(rows)
    assert read_rows(data) == rows
    assert read_rows(b"head" + data, 4) == rows
    assert len(data) == rows_size(rows)


def test_rows_that_are_cut_off():
    """Bytes that end within a row are refused."""
    data = rows_bytes(EncodedRows([EncodedRow(b"key", b"mutations", 1)]))
    with pytest.raises(ValueError, match="cut off"):
        read_rows(data[:-1])
