"""Two jobs run where there should be one."""

from tests.faults.feed import Feed, fleet_messages, repair
from tests.job.running import running_job
from tests.support.waiting import eventually


def test_same_subscription_and_table(resources, log, tmp_path):
    """Each job gets a part of the messages and does not see the other's; a repair makes the table exact."""
    feed = Feed(resources)
    with (
        running_job(resources.flags(), log) as one,
        running_job(resources.flags(), tmp_path / "other.log") as other,
    ):
        for seed in range(8):
            feed.publish(fleet_messages(hours=4, batch=3, seed=seed))
        raw_keys = {f"{event.sensor_id}#{10**16 - 1 - event.event_time.ToMicroseconds()}" for event in feed.events}
        eventually(lambda: resources.raw_keys() >= raw_keys, 90)
        assert (one.stop(), other.stop()) == (0, 0)
    shares = [job.counters().get("messages", 0) for job in (one, other)]
    assert min(shares) > 0
    assert sum(shares) == feed.messages
    done = repair(resources, "--force")  # including the hour in progress, which no job writes now
    assert done.returncode == 0, done.stderr
    feed.assert_exact()
