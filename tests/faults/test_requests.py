"""How many requests the rows of many small panes cost."""

import pytest

from pipeline.core.events.message import sensor_event
from pipeline.local.emulators import BIGTABLE
from tests.faults.bigtable_proxy import BigtableProxy
from tests.faults.feed import MINUTE_US, batches, now_us
from tests.job.running import running_job

GROUPS = 256
SENSORS = 3000


@pytest.mark.parametrize("writer", ["connector", "bulk"])
def test_rows_of_a_group_share_requests(resources, bigtable, log, writer, feed):
    """Panes of 256 groups fire one by one, a bundle of one key each; the rows of a group reach the table together."""
    sizes: list[int] = []

    def note(entries):
        aggregates = sum(entry.row_key.startswith(b"agg#") for entry in entries)
        if aggregates:
            sizes.append(aggregates)

    at_us = now_us() - MINUTE_US
    events = [sensor_event(f"s{n:04}", at_us + n, dict.fromkeys("tuv", float(n)), {}) for n in range(SENSORS)]
    flags = resources.flags(bigtable_writer=writer, early_firing="10s", late_firing="10s")
    with BigtableProxy(bigtable) as proxy, running_job(flags, log, {BIGTABLE.variable: proxy.address}) as job:
        proxy.mutations = note
        feed.publish(batches(events, 500))
        feed.wait_counted(120)
        assert job.stop() == 0
    assert sum(sizes) >= SENSORS
    assert sum(sizes) / len(sizes) > SENSORS / GROUPS / 2
    feed.assert_exact()
