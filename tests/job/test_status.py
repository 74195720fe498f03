import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from apache_beam.metrics.cells import DistributionData, DistributionResult
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName

from pipeline.core.events.publishing import message_of
from pipeline.core.events.wire import sensor_event
from pipeline.job.status import Standing, StatusLine, describe
from pipeline.transforms import metrics
from tests.support.waiting import eventually

IMPATIENT_JOB = [
    sys.executable,
    "-c",
    "import sys; from pipeline.job import foreground, launch; foreground._LOOK_S = 0.5; sys.exit(launch.main())",
]


class FakeJob:
    """A job whose metrics a test sets."""

    def __init__(self):
        self.counters, self.delays, self.broken = {}, (0, 0), False

    def metrics(self):
        return self

    def query(self, _):
        if self.broken:
            raise RuntimeError("dictionary changed size during iteration")
        counters = [MetricResult(key(name), value, value) for name, value in self.counters.items()]
        count, total = self.delays
        delays = DistributionResult(DistributionData(total, count, 0, 0))
        return {"counters": counters, "distributions": [MetricResult(key(metrics.EVENT_DELAY_MS), delays, delays)]}


def key(name):
    return MetricKey("step", MetricName(metrics.NAMESPACE, name))


def test_a_line_has_totals_and_what_happened_since_the_last_one():
    """Totals since the start; rate, lag and oldest message since the last line; late events only if there are any."""
    first = {"events": 1, "raw_rows": 1, "aggregate_rows": 1, "dead_letters": 1}
    assert describe(Standing(0.0, {}), Standing(1.0, first, 2, 3000)) == (
        "1 event (1 a second), 1 raw row, 1 aggregate row, 1 dead letter, lag 1.5 s"
    )
    then = {"events": 30_001, "raw_rows": 30_000, "aggregate_rows": 12, "late_events": 7}
    assert describe(Standing(1.0, first, 2, 3000), Standing(11.0, then, 4, 3000 + 2 * 7_200_000, 0.42)) == (
        "30,001 events (3,000 a second), 30,000 raw rows, 12 aggregate rows, 0 dead letters, lag 2.0 h, "
        "oldest message 0.4 s, 7 late events"
    )


def test_a_line_only_if_something_happened():
    """An idle job prints nothing, and metrics that change while they are read come with the next line."""
    job, clock = FakeJob(), iter(range(10))
    line = StatusLine(job, lambda: None, lambda: next(clock))
    assert line.next() is None
    job.counters, job.delays = {"events": 5}, (5, 500)
    job.broken = True
    assert line.next() is None
    job.broken = False
    assert line.next().endswith("lag 0.1 s")
    assert line.next() is None


@pytest.mark.parametrize("terminal", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_job_prints_its_progress_at_a_terminal_only(resources, terminal):
    """A running job reports what it has read to a terminal, and nothing of it to a file."""
    now_us = time.time_ns() // 1000
    resources.publish([message_of([sensor_event("a", now_us, {"t": 1.0}, {})])])
    ours, theirs = pty.openpty() if terminal else os.pipe()
    os.set_blocking(ours, False)
    process = subprocess.Popen([*IMPATIENT_JOB, *resources.flags()], stdout=subprocess.DEVNULL, stderr=theirs)
    printed = ""

    def reports(text):
        nonlocal printed
        with suppress(BlockingIOError):
            printed += os.read(ours, 4096).decode()
        return text in printed

    try:
        if terminal:
            eventually(lambda: reports("tidetable: 1 event ("))
        eventually(lambda: len(resources.rows()) == 2)  # the raw row, and a second later its aggregate
        process.send_signal(signal.SIGINT)
        eventually(lambda: reports("tidetable: stopped"))
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)
    assert ("1 raw row" in printed) is terminal
