"""The built-in Bigtable answers as Google's emulator does: the same random operations on both, row by row."""

import time

import grpc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.local.embedded.operations import BuiltIn, Server, created, policies, tried
from tests.support.waiting import eventually

# Pieces of regular expressions, which may make none together.
PIECES = [
    *rb"a b ab . ^ $ | * + ? (a|b) (?:ab) (?P<n>b) () {2} {1,2} {,2} {2 } *? +? ?? *+ ** {2}? {2}{2}".split(),
    *rb"[ab] [^ab] [a-c] [^\n] [] []] [^]] [\d_] [\W] [a-] [[:alpha:]] \d \D \w \W \s \pL".split(),
    *rb"\b \B \A \z \Z \n \t \C \x61 \xff \. \- \] \\ \_ \Q \1 \0 (?i) (?s:a) (?!a)".split(),
    *[b" ", b"\n", b"\xff", "\u00e9".encode(), b"-"],
]
TEXTS = b"|a|b|ab|a\n|\n|a b|a1|_|-|]|\\|{2}|aa|\xff|\xc3\xa9".split(b"|")
CELL = {"family_name": "a", "column_qualifier": b"x", "timestamp_micros": 1000}


@pytest.fixture(scope="module")
def servers(googles, bigtable):
    return [Server(bigtable), BuiltIn()]


def families_of(server, table):
    """Returns the number of cells by family of the only row."""
    rows = server.answer(table, "ReadRows", {})
    return {family: len(cells) for _, families in rows for family, cells in families.items()}


def test_random_operations(servers):
    """Ten thousand random operations have the same answers, or the same errors."""
    assert tried(servers, operations=10_000) >= 10_000


def test_policies(servers):
    """Random policies collect the same cells. Google's emulator does it within two seconds after a change of them, and
    does not know intersections."""
    number, google, built_in = 60, *servers

    @settings(max_examples=3, database=None, derandomize=True, phases=[Phase.generate])
    @given(st.lists(policies("union"), min_size=number, max_size=number))
    def same_cells_are_left(rules):
        table = created(servers, {f"f{index}": {"gc_rule": rule} for index, rule in enumerate(rules)})
        now_us = time.time_ns() // 10**6 * 1000
        cells = [
            {**CELL, "family_name": f"f{index}", "timestamp_micros": now_us - age_s * 10**6}
            for index in range(number)
            for age_s in (5, 10**4, 3 * 10**5, 7 * 10**5, 2 * 10**6)
        ]
        for server in servers:
            server.answer(table, "MutateRow", {"row_key": b"k", "mutations": [{"set_cell": cell} for cell in cells]})
        google.answer(table, "ModifyColumnFamilies", {"modifications": [{"id": "f0", "update": {"gc_rule": rules[0]}}]})
        left = families_of(built_in, table)
        eventually(lambda: families_of(google, table) == left, seconds=10)

    same_cells_are_left()


def test_regular_expressions(servers):
    """Those that are built match the same texts of bytes, or are refused by both."""
    table = created(servers, {"a": {}})
    cells = [{**CELL, "column_qualifier": b"%d" % index, "value": text} for index, text in enumerate(TEXTS)]
    for server in servers:
        server.answer(table, "MutateRow", {"row_key": b"k", "mutations": [{"set_cell": cell} for cell in cells]})
    refused = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
    matched = 0

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(b"".join))
    def every_answer_is_the_same(pattern):
        nonlocal matched
        google, built_in = (
            server.answer(table, "ReadRows", {"filter": {"value_regex_filter": pattern}}) for server in servers
        )
        matched += built_in not in ([], *refused)
        assert built_in in (google, grpc.StatusCode.UNIMPLEMENTED)

    every_answer_is_the_same()
    assert matched > 20


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
    table = created(servers, {"a": {}})
    for server in servers:
        server.answer(table, "MutateRow", {"row_key": b"a", "mutations": [{"set_cell": CELL}]})
        assert server.answer(table, "ReadRows", {"filter": refused}) == grpc.StatusCode.INVALID_ARGUMENT
