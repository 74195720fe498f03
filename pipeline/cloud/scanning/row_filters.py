"""Bigtable row filters for the cells that a layout selects."""

import re

from google.cloud.bigtable_v2.types import ColumnRange, RowFilter, TimestampRange

from pipeline.core.schema.layouts import CellSelection

_MAX_ALTERNATIVES = 10_000  # bytes; Bigtable accepts filters of up to 20 kB


def row_filter(selection: CellSelection, pattern: str | None = None) -> RowFilter:
    """Returns the filter that passes the selected cells of rows whose whole key matches the pattern (RE2).

    The cheapest conditions come first.
    """
    filters = []
    if pattern is not None:
        filters.append(RowFilter(row_key_regex_filter=pattern.encode()))
    if selection.keys_only:
        filters += [RowFilter(cells_per_row_limit_filter=1), RowFilter(strip_value_transformer=True)]
    else:
        filters.append(RowFilter(family_name_regex_filter="|".join(map(re.escape, selection.families))))
    alternatives = b"|".join(map(re.escape, selection.qualifiers or ()))
    if 0 < len(alternatives) < _MAX_ALTERNATIVES:  # otherwise all columns come, and the reader drops the others
        filters.append(RowFilter(column_qualifier_regex_filter=alternatives))
    if selection.qualifier_range is not None:
        start, end = selection.qualifier_range
        columns = ColumnRange(family_name=selection.families[0], start_qualifier_closed=start, end_qualifier_open=end)
        filters.append(RowFilter(column_range_filter=columns))
    if selection.times_us is not None:
        start_us, end_us = selection.times_us
        times = TimestampRange(start_timestamp_micros=start_us, end_timestamp_micros=end_us)
        filters.append(RowFilter(timestamp_range_filter=times))
    if selection.versions is not None:
        filters.append(RowFilter(cells_per_column_limit_filter=selection.versions))
    return RowFilter(chain=RowFilter.Chain(filters=filters)) if len(filters) > 1 else filters[0]
