import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rows.row_bytes import read_rows, rows_bytes, rows_size
from pipeline.core.rows.rows import EncodedRow, EncodedRows

ROWS = st.lists(st.builds(EncodedRow, st.binary(), st.binary(), st.integers(0, 100))).map(EncodedRows)


@given(ROWS)
def test_round_trip(rows):
    """Rows are read back from their bytes, whose size is known before."""
    data = rows_bytes(rows)
    assert read_rows(data) == rows
    assert read_rows(b"head" + data, 4) == rows
    assert len(data) == rows_size(rows)


def test_cut_off():
    """Bytes that end within a row are refused."""
    data = rows_bytes(EncodedRows([EncodedRow(b"key", b"mutations", 1)]))
    with pytest.raises(ValueError, match="cut off"):
        read_rows(data[:-1])
