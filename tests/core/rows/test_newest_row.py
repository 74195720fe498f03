"""The row of a sensor's newest readings."""

import pytest

from pipeline.core.rows.newest_row import LatestRecord, NewestReadings, TextAt, latest_range, parse_latest_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.statistics.parts import At
from tests.support.rows import decoded

MIDNIGHT = 20_501 * 86_400_000_000


def test_the_keys_of_a_prefix():
    """A sensor's id follows the table's own segment; a range begins after a sensor, if one is given."""
    assert latest_range("a") == (b"latest#a", b"latest#b")
    assert latest_range("a", "a-1") == (b"latest#a-1\0", b"latest#b")


@pytest.mark.parametrize(
    ("key", "qualifier", "value"),
    [
        (b"agg#a", b"t", b"1"),
        (b"latest#", b"t", b"1"),
        *(
            (b"latest#a", *cell)
            for cell in ((b"", b"1"), (b"t", b"warm"), (b"#", b"on"), (b"##a", b"on"), (b"#a", b"\xff"))
        ),
    ],
)
def test_foreign_rows(key, qualifier, value):
    """A key, column or value that no such row has."""
    with pytest.raises(ValueError, match=r"."):
        parse_latest_row(Row(key, [Cell("now", qualifier, MIDNIGHT, value)]))


def test_metadata():
    """The newest text of each name has a cell at its event time, in a column that no metric can have."""
    newest = NewestReadings()
    newest.add("a", MIDNIGHT, [("status", 1.5)])
    for time_us, metadata in ((1, {"status": "on"}), (3_000, {"status": "fault", "code": "7"}), (2_000, {"code": "6"})):
        newest.add_metadata("a", MIDNIGHT + time_us, metadata)
    rows = [decoded(row) for row in newest.rows("now")]
    assert {row.key for row in rows} == {b"latest#a"}
    cells = [cell for row in rows for cell in row.cells]
    assert ("now", b"#status", MIDNIGHT + 3_000, b"fault") in cells
    texts = {"code": TextAt(MIDNIGHT + 3_000, "7"), "status": TextAt(MIDNIGHT + 3_000, "fault")}
    found = parse_latest_row(Row(b"latest#a", cells))
    assert found == LatestRecord("a", {"status": At(MIDNIGHT, 1.5)}, texts)
    assert found.event_time_us == MIDNIGHT + 3_000
    (late,) = newest.rows("now", MIDNIGHT + 3_000)
    assert [cell.qualifier for cell in decoded(late).cells] == [b"#status", b"#code"]
