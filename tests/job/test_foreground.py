"""Tests of the signals and the end of a job that runs here; tests/faults has those of a process."""

import signal
from types import SimpleNamespace

import pytest
from apache_beam.runners.direct import transform_evaluator

from pipeline.job import foreground
from pipeline.private_apis import direct_runner


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of signals are those of before after each test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_terminal_that_hangs_up(monkeypatch):
    """The job stops in order, however often it is told; under nohup it goes on."""
    monkeypatch.setattr(foreground, "_exit_at_once", pytest.fail)
    signal.signal(signal.SIGHUP, pytest.fail)
    stop = foreground._StopSignal()
    for _ in range(2):
        signal.raise_signal(signal.SIGHUP)
    assert stop.wake.is_set()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    foreground._StopSignal()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_job_that_failed_reads_nothing_more(monkeypatch):
    """The gate stays: the runner's thread may outlive the job, and would lose what it pulls without the gate."""

    def fail():
        raise ValueError("no")

    monkeypatch.setattr(direct_runner, "subscriber_client", lambda: None)
    monkeypatch.setattr(foreground, "check_launch", lambda *_: None)
    monkeypatch.setattr(foreground, "ShownStatus", lambda *_: SimpleNamespace(look=lambda **_: None))
    job = SimpleNamespace(run=lambda: SimpleNamespace(wait_until_finish=fail))
    assert foreground.run_until_stopped(job, (), SimpleNamespace(input_subscription=None, input_topic="t")) == 1
    with foreground._until_exit:
        read = transform_evaluator._PubSubReadEvaluator._read_from_pubsub
        assert read(SimpleNamespace(_sub_name="s"), None) == []
