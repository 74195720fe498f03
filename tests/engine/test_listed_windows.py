"""A backfill beside a job: the windows that the job has open count what it wrote, a minute later."""

from random import Random

import pytest

from pipeline.core.completion.work_list import BACKFILLED, listing, work_row
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms import woken_windows
from tests.engine.histories import ROLLUPS, History, published
from tests.engine.job import job_of, schema_of, spec_of
from tests.model.reference import HOUR, MINUTE, SECOND
from tests.model.world import START_US


def history_of(*tiers, **how):
    return History(spec_of(*tiers, **how), Random(1), ["tools"])


def backfill(history, *events):
    history.loaded += events
    history._tools.backfill_beside(history.job, events)


def count(history, sensor, start_us):
    return history.job.rows()["1h", sensor, start_us]["reading_count"]


def events(sensor, start_us, *minutes):
    return [published(sensor, start_us + minute * MINUTE) for minute in minutes]


def test_the_next_pane_has_what_was_backfilled():
    """However many readings come after the backfill: a fuller row without it would replace its row."""
    history = history_of("1h", rollups=ROLLUPS)
    job, hour_us = history.job, START_US // HOUR * HOUR
    history.publish(*events("a", hour_us, 1, 2))
    job.pass_time(10 * MINUTE)
    backfill(history, *events("a", hour_us, 2, 3), *events("b", hour_us, 3))
    history.publish(*events("a", hour_us, 4, 5, 6), *events("b", hour_us, 4))
    job.pass_time(7 * MINUTE)
    assert (count(history, "a", hour_us), count(history, "b", hour_us)) == (6, 2)
    history.run(0)


def test_a_drain_has_what_was_backfilled_just_before():
    """The last look is that of the drain."""
    history = history_of("1h")
    hour_us = START_US // HOUR * HOUR
    history.publish(*events("a", hour_us, 1, 2))
    history.job.pass_time(10 * MINUTE)
    backfill(history, *events("a", hour_us, 3))
    history.publish(*events("a", hour_us, 4, 5))
    history.run(0)


def test_the_next_job_has_what_was_backfilled_before_it_began():
    """A window that gets nothing more from the next job lacks nothing that was listed just before."""
    history = history_of("1h")
    job, hour_us = history.job, START_US // HOUR * HOUR
    history.publish(*events("a", hour_us, 1, 2))
    job.pass_time(10 * MINUTE)
    backfill(history, *events("a", hour_us, 3))
    history.publish(*events("a", hour_us, 4, 5))
    job.settle()
    history.begin(job.now_us + SECOND)  # without a drain
    history.job.pass_time(7 * MINUTE)
    assert count(history, "a", hour_us) == 5
    history.run(0)


def test_a_long_list_is_read_in_bundles(monkeypatch):
    """Each bundle wakes a few windows, and the next one follows at once."""
    monkeypatch.setattr(woken_windows, "_MOST_ROWS", 2)
    history = history_of("1h")
    hour_us, sensors = START_US // HOUR * HOUR, "abcde"
    history.publish(*(each for sensor in sensors for each in events(sensor, hour_us, 1)))
    history.job.pass_time(10 * MINUTE)
    backfill(history, *(each for sensor in sensors for each in events(sensor, hour_us, 2)))
    history.publish(*(each for sensor in sensors for each in events(sensor, hour_us, 3, 4)))
    history.job.pass_time(6 * MINUTE)
    assert {count(history, sensor, hour_us) for sensor in sensors} == {4}
    history.run(0)


def test_looks_hold_no_watermark_and_read_the_list_alone():
    """While nothing is listed, half a minute costs one read, which returns no row."""
    job = job_of(schema_of("1h"), START_US)
    with job.running():
        job.pass_time(MINUTE)
        reads, job.table.rows = job.table.reads, 0
        job.pass_time(10 * MINUTE)
        assert job.table.reads - reads in range(19, 22)
        assert job.table.rows == 0
        assert min(stage.output_us for stage in job.stages.values()) == job.source_us


@pytest.mark.parametrize(
    ("other", "looks"),
    [(schema_of("1h"), 2), (schema_of(), 1), (parse_schema('key = "{iso_us}#{sensor_id}"'), 1)],
    ids=["aggregates", "no aggregates", "keys that do not find a sensor"],
)
def test_tables_that_are_looked_at(other, looks):
    """Each of several tables has looks of its own, unless the job could not compute its windows from the table."""
    job = job_of(schema_of("1h"), START_US, also=other)
    assert sum(name.endswith("/Look") for name in job.stages) == looks


def test_a_look_of_another_shortest_tier_finds_nothing():
    """A job without the tier that a backfill lists goes on."""
    job = job_of(schema_of("1h"), START_US)
    job.table.write(work_row(schema_of("15m").tiers[0], "a", START_US, listing(BACKFILLED, START_US)))
    with job.running():
        job.pass_time(MINUTE)
        job.drain()
    assert job.rows() == {}
