"""Of the rows that are written for a window, a table keeps the one that counts most, in whatever order they arrive."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.aggregate_rows import (
    aggregate_key,
    aggregate_row,
    encoded_aggregate_row,
    parse_window_stats,
)
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY
from tests.support.tables import unused_name

pytestmark = pytest.mark.on_both

T = parse_time("2026-02-17T10:00:00Z")
KEPT, COLLECTED = "kept", "stats"  # a family that keeps all versions, and one with the policy of tiers
SENSORS = (f"s-{n}" for n in count())
PANES = [{"t": 20.5}, {"t": 21.0}, {"t": 7.0, "h": 50.0}, {"h": 51.0}, {"t": 0.25}]


def counted(events):
    """Returns the statistics of the first so many events."""
    stats = WindowStats()
    for readings in PANES[:events]:
        stats.add(readings)
    return stats


@pytest.fixture(scope="module")
def name(bigtable):
    name = unused_name()
    tables.create_bare(name, {KEPT: Never(), COLLECTED: TableSchema.default().policies["stats"]})
    return name


def read(name, family, sensor):
    """Returns a window as readers see it."""
    key = aggregate_key(HOURLY, sensor, T)
    with RowReader.open(name) as reader:
        selection = RowSelection(KeyRange(key, key + b"\x00"), CellSelection((family,), versions=1))
        (row,) = reader.read_selection(selection)
    start_us, stats = parse_window_stats(HOURLY, row)
    assert start_us == T
    return stats.events, {metric: (of.count, of.total, of.minimum) for metric, of in stats.metrics.items()}


def expected(events):
    stats = counted(events)
    return stats.events, {metric: (of.count, of.total, of.minimum) for metric, of in stats.metrics.items()}


def test_the_fullest_row_stays(name):
    """Duplicates, and rows of two writers, may come before or after it."""

    @settings(max_examples=30, database=None, derandomize=True, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(1, len(PANES)), st.booleans()), min_size=1, max_size=8),
        st.sampled_from([KEPT, COLLECTED]),
    )
    def stays(written, family):
        sensor = next(SENSORS)
        with Rewriter.open(name) as job, Rewriter.open(name) as backfill:
            for events, by_job in written:
                if by_job:
                    job.write([encoded_aggregate_row(HOURLY, sensor, T, counted(events), family)])
                else:
                    backfill.add([aggregate_row(HOURLY, sensor, T, counted(events), family)])
        assert read(name, family, sensor) == expected(max(events for events, _ in written))

    stays()


@pytest.mark.parametrize("family", [KEPT, COLLECTED])
def test_a_row_that_counts_less_on_purpose(name, family):
    """A replacement hides what counts more, and rows that are written later count as before."""
    sensor = next(SENSORS)
    less, more = (aggregate_row(HOURLY, sensor, T, counted(events), family) for events in (2, 4))
    with Rewriter.open(name) as writer:
        writer.add([more])
        writer.replace([Replacement(less.key, family, tuple(less.cells))])
        assert read(name, family, sensor) == expected(2)
        writer.add([more])
        assert read(name, family, sensor) == expected(4)


@pytest.mark.parametrize("family", [KEPT, COLLECTED])
def test_rows_of_earlier_releases(name, family):
    """Their cells have the window's start as timestamp, so that any row is newer."""
    sensor = next(SENSORS)
    row = aggregate_row(HOURLY, sensor, T, counted(4), family)
    with Rewriter.open(name) as writer:
        writer.add([Row(row.key, [cell._replace(timestamp_us=T) for cell in row.cells])])
        assert read(name, family, sensor) == expected(4)
        writer.add([aggregate_row(HOURLY, sensor, T, counted(5), family)])
    assert read(name, family, sensor) == expected(5)
