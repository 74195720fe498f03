"""The built-in Bigtable answers as Google's emulator does: the same random operations on both, row by row."""

import grpc
import pytest

from tests.local.embedded.operations import Server, created, tried

CELL = {"family_name": "a", "column_qualifier": b"x", "timestamp_micros": 1000}


@pytest.fixture(scope="module")
def servers(googles, bigtable, embedded):
    return [Server(bigtable), Server(embedded)]


def test_random_operations(servers):
    """Ten thousand random operations have the same answers, or the same errors."""
    assert tried(servers, operations=10_000) >= 10_000


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
