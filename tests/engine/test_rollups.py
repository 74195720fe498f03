"""Roll-ups on the modelled engine: what they read of the table, and how long they take."""

from zlib import crc32

import pytest

from pipeline.core.queries.seeks import RowSelection
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from tests.engine.job import Job, schema_of
from tests.model.reference import HOUR, MINUTE, SECOND, Published
from tests.model.world import START_US, message
from tests.support.merged_rollups import found_rollups

SCHEMA = schema_of("1h", rollups=("fleet = { by = [] }", "shards = 1"))


def reads_of_rollups(job):
    """Returns how many reads of the table ask for rows of roll-ups from now on, as a list that grows."""
    reads, read = [], job.table.read_selection

    def counting(selection):
        if selection.ranges[0].start.startswith(b"rollup"):
            reads.append(selection)
        return read(selection)

    job.table.read_selection = counting
    return reads


def test_windows_that_only_this_job_writes_are_not_read():
    """Each level reads a window that began before the job once, others not before they are over."""
    job, counts = Job(SCHEMA, START_US + MINUTE), []
    reads = reads_of_rollups(job)
    with job.running():
        for after_us, age_us in ((0, 0), (10 * MINUTE, 0), (3 * HOUR, 0), (10 * MINUTE, 0), (HOUR, HOUR)):
            job.pass_time(after_us)
            job.publish(message(Published("a", job.now_us - age_us, ("t",))))
            job.pass_time(6 * MINUTE)
            counts.append(len(reads))
    assert counts == [2, 2, 2, 2, 4]


def test_a_shard_merges_the_panes_of_its_groups_at_once():
    """They fire at the same time, and its row gets one version of all."""
    schema = schema_of("1h", rollups=("fleet = { by = [] }", "shards = 64"))
    sensors = [name for name in map(str, range(2000)) if crc32(name.encode()) % 64 == 7]
    job = Job(schema, START_US)
    with job.running():
        for sensor in sensors:
            job.publish(message(Published(sensor, job.now_us, ("t",))))
        job.pass_time(6 * MINUTE)
    assert len({crc32(sensor.encode()) % 256 for sensor in sensors}) == 4
    (key,) = job.table.keys(b"rollup_members")
    (row,) = job.table(RowSelection((KeyRange(key, key + b"\x00"),), CellSelection(("rollup",))))
    assert len(row.cells) == len(sensors) + 1
    assert len({cell.timestamp_us for cell in row.cells}) == 1


@pytest.mark.parametrize("offset_us", [0, 1300, 2600, 3900])
def test_delay(offset_us):
    """A group's row follows its sensor's pane within ten seconds."""
    job = Job(SCHEMA, START_US)
    with job.running():
        job.pass_time(HOUR + offset_us * 1000)
        job.publish(message(Published("a", job.now_us, ("t",))))
        while not job.rows():
            job.pass_time(SECOND // 10)
        pane_us = job.now_us
        while not found_rollups(SCHEMA, job.table):
            job.pass_time(SECOND // 10)
        assert job.now_us - pane_us <= 10 * SECOND
