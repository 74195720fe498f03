"""Repair under Beam's freedoms: pieces in any order, parts read twice, bundles repeated."""

import uuid

import apache_beam as beam
import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.completion.audit import Extent
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.panes.grouped_readings import accumulators_of, start_of_readings
from pipeline.core.queries.sweeps import Span
from pipeline.core.rows.aggregate_rows import aggregate_prefix, aggregate_row
from pipeline.core.rows.rows import KeyRange, prefix_range
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.job.bounded import beam_options, run
from pipeline.repair import transforms as repair
from pipeline.repair.following import RewriteWindows, WindowsAbove
from pipeline.repair.transforms import FindWrongWindows, ReadTask
from tests.support.bare_tables import rows_of, write
from tests.support.lasting import lasting

T = parse_time("2026-02-17T00:00:00Z")
HOUR = 3_600_000_000
DAY = 24 * HOUR


@pytest.fixture
def table(bigtable):
    """A table with a row for each metric, two hours of events and wrong aggregates."""
    schema = parse_schema(
        "key = '{sensor_id}#{reverse_us}#{metric}'\nlayout = 'tall'\ntiers = { 1h = 'hours', 1d = 'days' }"
    )
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    tables.create(name, lasting(schema))
    events = [Event("a", T + n * HOUR // 5, {"t": n + 0.5, "h": -0.1 * n}, {}) for n in range(10)]
    write(name, {row.key: row.cells for event in events for row in schema.rows(event)})
    wrong = WindowStats()
    wrong.add({"t": 1.0})
    write(name, {row.key: row.cells for row in [aggregate_row(schema.tiers[0].window, "a", T, wrong, "hours")]})
    return name, schema, events


def parts_of(schema, at, times=1):
    spans = [Span(T, T + DAY)]
    extents = [Extent(tier, T, T + DAY) for tier in schema.tiers]
    raw = [ReadTask(KeyRange(*ends), 0) for ends in zip([b"", *at], [*at, b""], strict=True)] * times
    aggregates = [
        ReadTask(prefix_range(aggregate_prefix(extent.tier.window).encode()), 0, extent) for extent in extents
    ]
    return extents, spans, [*raw, *aggregates * times], Retention.of(schema)


FOUND = []


def keep(finding):
    FOUND.append(finding)


def find(table, at, times=1):
    """Returns the findings and the counters."""
    name, schema, _ = table
    FOUND.clear()

    def build(pipeline):
        found = pipeline | FindWrongWindows(name, schema, *parts_of(schema, at, times))
        _ = found.wrong | beam.Map(keep)

    totals = run(beam_options([], name.project), build, [schema])
    return [finding.record() for finding in sorted(FOUND, key=lambda finding: finding.key)], totals


def test_pieces(table, monkeypatch):
    """Events divided between key ranges, windows in pieces, and parts read twice give the same findings."""
    name, _, _ = table
    keys = sorted(key for key in rows_of(name) if key.startswith(b"a#"))
    found, totals = find(table, [])
    assert totals == {"events": 20, "repair_windows_checked": 3, "repair_windows_wrong": 3}
    assert [(each["window"], each["problem"]) for each in found] == [
        ("1d", "no aggregate row"), ("1h", "differs"), ("1h", "no aggregate row"),
    ]  # fmt: skip
    day = found[0]["differences"]
    assert day["reading_count"] == {"stored": None, "recomputed": 10.0}
    assert day["sum_t"] == {"stored": None, "recomputed": 50.0}
    monkeypatch.setattr(repair, "_MOST_HELD", 3)
    again, _ = find(table, keys[1:4], times=2)
    for one, other in zip(found, again, strict=True):
        for statistic, difference in one.pop("differences").items():
            assert other["differences"][statistic]["recomputed"] == pytest.approx(difference["recomputed"], rel=1e-12)
        del other["differences"]
    assert again == found


def test_readings_of_one_window_are_in_memory(table, monkeypatch):
    """However long the longest windows are, a worker holds the readings of the shortest ones, one after the other."""
    held = []

    def accumulators(parts):
        held.append({start_of_readings(part) for part in parts})
        return accumulators_of(parts)

    monkeypatch.setattr(repair, "accumulators_of", accumulators)
    find(table, [])
    assert sorted(held, key=min) == [{T}, {T + HOUR}]


def test_a_bundle_that_is_repeated(table):
    """Rewriting twice gives the same rows, and the next audit finds nothing."""
    name, schema, _ = table
    after = []
    longer = WindowsAbove.of(schema.tiers, None, Retention.of(schema), T)
    for _ in range(2):

        def build(pipeline):
            found = pipeline | FindWrongWindows(name, schema, *parts_of(schema, []))
            twice = (found.wrong, found.wrong) | beam.Flatten()
            _ = twice | RewriteWindows(name, (), longer, b"")

        totals = run(beam_options([], name.project), build, [schema])
        after.append(rows_of(name))
    assert after[0] == after[1]
    assert totals["repair_windows_checked"] == 3
    assert totals.get("repair_windows_wrong", 0) == totals.get("repair_windows_rewritten", 0) == 0
