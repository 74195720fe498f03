"""Random operations on a Bigtable, and two servers' answers to them.

``python -m tests.local.embedded.operations --minutes 30`` compares Google's emulator and the built-in one.
"""

import argparse
import asyncio
import time
import uuid
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import grpc
from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types as data_types
from google.protobuf.empty_pb2 import Empty
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from pipeline.local.embedded.bigtable import BigtableData, BigtableTableAdmin
from pipeline.local.embedded.server import clock_us
from pipeline.local.embedded.services import Methods
from pipeline.local.emulators import BIGTABLE, running_emulator

PARENT = "projects/test-project/instances/test-instance"
_ADMIN, _DATA = "/google.bigtable.admin.v2.BigtableTableAdmin/", "/google.bigtable.v2.Bigtable/"
_TABLES = {"CreateTable", "GetTable", "ModifyColumnFamilies"}  # answer with a table
_ADMIN_METHODS = {*_TABLES, "DropRowRange"}
_STREAMS = {"MutateRows", "ReadRows", "SampleRowKeys"}
_RANGE = ("start_timestamp_micros", "end_timestamp_micros")
_SERVER_TIME = b"now"  # the value of cells that have the server's time
_OPTIONS = [
    ("SingleThreadedUnaryStream", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]

keys = st.sampled_from([b"a", b"a#1", b"a#2", b"b", b"b#\xff", b"c"])
families = st.sampled_from(["a", "b"])
qualifiers = st.sampled_from([b"", b"x", b"xy", b"\xff"])
values = st.sampled_from([b"", b"v", b"w" * 8, b"\0\xff"])


def _filled(template, **strategies):
    """Dictionaries with values from strategies under the template's keys."""
    return st.fixed_dictionaries(strategies).map(lambda drawn: {**template, **drawn})


def _within(field, strategy):
    return strategy.map(lambda inner: {field: inner})


def _times():
    bounds = st.sampled_from([(0, 0), (1000, 2000), (1000, 0), (0, 2000), (0, 1000)])
    return bounds.map(lambda both: dict(zip(_RANGE, both, strict=True)))


def _mutations(*more):
    """Mutations of a row. One that is refused comes alone: Google's emulator applies those before it.

    Args:
        more: mutations that come alone, too.
    """
    set_cell = _filled(
        {},
        family_name=families, column_qualifier=qualifiers, value=values,
        timestamp_micros=st.sampled_from([0, 1000, 2000, 5_000_000]),
    )  # fmt: skip
    column = {"family_name": families, "column_qualifier": qualifiers}
    several = st.lists(
        st.one_of(
            _within("set_cell", set_cell),
            _within("set_cell", set_cell),
            _within("set_cell", set_cell),
            _within("delete_from_column", st.one_of(_filled({}, **column), _filled({}, **column, time_range=_times()))),
            _within("delete_from_family", _filled({}, family_name=families)),
            st.just({"delete_from_row": {}}),
        ),
        min_size=1,
        max_size=5,
    )
    cell, nowhere = {"family_name": "a", "column_qualifier": b"x"}, {"family_name": "z", "column_qualifier": b"x"}
    alone = st.sampled_from(
        [
            *more,
            {"set_cell": {**cell, "timestamp_micros": 5}},
            {"set_cell": {**cell, "timestamp_micros": -2000}},
            {"set_cell": nowhere},
            {"delete_from_column": nowhere},
            {"delete_from_family": {"family_name": "z"}},
            {},
        ]
    )
    return st.one_of(several, several, several, alone.map(lambda one: [one]))


# One a request: two of them may have the same time or not.
AT_SERVER_TIME = {
    "set_cell": {"family_name": "a", "column_qualifier": b"x", "value": _SERVER_TIME, "timestamp_micros": -1}
}


def _filters():
    """Row filters. What counts cells of a row follows a filter to one family: Google's order of families varies."""
    regexes = st.sampled_from([b"a.*", b"a|b", rb"\C*", b"x?", b"[^x]*", b"v|w+"])
    counts = st.sampled_from(["cells_per_row_limit_filter", "cells_per_row_offset_filter"])
    leaf = st.one_of(
        _within("row_key_regex_filter", regexes),
        _within("column_qualifier_regex_filter", regexes),
        _within("value_regex_filter", regexes),
        _within("family_name_regex_filter", st.sampled_from(["a", "b", "a|b", "", ".*"])),
        _within("cells_per_column_limit_filter", st.integers(1, 2)),
        _within("timestamp_range_filter", _times()),
        _within("column_range_filter", st.tuples(families, _ends("qualifier", [b"x"], [b"xy"])).map(_of_family)),
        _within("value_range_filter", _ends("value", [b"v"], [b"w", b"w" * 8])),
        st.tuples(families, counts, st.integers(1, 3)).map(
            lambda drawn: {"chain": {"filters": [{"family_name_regex_filter": drawn[0]}, {drawn[1]: drawn[2]}]}}
        ),
        st.sampled_from(
            [
                {"pass_all_filter": True},
                {"block_all_filter": True},
                {"strip_value_transformer": True},
                {"apply_label_transformer": "label-1"},
            ]
        ),
    )

    def combined(inner):
        several = _within("filters", st.lists(inner, min_size=2, max_size=3))
        branches = st.one_of(
            _filled({}, predicate_filter=inner, true_filter=inner),
            _filled({}, predicate_filter=inner, false_filter=inner),
            _filled({}, predicate_filter=inner, true_filter=inner, false_filter=inner),
        )
        return st.one_of(_within("chain", several), _within("interleave", several), _within("condition", branches))

    return st.recursive(leaf, combined, max_leaves=4)


def _of_family(drawn):
    family, ends = drawn
    return {"family_name": family, **ends}


def _ends(name, starts, ends):
    """A range's fields: each end is open, closed or not set."""
    of_start = [{}, *({f"start_{name}_{kind}": each} for kind in ("open", "closed") for each in starts)]
    of_end = [{}, *({f"end_{name}_{kind}": each} for kind in ("open", "closed") for each in ends)]
    return st.tuples(st.sampled_from(of_start), st.sampled_from(of_end)).map(lambda both: {**both[0], **both[1]})


def _row_sets():
    some = [b"a", b"a#1", b"b", b"c"]
    return _filled(
        {}, row_keys=st.lists(keys, max_size=3), row_ranges=st.lists(_ends("key", some, some), max_size=2)
    )  # fmt: skip


def _changes():
    """Changes of a row by its values. One that is refused comes alone, too."""
    column = {"family_name": families, "column_qualifier": qualifiers}
    amounts = st.sampled_from([3, -(1 << 63)])
    # Two changes of a column would be one cell or two, by the clock.
    several = st.lists(
        _filled({}, **column, append_value=values),
        min_size=1,
        max_size=3,
        unique_by=lambda rule: (rule["family_name"], rule["column_qualifier"]),
    )
    alone = st.one_of(
        _filled({}, **column, increment_amount=amounts),
        st.sampled_from([{"family_name": "z", "append_value": b"v"}, {"family_name": "a"}]),
    )
    return st.one_of(several, alone.map(lambda one: [one]))


def policies(*combinations):
    """Policies of families, combined in these ways."""
    leaf = st.one_of(
        _within("max_num_versions", st.integers(0, 3)),
        _within("max_age", st.integers(0, 10**6).map(lambda seconds: {"seconds": seconds})),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            *(_within(name, _within("rules", st.lists(inner, max_size=3))) for name in combinations)
        ),
        max_leaves=4,
    )


