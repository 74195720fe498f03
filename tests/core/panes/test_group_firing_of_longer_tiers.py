"""Longer windows whose shorter ones fire at other times."""

from pipeline.core.schema.toml import parse_schema
from tests.support.groups import HOUR, LATENESS, MIDNIGHT, MINUTE, Group, event

TIERS = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n'


def test_what_was_deferred_for_long():
    """It replaces what the day has of the hour, although the state has forgotten the hour itself."""
    group = Group(parse_schema(TIERS), MIDNIGHT + HOUR, early_us=0)
    group.receive(event("a", MIDNIGHT, {"t": 1.0}))
    group.watermark(MIDNIGHT + HOUR + LATENESS)
    group.pass_time(30 * MINUTE)
    group.receive(event("a", MIDNIGHT + MINUTE, {"t": 1.0}))
    group.pass_time()
    group.pass_time(30 * MINUTE)
    assert not group.bags.closed
    group.watermark(MIDNIGHT + 24 * HOUR)
    assert group.row(group.schema.tiers[1], "a", MIDNIGHT) == (2, 2)


def test_a_window_that_a_new_job_begins_in_part():
    """A day restores what earlier jobs stored of six hours. What the new job stores of them comes with its panes."""
    schema = parse_schema(TIERS.replace("1d", '6h = "six"\n1d'))
    group = Group(schema, MIDNIGHT + 5 * HOUR, before_us=MIDNIGHT + 6 * HOUR + 1)
    group.receive(*(event("a", MIDNIGHT + hour * HOUR, {"t": 1.0}) for hour in (5, 6, 7)))
    found = []
    for hour in (6, 7, 8):
        group.watermark(MIDNIGHT + hour * HOUR)
        found.append(group.row(schema.tiers[2], "a", MIDNIGHT)[0])
    assert found == [2, 2, 3]
