"""The row of a sensor's newest readings."""

import pytest

from pipeline.core.rows.newest_row import latest_range, parse_latest_row
from pipeline.core.rows.rows import Cell, Row

MIDNIGHT = 20_501 * 86_400_000_000


def test_the_keys_of_a_prefix():
    """A sensor's id follows the table's own segment; a range begins after a sensor, if one is given."""
    assert latest_range("a") == (b"latest#a", b"latest#b")
    assert latest_range("a", "a-1") == (b"latest#a-1\0", b"latest#b")


@pytest.mark.parametrize(
    ("key", "qualifier", "value"),
    [(b"agg#a", b"t", b"1"), (b"latest#", b"t", b"1"), (b"latest#a", b"", b"1"), (b"latest#a", b"t", b"warm")],
)
def test_foreign_rows(key, qualifier, value):
    """A key, column or value that no such row has."""
    with pytest.raises(ValueError, match=r"."):
        parse_latest_row(Row(key, [Cell("now", qualifier, MIDNIGHT, value)]))
