import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from fcntl import ioctl
from types import SimpleNamespace

import pytest
from apache_beam.metrics.cells import DistributionData, DistributionResult
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName

from pipeline.core.events.message import message_of, sensor_event
from pipeline.job import foreground, status
from pipeline.job.status import ShownStatus, Status, StatusOf
from pipeline.transforms import metrics
from tests.support.waiting import eventually

IMPATIENT_JOB = [
    sys.executable,
    "-c",
    "import sys; from pipeline.job import foreground, status; foreground._LOOK_S = 0.2; status._LOG_S = 1.0; "
    "from pipeline.cli.root import main; main(['run', *sys.argv[1:]])",
]
TODAY = time.strftime("%Y-%m-%dT12:30:00Z", time.gmtime())


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


def test_the_most_important_comes_first():
    """What is left to restore stands before the rates, and these before totals; late events only if there are any."""
    quiet = Status("2026-02-17T12:30:00Z", 0.0, None, 1, 0, 1, 1, 0, 0, 1, 0, None)
    assert ", ".join(quiet.parts()) == (
        "0 events/s, no message waits, 1 row, 1 dead letter, 1 window open, since 2026-02-17, 1 event"
    )
    busy = Status(TODAY, 3000.4, 0.42, 30_000, 12, 0, 5000, 4000, 3, 30_001, 7, 7200.0)
    assert ", ".join(busy.parts()) == (
        "restoring windows from the table: 4,000 left, computing closed windows again: 3 left, 3,000 events/s, "
        "oldest message 0.4 s, 30,012 rows, 0 dead letters, 5,000 windows open, since 12:30 UTC, 30,001 events, "
        "lag 2.0 h, 7 late events"
    )


def test_a_rate_of_the_last_ten_seconds():
    """The rate and the lag are those of ten seconds; metrics that change while they are read are not found now."""
    job, clock = FakeJob(), iter([0.0, 5.0, 10.0, 20.0])
    found = StatusOf(job, lambda: 0.25, lambda: next(clock))
    job.counters, job.delays = {"events": 50, "raw_rows": 60}, (5, 500)
    assert (found.next().events_per_s, found.next().events_per_s) == (10.0, 5.0)
    job.broken = True
    assert found.next() is None
    job.broken, job.counters = False, {"events": 350, "raw_rows": 60}
    last = found.next()
    assert (last.events_per_s, last.lag_s, last.oldest_message_s, last.raw_rows) == (30.0, None, 0.2, 60)


def test_health_needs_progress(tmp_path, monkeypatch):
    """The status file is written anew, and systemd's watchdog told, only while the job makes progress."""
    told = []
    monkeypatch.setattr(status, "tell_systemd", lambda **assignments: told.append(set(assignments)))
    file = tmp_path / "status.json"
    shown = ShownStatus(StatusOf(FakeJob(), lambda: None), None, file)
    shown.look(progress=False)
    assert not file.exists()
    shown.look()
    assert json.loads(file.read_text())["events"] == 0
    file.unlink()
    shown.look(progress=False)
    assert not file.exists()
    assert told == [{"STATUS"}, {"STATUS", "WATCHDOG"}, {"STATUS"}]


def test_a_line_of_the_log_every_minute(capsys):
    """In a log, a line comes every minute, also if nothing happens."""
    now = 0.0
    shown = ShownStatus(StatusOf(FakeJob(), lambda: None, lambda: now), None, clock=lambda: now)
    for now in (2.0, 59.0, 60.0, 62.0, 119.0, 120.0):  # noqa: B007 (the clock)
        shown.look()
    assert capsys.readouterr().err.count("tidetable: 0 events/s, no message waits") == 2