def _families():
    """Changes of families: of one that no row has, since Google's emulator collects when it likes."""
    family = st.one_of(st.just({}), _within("gc_rule", policies("union", "intersection")))
    changes = st.lists(
        st.one_of(
            _filled({"id": "c"}, create=family), _filled({"id": "c"}, update=family), st.just({"id": "c", "drop": True})
        ),
        max_size=2,
    )
    again = families.map(lambda name: [{"id": name, "drop": True}, {"id": name, "create": {}}])
    return st.one_of(changes, again)


operations = st.one_of(
    _filled({}, row_key=st.one_of(keys, keys, st.just(b"")), mutations=_mutations(AT_SERVER_TIME)).map(
        lambda fields: ("MutateRow", fields)
    ),
    st.lists(_filled({}, row_key=st.one_of(keys, keys, st.just(b"")), mutations=_mutations()), max_size=5).map(
        lambda entries: ("MutateRows", {"entries": entries})
    ),
    st.one_of(
        _filled({}, rows=_row_sets(), rows_limit=st.integers(0, 3)),
        _filled({}, rows=_row_sets(), rows_limit=st.integers(0, 3), filter=_filters()),
        _filled({}, filter=_filters()),
    ).map(lambda fields: ("ReadRows", fields)),
    st.one_of(
        _filled(
            {}, row_key=keys, true_mutations=_mutations(AT_SERVER_TIME), false_mutations=_mutations(AT_SERVER_TIME)
        ),
        _filled({}, row_key=keys, predicate_filter=_filters(), true_mutations=_mutations(AT_SERVER_TIME)),
        _filled({}, row_key=keys, predicate_filter=_filters(), false_mutations=_mutations(AT_SERVER_TIME)),
    ).map(lambda fields: ("CheckAndMutateRow", fields)),
    _filled({}, row_key=keys, rules=_changes()).map(lambda fields: ("ReadModifyWriteRow", fields)),
    _families().map(lambda changes: ("ModifyColumnFamilies", {"modifications": changes})),
    st.sampled_from(
        [
            ("DropRowRange", {"row_key_prefix": b"a"}),
            ("DropRowRange", {"row_key_prefix": b"a#"}),
            ("DropRowRange", {"delete_all_data_from_table": True}),
            ("DropRowRange", {}),
            ("GetTable", {}),
            ("SampleRowKeys", {}),
        ]
    ),
)


