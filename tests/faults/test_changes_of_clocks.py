"""Days and weeks of time zones around changes of clocks, through a job that is killed."""

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.schema.toml import parse_schema
from tests.faults import judge
from tests.job.running import running_job
from tests.support import courses
from tests.support.courses import course_of, expected_of
from tests.support.lasting import lasting
from tests.support.waiting import eventually

BERLIN, LORD_HOWE = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")  # the second changes by half an hour
SCHEMA = """
[policies]
raw = "never"

[tiers]
30m = "halves"
"1d@Europe/Berlin" = "berlin"
"1w@Europe/Berlin" = "weeks"
"1d@Australia/Lord_Howe" = "howe"

[statistics]
t = ["increase", "time_weighted_mean"]
"""
CHANGES = ("2025-03-30T01:00", "2025-10-26T01:00", "2025-04-05T15:00", "2025-10-04T15:30")  # of both zones, in UTC


def test_killed_between_changes_of_clocks(resources, tmp_path):
    """Readings of days of 23, 23.5, 24.5 and 25 hours come in any order, to two jobs. Every row is exact."""
    schema = lasting(parse_schema(SCHEMA))
    resources.table = resources.table_of(schema)
    given, expected, hours = readings(), {}, set()
    for time_us in given:
        for window, (start, end) in windows_of(time_us).items():
            start_us, end_us = microseconds(start), microseconds(end)
            before, inside = course_of(given, "t", start_us, end_us)
            expected[window, start_us] = len(inside), expected_of(before, inside, start_us, end_us)
            hours.add((end_us - start_us) / 3.6e9)
    assert hours >= {23, 23.5, 24, 24.5, 25, 7 * 24 - 1, 7 * 24 + 1}
    messages = [message_of([sensor_event("a", time_us, of_event, {})]) for time_us, of_event in given.items()]
    random.Random(5).shuffle(messages)
    half = len(messages) // 2
    resources.publish(messages[:half])
    with running_job(resources.flags(), tmp_path / "first.log") as job:
        eventually(lambda: courses.stored(resources.table, schema))
        job.process.kill()
    resources.publish(messages)  # also those that the first job has written
    with running_job(resources.flags(), tmp_path / "second.log") as job:
        eventually(lambda: counts(resources.table, schema) == {key: count for key, (count, _) in expected.items()}, 90)
        assert job.stop() == 0
    assert judge.work_list(resources.table) == set()
    for key, record in courses.stored(resources.table, schema).items():
        _, statistics = expected[key]
        found = record.metrics["t"].statistics()
        assert found["increase"] == statistics["increase"], key
        assert found["time_weighted_mean"] == pytest.approx(statistics["locf"], rel=1e-9), key


def readings():
    """Returns readings from 27 hours before each change until 27 hours after it, by their time."""
    rng = random.Random(4)
    instants = [
        datetime.fromisoformat(change).replace(tzinfo=UTC) + timedelta(minutes=97 * n)
        for change in CHANGES
        for n in range(-17, 18)
    ]
    return {microseconds(instant): {"t": float(rng.randrange(100))} for instant in instants}


def windows_of(time_us):
    """Returns the start and the end of each tier's window that contains an instant, by the clocks of its zone."""
    instant = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    half_hour = instant.replace(minute=instant.minute // 30 * 30)
    found = {"30m": (half_hour, half_hour + timedelta(minutes=30))}
    for zone in (BERLIN, LORD_HOWE):
        midnight = datetime.combine(instant.astimezone(zone), datetime.min.time(), zone)
        found[f"1d@{zone.key}"] = midnight, midnight + timedelta(days=1)
        if zone is BERLIN:
            monday = midnight - timedelta(days=midnight.weekday())
            found["1w@Europe/Berlin"] = monday, monday + timedelta(days=7)
    return found


def counts(table, schema):
    return {key: record.reading_count for key, record in courses.stored(table, schema).items()}


def microseconds(instant):
    return round(instant.timestamp()) * 1_000_000
