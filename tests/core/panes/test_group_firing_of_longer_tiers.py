"""Longer windows whose shorter ones fire at other times, or again."""

import pytest

from pipeline.core.panes.firing import END_US
from pipeline.core.results.window_results import ResultRules
from pipeline.core.rows.aggregate_rows import parse_aggregate_key
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, LATENESS, MIDNIGHT, MINUTE, Group, event, restarted

TIERS = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n'


@pytest.mark.parametrize(
    ("minutes", "first", "last"),
    [(1, 5, 1), (1, 1, 5), (90, 1, 5), (90, 5, 1)],
)
def test_a_reading_with_two_values(minutes, first, last):
    """The last value counts, whether the window is open or closed; its day follows. An open one is listed."""
    group = Group(parse_schema(TIERS), MIDNIGHT + HOUR)
    group.receive(event("a", MIDNIGHT, {"t": first}))
    group.pass_time()
    group.watermark(MIDNIGHT + minutes * MINUTE)
    group.pass_time()
    assert not group.listed
    group.receive(event("a", MIDNIGHT, {"t": last}))
    group.pass_time()
    group.pass_time()
    group.watermark(MIDNIGHT + 25 * HOUR)
    assert [group.row(tier, "a", MIDNIGHT) for tier in group.schema.tiers] == [(1, last), (1, last)]
    assert bool(group.listed) == (minutes == 1)


def test_a_second_value_that_a_restart_finds():
    """The hour counts as much as before, and the day follows: it was written with the hour's earlier row."""
    group = Group(parse_schema(TIERS), MIDNIGHT + HOUR)
    readings = [(0, 1.0), (60, 1.0), (61, 2.0), (62, 8.0)]
    group.receive(*(event("a", MIDNIGHT + minute * MINUTE, {"t": value}) for minute, value in readings))
    group = restarted(group)
    for minute, value in ((1, 1.0), (61, 4.0)):
        group.receive(event("a", MIDNIGHT + minute * MINUTE, {"t": value}))
        group.pass_time()
    group.watermark(MIDNIGHT + 2 * HOUR)
    hours, days = group.schema.tiers
    assert (group.row(hours, "a", MIDNIGHT + HOUR), group.row(days, "a", MIDNIGHT)) == ((3, 13), (5, 15))


def test_two_values_of_the_newest_reading():
    """The row of newest readings has the last one too, although both came at once."""
    group = Group(parse_schema(f'latest = "latest"\n{TIERS}'), MIDNIGHT + HOUR)
    group.receive(*(event("a", MIDNIGHT, {"t": value}) for value in (1.0, 5.0, 3.0)))
    group.pass_time()
    (newest,) = (row for row in group.written if row.key == b"latest#a")
    assert [cell.value for cell in newest.cells] == [b"3"]
    assert group.row(group.schema.tiers[0], "a", MIDNIGHT) == (1, 3.0)


def test_a_month_follows_when_its_day_is_over():
    """The job writes it then, with what its sensor sent in the morning and nothing since."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n1mo = "months"')
    group = Group(schema, MIDNIGHT + HOUR, early_us=20 * MINUTE)
    _, days, months = schema.tiers
    month_us = months.window.start_of(MIDNIGHT)
    for minute in (1, 30):  # the month follows the first firing
        group.receive(event("a", MIDNIGHT + minute * MINUTE, {"t": 1.0}))
        group.pass_time(20 * MINUTE)
    group.watermark(MIDNIGHT + HOUR)
    assert [group.row(tier, "a", start) for tier, start in ((days, MIDNIGHT), (months, month_us))] == [(2, 2), (1, 1)]
    group.watermark(MIDNIGHT + DAY)
    assert group.row(months, "a", month_us) == (2, 2)
    group.watermark(MIDNIGHT + DAY + LATENESS)
    assert not group.chunks


def test_a_day_that_got_late_readings_alone():
    """Its last result comes when it is over, and so does the last pane of a job without early ones."""
    schema = parse_schema(TIERS)
    days = schema.tiers[1]
    group = Group(schema, MIDNIGHT + 2 * HOUR, early_us=0, results=ResultRules(0, early=False))
    group.receive(event("b", MIDNIGHT, {"t": 1.0}))
    group.watermark(MIDNIGHT + 2 * HOUR)
    group.receive(event("a", MIDNIGHT + MINUTE, {"t": 1.0}))  # its hour is closed
    group.pass_time()
    assert group.row(days, "a", MIDNIGHT) is None
    group.now_us = MIDNIGHT + DAY + HOUR
    group.watermark(MIDNIGHT + DAY)
    assert group.row(days, "a", MIDNIGHT) == (1, 1)
    told = [(each.sensor_id, each.tier) for each in group.published]
    assert told.count(("a", "1d")) == told.count(("b", "1d")) == 1
    assert not group.listed


def test_a_month_follows_in_progress():
    """The month and the day follow even if nothing more comes."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n1mo = "months"')
    group = Group(schema, MIDNIGHT + 40 * MINUTE, early_us=5 * MINUTE)
    _, days, months = schema.tiers
    for minute in (1, 2):
        group.receive(event("a", MIDNIGHT + minute * MINUTE, {"t": 1.0}))
        group.pass_time(5 * MINUTE)
    assert group.row(days, "a", MIDNIGHT) == (1, 1)
    group.pass_time(50 * MINUTE)
    assert [group.row(tier, "a", tier.window.start_of(MIDNIGHT)) for tier in (days, months)] == [(2, 2)] * 2
    assert not group.read_schedule().lags


