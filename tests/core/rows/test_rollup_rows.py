"""Rows of roll-ups in the table."""

from pipeline.core.rows.rollup_rows import (
    Versioned,
    members_key,
    parse_rollup_row,
    rollup_key,
    versioned_row,
    versions_in,
)
from pipeline.core.windows import HOURLY
from tests.support.rollups import set_cells
from tests.support.versioned_table import VersionedTable


def test_a_cell_has_few_versions():
    """Whatever columns are written together, and however often, a column keeps a few versions; the newest counts."""
    table, key = VersionedTable(), members_key(HOURLY, 0, 0)
    for version in range(1, 2001):
        columns = [b"s%d" % number for number in range(20) if version % (number + 1) == 0]
        table.apply(versioned_row(key, 0, [(column, Versioned(version, b"%d" % version)) for column in columns]))
    row = table.row(key)
    assert len(row.cells) < 20 * 20
    newest = {column: version for column, (version, _) in versions_in(row, 0).items()}
    assert newest == {b"s%d" % number: 2000 - 2000 % (number + 1) for number in range(20)}


def test_what_is_gone_is_deleted():
    """A row can count less: cells up to a version are deleted, and those that count more stay."""
    table, key = VersionedTable(), members_key(HOURLY, 0, 0)
    for version in (3, 7, 9):
        table.apply(versioned_row(key, 0, [(b"s", Versioned(version, b"%d" % version))]))
    table.apply(versioned_row(key, 0, [(b"s", Versioned(2, b"2"))], {b"s": 7}))
    assert versions_in(table.row(key), 0)[b"s"] == Versioned(9, b"9")
    table.apply(versioned_row(key, 0, [(b"s", Versioned(2, b"2"))], {b"s": 9}))
    assert [cell.value for cell in table.row(key).cells] == [b"2"]


def test_a_version_far_beyond_the_window():
    """A fleet counts more milliseconds than there are in the window, and in the time since: versions are no times."""
    version = 10**12
    row = set_cells(versioned_row(rollup_key(HOURLY, "site", "north", 0), 0, [(b"sensors", Versioned(version, b"1"))]))
    assert row.cells[0].timestamp_us == version * 1000 > 31 * 365 * 86_400_000_000
    assert versions_in(row, 0)[b"sensors"] == Versioned(version, b"1")
    assert parse_rollup_row(HOURLY, row).sensors == 1
