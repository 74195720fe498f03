"""Roll-ups on the modelled engine: what they read of the table, and how long they take."""

from random import Random
from zlib import crc32

import pytest

from pipeline.transforms import rollups
from tests.engine.job import job_of, schema_of
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


def test_each_level_reads_a_row_for_what_was_written():
    """A pane costs a read of its shard's row, and one of the group's parts, whoever wrote them before."""
    job, counts = job_of(SCHEMA, START_US + MINUTE), []
    reads = reads_of_rollups(job)
    with job.running():
        for after_us, age_us in ((0, 0), (10 * MINUTE, 0), (3 * HOUR, 0), (HOUR, HOUR)):
            job.pass_time(after_us)
            job.publish(message(Published("a", job.now_us - age_us, ("t",))))
            job.pass_time(6 * MINUTE)
            counts.append(len(reads))
    assert counts == [2, 4, 6, 8]


def test_a_shard_merges_the_panes_of_its_groups_at_once():
    """They fire at the same time: what they have together is written once."""
    schema = schema_of("1h", rollups=("fleet = { by = [] }", "shards = 64"))
    sensors = [name for name in map(str, range(2000)) if crc32(name.encode()) % 64 == 7]
    job = job_of(schema, START_US)
    written = {}
    with job.running():
        job.table.apply = counting(job.table.apply, written)
        for sensor in sensors:
            job.publish(message(Published(sensor, job.now_us, ("t",))))
        job.pass_time(6 * MINUTE)
    assert len({crc32(sensor.encode()) % 256 for sensor in sensors}) == 4
    assert written == {b"rollup_members": 4, b"rollup_parts": 1, b"rollup": 1}
    ((_, columns),) = found_rollups(schema, job.table).items()
    assert columns["sensors"] == len(sensors)


def counting(apply, written):
    """Returns a function that writes a row, and counts those of roll-ups by kind."""

    def write(key, mutations):
        kind = key.partition(b"#")[0]
        if kind.startswith(b"rollup"):
            written[kind] = written.get(kind, 0) + 1
        apply(key, mutations)

    return write


@pytest.mark.parametrize("offset_us", [0, 1300, 2600, 3900])
@pytest.mark.parametrize("age_us", [0, HOUR])
def test_delay(age_us, offset_us):
    """A group's row follows its sensor's pane within ten seconds."""
    job = job_of(SCHEMA, START_US)
    with job.running():
        job.pass_time(2 * HOUR + offset_us * 1000)
        job.publish(message(Published("a", job.now_us - age_us, ("t",))))
        while not job.rows():
            job.pass_time(SECOND // 10)
        pane_us = job.now_us
        while not found_rollups(SCHEMA, job.table):
            job.pass_time(SECOND // 10)
        assert job.now_us - pane_us <= 10 * SECOND


def test_state_is_what_is_due():
    """Whatever its size, what sensors have in a window is in no state: each firing leaves the steps without any."""
    schema = schema_of("1h", "1d", rollups=('site = { by = "metadata.location" }', "fleet = { by = [] }", "shards = 4"))
    job, rng, size = job_of(schema, START_US), Random(1), 0
    with job.running():
        for _ in range(12):
            ages = [HOUR if rng.random() < 0.01 else rng.randrange(MINUTE) for _ in range(200)]
            published = [
                Published(f"s{number}", job.now_us - age_us, ("t", "u", "v"), f"site {number % 10}")
                for number, age_us in enumerate(ages)
            ]
            messages = [message(*published[begin : begin + 100]) for begin in range(0, 200, 100)]
            size += sum(len(each.pubsub.data) for each in messages)
            job.publish(*messages)
            job.pass_time(MINUTE)
        job.drain()
    counts = [job.stage(label).fragment.state.counts for label in ("RollUp/Shards", "RollUp/Groups")]
    assert not [name for name, *_ in job.left() if name == "RollUp"]
    assert sum(each["read"] + each["written"] for each in counts) < size


def test_what_is_too_much_at_once(monkeypatch):
    """A firing computes some of what is due, and the next ones the rest, also in a drain."""
    monkeypatch.setattr(rollups, "_MOST_AT_ONCE", 1)
    schema = schema_of("1h", rollups=('site = { by = "metadata.location" }', "shards = 1"))
    job = job_of(schema, START_US)
    with job.running():
        for hours in (0, 3):
            published = [
                Published(f"s{number}", job.now_us - number * HOUR, ("t",), f"site {number}")
                for number in range(hours, 12)
            ]
            job.publish(message(*published))
            if not hours:
                job.pass_time(20 * MINUTE)
        job.drain()
    assert sum(row["reading_count"] for row in found_rollups(schema, job.table).values()) == 12 + 9
