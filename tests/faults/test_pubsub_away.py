"""Pub/Sub is unreachable for a while."""

import time

import pytest

from pipeline.local.emulators import PUBSUB
from tests.faults.feed import fleet_messages
from tests.faults.tcp_proxy import TcpProxy
from tests.job.running import running_job
from tests.support.waiting import eventually


@pytest.mark.parametrize(("fault", "seconds"), [("cut", 5), ("hold", 20)], ids=["refuses 5 s", "hangs 20 s"])
def test_away_and_back(resources, pubsub, log, fault, seconds, feed):
    """Events from before, during and after the outage are all written, each once."""
    before, meanwhile, after = (fleet_messages(hours=2, seed=seed) for seed in range(3))
    with TcpProxy(pubsub) as line, running_job(resources.flags(), log, {PUBSUB.variable: line.address}) as job:
        feed.publish(before)
        feed.wait_counted()
        getattr(line, fault)()
        feed.publish(meanwhile)
        time.sleep(seconds)  # the length of the outage
        line.heal()
        feed.publish(after)
        feed.wait_counted(90)
        assert job.stop() == 0
    feed.assert_exact()


def test_away_in_full_flow(resources, pubsub, log, feed):
    """Two outages during reading and publishing lose nothing; a dead letter may be published twice."""
    with TcpProxy(pubsub) as line, running_job(resources.flags(), log, {PUBSUB.variable: line.address}) as job:
        for seed in range(2):
            read = len(resources.raw_keys())
            feed.publish(fleet_messages(hours=2, sensors=60, batch=1, seed=seed, malformed=0.1))
            eventually(lambda read=read: len(resources.raw_keys()) > read)
            line.cut()
            assert len(resources.raw_keys()) < len(feed.events)
            time.sleep(3)  # the length of the outage
            line.heal()
            feed.wait_counted(90)
        assert job.stop() == 0
    feed.assert_exact(letters_once=False)


def test_a_stop_while_away(resources, pubsub, log, feed):
    """A stop during an outage succeeds: everything that was acknowledged is in the table."""
    with TcpProxy(pubsub) as line, running_job(resources.flags(), log, {PUBSUB.variable: line.address}) as job:
        feed.publish(fleet_messages(hours=2))
        feed.wait_counted()
        line.cut()
        time.sleep(2)  # the outage so far
        assert job.stop() == 0
    feed.assert_exact()
