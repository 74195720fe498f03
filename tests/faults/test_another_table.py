"""The table is deleted and created again while the job runs."""

import pytest

from pipeline.cloud.tables import tables
from pipeline.core.schema.toml import parse_schema
from tests.faults.feed import Feed, fleet_messages
from tests.job.running import running_job
from tests.support.waiting import eventually

SALTED = parse_schema('key = "{salt:2}#{sensor_id}#{reverse_ms}"\nlatest = "latest"')


@pytest.mark.parametrize(("writer", "busy"), [("connector", True), ("bulk", True), ("connector", False)])
def test_created_again(resources, log, writer, busy):
    """The job ends with the reason, in one line, at its next message, and also if none comes."""
    feed = Feed(resources)
    with running_job(resources.flags(bigtable_writer=writer), log) as job:
        feed.publish(fleet_messages(hours=1, malformed=0))
        eventually(resources.raw_keys)
        feed.wait_counted()
        tables.delete(resources.table)
        tables.create(resources.table, SALTED)
        if busy:
            feed.publish(fleet_messages(hours=1, malformed=0, seed=1))
        assert job.process.wait(45) == 1
    [reason] = [line for line in job.log.splitlines() if "was deleted and created again while the job ran" in line]
    assert reason.startswith(f"tidetable: the job failed: table {resources.table} ")
    assert "key was '{sensor_id}#{reverse_us}' and is '{salt:2}#{sensor_id}#{reverse_ms}'" in reason
    assert "everything is written" not in job.log
