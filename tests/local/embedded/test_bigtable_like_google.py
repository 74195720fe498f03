"""The built-in Bigtable answers as Google's emulator does: the same random operations on both, row by row."""

import uuid
from collections import defaultdict

import grpc
import pytest
from google.cloud.bigtable_admin_v2.types import (
    ColumnFamily,
    CreateTableRequest,
    DropRowRangeRequest,
    ModifyColumnFamiliesRequest,
    Table,
)
from google.cloud.bigtable_v2 import types
from google.protobuf.empty_pb2 import Empty
from hypothesis import given, settings
from hypothesis import strategies as st

DATA, ADMIN = "/google.bigtable.v2.Bigtable/", "/google.bigtable.admin.v2.BigtableTableAdmin/"
PARENT = "projects/test-project/instances/test-instance"
FAMILIES = ("a", "b")

keys = st.sampled_from([b"a", b"a#1", b"a#2", b"b", b"b#\xff", b"c"])
families = st.sampled_from(FAMILIES)
qualifiers = st.sampled_from([b"", b"x", b"xy", b"\xff"])
times = st.sampled_from([0, 1000, 2000, 5_000_000])
values = st.sampled_from([b"", b"v", b"w" * 8, b"\0\xff"])


def mutations():
    """Mutations of a row. One that is refused comes alone: Google's emulator applies those before it."""
    set_cell = st.builds(
        lambda family, qualifier, time_us, value: {
            "set_cell": {
                "family_name": family, "column_qualifier": qualifier, "timestamp_micros": time_us, "value": value
            }
        },
        families, qualifiers, times, values,
    )  # fmt: skip
    ranges = st.sampled_from([None, (0, 0), (1000, 2000), (1000, 0), (0, 2000)])
    delete_column = st.builds(
        lambda family, qualifier, times: {
            "delete_from_column": {
                "family_name": family, "column_qualifier": qualifier,
                **({} if times is None else {"time_range": dict(zip(_RANGE, times, strict=True))}),
            }
        },
        families, qualifiers, ranges,
    )  # fmt: skip
    delete_family = st.builds(lambda family: {"delete_from_family": {"family_name": family}}, families)
    fine = st.lists(
        st.one_of(set_cell, set_cell, set_cell, delete_column, delete_family, st.just({"delete_from_row": {}})),
        min_size=1, max_size=5,
    )  # fmt: skip
    refused = st.sampled_from(
        [
            [{"set_cell": {"family_name": "nowhere", "column_qualifier": b"x", "value": b"v"}}],
            [{"set_cell": {"family_name": "a", "column_qualifier": b"x", "timestamp_micros": 5, "value": b"v"}}],
            [{"set_cell": {"family_name": "a", "column_qualifier": b"x", "timestamp_micros": -2000, "value": b"v"}}],
            [{"delete_from_column": {"family_name": "nowhere", "column_qualifier": b"x"}}],
        ]
    )
    return st.one_of(fine, fine, fine, refused)


SET_CELL = {"set_cell": {"family_name": "a", "column_qualifier": b"x", "value": b"v"}}
_RANGE = ("start_timestamp_micros", "end_timestamp_micros")


def chain(*filters):
    return {"chain": {"filters": list(filters)}}