def test_restoring_windows_is_no_stall(monkeypatch):
    """A job that has not pulled for long stalls only if it has not read windows from the table either; then why."""
    clock, said = SimpleNamespace(monotonic=lambda: now_s), []
    monkeypatch.setattr(foreground, "time", clock)
    monkeypatch.setattr(foreground, "say", lambda text, severity: said.append((text, severity)))
    monkeypatch.setattr(foreground, "_problem", lambda *_: "table t is away")
    at_once = SimpleNamespace(Thread=lambda target, args, daemon: SimpleNamespace(start=lambda: target(*args)))
    monkeypatch.setattr(foreground, "threading", at_once)
    stalls, gate = foreground._Stalls([], None), SimpleNamespace(seconds_since_pull=283.0)
    for now_s, read_s in ((100.0, 0.5), (102.0, 16.0), (104.0, 18.0), (118.0, 32.0)):  # noqa: B007 (the clock)
        monkeypatch.setattr(foreground, "HERE", SimpleNamespace(seconds_since_read=read_s))
        stalls.look(foreground._idle_s(gate))
    assert said == [(f"no progress for {n} s, still trying: table t is away", "WARNING") for n in (16, 32)]


@contextmanager
def running(resources, terminal, *flags):
    """Yields a job, and a function that returns whether it has printed a text."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    os.set_blocking(ours, False)
    process = subprocess.Popen(
        [*IMPATIENT_JOB, *resources.flags(), *flags], stdout=subprocess.DEVNULL, stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )  # fmt: skip
    printed = ""

    def reports(text):
        nonlocal printed
        with suppress(BlockingIOError):
            printed += os.read(ours, 65536).decode()
        return printed if re.search(text, printed) else ""

    try:
        yield process, reports
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def publish_one(resources):
    resources.publish([message_of([sensor_event("a", time.time_ns() // 1000, {"t": 1.0}, {})])])


def stopped(process, reports):
    process.send_signal(signal.SIGINT)
    printed = eventually(lambda: reports("stopped; everything is written"))
    assert process.wait(60) == 0
    return printed


def test_one_line_at_a_terminal(resources):
    """At a terminal, one line is renewed in place and fits; what else is printed stands in lines of its own."""
    publish_one(resources)
    with running(resources, terminal=True) as (process, reports):
        eventually(lambda: reports(r"\r0 events/s, no message waits, 2 rows, 0 dead letters\x1b"))  # a row of each kind
        lines = stopped(process, reports).split("\n")
    shown = [line for line in lines if line]
    assert [line.rpartition("\x1b[K")[2].rstrip("\r")[:20] for line in shown] == [
        "tidetable: running, ", "tidetable: stopping:", "tidetable: stopped; "
    ]  # fmt: skip
    renewed = re.findall(r"\r([^\r\n\x1b]+)\x1b\[K", "\n".join(lines))
    assert len(renewed) > 2
    assert max(map(len, renewed)) < 60


@pytest.mark.exhaustive
def test_lines_in_a_log(resources):
    """In a log, the status is a message like others."""
    publish_one(resources)
    with running(resources, terminal=False) as (process, reports):
        eventually(lambda: reports("tidetable: 0 events/s, no message waits, 2 rows, 0 dead letters, 1 window open, "))
        assert "\r" not in stopped(process, reports)


def test_lines_of_json(resources, tmp_path):
    """Every line is JSON with time and severity, also a warning that is logged; the status has its numbers."""
    publish_one(resources)
    file = tmp_path / "status.json"
    with running(resources, False, "--log-format=json", f"--status-file={file}") as (process, reports):
        eventually(lambda: reports('"raw_rows": 1, "aggregate_rows": 1'))
        lines = [json.loads(line) for line in stopped(process, reports).splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)
    assert {line["severity"] for line in lines} == {"INFO"}
    assert all(line["message"] for line in lines)
    names = set(Status.__annotations__)
    line = next(line for line in lines if line.get("raw_rows") == 1)
    assert set(line) == names | {"severity", "time", "message"}
    assert set(json.loads(file.read_text())) == names
    assert lines[-2]["totals"]["events"] == 1
