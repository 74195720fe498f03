"""Events that come long after their windows are closed, while servers or the job itself fail."""

import threading
import time
from collections import Counter

import pytest

from pipeline.core.events.message import message_of
from pipeline.core.schema.toml import parse_schema
from pipeline.local.emulators import BIGTABLE
from tests.faults import judge
from tests.faults.bigtable_proxy import BigtableProxy, MutationsAction, ReadAction
from tests.faults.feed import DAY_US, HOUR_US, MINUTE_US, SECOND_US, batches, fleet_messages, now_us, series
from tests.faults.tcp_proxy import TcpProxy
from tests.job.running import running_job
from tests.support.lasting import lasting
from tests.support.waiting import eventually

HOURS_AND_DAYS = lasting(parse_schema('[tiers]\n1h = "hours"\n1d = "days"'))


def test_offline_for_three_days(resources, bigtable, log, feed):
    """Sensors that were offline send everything at once, others send on: every hour and day is exact, without a repair.

    How often the tables are read depends on the number of windows, not on that of late events.
    """
    days = resources.table_of(HOURS_AND_DAYS)
    start_us = now_us() // HOUR_US * HOUR_US - 3 * DAY_US
    offline = [
        series(sensor_id, start_us, 72 * per_hour, HOUR_US // per_hour)
        for sensor_id, per_hour in (("sparse", 4), ("dense", 120))
    ]
    online = series("online", now_us() - 5 * MINUTE_US, 300, SECOND_US)
    reads: Counter[str] = Counter()

    def count(request):
        ranges = b"".join(each.SerializeToString() for each in request.rows.row_ranges)
        reads.update(sensor_id for sensor_id in ("sparse", "dense") if f"{sensor_id}#".encode() in ranges)

    flags = resources.flags(bigtable_table=f"{resources.table.table},{days.table}", late_firing="20s")
    with BigtableProxy(bigtable) as proxy, running_job(flags, log, {BIGTABLE.variable: proxy.address}) as job:
        feed.publish(batches(online[:100], 10))
        feed.publish(batches([events[0] for events in offline], 2))  # the last that they sent
        feed.wait_counted()
        proxy.reads = count
        for events in offline:
            feed.publish(batches(events[1:], 100))
        feed.publish(batches(online[100:], 10))
        feed.wait_counted(120)
        assert job.stop() == 0  # before that, a day may lag behind an hour that is in progress
    assert counted_days(resources, days) == expected_days(feed.events)
    assert judge.work_list(resources.table) == judge.work_list(days) == set()
    feed.assert_exact()
    assert 0 < reads["dense"] < 2 * reads["sparse"]  # thirty times as many late events


def expected_days(events):
    """Returns the number of events of each day, by the key of its row."""
    return Counter(f"agg#daily#{each.sensor_id}#{judge.hour(each)[:10]}" for each in judge.distinct(events))


def counted_days(resources, table):
    rows = resources.rows(table).items()
    return {key: int(row["days:reading_count"]) for key, row in rows if key.startswith("agg#daily#")}


@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_killed_while_it_recomputes(resources, bigtable, tmp_path, feed, moment):
    """The job is killed while it reads the raw rows of late windows, or writes their rows; redelivery repairs it."""
    late = series("late", now_us() // HOUR_US * HOUR_US - 2 * DAY_US, 360)
    reached = threading.Event()

    def hold_read(request):
        reached.set()
        return ReadAction(delay_s=60)

    def hold_rows(entries):
        if not any(entry.row_key.startswith(b"agg#hourly#late#") for entry in entries):
            return None
        reached.set()
        return MutationsAction(answer_delay_s=60)

    with (
        BigtableProxy(bigtable) as proxy,
        running_job(resources.flags(), tmp_path / "first.log", {BIGTABLE.variable: proxy.address}) as job,
    ):
        feed.publish(batches(late[::2], 10))
        feed.wait_counted()
        if moment == "reading":
            proxy.reads = hold_read
        else:
            proxy.mutations = hold_rows
        feed.publish(batches(late[1::2], 10))
        assert reached.wait(60)
        job.process.kill()
    with running_job(resources.flags(), tmp_path / "second.log") as second:
        resources.publish(message_of(late[i : i + 10]) for i in range(0, len(late), 10))
        feed.publish(fleet_messages(hours=2))  # others send on
        feed.wait_counted(90)
        assert second.stop() == 0
    assert judge.work_list(resources.table) == set()
    feed.assert_exact()


@pytest.mark.parametrize(("fault", "seconds"), [("cut", 8), ("hold", 20)], ids=["refuses 8 s", "hangs 20 s"])
def test_bigtable_away_while_late_windows_wait(resources, bigtable, log, feed, fault, seconds):
    """Late readings wait in the job until their raw rows can be read."""
    late = series("late", now_us() // HOUR_US * HOUR_US - 2 * DAY_US, 360)
    with (
        TcpProxy(bigtable) as line,
        running_job(resources.flags(late_firing="5s"), log, {BIGTABLE.variable: line.address}) as job,
    ):
        feed.publish(batches(late[::2], 10))
        feed.wait_counted()
        feed.publish(batches(late[1::2], 10))
        eventually(lambda: all(judge.is_written(resources.table, event) for event in late[-3:]))
        getattr(line, fault)()
        time.sleep(seconds)  # the length of the outage, in which the panes of late windows are due
        line.heal()
        feed.publish(fleet_messages(hours=2))
        feed.wait_counted(100)
        assert job.stop() == 0
    assert job.counters()["windows_recomputed"] > 0
    assert judge.work_list(resources.table) == set()
    feed.assert_exact()
