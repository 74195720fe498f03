"""The same readings arrive repeatedly, in the same messages and in others."""

import random

from tests.faults.feed import Feed, batches, fleet_messages
from tests.job.running import running_job


def test_redelivered_and_regrouped(resources, log):
    """Three messages of ten are sent two to five times, and their events in other batches too: each counts once."""
    rng = random.Random(1)
    messages = fleet_messages()
    again = rng.sample(messages, len(messages) * 3 // 10)
    copies = [one for one in again for _ in range(rng.randint(1, 4))]
    events = [event for one in again for event in one.events]
    rng.shuffle(events)
    published = [*messages, *copies, *batches(events, 7)]
    rng.shuffle(published)
    feed = Feed(resources)
    feed.publish(published[: len(published) // 2])
    with running_job(resources.flags(), log) as job:
        feed.wait_read()
        feed.publish(published[len(published) // 2 :])
        feed.wait_read()
        feed.wait_counted()
        assert job.stop() == 0
    assert job.counters()["messages"] == feed.messages
    feed.assert_exact()
