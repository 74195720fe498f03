"""The metadata of roll-ups in aggregate rows, against the events: in any order, late, repeated and after restarts."""

import random
from dataclasses import replace

import pytest

from pipeline.core.accumulation.reading_columns import event_key
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.events.event import Event
from pipeline.core.panes.firing import END_US
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.member import Member, member_text
from pipeline.core.statistics.window_stats import BY_DEFAULT, Statistics
from pipeline.core.windows import parse_window
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, restarted

TIERS = tuple(Tier(parse_window(text), f"of_{text}") for text in ("1h", "1d", "1mo"))
ROLLUPS = (Rollup("site", ("site",)), Rollup("model", ("model",)))
CARRIED = Statistics((("t", ("avg", "increase", "time_weighted_mean")),))


def newest_events(schema, window, events):
    """Returns what the newest event of each sensor's window tells, by sensor and start."""
    found = {}
    for event in events:
        time_us, discriminator = schema.identity.of_event(event)
        newest = time_us, event_key(time_us, discriminator), member_text(schema.member_fields, event.metadata)
        key = event.sensor_id, window.start_of(event.event_time_us)
        found[key] = max(newest, found.get(key, newest))
    return {key: Member(*newest[1:]) for key, newest in found.items()}


def told(group, tier, keys):
    """Returns what the aggregate rows of sensors' windows tell."""
    completion = Completion(group.schema, group.retention, group.table)
    return {key: completion.row(tier, *key).member for key in keys}


@pytest.mark.parametrize("key", ["{sensor_id}#{reverse_us}", "{sensor_id}#{reverse_us}#{event_id}"])
@pytest.mark.parametrize("seed", range(20))
def test_rows_tell_the_newest_event(key, seed):
    """Hours, days and months tell the newest event of each sensor, whatever came late, again or before a restart."""
    rng = random.Random(f"{key} {seed}")
    schema = replace(
        TableSchema.default(),
        key=KeyTemplate.parse(key),
        tiers=TIERS,
        policies={},
        rollups=ROLLUPS,
        statistics=rng.choice([BY_DEFAULT, CARRIED]),
    )
    group = Group(schema, MIDNIGHT, rng.choice([None, MIDNIGHT]))
    events, now_us = {}, MIDNIGHT + 20 * HOUR
    for _ in range(rng.randrange(5, 25)):
        new = {}
        for _ in range(rng.randrange(1, 5)):
            time_us = now_us - rng.choice([0, MINUTE, 30 * MINUTE, 2 * HOUR, 15 * HOUR]) + rng.randrange(5)
            metadata = {name: rng.choice("xyz") for name in ("site", "model", "other") if rng.randrange(3)}
            number = str(rng.randrange(1000)) if "event_id" in key else ""
            event = Event(rng.choice("ab"), time_us, {rng.choice("tu"): float(rng.randrange(9))}, metadata, number)
            if (event.sensor_id, time_us, number) not in events:
                new[event.sensor_id, time_us, number] = event
        again = rng.sample(list(events.values()), min(len(events), rng.randrange(3)))
        events |= new
        group.now_us = max(group.now_us, now_us)
        group.receive(*rng.sample([*new.values(), *again], len(new) + len(again)))
        step = rng.randrange(12)
        if step < 4:
            group.watermark(now_us - 5 * MINUTE)
        elif step < 8:
            group.pass_time()
        elif step == 8:
            group = restarted(group)
        now_us += rng.choice([0, MINUTE, HOUR, 9 * HOUR])
    group.pass_time()
    group.watermark(now_us + 40 * DAY)
    group.pass_time(HOUR)
    group.watermark(END_US)
    for tier in schema.tiers:
        expected = newest_events(schema, tier.window, events.values())
        assert told(group, tier, expected) == expected


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_event_that_comes_again_with_other_metadata(is_closed):
    """Its raw row has the others alone. The window's row tells which groups the sensor was in, if no state does."""
    schema = replace(TableSchema.default(), tiers=TIERS, policies={}, rollups=ROLLUPS)
    group = Group(schema, MIDNIGHT + HOUR, MIDNIGHT + HOUR)
    group.receive(Event("a", MIDNIGHT, {"t": 1.0}, {"site": "x"}))
    if is_closed:
        group.watermark(MIDNIGHT + 2 * HOUR)
    else:
        group = restarted(group)
    group.receive(Event("a", MIDNIGHT, {"t": 1.0, "u": 1.0}, {"site": "y"}))
    group.pass_time()
    group.watermark(END_US)
    for tier in TIERS:
        start_us = tier.window.start_of(MIDNIGHT)
        member = told(group, tier, [("a", start_us)])["a", start_us]
        texts = [member_text(schema.member_fields, {"site": site}) for site in "yx"]
        assert [member.text, *member.before] == texts
