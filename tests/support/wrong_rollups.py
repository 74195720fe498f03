"""Compares the rows of roll-ups in a table with the merge of its aggregate rows."""

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.aggregate_rows import aggregate_prefix, parse_aggregate_key, parse_window_stats
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.statistics.member import member_fields
from tests.support.aggregate_values import numbers_of
from tests.support.merged_rollups import differences, expected_rollups, found_rollups


def wrong_rollups(name, schema):
    """Returns what differs between the rows of roll-ups and the merge of the table's aggregate rows."""
    found, members = {}, {}
    with RowReader.open(name) as reader:
        for tier in schema.tiers:
            keys = prefix_range(aggregate_prefix(tier.window).encode())
            for row in reader.read_selection(RowSelection(keys, CellSelection((tier.family,), versions=1))):
                key = parse_aggregate_key(tier.window, row.key)
                place = tier.window.text, key.sensor_id, key.start_us
                found[place] = numbers_of({cell.qualifier: cell.value for cell in row.cells})
                member = parse_window_stats(tier.window, row)[1].member
                members[place] = member_fields(member.text) if member else {}
        stored = found_rollups(schema, reader.read_selection)
    expected = expected_rollups(schema, found, lambda *place: members[place])
    assert expected
    return differences(stored, expected)