def filters():
    """Row filters. What counts cells of a row follows a filter to one family: Google's order of families varies."""
    regexes = st.sampled_from([b"a.*", b"a|b", rb"\C*", b"x?", b"[^x]*", b"v|w+"])
    leaf = st.one_of(
        st.builds(lambda regex: {"row_key_regex_filter": regex}, regexes),
        st.builds(lambda regex: {"column_qualifier_regex_filter": regex}, regexes),
        st.builds(lambda regex: {"value_regex_filter": regex}, regexes),
        st.builds(lambda family: {"family_name_regex_filter": family}, st.sampled_from(["a", "b", "a|b", "", ".*"])),
        st.builds(lambda count: {"cells_per_column_limit_filter": count}, st.integers(1, 2)),
        st.builds(lambda times: {"timestamp_range_filter": dict(zip(_RANGE, times, strict=True))},
                  st.sampled_from([(0, 1000), (1000, 0), (1000, 2000), (0, 0)])),
        st.builds(lambda family, start, end: {"column_range_filter": {"family_name": family, **start, **end}}, families,
                  st.sampled_from([{}, {"start_qualifier_open": b"x"}, {"start_qualifier_closed": b"x"}]),
                  st.sampled_from([{}, {"end_qualifier_open": b"xy"}, {"end_qualifier_closed": b"xy"}])),
        st.builds(lambda start, end: {"value_range_filter": {**start, **end}},
                  st.sampled_from([{}, {"start_value_open": b"v"}, {"start_value_closed": b"v"}]),
                  st.sampled_from([{}, {"end_value_open": b"w"}, {"end_value_closed": b"w" * 8}])),
        st.builds(lambda family, name, count: chain({"family_name_regex_filter": family}, {name: count}), families,
                  st.sampled_from(["cells_per_row_limit_filter", "cells_per_row_offset_filter"]),
                  st.integers(1, 3)),
        st.sampled_from([{"pass_all_filter": True}, {"block_all_filter": True},
                         {"strip_value_transformer": True}, {"apply_label_transformer": "label-1"}]),
    )  # fmt: skip
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda parts: {"chain": {"filters": parts}}, st.lists(inner, min_size=2, max_size=3)),
            st.builds(lambda parts: {"interleave": {"filters": parts}}, st.lists(inner, min_size=2, max_size=3)),
            st.builds(
                lambda predicate, others: {"condition": {"predicate_filter": predicate, **others}},
                inner,
                st.one_of(
                    st.builds(lambda part: {"true_filter": part}, inner),
                    st.builds(lambda part: {"false_filter": part}, inner),
                ),
            ),
        ),
        max_leaves=4,
    )


def row_sets():
    ranges = st.builds(
        lambda start, first, end, last: {**({start: first} if start else {}), **({end: last} if end else {})},
        st.sampled_from(["start_key_open", "start_key_closed", None]), keys,
        st.sampled_from(["end_key_open", "end_key_closed", None]), keys,
    )  # fmt: skip
    return st.builds(
        lambda row_keys, row_ranges: {"row_keys": row_keys, "row_ranges": row_ranges},
        st.lists(keys, max_size=3),
        st.lists(ranges, max_size=2),
    )


def rules():
    return st.lists(
        st.builds(
            lambda family, qualifier, change: {"family_name": family, "column_qualifier": qualifier, **change},
            st.sampled_from([*FAMILIES, *FAMILIES, "nowhere"]), qualifiers,
            st.sampled_from([{"append_value": b"v"}, {"increment_amount": 3}, {"increment_amount": -(1 << 63)}]),
        ),
        min_size=1, max_size=1,
    )  # fmt: skip


OPERATIONS = st.one_of(
    st.builds(lambda key, of_row: ("MutateRow", {"row_key": key, "mutations": of_row}), keys, mutations()),
    st.builds(
        lambda entries: ("MutateRows", {"entries": [{"row_key": key, "mutations": each} for key, each in entries]}),
        st.lists(st.tuples(st.one_of(keys, st.just(b"")), mutations()), min_size=1, max_size=5),
    ),
    st.builds(
        lambda rows, passing, limit: ("ReadRows", {"rows": rows, "rows_limit": limit, **passing}),
        row_sets(), st.one_of(st.just({}), st.builds(lambda each: {"filter": each}, filters())), st.integers(0, 3),
    ),
    st.builds(
        lambda key, passing, of_true, of_false: (
            "CheckAndMutateRow",
            {"row_key": key, "true_mutations": of_true, "false_mutations": of_false, **passing},
        ),
        keys, st.one_of(st.just({}), st.builds(lambda each: {"predicate_filter": each}, filters())),
        mutations(), mutations(),
    ),
    st.builds(lambda key, each: ("ReadModifyWriteRow", {"row_key": key, "rules": each}), keys, rules()),
    st.builds(lambda family: ("Recreate", {"family": family}), families),
    st.builds(lambda prefix: ("DropRowRange", {"row_key_prefix": prefix}), st.sampled_from([b"a", b"a#", b"z"])),
)  # fmt: skip


