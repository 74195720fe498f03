"""Several tables and longer windows on a scripted stream."""

from pipeline.core.events.message import sensor_event
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.streams import HOUR, MINUTE, NOON, Script, event_at, key_at

THREE_TIERS = parse_schema('[tiers]\n15m = "quarters"\n1h = "hours"\n1d = "days"')
MIDNIGHT = -12 * HOUR  # of the day before and the day of noon

NOON_ROW, DAY_ROW = "agg#hourly#a#2026-02-17T12", "agg#daily#a#2026-02-17"


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
