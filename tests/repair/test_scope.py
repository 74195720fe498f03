"""Which windows a repair audits, and in which slices."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.completion.audit import (
    COLLECTED,
    KEPT_NO_LONGER,
    OPEN,
    Bounds,
    Extent,
    bounds_of,
    extents_of,
)
from pipeline.core.events.event import LATEST_US
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.sweeps import Span
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import DAILY, HOURLY, Window
from pipeline.repair.scope import aggregates_expired, settles, slices_of, spans_of

HOURS, DAYS = Tier(HOURLY, "hours"), Tier(DAILY, "days")
TIERS = (HOURS, DAYS)
HOUR, DAY = HOURLY.length_us, DAILY.length_us
T = parse_time("2026-02-17T00:00:00Z")
NOW = T + 300 * DAY

instants = st.integers(T, T + 30 * DAY)


def policies(**given_policies):
    return {family: parse_policy(text) for family, text in given_policies.items()}


def before(days):
    return 0 if days is None else NOW - round(days * DAY)


@pytest.mark.parametrize(
    ("raw", "hours", "raw_days", "hours_days"),
    [
        ("never", "never", None, None),
        ("maxage=90d", "maxage=730d", 89, 729),
        ("maxage=90d", "maxage=30d", 89, 29),  # a row that would be collected at once is not written either
        ("maxage=90d || maxversions=1", "never", 89, None),
        ("maxage=90d && maxversions=1", "never", None, None),  # a single version stays
        ("maxage=12h", "never", 0, None),
    ],
)
def test_what_may_be_collected(raw, hours, raw_days, hours_days):
    """Repair skips windows whose raw rows or aggregate row may be collected within a day, or that a job may write."""
    schema = parse_schema("tiers = { 1h = 'hours' }")
    retention = Retention.of(schema, policies(raw=raw, meta="maxage=1d", hours=hours))
    bounds = bounds_of([HOURS], retention, timedelta(hours=1), NOW)
    assert bounds == {HOURS: Bounds(before(raw_days), before(hours_days), NOW - HOUR)}


def test_rows_that_would_stay():
    """A repair writes aggregate rows up to the table's present maximum age, whatever it was before."""
    schema = parse_schema("tiers = { 1h = 'hours' }\npolicies = { hours = 'maxage=2d' }")
    kept = policies(raw="never", meta="never", hours="maxage=12h")
    once = Retention.of(schema, schema.policies, kept, since={"hours": NOW})
    for text, kept_us in (("maxage=12h", NOW - 12 * HOUR), ("maxage=30d", NOW - 30 * DAY), ("never", 0)):
        present = Retention.of(schema, {**kept, "hours": parse_policy(text)})
        assert bounds_of([HOURS], once, timedelta(0), NOW, present)[HOURS].kept_us == kept_us


def test_of_several_families_the_first_to_be_collected_counts():
    """A window lacks readings as soon as one of its families does."""
    schema = parse_schema("metrics = { logs = ['log_*'], raw = ['*'] }\ntiers = { 1h = 'hours' }")
    kept = policies(logs="maxage=3d", raw="never", meta="never", hours="never")
    assert bounds_of([HOURS], Retention.of(schema, kept), timedelta(0), NOW)[HOURS].raw_us == NOW - 2 * DAY


@pytest.mark.parametrize(
    ("key", "fields", "days"),
    [
        ("{sensor_id}", '"metadata.site"', 1),
        ("{sensor_id}", "[]", 2),
        ("{metadata.site}#{sensor_id}", '["metadata.site"]', 2),
    ],
)
def test_metadata_of_rollups_has_to_be_kept(key, fields, days):
    """Windows of tables with roll-ups are computed only where the metadata that they group by is still there."""
    schema = parse_schema(f'key = "{key}#{{reverse_us}}"\n[tiers]\n1h = "hours"\n[rollups]\na = {{ by = {fields} }}')
    kept = policies(raw="maxage=3d", meta="maxage=2d", hours="never", rollup="never")
    (bounds,) = bounds_of([schema.tiers[0]], Retention.of(schema, kept), timedelta(0), NOW).values()
    assert bounds.raw_us == NOW - days * DAY