@st.composite
def sequences(draw):
    """Up to 250 operations, most of them several times: drawing takes longer than asking two servers."""
    pool = draw(st.lists(operations, min_size=1, max_size=30))
    chosen = draw(st.binary(min_size=250, max_size=250))
    return [pool[index % len(pool)] for index in chosen if index]  # without zeros, for sequences that shrink


class Server:
    """A server."""

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._stubs = {}

    def ask(self, name, request):
        """Returns the serialized responses to a serialized request, or the code of an error."""
        if name not in self._stubs:
            make = self._channel.unary_stream if name in _STREAMS else self._channel.unary_unary
            self._stubs[name] = make((_ADMIN if name in _ADMIN_METHODS else _DATA) + name)
        try:
            found = self._stubs[name](request, timeout=60)
            return list(found) if name in _STREAMS else [found]
        except grpc.RpcError as error:
            return error.code()

    def answer(self, table, name, fields):
        """Returns what can be compared of the answer to an operation, or the code of an error."""
        return comparable(name, self.ask(name, request(table, name, fields)))


class BuiltIn(Server):
    """The built-in Bigtable in this process, without a connection, which costs more than the answers."""

    def __init__(self):
        tables = {}
        self._methods = Methods(BigtableData(tables), BigtableTableAdmin(tables, clock_us))
        self._loop = asyncio.new_event_loop()

    def ask(self, name, request):
        handler = self._methods.service(SimpleNamespace(method=(_ADMIN if name in _ADMIN_METHODS else _DATA) + name))
        try:
            return self._loop.run_until_complete(_responses(handler, request, self))
        except _Refused as refused:
            return refused.args[0]

    async def abort(self, code, message):
        raise _Refused(code, message)


class _Refused(Exception):
    pass


async def _responses(handler, request, context):
    request = handler.request_deserializer(request)
    if handler.response_streaming:
        found = [response async for response in handler.unary_stream(request, context)]
    else:
        found = [await handler.unary_unary(request, context)]
    return list(map(handler.response_serializer, found))


