"""Cell selections as Bigtable filters."""

from google.cloud.bigtable_v2.types import RowFilter

from pipeline.cloud.scanning.row_reader import row_filter
from pipeline.core.schema.layouts import CellSelection
from pipeline.local.embedded.filters import matcher


def kinds(rule: RowFilter) -> list[str]:
    parts = rule.chain.filters or [rule]
    return [RowFilter.pb(part).WhichOneof("filter") for part in parts]


def test_keys_only() -> None:
    """A selection of keys returns one cell of each row, without its value."""
    assert kinds(row_filter(CellSelection((), keys_only=True))) == [
        "cells_per_row_limit_filter",
        "strip_value_transformer",
    ]


def test_a_filter_stays_within_bigtables_limit() -> None:
    """Names of metrics beyond 20 kB are not part of the filter."""
    names = tuple(f"a_metric_with_quite_a_long_name_{number}".encode() for number in range(1000))
    rule = row_filter(CellSelection(("raw",), names))
    assert kinds(rule) == ["family_name_regex_filter"]
    assert RowFilter.pb(rule).ByteSize() < 20_000


def test_times_of_rows_without_later_cells() -> None:
    """The condition applies to the selected columns alone, so it is left out where the server can't select them."""
    selection = CellSelection(("latest",), (b"t",), versions=1, times_only=True, none_since_us=5000)
    assert kinds(row_filter(selection)) == [
        "family_name_regex_filter",
        "column_qualifier_regex_filter",
        "condition",
        "cells_per_column_limit_filter",
        "strip_value_transformer",
    ]
    names = tuple(f"a_metric_with_quite_a_long_name_{number}".encode() for number in range(1000))
    assert "condition" not in kinds(row_filter(selection._replace(qualifiers=names)))


def test_columns_that_are_left_out() -> None:
    """The expression matches all columns but those that begin with one of the texts."""
    rule = row_filter(CellSelection(("stats",), without=(b"member", b"rises", b"rise_", b"sketch")))
    assert kinds(rule) == ["family_name_regex_filter", "column_qualifier_regex_filter"]
    matches = matcher(rule.chain.filters[1].column_qualifier_regex_filter, "column_qualifier_regex_filter")
    assert all(
        map(matches, (b"", b"m", b"membe", b"memory", b"rise", b"ris", b"sum_member", "größe".encode(), b"skew"))
    )
    assert not any(map(matches, (b"member", b"members", b"rises_t", b"rise_t", b"sketch_t")))
