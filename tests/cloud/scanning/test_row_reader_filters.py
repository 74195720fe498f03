"""Cell selections as Bigtable filters."""

from google.cloud.bigtable_v2.types import RowFilter

from pipeline.cloud.scanning.row_reader import row_filter
from pipeline.core.schema.layouts import CellSelection


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
