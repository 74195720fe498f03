"""The job is stopped while Bigtable is unreachable."""

import signal
from contextlib import ExitStack

import pytest

from pipeline.core.events.message import message_of
from pipeline.local.emulators import BIGTABLE, running_emulator
from tests.faults.feed import HOUR_US, now_us, series
from tests.job.running import Resources, running_job


@pytest.fixture
def job_without_bigtable(pubsub, log, monkeypatch):
    """Yields a job that has reported that Bigtable is unreachable, with a message in flight."""
    monkeypatch.delenv(BIGTABLE.variable, raising=False)
    with ExitStack() as closing, ExitStack() as own_bigtable:
        monkeypatch.setenv(BIGTABLE.variable, own_bigtable.enter_context(running_emulator(BIGTABLE)))
        resources = Resources()
        closing.callback(resources.close)
        job = closing.enter_context(running_job(resources.flags(), log))
        own_bigtable.close()
        resources.publish([message_of(series("a", now_us() - HOUR_US, 1))])
        job.wait_for_output("no progress for")
        assert f"table {resources.table}: the server cannot be reached" in job.log
        yield job


def test_a_stop_during_an_outage_of_bigtable(job_without_bigtable):
    """During an outage of Bigtable, a stop ends within 40 seconds, reports what is missing, and returns an error."""
    assert job_without_bigtable.stop() == 1
    assert "not everything could be written within" in job_without_bigtable.log


def test_a_second_signal_stops_at_once(job_without_bigtable):
    """While a stop waits for a server, a second signal ends the job."""
    job_without_bigtable.process.send_signal(signal.SIGINT)
    job_without_bigtable.wait_for_output("stopping")
    assert job_without_bigtable.stop(signal.SIGINT, seconds=5) == 128 + signal.SIGINT
    assert "stopped at once" in job_without_bigtable.log
