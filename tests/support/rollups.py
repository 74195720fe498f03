"""A table with roll-ups: all rows of events, as the job writes them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.cloud.connection.names import TableName
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import Event
from pipeline.core.panes.firing import RollupRules
from pipeline.core.panes.group_firing import PaneContributions
from pipeline.core.rollups.due import Due, read_due, read_written
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import Levels
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, EncodedRow, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import Member, member_text
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.tables import created, write
from tests.support.versioned_table import VersionedTable

Windows = Mapping[tuple[int, str, int], WindowStats]


def table_with_rollups(schema: TableSchema, events: Iterable[Event]) -> TableName:
    """Creates a table with the rows of events, and the aggregate rows and roll-ups of their windows."""
    name = created(schema)
    write(name, rows_with_rollups(schema, list(events)))
    return name


def rows_with_rollups(schema: TableSchema, events: list[Event]) -> list[Row]:
    """Returns the rows of events, and the aggregate rows and roll-ups of their windows."""
    windows = windows_of(schema, events)
    of_windows = [
        aggregate_row(tier.window, sensor_id, start_us, stats, tier.family, tier.statistics)
        for (index, sensor_id, start_us), stats in windows.items()
        for tier in [schema.tiers[index]]
    ]
    raw = [row for event in events for row in schema.rows(event)]
    return [*raw, *of_windows, *rollup_rows(schema, windows)]


def windows_of(schema: TableSchema, events: Iterable[Event]) -> Windows:
    """Returns the statistics of windows by the index of the tier, the sensor and the start."""
    of_window: dict[tuple[int, str, int], list[Event]] = defaultdict(list)
    for event in events:
        for index, tier in enumerate(schema.tiers):
            of_window[index, event.sensor_id, tier.window.start_of(event.event_time_us)].append(event)
    found = {}
    for key, some in of_window.items():
        readings = WindowReadings()
        for event in some:
            readings.add(event.event_time_us, event.readings)
        found[key] = stats = readings.pane(schema.tiers[key[0]].statistics).stats
        newest = max(some, key=lambda event: event.event_time_us)
        stats.member = Member(newest.event_time_us, member_text(schema.member_fields, newest.metadata))
    return found


def rollup_rows(schema: TableSchema, windows: Windows) -> Iterator[Row]:
    """Yields the rows of roll-ups of windows, none of which is stored yet."""
    yield from map(set_cells, encoded_rollup_rows(schema, windows))


def encoded_rollup_rows(schema: TableSchema, windows: Windows) -> list[EncodedRow]:
    """Returns the rows of :func:`rollup_rows`, encoded."""
    rules, table, rows = RollupRules.of(schema), VersionedTable(), list[EncodedRow]()
    levels = Levels(GroupRules(schema), table.select, 1 << 30)
    contributions = PaneContributions(rules)
    for (index, sensor_id, start_us), stats in windows.items():
        contributions.add(index, start_us, {sensor_id: stats})
    written = [read_written(batch) for batch in contributions.batches()]
    due = [each for of_batch in written for each in of_batch.due]

    def write(some: Iterable[EncodedRow]) -> None:
        for row in some:
            table.apply(row)
            rows.append(row)

    write(row for of_batch in written for row in of_batch.rows)
    derived = [levels.parts(shard, read_due([data])) for shard, data in due]
    groups: Due = {}
    for each in derived:
        write(each.rows)
        for window, name in each.due:
            groups.setdefault(window, {})[name] = None
    write(levels.groups(groups).rows)
    return rows


def set_cells(row: EncodedRow) -> Row:
    """Returns the cells that an encoded row sets."""
    mutations = MutateRowsRequest.Entry.pb().FromString(row.mutations).mutations
    cells = [each.set_cell for each in mutations if each.HasField("set_cell")]
    return Row(
        row.key, [Cell(each.family_name, each.column_qualifier, each.timestamp_micros, each.value) for each in cells]
    )
