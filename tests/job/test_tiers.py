"""Longer windows on a scripted stream: the day's panes while its hours arrive, change and are late."""

from pipeline.core.events.wire import sensor_event
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.streams import HOUR, MINUTE, NOON, Script, event_at, key_at

HOURS_AND_DAYS = parse_schema('[tiers]\n1h = "hours"\n1d = "days"')
THREE_TIERS = parse_schema('[tiers]\n15m = "quarters"\n1h = "hours"\n1d = "days"')
MIDNIGHT = -12 * HOUR  # of the day before and the day of noon

NOON_ROW, ONE_ROW = "agg#hourly#a#2026-02-17T12", "agg#hourly#a#2026-02-17T13"
LAST_ROW = "agg#hourly#a#2026-02-16T23"
DAY_ROW, YESTERDAY_ROW = "agg#daily#a#2026-02-17", "agg#daily#a#2026-02-16"


def test_a_day_of_its_hours():
    """A day's on-time pane is the sum of its hours; other days and sensors have their own rows."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(HOUR, 2.0), event_at(HOUR + 1, 4.0), event_at(0, 8.0, "b"))
        .arrive(event_at(MIDNIGHT - 0.000_001, 16.0), event_at(MIDNIGHT, 32.0))
        .run(
            schemas={"t": HOURS_AND_DAYS},
            aggregates=[
                (LAST_ROW, "1", "16"),
                ("agg#hourly#a#2026-02-17T00", "1", "32"),
                (NOON_ROW, "1", "1"),
                ("agg#hourly#b#2026-02-17T12", "1", "8"),
                (ONE_ROW, "2", "6"),
                (YESTERDAY_ROW, "1", "16"),
                (DAY_ROW, "4", "39"),
                ("agg#daily#b#2026-02-17", "1", "8"),
            ],
        )
    )


def test_panes_replace_previous_ones():
    """Panes of an hour repeat their events, but each pane of the day contains every event once."""
    (
        Script()
        .arrive(event_at(0, 1.0))
        .pass_time(61)
        .arrive(event_at(1, 2.0))
        .pass_time(61)
        .watermark(HOUR)
        .arrive(event_at(HOUR, 4.0), event_at(2, 8.0))
        .pass_time(61)
        .watermark(-MIDNIGHT)
        .arrive(event_at(3, 16.0))
        .arrive(event_at(HOUR + 1, 32.0))
        .run(
            schemas={"t": HOURS_AND_DAYS},
            early_firing="60s",
            allowed_lateness="1d",
            aggregates=[
                (NOON_ROW, "1", "1"),  # early, each with the day's
                (DAY_ROW, "1", "1"),
                (NOON_ROW, "2", "3"),
                (DAY_ROW, "2", "3"),
                (NOON_ROW, "3", "11"),  # late, while the day is open
                (DAY_ROW, "3", "11"),
                (ONE_ROW, "1", "4"),  # early
                (DAY_ROW, "4", "15"),
                (NOON_ROW, "4", "27"),  # late, as all that follow
                (DAY_ROW, "5", "31"),
                (ONE_ROW, "2", "36"),
                (DAY_ROW, "6", "63"),
            ],
        )
    )


def test_late_in_the_last_hour_of_a_day():
    """An event late by the whole allowed lateness reaches both its day and the last hour of the day."""
    (
        Script()
        .arrive(event_at(MIDNIGHT - 2 * HOUR, 1.0), event_at(MIDNIGHT - HOUR, 2.0))
        .watermark(MIDNIGHT + 2 * HOUR - 1)
        .arrive(event_at(MIDNIGHT - 0.000_001, 4.0))
        .watermark(MIDNIGHT + 2 * HOUR)
        .run(
            schemas={"t": HOURS_AND_DAYS},
            allowed_lateness="2h",
            aggregates=[
                ("agg#hourly#a#2026-02-16T22", "1", "1"),
                (LAST_ROW, "1", "2"),
                (YESTERDAY_ROW, "2", "3"),
                (LAST_ROW, "2", "6"),
                (YESTERDAY_ROW, "3", "7"),
            ],
        )
    )


def test_no_lateness_at_all():
    """Without allowed lateness the last hour's pane still reaches its day, however far the watermark jumps."""
    (
        Script()
        .arrive(event_at(MIDNIGHT - 2 * HOUR, 1.0), event_at(MIDNIGHT - 1, 2.0))
        .watermark(HOUR)
        .run(
            schemas={"t": HOURS_AND_DAYS},
            allowed_lateness="0",
            aggregates=[("agg#hourly#a#2026-02-16T22", "1", "1"), (LAST_ROW, "1", "2"), (YESTERDAY_ROW, "2", "3")],
        )
    )


