"""Rows of roll-ups in the table."""

from pipeline.core.rows.rollup_rows import Versioned, members_key, versioned_row, versions_in
from pipeline.core.windows.fixed import HOURLY
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
    """An empty value leaves no version before it."""
    table, key = VersionedTable(), members_key(HOURLY, 0, 0)
    for version, value in enumerate([b"1", b"2", b"3", b""], 1):
        table.apply(versioned_row(key, 0, [(b"s", Versioned(version, value))]))
    assert [cell.value for cell in table.row(key).cells] == [b""]
