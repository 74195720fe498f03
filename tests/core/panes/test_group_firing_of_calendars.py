"""Days and months of a time zone in a job's state: in any order, late, and after a restart."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time, to_datetime
from pipeline.core.panes.firing import END_US
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.aggregate_rows import parse_aggregate_key, version_us
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.toml import parse_schema
from tests.support.exhaustive import examples
from tests.support.groups import Group

SCHEMA = parse_schema(
    '[policies]\nraw = "never"\n[tiers]\n30m = "halves"\n1h = "hours"\n1d = "days"\n'
    '"1d@Europe/Berlin" = "berlin"\n"1mo@Europe/Berlin" = "months"\n"1w@Asia/Kolkata" = "weeks"'
)
BERLIN_DAYS, BERLIN_MONTHS = SCHEMA.tiers[3], SCHEMA.tiers[5]
MINUTE = 60_000_000
HOUR = 60 * MINUTE
BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
CHANGES = [parse_time("2026-03-29T00:00Z"), parse_time("2026-10-25T00:00Z")]
# One every hour around the days on which clocks change.
EVENTS = [
    Event("a", change_us + number * HOUR, {"t": float(number % 1000)}, {})
    for change_us in CHANGES
    for number in range(-26, 50)
]


def local(time_us, zone) -> datetime:
    return to_datetime(time_us).astimezone(zone)


def reference(events):
    """Counts and sums events by the dates that the zones' clocks show."""
    found: dict[str, list[float]] = {}
    for event in events:
        berlin, kolkata = local(event.event_time_us, BERLIN), local(event.event_time_us, KOLKATA).isocalendar()
        monday = datetime.fromisocalendar(kolkata.year, kolkata.week, 1)
        for key in (
            f"agg#daily@Europe/Berlin#a#{berlin:%Y-%m-%d}",
            f"agg#monthly@Europe/Berlin#a#{berlin:%Y-%m}",
            f"agg#weekly@Asia/Kolkata#a#{monday:%Y-%m-%d}",
            f"agg#daily#a#{to_datetime(event.event_time_us):%Y-%m-%d}",
        ):
            found.setdefault(key, []).append(event.readings["t"])
    return {key: (len(values), sum(values)) for key, values in found.items()}


def stored(group):
    """Returns the number of events and the sum of every row of the longer tiers."""
    found = {}
    for tier in SCHEMA.tiers[2:]:
        keys = prefix_range(f"agg#{tier.window.label}#".encode())
        for row in group.table(RowSelection(keys, CellSelection((tier.family,), versions=1))):
            start_us = parse_aggregate_key(tier.window, row.key).start_us
            found[row.key.decode()] = events, _ = group.row(tier, "a", start_us)
            assert {cell.timestamp_us for cell in row.cells} == {version_us(start_us, 2 * events)}
    return found


def now_us():
    return EVENTS[-1].event_time_us + 100 * 24 * HOUR


@settings(max_examples=examples(15), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
def test_any_order(randomness, pieces, restarted):
    """Whatever came late or twice, and whether or not the job was started again, the rows are the same."""
    events = [*EVENTS[::3], *EVENTS[::9]]
    randomness.shuffle(events)
    group = Group(SCHEMA, now_us())
    for piece in range(pieces):
        group.receive(*events[piece::pieces])
        group.watermark(randomness.choice(EVENTS).event_time_us)
        group.pass_time()
        if restarted:
            group.watermark(END_US)
            group = Group(SCHEMA, group.now_us, before_us=END_US, table=group.table)
    group.watermark(END_US)
    assert stored(group) == reference(EVENTS[::3])


@pytest.mark.parametrize("change_us", CHANGES)
def test_a_day_fires_when_it_ends(change_us):
    """The last pane of a day comes at its end by the zone's clock, whatever its length."""
    group = Group(SCHEMA, now_us(), early_us=0)
    start_us = BERLIN_DAYS.window.start_of(change_us)
    end_us = BERLIN_DAYS.window.end_of(start_us)
    assert end_us - start_us in (23 * HOUR, 25 * HOUR)
    group.receive(Event("a", change_us, {"t": 1.0}, {}))
    group.watermark(end_us - 1)
    assert group.row(BERLIN_DAYS, "a", start_us) is None
    group.watermark(end_us)
    assert group.row(BERLIN_DAYS, "a", start_us) == (1, 1)
    assert group.row(BERLIN_MONTHS, "a", BERLIN_MONTHS.window.start_of(change_us)) is None
