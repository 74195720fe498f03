"""A job continues after another: earlier events still count, and none counts twice."""

import time
from itertools import count
from unittest import mock

import pytest

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.schema.toml import parse_schema
from pipeline.local.proof import Expectation
from pipeline.transforms.tables import TableReadingFn
from tests.job.running import running_job
from tests.support.streams import HOUR, Script, event_at
from tests.support.waiting import eventually

HOUR_US = 3_600_000_000
NOON_KEY = "agg#hourly#a#2026-02-17T12"


def in_one_hour(events, sensors=3):
    """Returns events in the hour before the last one, of several sensors."""
    start_us = (time.time_ns() // 1000 // HOUR_US - 2) * HOUR_US
    return [sensor_event(f"s{i % sensors}", start_us + i * 7_000_001, {"t": i / 3}, {}) for i in range(events)]


def run_through(resources, log, expectation, **changes):
    """Runs a job until the table is as expected, drains it, and returns its counters."""
    with running_job(resources.flags(**changes), log) as job:
        eventually(lambda: list(expectation.differences(aggregates_and_raw(resources))) == [])
        assert job.stop() == 0
    return job.counters()


def published(events):
    return Expectation(events, newest=True)


def aggregates_and_raw(resources):
    return {key: row for key, row in resources.rows().items() if not key.startswith("repair#")}


def messages_of(events, size=10):
    return [message_of(events[i : i + size]) for i in range(0, len(events), size)]


def test_drained_in_mid_hour(resources, tmp_path):
    """After a drain in mid-hour, the next job completes the hour with the first event that it sees of it."""
    events = in_one_hour(120)
    resources.publish(messages_of(events[:70]))
    run_through(resources, tmp_path / "first", published(events[:70]))
    resources.publish(messages_of(events[70:]))
    counters = run_through(resources, tmp_path / "second", published(events))
    assert counters["windows_recalled"] == 3
    assert "windows_unsure" not in counters
    assert list(published(events).differences(resources.rows())) == []


def test_killed_with_redelivery(resources, tmp_path):
    """Events redelivered after a crash are recognized by their raw rows, whether an aggregate counts them or not."""
    events = in_one_hour(120)
    resources.publish(messages_of(events[:70]))
    flags = resources.flags(late_firing="1h")  # the second job never fires the panes of these events
    with running_job(resources.flags(), tmp_path / "first") as job:
        eventually(lambda: list(published(events[:70]).differences(resources.rows())) == [])
        job.process.kill()
    resources.publish(messages_of(events[70:90]))
    with running_job(flags, tmp_path / "second") as job:
        eventually(lambda: raw_rows(resources) >= 90)
        job.process.kill()
    resources.publish(messages_of(events[20:], size=7))
    run_through(resources, tmp_path / "third", published(events))
    assert list(published(events).differences(resources.rows())) == []


def raw_rows(resources):
    return sum(not key.startswith(("agg#", "repair#")) for key in resources.rows())


def test_two_values_for_one_reading(resources, tmp_path):
    """The aggregate counts the value that came last, as the raw cell does: the window is computed from raw rows."""
    (one,) = in_one_hour(1)
    other = sensor_event(one.sensor_id, one.event_time.ToMicroseconds(), {"t": 7.0}, {})
    key = f"agg#hourly#s0#{time.strftime('%Y-%m-%dT%H', time.gmtime(one.event_time.seconds))}"
    with running_job(resources.flags(), tmp_path / "log") as job:
        for event, value in ((one, "0"), (other, "7")):
            resources.publish([message_of([event])])
            eventually(lambda value=value: raw_values(resources) == {value})
        assert job.stop() == 0
    rows = resources.rows()
    assert (rows[key]["stats:reading_count"], rows[key]["stats:sum_t"]) == ("1", "7")


def raw_values(resources):
    return {row["raw:t"] for key, row in resources.rows().items() if not key.startswith(("agg#", "latest#", "repair#"))}


DAYS = '[tiers]\n15m = "quarters"\n1h = "hours"\n1d = "days"\n'


@pytest.mark.parametrize("key", ["{sensor_id}#{reverse_us}", "{metadata.place}#{sensor_id}#{iso_us}"])
def test_longer_windows(resources, tmp_path, key):
    """After a restart a day is still complete, with hours that the new job does not see."""
    name = resources.table_of(parse_schema(f'key = "{key}"\n{DAYS}'))
    start_us = (time.time_ns() // 1000 // (24 * HOUR_US) - 2) * 24 * HOUR_US
    events = [sensor_event("s", start_us + i * 613_000_001, {"t": 1.0}, {"place": "north"}) for i in range(60)]
    day = f"agg#daily#s#{time.strftime('%Y-%m-%d', time.gmtime(start_us / 1_000_000))}"

    def counted(label, family):
        rows = resources.rows(name).items()
        return sum(int(row[f"{family}:count_t"]) for key, row in rows if key.startswith(f"agg#{label}#"))

    for run, part in enumerate((events[::2], events[1::2]), start=1):
        resources.publish(messages_of(part))
        flags = resources.flags(bigtable_table=name.table, allowed_lateness="5d")
        with running_job(flags, tmp_path / f"log-{run}") as job:
            expected = run * 30
            # A day is restored from raw rows, so it may count events before their quarters do.
            for tier in (("daily", "days"), ("15m", "quarters"), ("hourly", "hours")):
                eventually(lambda tier=tier, expected=expected: counted(*tier) == expected)
            assert job.stop() == 0
    assert resources.rows(name)[day]["days:sum_t"] == "60"


def test_windows_that_began_after_the_job():
    """Such windows are not restored, unless they were over long ago: of the table, the work list alone is read."""

    def read(_, selection):
        assert all(each.start.startswith(b"repair#") for each in selection.ranges)
        return iter(())

    with mock.patch.object(TableReadingFn, "_read", read):
        Script().arrive(event_at(10, 1.0), event_at(20, 2.0), event_at(20, 2.0)).watermark(HOUR).run(
            aggregates=[(NOON_KEY, "2", "3")], began=-HOUR - 1, allowed_lateness="5h"
        )


def test_windows_are_restored_once(resources, tmp_path):
    """The table is read once per window, however many events and bundles arrive."""
    events = in_one_hour(40, sensors=2)
    with running_job(resources.flags(), tmp_path / "log") as job:
        for i, part in zip(count(1), (events[:10], events[10:25], events[25:]), strict=False):
            resources.publish(messages_of(part))
            seen = published(events[: (10, 25, 40)[i - 1]])
            eventually(lambda seen=seen: list(seen.differences(resources.rows())) == [])
        assert job.stop() == 0
    assert job.counters()["windows_recalled"] == 2