class Server:
    """A server, and a table in it."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        table = Table(column_families={family: ColumnFamily() for family in FAMILIES})
        request = CreateTableRequest(parent=PARENT, table_id=f"t-{uuid.uuid4().hex}", table=table)
        self.table = self._call(ADMIN + "CreateTable", request, Table).name

    def answer(self, name, fields):
        """Returns the answer to an operation, without what may vary: times of the server, the order of families."""
        if name == "Recreate":
            drop = [{"id": fields["family"], "drop": True}, {"id": fields["family"], "create": {}}]
            request = ModifyColumnFamiliesRequest(name=self.table, modifications=drop)
            return self._ask(ADMIN + "ModifyColumnFamilies", request, Table)
        if name == "DropRowRange":
            return self._ask(ADMIN + name, DropRowRangeRequest(name=self.table, **fields), Empty)
        request = getattr(types, f"{name}Request")(table_name=self.table, **fields)
        response = getattr(types, f"{name}Response")
        return self._ask(DATA + name, request, response, streams=name in ("MutateRows", "ReadRows"))

    def _ask(self, path, request, response, *, streams=False):
        try:
            found = self._call(path, request, response, streams=streams)
        except grpc.RpcError as error:
            return error.code()
        return _comparable(found)

    def _call(self, path, request, response, *, streams=False):
        read = response.pb().FromString if hasattr(response, "pb") else response.FromString
        stub = (self.channel.unary_stream if streams else self.channel.unary_unary)(
            path, request_serializer=lambda message: type(message).serialize(message), response_deserializer=read
        )
        found = stub(request, timeout=30)
        return list(found) if streams else found


def _comparable(found):
    if isinstance(found, list):
        if found and hasattr(found[0], "entries"):
            return [(entry.index, entry.status.code) for response in found for entry in response.entries]
        return _rows(found)
    if hasattr(found, "row"):
        return {
            (family.name, column.qualifier): [cell.value for cell in column.cells]
            for family in found.row.families
            for column in family.columns
        }
    if hasattr(found, "column_families"):
        return set(found.column_families)
    return found.SerializeToString()


def _rows(responses):
    """Returns the rows in order: by family, the cells in order; cells of one time and column in any order."""
    rows, key, family, qualifier = [], None, None, None
    for chunk in (chunk for response in responses for chunk in response.chunks):
        if chunk.row_key and chunk.row_key != key:
            key = chunk.row_key
            rows.append((key, defaultdict(list)))
        if chunk.HasField("family_name"):
            family = chunk.family_name.value
        if chunk.HasField("qualifier"):
            qualifier = chunk.qualifier.value
        time_us = chunk.timestamp_micros if chunk.timestamp_micros < 10**15 else "now"
        rows[-1][1][family].append((qualifier, time_us, chunk.value, *chunk.labels))
    return [(key, {family: _stable(cells) for family, cells in sorted(of_row.items())}) for key, of_row in rows]


def _stable(cells):
    order = {cell[:2]: index for index, cell in reversed(list(enumerate(cells)))}
    return sorted(cells, key=lambda cell: (order[cell[:2]], cell))


@pytest.fixture(scope="module")
def servers(bigtable, embedded):
    return [bigtable, embedded]


@pytest.mark.parametrize(
    "refused",
    [
        {"row_key_regex_filter": b"("},
        {"pass_all_filter": False},
        {"cells_per_column_limit_filter": 0},
        {"cells_per_row_limit_filter": -1},
        {"row_sample_filter": 1.0},
        {"apply_label_transformer": "A"},
        {"chain": {"filters": [{"pass_all_filter": True}]}},
        {"interleave": {"filters": []}},
    ],
)
def test_filters_that_are_refused(servers, refused):
    """A filter that is not valid has the same error. Google's emulator looks at it only where there is a row."""
    for address in servers:
        server = Server(address)
        server.answer("MutateRow", {"row_key": b"a", "mutations": [SET_CELL]})
        assert server.answer("ReadRows", {"filter": refused}) == grpc.StatusCode.INVALID_ARGUMENT


@settings(max_examples=100, deadline=None)
@given(st.lists(OPERATIONS, min_size=20, max_size=40))
def test_random_operations(servers, operations):
    """Every operation has the same answer, or the same error."""
    google, built_in = (Server(address) for address in servers)
    for name, fields in operations:
        expected = google.answer(name, fields)
        assert built_in.answer(name, fields) == expected, (name, fields)
