import pytest
from google.cloud.bigtable_v2.types import MutateRowsRequest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rows.rows import (
    ENTRY_OVERHEAD,
    Cell,
    Row,
    delete_column,
    delete_family,
    delete_row,
    entry_of,
    mutations_of,
    replacing,
    request_header,
    request_of,
)

Request = MutateRowsRequest.pb()

families = st.text(max_size=70)
sizes = st.sampled_from([0, 1, 50, 100, 110, 120, 127, 128, 200, 16_383, 16_384, 70_000])
lengthy = st.one_of(
    st.binary(max_size=20), st.builds(lambda size, byte: byte * size, sizes, st.binary(min_size=1, max_size=1))
)
times = st.one_of(
    st.integers(0, 2**63 - 1),
    st.integers(1_262_304_000_000, 1_893_456_000_000).map(lambda ms: ms * 1000),
    st.sampled_from([0, 1, 127, 128, 2**21 - 1, 2**21, 2**28, 2**49, 2**56]),
)
cells = st.lists(st.builds(Cell, families, lengthy, times, lengthy), max_size=4)
rows = st.lists(st.builds(Row, lengthy, cells), max_size=5)


def in_protobuf(table, app_profile, rows):
    request = Request(table_name=table, app_profile_id=app_profile)
    for key, cells in rows:
        entry = request.entries.add(row_key=key)
        for family, qualifier, timestamp_us, value in cells:
            set_cell = entry.mutations.add().set_cell
            set_cell.SetInParent()
            set_cell.family_name, set_cell.column_qualifier = family, qualifier
            set_cell.timestamp_micros, set_cell.value = timestamp_us, value
    return request


@given(st.text(max_size=200), st.text(max_size=5), rows)
def test_bytes_are_those_of_the_protobuf_class(table, app_profile, rows):
    """The bytes equal those of the protobuf class, with omitted defaults and long lengths."""
    additions = [(row.key, [mutations_of(row.cells)]) for row in rows]
    expected = in_protobuf("", "", rows)
    assert request_of(b"", additions) == expected.SerializeToString()
    assert Request.FromString(request_of(request_header(table, app_profile), additions)) == in_protobuf(
        table, app_profile, rows
    )
    entries = [entry_of(row.key, [mutations_of(row.cells)]) for row in rows]
    assert entries == [entry.SerializeToString() for entry in expected.entries]


@given(families, st.lists(st.tuples(lengthy, times.filter(bool), lengthy), max_size=4))
def test_replacing_deletes_older_versions(family, cells):
    """Before each cell, the versions of its column are deleted that are older than its timestamp."""
    entry = Request.FromString(b"").entries.add()
    for qualifier, timestamp_us, value in cells:
        delete = entry.mutations.add().delete_from_column
        delete.family_name, delete.column_qualifier = family, qualifier
        delete.time_range.end_timestamp_micros = timestamp_us
        set_cell = entry.mutations.add().set_cell
        set_cell.family_name, set_cell.column_qualifier = family, qualifier
        set_cell.timestamp_micros, set_cell.value = timestamp_us, value
    assert type(entry).FromString(replacing(family, cells)) == entry
    with pytest.raises(ValueError, match="zero"):
        replacing(family, [(b"a", 0, b"")])


@given(lengthy, cells, cells)
def test_additions_are_joined(key, one, other):
    """Mutations of a row in two parts equal those in one part, and ENTRY_OVERHEAD is an upper bound."""
    request = in_protobuf("t", "", [Row(key, one + other)])
    additions = [mutations_of(one), mutations_of(other)]
    assert request_of(request_header("t", ""), [(key, additions)]) == request.SerializeToString()
    assert entry_of(key, additions) == request.entries[0].SerializeToString()
    assert request.ByteSize() <= len(request_header("t", "")) + len(key) + sum(map(len, additions)) + ENTRY_OVERHEAD


def test_the_servers_own_time():
    """A cell without its own timestamp is refused, because a retry would write another cell."""
    with pytest.raises(ValueError, match=r"^a cell's timestamp is negative: -1$"):
        mutations_of([Cell("raw", b"q", 1000, b"v"), Cell("raw", b"q", -1, b"v")])


@given(st.text(min_size=1, max_size=70), lengthy)
def test_deletions(family, qualifier):
    """They too equal those of the protobuf class."""
    request = Request()
    mutations = request.entries.add(row_key=b"a").mutations
    mutations.add().delete_from_family.family_name = family
    column = mutations.add().delete_from_column
    column.family_name, column.column_qualifier = family, qualifier
    mutations.add().delete_from_column.CopyFrom(column)
    mutations[-1].delete_from_column.time_range.end_timestamp_micros = 1_700_000_000_000_000
    mutations.add().delete_from_row.SetInParent()
    columns = delete_column(family, qualifier), delete_column(family, qualifier, 1_700_000_000_000_000)
    deletions = b"".join([delete_family(family), *columns, delete_row()])
    assert Request.FromString(request_of(b"", [(b"a", [deletions])])) == request
