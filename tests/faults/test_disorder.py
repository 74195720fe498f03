"""Events out of order, far too late, from sensors with wrong clocks, or repeated in the same and in other messages."""

import random

from tests.faults import judge
from tests.faults.feed import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    batches,
    fleet_messages,
    now_us,
    repair,
    series,
)
from tests.faults.judge import work_list
from tests.job.running import running_job


def test_shuffled_and_wrong_clocks(resources, log, feed):
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
    with running_job(resources.flags(), log) as job:
        for part in range(4):
            for events in (hour, ahead, jumping):
                quarter = len(events) // 4
                feed.publish(batches(events[part * quarter : (part + 1) * quarter], 1 if events is hour else 10))
            feed.wait_counted()
        assert job.stop() == 0
    assert len(judge.distinct(feed.events)) == 360 + 60 + 320
    feed.assert_exact()


def test_two_days_late(resources, log, feed):
    """Beyond the allowed lateness, the job computes windows anew from their raw rows: no repair is needed."""
    late = series("late", now_us() - 2 * DAY_US, 90)
    with running_job(resources.flags(allowed_lateness="10m"), log) as job:
        for part in (late[::3], late[1::3], late[2::3]):
            feed.publish(fleet_messages(hours=2, seed=len(feed.events)))
            feed.publish(batches(part, 10))
            feed.wait_counted()
        assert job.stop() == 0
    assert work_list(resources.table) == set()
    feed.assert_exact()
    assert repair(resources, "--dry-run").returncode == 0
    counters = job.counters()
    assert counters["windows_recomputed"] >= 2
    assert counters["late_events"] >= len(late) * 2 // 3


def test_redelivered_and_regrouped(resources, log, feed):
    """Three messages of ten are sent two to five times, and their events in other batches too: each counts once."""
    rng = random.Random(1)
    messages = fleet_messages()
    again = rng.sample(messages, len(messages) * 3 // 10)
    copies = [one for one in again for _ in range(rng.randint(1, 4))]
    events = [event for one in again for event in one.events]
    rng.shuffle(events)
    published = [*messages, *copies, *batches(events, 7)]
    rng.shuffle(published)
    feed.publish(published[: len(published) // 2])
    with running_job(resources.flags(), log) as job:
        feed.wait_read()
        feed.publish(published[len(published) // 2 :])
        feed.wait_read()
        feed.wait_counted()
        assert job.stop() == 0
    assert job.counters()["messages"] == feed.messages
    feed.assert_exact()