def test_versions_that_are_events():
    """With a limit on versions, newer events remove older ones, so no window is known to be complete."""
    cells = replace(
        TableSchema.default(), key=KeyTemplate.parse("{sensor_id}#{bucket:1h}"), layout=LAYOUTS["bucket_cells"]
    )
    (tier,) = cells.tiers
    kept = policies(raw="maxversions=100", meta="never", stats="never")
    by_second = replace(TableSchema.default(), key=KeyTemplate.parse("{sensor_id}#{reverse_s}"))
    no_faster = replace(by_second, rate=Rate(1_000_000))
    for schema, raw_us in ((cells, NOW), (TableSchema.default(), 0), (by_second, NOW), (no_faster, 0)):
        assert bounds_of([tier], Retention.of(schema, kept), timedelta(0), NOW)[tier].raw_us == raw_us


@given(instants, instants, instants, instants, instants)
def test_every_window_is_looked_at_or_skipped(start_us, end_us, raw_us, kept_us, latest_us):
    """Repair audits the windows entirely within the range and the bounds, and says why it skips others."""
    start_us, end_us = sorted((start_us, end_us))
    whole_tiers, none = extents_of(start_us, end_us, TIERS, None)
    assert none == []
    extents, skipped = extents_of(start_us, end_us, TIERS, dict.fromkeys(TIERS, Bounds(raw_us, kept_us, latest_us)))
    for tier, extent, of_tier in zip(TIERS, extents, whole_tiers, strict=True):
        length_us = tier.window.length_us
        for window_us in range(tier.window.start_of(start_us), end_us + 1, length_us):
            whole = start_us <= window_us and window_us + length_us <= end_us
            gone, old, open_ = window_us < kept_us, window_us < raw_us, window_us + length_us > latest_us
            assert (window_us in of_tier) == whole
            assert (window_us in extent) == (whole and not gone and not old and not open_)
            reasons = [
                each.reason for each in skipped if each.tier == tier and each.start_us <= window_us < each.end_us
            ]
            expected = KEPT_NO_LONGER if gone else COLLECTED if old else OPEN if open_ else None
            assert reasons == ([expected] if whole and expected else [])


@given(instants, instants, st.integers(1, 60))
def test_slices(start_us, end_us, most):
    """Slices cover everything, one after the other, and none ends within a longest window."""
    extents, _ = extents_of(*sorted((start_us, end_us)), TIERS, None)
    slices = slices_of(extents, most, frozenset("a"))
    assert len(slices) <= most
    if not extents[0].windows:
        assert slices == []
        return
    assert (slices[0].start_us, slices[-1].end_us) == (extents[0].start_us, extents[0].end_us)
    for one, following in pairwise(slices):
        assert one.end_us == following.start_us
        assert one.end_us % DAY == 0
    assert all(each.sensors == frozenset("a") for each in slices)


def test_slices_of_centuries(monkeypatch):
    """A range up to the last time of keys is cut without a list of its windows."""
    monkeypatch.setattr(Window, "starts", None)
    extents, _ = extents_of(0, LATEST_US, TIERS, None)
    assert len(slices_of(extents, 60)) == 60


def test_the_spans_of_a_work_list():
    """Spans are whole days, with the sensors listed in them; a day without windows to repair is left out."""
    listed = [AggregateKey("a", T + HOUR), AggregateKey("b", T + 5 * HOUR), AggregateKey("a", T + 2 * DAY)]
    extents, _ = extents_of(T, T + 3 * DAY, TIERS, dict.fromkeys(TIERS, Bounds(0, 0, T + 2 * DAY)))
    assert spans_of(listed, extents) == [Span(T, T + DAY, frozenset("ab"))]
    assert spans_of(listed, extents_of(T, T + 3 * DAY, TIERS, None)[0])[1:] == [
        Span(T + 2 * DAY, T + 3 * DAY, frozenset("a"))
    ]


def test_settles():
    """A listed hour is settled when its day is."""
    extents = [Extent(HOURS, T, T + 30 * HOUR), Extent(DAYS, T, T + DAY)]
    assert settles(T + HOUR, extents, None)
    assert not settles(T + DAY, extents, None)
    assert not settles(T - HOUR, extents, None)
    bounds = {HOURS: Bounds(0, T, T + DAY), DAYS: Bounds(0, 0, T + DAY)}
    assert not settles(T - HOUR, extents, bounds)  # its day is not looked at
    assert settles(
        T + HOUR,
        [Extent(HOURS, T + 2 * HOUR, T + DAY), Extent(DAYS, T, T + DAY)],
        {**bounds, HOURS: Bounds(0, T + 2 * HOUR, 0)},
    )
    assert aggregates_expired(T - HOUR, TIERS, dict.fromkeys(TIERS, Bounds(0, T, 0)))
    assert not aggregates_expired(T - HOUR, TIERS, bounds)
