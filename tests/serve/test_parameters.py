"""Parameters that need no server."""

from pipeline.core.events.event import LATEST_US
from pipeline.serve.parameters import as_range


def test_a_range_beyond_all_row_keys():
    """It is limited to them: months before the year 1, or after 9999, can't be counted."""
    assert as_range("0001-01-01", "9999-12-31T23:59:59Z") == (0, LATEST_US + 1)
