"""The table is deleted and created again while the job runs."""

import re

import pytest

from pipeline.cloud.tables import tables
from pipeline.core.schema.toml import parse_schema
from tests.faults.feed import Feed, fleet_messages
from tests.job.running import running_job
from tests.support.lasting import lasting
from tests.support.waiting import eventually

SALTED = parse_schema('key = "{salt:2}#{sensor_id}#{reverse_ms}"\nlatest = "latest"')


@pytest.mark.parametrize(("writer", "busy"), [("connector", True), ("bulk", True), ("connector", False)])
def test_created_again(resources, log, tmp_path, writer, busy):
    """The job ends with the reason, in one line, also if no message comes; the next job writes what it has left."""
    feed, later = Feed(resources), Feed(resources)
    with running_job(resources.flags(bigtable_writer=writer), log) as job:
        feed.publish(fleet_messages(hours=1, malformed=0))
        eventually(resources.raw_keys)
        feed.wait_counted()
        tables.delete(resources.table)
        tables.create(resources.table, lasting(SALTED))
        if busy:
            later.publish(fleet_messages(hours=1, malformed=0, seed=1))
        assert job.process.wait(45) == 1
    [reason] = [line for line in job.log.splitlines() if "was deleted and created again while the job ran" in line]
    assert reason.startswith(f"tidetable: the job failed: table {resources.table} ")
    assert "key was '{sensor_id}#{reverse_us}' and is '{salt:2}#{sensor_id}#{reverse_ms}'" in reason
    assert "everything is written" not in job.log
    if busy:
        with running_job(resources.flags(bigtable_writer=writer), tmp_path / "next.log") as job:
            later.wait_counted()
            assert job.stop() == 0
        assert all(re.match("[0-9a-f]{2}#", key) for key in resources.raw_keys())
