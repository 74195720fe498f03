"""How far watermarks get, and what a drain leaves."""

import itertools
import random

import pytest

from pipeline.core.panes.firing import END_US
from tests.engine.job import job_of, schema_of
from tests.model.reference import HOUR, MINUTE, SECOND, Published
from tests.model.world import START_US, message


def _sent(sensor, time_us):
    return message(Published(sensor, time_us, ("t",)))


@pytest.mark.parametrize("early_firing", ["5m", "0"])
def test_no_step_holds_the_watermark(early_firing):
    """The last step's watermark is the source's, while panes wait, after windows have closed, and with late events."""
    rng, job = random.Random(1), job_of(schema_of("1h"), START_US + 35 * MINUTE, early_firing=early_firing)
    with job.running():
        for minute in range(50):
            if minute < 20:  # then the sensors are silent, and their windows close
                ages = [rng.randrange(2 * HOUR if rng.random() < 0.2 else MINUTE) for _ in range(4)]
                job.publish(*(_sent(f"s{number}", job.now_us - age) for number, age in enumerate(ages)))
            job.pass_time(MINUTE)
            assert min(stage.output_us for stage in job.stages.values()) == job.source_us


def test_elements_in_flight_hold_the_watermark():
    """A window's last readings are in its on-time pane, though they are on their way when the source passes its end."""
    job = job_of(schema_of("1h"), START_US, early_firing="0")
    with job.running():
        job.advance(START_US, START_US)
        job.settle()
        job.publish(_sent("a", START_US + HOUR - SECOND))
        job.advance(START_US + HOUR, START_US + HOUR)
        assert job.stage("AggregateWindows").input_us == START_US  # the message was published then
        job.settle(*job.before("AggregateWindows"))
        assert job.stage("AggregateWindows").input_us == START_US + HOUR - SECOND
        job.settle()
        assert job.stage("AggregateWindows").output_us == START_US + HOUR


def test_a_drain_leaves_nothing():
    """Whatever a group has in its state, a drain ends with neither state nor timers nor elements."""
    job = job_of(schema_of("1h"), START_US)
    with job.running():
        for age, minutes in ((0, 71), (4 * HOUR, 2), (0, 6)):
            job.publish(_sent("a", job.now_us - age))
            job.pass_time(minutes * MINUTE)
        job.publish(_sent("a", job.now_us + SECOND), _sent("a", job.now_us - 3 * HOUR))
        job.settle()
        left = job.left()
        states = {name for stage, kind, name, *_ in left if (stage, kind) == ("AggregateWindows", "state")}
        assert states == {"parts", "marks", "open"}
        now_us = job.now_us
        job.drain()
        assert (job.left(), job.now_us) == ([], now_us)
        assert job.stage("AggregateWindows").output_us > END_US


@pytest.mark.parametrize("drained", [False, True])
def test_groups_fire_one_after_the_other(drained):
    """When the watermark passes the end of a window, groups fire over a minute; a drain fires all of them."""
    job, rows = job_of(schema_of("1h"), START_US, early_firing="0"), [0]
    with job.running():
        job.publish(*(_sent(f"s{number}", START_US) for number in range(100)))
        job.settle()
        for second in range(10 if drained else 61):
            at_us = START_US + HOUR + second * SECOND
            job.advance(at_us, at_us)
            job.settle()
            rows.append(len(job.rows()))
        assert max(after - before for before, after in itertools.pairwise(rows)) <= 10
        assert rows[-1] == 100 or drained
        job.drain()
        assert len(job.rows()) == 100
