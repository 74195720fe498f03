"""A worker fails in the middle of a bundle."""

from grpc import StatusCode

from pipeline.local.emulators import BIGTABLE
from tests.faults.bigtable_proxy import BigtableProxy, first, refusing
from tests.faults.feed import Feed, fleet_messages
from tests.job.running import running_job


def test_a_repeated_bundle(resources, bigtable, log):
    """A bundle that failed with half of its rows written is retried, and the table ends up exact."""
    feed = Feed(resources)
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