@pytest.mark.parametrize("ends", ["over", "drained"])
@pytest.mark.parametrize("early_us", [0, 5 * MINUTE])
def test_an_hour_of_minutes(early_us, ends):
    """It reads sixty rows, so it follows every quarter of it and when it is over, not with each minute."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1m = "minutes"\n1h = "hours"\n1d = "days"')
    _, hours, days = schema.tiers
    group, behind = Group(schema, MIDNIGHT, early_us=early_us), []
    for minute in range(57):
        group.receive(event("a", MIDNIGHT + minute * MINUTE, {"t": 1.0}))
        group.pass_time_to(MIDNIGHT + (minute + 1) * MINUTE)
        if early_us and minute > 17:
            behind.append(minute - group.row(hours, "a", MIDNIGHT)[0])
    assert max(behind, default=0) <= 17
    of_hours = sum(row.cells[0].family == "hours" for row in group.written)
    assert of_hours == 0 if not early_us else 4 <= of_hours <= 5
    if ends == "over":
        group.pass_time_to(MIDNIGHT + HOUR + MINUTE)
        assert group.row(hours, "a", MIDNIGHT) == (57, 57)
        group.pass_time_to(MIDNIGHT + DAY + LATENESS)
    else:
        group.watermark(END_US)
    assert [group.row(tier, "a", MIDNIGHT) for tier in (hours, days)] == [(57, 57)] * 2


def test_a_late_minute_reaches_its_hour():
    """In progress, the hour follows within a quarter of an hour; over, at once."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1m = "minutes"\n1h = "hours"')
    group = Group(schema, MIDNIGHT, early_us=5 * MINUTE)
    for minute, wait in ((0, 0), (1, 16), (90, 2)):
        group.pass_time_to(MIDNIGHT + (minute + 20) * MINUTE)
        group.receive(event("a", MIDNIGHT + minute % 60 * MINUTE, {"t": 1.0}))
        group.pass_time_to(group.now_us + wait * MINUTE)
    assert group.row(schema.tiers[1], "a", MIDNIGHT) == (3, 3)


def test_a_late_minute_of_a_new_job():
    """Its hour follows soon, at a time of the clock, though no open window has fired yet."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1m = "minutes"\n1h = "hours"')
    group = Group(schema, MIDNIGHT + 30 * MINUTE, before_us=MIDNIGHT + DAY)
    group.watermark(MIDNIGHT + 30 * MINUTE)
    group.receive(event("a", MIDNIGHT, {"t": 1.0}))
    group.pass_time()
    assert group.read_schedule().clock_us == group.now_us
    group.pass_time()
    assert group.row(schema.tiers[1], "a", MIDNIGHT) == (1, 1)


def test_a_week_whose_days_are_gone():
    """Its row stays as it was, and is listed when the week is over, not with each of its panes."""
    schema = parse_schema(
        '[policies]\nraw = "maxage=1h"\nmeta = "maxage=1h"\ndays = "maxage=2d"\nweeks = "never"\n'
        '[tiers]\n1d = "days"\n1w = "weeks"'
    )
    days, weeks = schema.tiers
    monday = weeks.window.start_of(MIDNIGHT)
    group = Group(schema, monday, early_us=5 * MINUTE)
    for day in range(7):
        group.pass_time_to(monday + day * DAY + HOUR)
        group.receive(event("a", group.now_us, {"t": 1.0}))
        for key in [key for key in group.table._keys if key.startswith(b"agg#daily")]:
            if parse_aggregate_key(days.window, key).start_us < group.now_us - 2 * DAY:
                group.table._cells[key].clear()
    group.pass_time_to(monday + 6 * DAY + 23 * HOUR)
    counted, _ = group.row(weeks, "a", monday)
    assert not group.listed
    group.pass_time_to(monday + 7 * DAY + LATENESS + MINUTE)
    assert group.row(weeks, "a", monday)[0] == counted < 7
    assert set(group.listed) == {("a", monday)}


def test_a_day_of_an_hour_that_was_collected():
    """It can't be computed when it is over, and is listed."""
    schema = parse_schema(
        '[policies]\nraw = "maxage=3d"\nhours = "maxage=3d"\ndays = "never"\n' + TIERS[TIERS.index("[t") :]
    )
    group = Group(schema, MIDNIGHT, early_us=0)
    group.receive(event("a", MIDNIGHT - 8 * DAY, {"t": 1.0}))
    group.watermark(MIDNIGHT - 8 * DAY + HOUR)
    group.table._cells.clear()
    group.table._keys.clear()
    group.watermark(MIDNIGHT)
    assert group.listed == [("a", MIDNIGHT - 8 * DAY)]
