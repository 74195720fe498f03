"""Events out of order, far too late, or from sensors with wrong clocks."""

import random

from tests.faults import judge
from tests.faults.feed import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    Feed,
    batches,
    fleet_messages,
    now_us,
    repair,
    series,
)
from tests.faults.judge import work_list
from tests.job.running import running_job


def test_shuffled_and_wrong_clocks(resources, log):
    """Shuffled events, a clock 50 minutes ahead and one that jumps back are aggregated exactly, without a repair."""
    hour = series("shuffled", now_us() // HOUR_US * HOUR_US - HOUR_US, 360, 10 * SECOND_US)
    random.Random(1).shuffle(hour)
    ahead = series("ahead", now_us() - HOUR_US + 50 * MINUTE_US, 60)
    start_us = now_us() - 3 * HOUR_US
    # It jumps back by hours and by about a millisecond, into times that it has already measured.
    jumping = [
        *series("jumping", start_us, 120),
        *series("jumping", start_us + 7 * SECOND_US, 100),
        *series("jumping", start_us + 7 * SECOND_US - 1, 100),
    ]
    feed = Feed(resources)
    with running_job(resources.flags(), log) as job:
        for part in range(4):
            for events in (hour, ahead, jumping):
                quarter = len(events) // 4
                feed.publish(batches(events[part * quarter : (part + 1) * quarter], 1 if events is hour else 10))
            feed.wait_counted()
        assert job.stop() == 0
    assert len(judge.distinct(feed.events)) == 360 + 60 + 320
    feed.assert_exact()


def test_two_days_late(resources, log):
    """Beyond the allowed lateness, raw rows are written and windows are listed; a repair makes them exact."""
    late = series("late", now_us() - 2 * DAY_US, 90)
    feed = Feed(resources)
    feed.publish(fleet_messages(hours=2))
    feed.publish(batches(late, 10))
    with running_job(resources.flags(allowed_lateness="1d"), log) as job:
        feed.wait_read()
        feed.wait_counted(but=late)
        assert job.stop() == 0
    listed = {f"repair#hourly#late#{judge.hour(event)}" for event in late}
    assert work_list(resources.table) == listed
    windows = {judge.window_key(event) for event in late}
    assert not windows & judge.counts(resources.table).keys()
    assert {line.split(" ")[0] for line in judge.differences(resources.table, feed.events)} == windows

    assert repair(resources, "--dry-run").returncode == 1
    assert work_list(resources.table) == listed
    done = repair(resources)
    assert done.returncode == 0, done.stderr
    assert work_list(resources.table) == set()
    feed.assert_exact()
    assert repair(resources, "--dry-run").returncode == 0
