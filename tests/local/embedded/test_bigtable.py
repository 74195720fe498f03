"""The built-in Bigtable where Google's emulator is no measure: reversed scans, limits, and what is not built."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import bigtable as google_bigtable
from google.cloud.bigtable.row_set import RowSet
from hypothesis import given
from hypothesis import strategies as st

from pipeline.local.embedded import bigtable, tables
from tests.local.embedded.operations import Server, created

CELL = {"family_name": "a", "column_qualifier": b"x", "timestamp_micros": 1000}
KEYS = [b"%04d" % number for number in range(1200)]  # more than are looked up at once

ends = st.tuples(st.booleans(), st.integers(0, 1199))


@pytest.fixture(scope="module")
def server(embedded):
    return Server(embedded)


@pytest.fixture(scope="module")
def table(server):
    name = created([server], {"a": {}})
    entries = [{"row_key": key, "mutations": [{"set_cell": {**CELL, "value": key}}]} for key in KEYS]
    server.answer(name, "MutateRows", {"entries": entries})
    return name


def bound(side, end):
    is_open, index = end
    return {f"{side}_key_{'open' if is_open else 'closed'}": KEYS[index]}


def keys_read(server, table, **fields):
    return [key for key, _ in server.answer(table, "ReadRows", fields)]


@given(
    st.lists(st.tuples(ends, ends).map(lambda both: sorted(both, key=lambda end: end[1])), max_size=3),
    st.lists(st.sampled_from(KEYS), max_size=3),
    st.integers(0, 900),
)
def test_reversed_scans(server, table, ranges, keys, limit):
    """They have the rows of the forward scan from its end, up to the limit."""
    rows = {"row_keys": keys, "row_ranges": [{**bound("start", start), **bound("end", end)} for start, end in ranges]}
    forward = keys_read(server, table, rows=rows)
    expected = set(keys)
    for (start_open, start), (end_open, end) in ranges:
        expected.update(KEYS[start + start_open : end + (not end_open)])
    assert forward == (sorted(expected) if ranges or keys else KEYS)
    backward = keys_read(server, table, rows=rows, rows_limit=limit, reversed=True)
    assert backward == forward[::-1][: limit or None]


def test_a_key_that_is_too_long(server, table):
    """A key, a qualifier or a number of mutations beyond the documented limit is refused; nothing is written."""
    cell = {"set_cell": {**CELL, "value": b"v"}}
    key = b"k" * tables.MAX_KEY_BYTES
    qualifier = b"q" * tables.MAX_QUALIFIER_BYTES
    before = keys_read(server, table)
    refused = grpc.StatusCode.INVALID_ARGUMENT
    assert server.answer(table, "MutateRow", {"row_key": key + b"k", "mutations": [cell]}) == refused
    long = {"set_cell": {**CELL, "column_qualifier": qualifier + b"q"}}
    assert server.answer(table, "MutateRow", {"row_key": b"new", "mutations": [cell, long]}) == refused
    many = [{"delete_from_row": {}}] * (bigtable.MAX_MUTATIONS // 2)
    entries = [{"row_key": b"k", "mutations": many}, {"row_key": b"l", "mutations": [*many, cell]}]
    assert server.answer(table, "MutateRows", {"entries": entries}) == refused
    assert keys_read(server, table) == before
    entries[1]["mutations"] = many
    assert server.answer(table, "MutateRows", {"entries": entries}) == [(0, 0), (1, 0)]
    cell["set_cell"]["column_qualifier"] = qualifier
    other = created([server], {"a": {}})
    assert server.answer(other, "MutateRow", {"row_key": key, "mutations": [cell]}) == b""
    assert keys_read(server, other) == [key]


@pytest.mark.parametrize(
    ("most", "most_of_row"),
    [
        (1000, 2560),
        pytest.param(tables.MAX_CELL_BYTES, tables.MAX_ROW_BYTES, marks=pytest.mark.exhaustive, id="as documented"),
    ],
)
def test_cells_and_rows_that_are_too_large(server, most, most_of_row, monkeypatch):
    """A cell of 100 MB is written and read, a larger one is refused; so is a read of a row beyond 256 MB."""
    monkeypatch.setattr(tables, "MAX_CELL_BYTES", most)
    monkeypatch.setattr(bigtable, "MAX_ROW_BYTES", most_of_row)
    table = created([server], {"a": {}})

    def write(qualifier, size):
        cell = {**CELL, "column_qualifier": qualifier, "value": bytes(size)}
        return server.answer(table, "MutateRow", {"row_key": b"k", "mutations": [{"set_cell": cell}]})

    assert write(b"a", most + 1) == grpc.StatusCode.INVALID_ARGUMENT
    assert write(b"a", most) == write(b"b", most) == b""
    (row,) = server.answer(table, "ReadRows", {})
    assert [len(value) for _, _, value in row[1]["a"]] == [most] * 2
    assert write(b"c", most) == b""
    assert server.answer(table, "ReadRows", {}) == grpc.StatusCode.INVALID_ARGUMENT
    assert len(server.answer(table, "ReadRows", {"filter": {"column_qualifier_regex_filter": b"a"}})) == 1


def test_a_refused_row_is_left_as_it_was(server):
    """If one mutation of a row is refused, none of them is applied."""
    table = created([server], {"a": {}})
    cell, nowhere = {"set_cell": {**CELL, "value": b"v"}}, {"set_cell": {**CELL, "family_name": "z"}}
    assert server.answer(table, "MutateRow", {"row_key": b"k", "mutations": [cell, nowhere]}) == grpc.StatusCode.UNKNOWN
    rules = [{"family_name": family, "column_qualifier": b"x", "append_value": b"v"} for family in ("a", "z")]
    assert server.answer(table, "ReadModifyWriteRow", {"row_key": b"k", "rules": rules}) == grpc.StatusCode.UNKNOWN
    assert server.answer(table, "ReadRows", {}) == []


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("/google.bigtable.v2.Bigtable/ExecuteQuery", "/google.bigtable.v2.Bigtable/ExecuteQuery"),
        ("/google.bigtable.admin.v2.BigtableInstanceAdmin/CreateInstance", "BigtableInstanceAdmin/CreateInstance"),
        ("/google.bigtable.admin.v2.BigtableTableAdmin/UndeleteTable", "BigtableTableAdmin/UndeleteTable"),
    ],
)
def test_a_method_that_is_not_built(embedded, path, missing):
    """It answers UNIMPLEMENTED with its name."""
    with grpc.insecure_channel(embedded) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(path)(b"", timeout=30)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert missing in raised.value.details()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("MutateRow", {"row_key": b"k", "mutations": [{"add_to_cell": {"family_name": "a"}}]}),
        ("ReadRows", {"filter": {"sink": True}}),
        ("ReadRows", {"filter": {"value_regex_filter": rb"\pN"}}),
        ("ReadRows", {"filter": {"value_regex_filter": b"(?i)v"}}),
        ("ReadRows", {"filter": {"value_regex_filter": b"v(?=w)"}}),
        ("ReadRows", {"filter": {"value_regex_filter": b"v*+"}}),
        ("ModifyColumnFamilies", {"modifications": [{"id": "s", "create": {"value_type": {"int64_type": {}}}}]}),
    ],
)
def test_a_feature_that_is_not_built(server, table, name, fields):
    """It answers UNIMPLEMENTED, even where there is no row to which it would apply."""
    assert server.answer(table, name, fields) == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("pattern", [b"(", b"*", b"a**", b"[b-a]"])
def test_a_pattern_that_is_no_regular_expression(server, table, pattern):
    """It is refused."""
    answer = server.answer(table, "ReadRows", {"filter": {"value_regex_filter": pattern}})
    assert answer in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


def test_googles_clients(embedded, monkeypatch):
    """Google's Python client creates a table, writes, reads and drops it; several clients at a time."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", embedded)
    instance = google_bigtable.Client(project="p", admin=True).instance("i")

    def use(name):
        table = instance.table(name)
        table.create(column_families={"a": google_bigtable.column_family.MaxVersionsGCRule(1)})
        rows = [table.direct_row(b"k%d" % number) for number in range(10)]
        for row in rows:
            row.set_cell("a", b"x", name.encode())
        assert all(status.code == 0 for status in table.mutate_rows(rows))
        wanted = RowSet()
        wanted.add_row_range_with_prefix("k")
        found = [(row.row_key, row.cell_value("a", b"x")) for row in table.read_rows(row_set=wanted, limit=3)]
        assert found == [(b"k%d" % number, name.encode()) for number in range(3)]
        table.delete()
        with pytest.raises(GoogleAPICallError):
            table.read_row(b"k1")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, [f"t-{number}" for number in range(8)]))
