"""Bigtable is unreachable, stalls, is slow, or refuses some requests; a worker fails in the middle of a bundle."""

import time

import pytest
from grpc import StatusCode

from pipeline.local.emulators import BIGTABLE
from tests.faults import judge
from tests.faults.bigtable_proxy import (
    BigtableProxy,
    ReadAction,
    breaking,
    failing,
    first,
    refusing,
    refusing_rows,
    slow,
)
from tests.faults.feed import fleet_messages, repair, tidetable
from tests.faults.tcp_proxy import TcpProxy
from tests.job.running import running_job


@pytest.mark.parametrize(("fault", "seconds"), [("cut", 5), ("hold", 30)], ids=["refuses 5 s", "hangs 30 s"])
def test_away_and_back(resources, bigtable, log, feed, fault, seconds):
    """Events from before, during and after the outage are all written, each once."""
    before, meanwhile, after = (fleet_messages(hours=2, seed=seed) for seed in range(3))
    with TcpProxy(bigtable) as line, running_job(resources.flags(), log, {BIGTABLE.variable: line.address}) as job:
        feed.publish(before)
        feed.wait_counted()
        getattr(line, fault)()
        feed.publish(meanwhile)
        time.sleep(seconds)  # the length of the outage
        line.heal()
        feed.publish(after)
        feed.wait_counted(100)
        assert job.stop() == 0
        assert ("no progress for" in job.log) == (seconds > 20)
    feed.assert_exact()


def test_answers_slowly(resources, bigtable, log, feed):
    """Slow answers only delay."""
    with (
        BigtableProxy(bigtable) as proxy,
        running_job(resources.flags(), log, {BIGTABLE.variable: proxy.address}) as job,
    ):
        proxy.mutations = first(2, slow(4))
        feed.publish(fleet_messages())
        feed.wait_counted(90)
        assert job.stop() == 0
        assert proxy.delayed == 2
    feed.assert_exact()


def test_refuses_some_rows(resources, bigtable, log, feed):
    """Rows that are refused temporarily, and requests that break off half-way, are written again."""
    faults = {
        StatusCode.UNAVAILABLE: refusing(StatusCode.UNAVAILABLE),
        StatusCode.DEADLINE_EXCEEDED: refusing(StatusCode.DEADLINE_EXCEEDED),
        StatusCode.ABORTED: refusing(StatusCode.ABORTED),
        StatusCode.INTERNAL: refusing(StatusCode.INTERNAL),
    }
    with (
        BigtableProxy(bigtable) as proxy,
        running_job(resources.flags(), log, {BIGTABLE.variable: proxy.address}) as job,
    ):
        for seed, (code, fault) in enumerate(faults.items()):
            proxy.mutations = first(3, fault)
            feed.publish(fleet_messages(hours=1, seed=seed))
            feed.wait_counted()
            assert proxy.refused[code] >= 3
        for broken_call in (breaking(StatusCode.UNAVAILABLE), failing(StatusCode.DEADLINE_EXCEEDED)):
            proxy.mutations = first(2, broken_call)
            feed.publish(fleet_messages(hours=1, seed=7 + proxy.failed.total()))
            feed.wait_counted()
        assert proxy.failed == {StatusCode.UNAVAILABLE: 2, StatusCode.DEADLINE_EXCEEDED: 2}
        assert job.stop() == 0
    feed.assert_exact()


@pytest.mark.parametrize("writer", ["connector", "bulk"])
def test_refuses_half_of_each_request(resources, bigtable, log, feed, tmp_path, writer):
    """Whichever rows are refused, the job, a backfill and a repair write each again until Bigtable takes it."""
    with BigtableProxy(bigtable) as proxy:
        environment = {BIGTABLE.variable: proxy.address}
        with running_job(resources.flags(bigtable_writer=writer), log, environment) as job:
            proxy.mutations = refusing(StatusCode.UNAVAILABLE, share=0.5, least=0)
            feed.publish(fleet_messages(hours=2))
            feed.wait_counted(90)
            assert job.stop() == 0
        file = feed.write(tmp_path / "feed.pb")
        for done in (
            tidetable("backfill", resources, file, "--allowed-lateness", "0s", environment=environment),
            repair(resources, "--include-unsettled", environment=environment),
        ):
            assert done.returncode == 0, done.stdout + done.stderr
    feed.assert_exact()


def test_refuses_reads(resources, bigtable, log, feed, tmp_path):
    """A new job restores windows of an earlier one through failing reads, and so does a repair."""
    messages = fleet_messages()
    with running_job(resources.flags(), log) as job:
        feed.publish(messages[::2])
        feed.wait_counted()
        assert job.stop() == 0
    with BigtableProxy(bigtable) as proxy:
        environment = {BIGTABLE.variable: proxy.address}
        with running_job(resources.flags(), tmp_path / "second.log", environment) as second:
            proxy.reads = first(4, lambda _: ReadAction(StatusCode.UNAVAILABLE, delay_s=0.5))
            feed.publish(messages[1::2])
            feed.wait_counted()
            assert second.stop() == 0
        assert proxy.failed[StatusCode.UNAVAILABLE] == 4
        proxy.reads = first(4, lambda _: ReadAction(StatusCode.UNAVAILABLE, messages=1))
        audit = repair(resources, "--include-unsettled", "--dry-run", environment=environment)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert proxy.failed[StatusCode.UNAVAILABLE] == 8
    feed.assert_exact()


@pytest.mark.parametrize("healed_by", ["publishing again", "backfill"])
def test_refuses_for_good(resources, bigtable, log, feed, tmp_path, healed_by):
    """A permanent error ends the job with a line that names it; republishing and a repair heal the table."""
    messages = fleet_messages(malformed=0)
    half = len(messages) // 2
    with (
        BigtableProxy(bigtable) as proxy,
        running_job(resources.flags(), log, {BIGTABLE.variable: proxy.address}) as job,
    ):
        feed.publish(messages[:half])
        feed.wait_counted()
        proxy.mutations = refusing_rows(StatusCode.RESOURCE_EXHAUSTED)
        feed.publish(messages[half:])
        assert job.process.wait(60) == 1
        assert proxy.refused[StatusCode.RESOURCE_EXHAUSTED] > 0
    assert judge.differences(resources.table, feed.events) != []
    if healed_by == "backfill":
        done = tidetable("backfill", resources, feed.write(tmp_path / "feed.pb"))
        assert done.returncode == 0, done.stderr
    else:
        with running_job(resources.flags(), tmp_path / "second.log") as second:
            feed.publish(messages)
            feed.wait_read()
            assert second.stop() == 0
    done = repair(resources, "--include-unsettled")  # including the hour in progress, which no job writes now
    assert done.returncode == 0, done.stderr
    feed.assert_exact()
    *_, last = log.read_text().splitlines()
    assert last.startswith("tidetable: the job failed: ")
    assert "refused on purpose" in last


def test_a_repeated_bundle(resources, bigtable, log, feed):
    """A bundle that failed with half of its rows written is retried, and the table ends up exact."""
    with (
        BigtableProxy(bigtable) as proxy,
        running_job(resources.flags(), log, {BIGTABLE.variable: proxy.address}) as job,
    ):
        for seed in range(3):
            proxy.mutations = first(2, refusing(StatusCode.FAILED_PRECONDITION))  # not retried by any client
            feed.publish(fleet_messages(hours=2, seed=seed))
            feed.wait_counted()
        assert proxy.refused[StatusCode.FAILED_PRECONDITION] > 0
        assert "rows could not be written" in job.log
        assert job.stop() == 0
    feed.assert_exact()
