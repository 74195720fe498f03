"""What a layout wants of rows, as the filter that makes Bigtable leave out the rest."""

import re

from google.cloud.bigtable_v2.types import ColumnRange, RowFilter, TimestampRange

from pipeline.core.schema.layouts import CellSelection

_MOST_ALTERNATIVES = 10_000  # bytes: Bigtable takes a filter of 20 kB


def row_filter(wanted: CellSelection, pattern: str | None = None) -> RowFilter:
    """What the server is to leave out, the cheapest to decide first."""
    filters = []
    if pattern is not None:
        filters.append(RowFilter(row_key_regex_filter=pattern.encode()))
    if wanted.keys_only:
        filters += [RowFilter(cells_per_row_limit_filter=1), RowFilter(strip_value_transformer=True)]
    else:
        filters.append(RowFilter(family_name_regex_filter="|".join(map(re.escape, wanted.families))))
    alternatives = b"|".join(map(re.escape, wanted.qualifiers or ()))
    if 0 < len(alternatives) < _MOST_ALTERNATIVES:  # else all come, and those that are not wanted are left out here
        filters.append(RowFilter(column_qualifier_regex_filter=alternatives))
    if wanted.qualifier_range is not None:
        start, end = wanted.qualifier_range
        columns = ColumnRange(family_name=wanted.families[0], start_qualifier_closed=start, end_qualifier_open=end)
        filters.append(RowFilter(column_range_filter=columns))
    if wanted.times_us is not None:
        start_us, end_us = wanted.times_us
        times = TimestampRange(start_timestamp_micros=start_us, end_timestamp_micros=end_us)
        filters.append(RowFilter(timestamp_range_filter=times))
    if wanted.versions is not None:
        filters.append(RowFilter(cells_per_column_limit_filter=wanted.versions))
    return RowFilter(chain=RowFilter.Chain(filters=filters)) if len(filters) > 1 else filters[0]