def test_three_tiers():
    """A day of hours of quarters contains each event once, late ones too."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(20 * MINUTE, 2.0))
        .watermark(-MIDNIGHT)
        .arrive(event_at(1, 4.0))
        .run(
            schemas={"t": THREE_TIERS},
            allowed_lateness="1d",
            aggregates=[
                ("agg#15m#a#2026-02-17T12:00:00", "1", "1"),
                ("agg#15m#a#2026-02-17T12:15:00", "1", "2"),
                (NOON_ROW, "2", "3"),
                (DAY_ROW, "2", "3"),
                ("agg#15m#a#2026-02-17T12:00:00", "2", "5"),
                (NOON_ROW, "3", "7"),
                (DAY_ROW, "3", "7"),
            ],
        )
    )


def test_no_tiers():
    """A table without tiers gets raw rows only."""
    Script().arrive(event_at(0)).run(schemas={"t": parse_schema("[tiers]")}, raw=[key_at(0)], aggregates=[])


def test_several_tables():
    """Each event is in every table by the table's schema, and each tier has its own aggregates."""
    tall = parse_schema('layout = "tall"\nkey = "{metric}#{sensor_id}#{reverse_us}"\n[tiers]\n15m = "s"\n1d = "days"')
    event = sensor_event("a", NOON * 1_000_000, {"t": 1.0, "u": 2.0}, {})
    reverse = key_at(0).partition("#")[2]
    (
        Script()
        .arrive(event, event_at(20 * MINUTE, 4.0))
        .run(
            schemas={"one": TableSchema.default(), "other": tall},
            raw=[f"one: {key_at(0)}", f"one: {key_at(20 * MINUTE)}"]
            + [f"other: {metric}#a#{reverse}" for metric in "tu"]
            + [f"other: t#{key_at(20 * MINUTE)}"],
            aggregates=[
                (f"one: {NOON_ROW}", "2", "5"),
                ("other: agg#15m#a#2026-02-17T12:00:00", "1", "1"),
                ("other: agg#15m#a#2026-02-17T12:15:00", "1", "4"),
                (f"other: {DAY_ROW}", "2", "5"),
            ],
        )
    )


def test_an_event_invalid_for_one_table_is_in_none():
    """An event without a value for one table's keys is a dead letter, and in no table's aggregates."""
    by_place = parse_schema('key = "{metadata.place}#{sensor_id}#{reverse_us}"')
    north = sensor_event("a", NOON * 1_000_000, {"t": 1.0}, {"place": "north"})
    (
        Script()
        .arrive(north, event_at(1, 2.0), sensor_event("a", (NOON + 2) * 1_000_000, {"t": 4.0}, {"place": "no#rth"}))
        .run(
            schemas={"one": TableSchema.default(), "other": by_place},
            raw=[f"one: {key_at(0)}", f"other: north#{key_at(0)}"],
            aggregates=[(f"one: {NOON_ROW}", "1", "1"), (f"other: {NOON_ROW}", "1", "1")],
            dead_letters=["MISSING_KEY_FIELD", "INVALID_KEY_FIELD"],
        )
    )


def test_days_and_months_of_a_time_zone():
    """A day of New York, which is late by the clock of UTC, fires at its own end; a late event corrects its month."""
    schema = parse_schema('[tiers]\n30m = "halves"\n"1d@America/New_York" = "days"\n"1mo@Asia/Kolkata" = "months"')
    first, second = "agg#30m#a#2026-02-17T04:30:00", "agg#30m#a#2026-02-17T05:00:00"  # midnight is at 5 in UTC
    days = [f"agg#daily@America/New_York#a#2026-02-{day}" for day in (16, 17)]
    month = "agg#monthly@Asia/Kolkata#a#2026-02"
    (
        Script()
        .arrive(event_at(-7 * HOUR - 1, 1.0), event_at(-7 * HOUR, 2.0))
        .watermark(-7 * HOUR - 1)
        .watermark(-7 * HOUR)
        .arrive(event_at(-7 * HOUR - 2, 4.0))
        .run(
            schemas={"t": schema},
            allowed_lateness="1d",
            aggregates=[
                (first, "1", "1"),
                (days[0], "1", "1"),
                (first, "2", "5"),  # late
                (days[0], "2", "5"),
                (second, "1", "2"),
                (days[1], "1", "2"),
                (month, "3", "7"),
            ],
        )
    )
