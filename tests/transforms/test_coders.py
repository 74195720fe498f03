from apache_beam.coders import registry
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rows import EncodedRow, EncodedRows
from pipeline.transforms.coders import RowsCoder

rows = st.lists(st.builds(EncodedRow, st.binary(max_size=9), st.binary(max_size=300), st.integers(0, 2**32 - 1)))


@given(rows.map(EncodedRows))
def test_rows_come_back(given_rows):
    """Rows survive encoding, and the estimated size is the encoded size."""
    coder = RowsCoder()
    encoded = coder.encode(given_rows)
    decoded = coder.decode(encoded)
    assert decoded == given_rows
    assert isinstance(decoded, EncodedRows)
    assert len(encoded) == coder.estimate_size(given_rows)


def test_rows_have_their_coder():
    """The coder is used wherever a step declares rows as its output."""
    assert isinstance(registry.get_coder(EncodedRows), RowsCoder)