def request(table, name, fields):
    """Returns the serialized request of an operation on a table."""
    if name == "CreateTable":
        fields = {"parent": PARENT, "table_id": table.rpartition("/")[2], **fields}
    else:
        fields = {"name" if name in _ADMIN_METHODS else "table_name": table, **fields}
    types = admin_types if name in _ADMIN_METHODS else data_types
    return getattr(types, f"{name}Request").pb()(**fields).SerializeToString()


def created(servers, families):
    """Creates a table in each server, and returns its name."""
    table = f"{PARENT}/tables/t-{uuid.uuid4().hex}"
    for server in servers:
        server.answer(table, "CreateTable", {"table": {"column_families": families}})
    return table


def first_difference(servers, operations):
    """Returns the first operation that two servers answer differently on a new table, with their answers, or None."""
    table = created(servers, {"a": {}, "b": {}})
    requests = {}
    for name, fields in operations:
        asked = requests.get(id(fields)) or requests.setdefault(id(fields), request(table, name, fields))
        found = [server.ask(name, asked) for server in servers]
        if found[0] != found[1]:
            answers = [comparable(name, each) for each in found]
            if answers[0] != answers[1]:
                return name, fields, answers
        if name == "ReadModifyWriteRow" and isinstance(found[0], grpc.StatusCode):
            for server in servers:  # Google's emulator keeps an empty row, which counts where rows are limited
                server.answer(
                    table, "MutateRow", {"row_key": fields["row_key"], "mutations": [{"delete_from_row": {}}]}
                )
        if "rules" in fields or _SERVER_TIME in asked:
            time.sleep(0.002)  # until the servers' clocks go on: the next cell has another time on both
    return None


def tried(servers, operations, number=0):
    """Tries at least so many operations, the same in each run. Returns their number.

    Args:
        servers: two servers, whose answers must be the same.
        operations: the number of operations.
        number: the seed of the first sequences.
    """
    done = 0

    @settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sequences())
    def every_answer_is_the_same(sequence):
        nonlocal done
        assert first_difference(servers, sequence) is None
        done += len(sequence)

    while done < operations:
        seed(number)(every_answer_is_the_same)()
        number += 1
    return done


def comparable(name, found):
    """Returns what can be compared of an answer: without times of the server, in any order of families."""
    if isinstance(found, grpc.StatusCode):
        return found
    response = admin_types.Table if name in _TABLES else getattr(data_types, f"{name}Response", Empty)
    found = [(response if response is Empty else response.pb()).FromString(each) for each in found]
    if name == "MutateRows":
        return [(entry.index, entry.status.code) for response in found for entry in response.entries]
    if name == "ReadRows":
        return _rows_of(found)
    if name == "SampleRowKeys":  # which keys is left to chance
        sampled = [response.row_key for response in found]
        return sampled[-1:], all(one < other for one, other in pairwise(sampled[:-1]))
    if name == "ReadModifyWriteRow":
        return {
            (family.name, column.qualifier): [cell.value for cell in column.cells]
            for family in found[0].row.families
            for column in family.columns
        }
    if name in _TABLES:
        return {name: str(family) for name, family in found[0].column_families.items()}
    return found[0].SerializeToString()


def _rows_of(responses):
    """Returns rows in order: by family, the cells in order; cells of one time and column in any order."""
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


def _main():
    parser = argparse.ArgumentParser(prog="python -m tests.local.embedded.operations", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1000, help="the seed of the first sequences")
    arguments = parser.parse_args()
    with running_emulator(BIGTABLE) as google:
        servers, began, number, done = [Server(google), BuiltIn()], time.monotonic(), arguments.seed, 0
        while time.monotonic() - began < arguments.minutes * 60:
            done += tried(servers, 1, number)
            number += 1
            print(f"{done:,} operations until seed {number}", flush=True)


if __name__ == "__main__":
    _main()
