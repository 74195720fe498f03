"""Runs a job on the DirectRunner, in this process, from its start to an orderly stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.tables.table_guard import AnotherTable
from pipeline.core.notation.text import plain
from pipeline.core.notation.times import format_time
from pipeline.job.checks import check_launch
from pipeline.job.reading_claim import ReadingClaim
from pipeline.job.settings import Settings, Target
from pipeline.job.status import StatusLine
from pipeline.private_apis.direct_runner import PullGate, patched_direct_runner
from pipeline.private_apis.job_failures import cause_of, hide
from pipeline.transforms.metrics import results_of, totals_of

# A stop may take 40 seconds. The rest is for the runner's threads to end.
_DRAIN_TIMEOUT_S = 33.0
# How often to look at the job. Beam's connector retries silently for ten minutes: without a pull for this long, we
# report why.
_LOOK_S = 15.0
_MICROSECOND = timedelta(microseconds=1)
_LEFT = "what is not written comes again, and aggregates may lack events of the last firing interval"


def run_until_stopped(pipeline: beam.Pipeline, targets: Sequence[Target], settings: Settings) -> int:
    """Runs the pipeline until SIGINT or SIGTERM, then writes all messages that it has pulled and prints the metrics.

    Returns:
        The exit code: 0 after an orderly stop, 1 if the job failed or could not write all messages.
    """
    claim = ReadingClaim(settings, targets, _say)
    _tell_of_crash(claim.take(), targets, settings)
    stop = _StopSignal()
    hide(AnotherTable)  # each of the runner's attempts would log it
    with patched_direct_runner(claim.is_held) as gate:
        claim.keep(_end_as_lost)
        result = pipeline.run()
        watch = _Watch(result, stop.wake)
        _say(f"running, reading {settings.input_subscription or settings.input_topic}; Ctrl-C stops")
        status = StatusLine(result, gate.longest_wait_s)
        while not stop.wake.wait(_LOOK_S):
            threading.Thread(target=watch.look_at, args=(targets,), daemon=True).start()
            if gate.seconds_since_pull > _LOOK_S:
                # In a thread: a stop must not wait for a server that does not answer.
                stall = gate.seconds_since_pull, targets, settings
                threading.Thread(target=_report_stall, args=stall, daemon=True).start()
            elif sys.stderr.isatty() and (line := status.next()):
                _say(line)
        drained = flushed = False
        if watch.failure is None:
            _say("stopping: writing all messages that were pulled; a second signal stops at once")
            drained, flushed = _drain(gate, watch)
        if watch.failure is not None:
            _say(f"the job failed: {_cause(watch.failure)}")
            if not isinstance(watch.failure, AnotherTable) and (problem := _problem(targets, settings)):
                _say(problem)
            return 1
        if not drained:
            _say(f"not everything could be written within {_DRAIN_TIMEOUT_S:.0f} s; {_LEFT}")
            _exit_at_once(1)
        result.cancel()
    if flushed:
        claim.release()  # otherwise the next process tells what this one left
    _print_metrics(result)
    if flushed and settings.early_firing:
        _say("stopped; everything is written")
    elif flushed:
        _say("stopped; windows that have not ended have no aggregates yet, as --early_firing is 0")
    else:
        _say("stopped; aggregates may lack events of the last firing interval")
    return 0


def _tell_of_crash(last_us: int | None, targets: Sequence[Target], settings: Settings) -> None:
    """Tells what a process that did not stop in order may have left, and the repair that completes it."""
    tables = [target for target in targets if target.schema.tiers]
    if last_us is None or not tables:
        return
    since_us = last_us - max(settings.early_firing, settings.late_firing, timedelta(minutes=1)) // _MICROSECOND
    seen = format_time(last_us // 10**6 * 10**6)
    _say(
        f"the process before this one did not stop in order; it was last seen at {seen}. Windows that receive nothing "
        "more may lack its last readings: repair them once they are over, and older ones if it was reading older "
        "events:"
    )
    for name, schema, *_ in tables:
        start = format_time(schema.tiers[0].window.start_of(since_us))
        _say(
            f"  tidetable repair --project {name.project} --instance {name.instance} --table {name.table} "
            f"--from {start} --to now"
        )


def _end_as_lost(why: str) -> None:
    """Ends a process that is no longer the one to read and write: it has slept, or could not reach the table."""
    _say(f"the job failed: {why}; {_LEFT}")
    _exit_at_once(1)


def _report_stall(seconds: float, targets: Sequence[Target], settings: Settings) -> None:
    why = _problem(targets, settings) or "the servers answer, so the messages pulled last take this long"
    _say(f"no progress for {seconds:.0f} s, still trying: {why}")


def _problem(targets: Sequence[Target], settings: Settings) -> str | None:
    """Returns the problem that the launch checks find now; None if they find none."""
    try:
        for target in targets:
            target.guard().check_now(wait=False)
        check_launch(settings, targets)
    except ServerProblem as problem:
        return str(problem)
    return None


class _StopSignal:
    """Handles SIGINT and SIGTERM: the first asks for an orderly stop, the second stops at once."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._requested:
            _say(f"stopped at once; {_LEFT}")
            _exit_at_once(128 + number)
        self._requested = True
        self.wake.set()


class _Watch:
    """Waits in a thread for the job to end by itself: a job that reads for ever ends only if it fails."""

    def __init__(self, result: PipelineResult, wake: threading.Event) -> None:
        self.failure: BaseException | None = None
        self._result = result
        self._wake = wake
        threading.Thread(target=self._wait, daemon=True).start()

    def look_at(self, targets: Sequence[Target]) -> None:
        """Ends the job if one of its tables is another one by now, also while no message comes."""
        try:
            for target in targets:
                target.guard().check_now(wait=False)
        except AnotherTable as failure:
            self.failure = failure
            self._wake.set()

    def _wait(self) -> None:
        try:
            self._result.wait_until_finish()
        except Exception as failure:  # noqa: BLE001 (whatever ended the job is reported and ends the process)
            self.failure = failure
            self._wake.set()


def _drain(gate: PullGate, watch: _Watch) -> tuple[bool, bool]:
    """Returns whether all acknowledged messages were processed, and whether all panes that waited were written."""
    gate.close()
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    drained = False
    while watch.failure is None and time.monotonic() < deadline:
        drained = drained or gate.wait_drained(0.1)
        if drained and gate.wait_flushed(0.1):
            return True, True
    return drained, False


def _print_metrics(result: PipelineResult) -> None:
    for name, total in sorted(totals_of(result).items()):
        if total:
            print(f"{name:40} {total:>12,}")
    for distribution in results_of(result)["distributions"]:
        values = distribution.committed
        if values and values.count:
            name = distribution.key.metric.name
            print(f"{name:40} {values.mean:>12,.0f} mean, {values.min:,} to {values.max:,}")
    sys.stdout.flush()


def _cause(failure: BaseException) -> str:
    """Returns the message of a ServerProblem, or the class and the message of any other error, in one line."""
    line = cause_of(failure) if isinstance(failure, ServerProblem) else f"{type(failure).__name__}: {failure}"[:500]
    return " ".join(line.split())


def _say(line: str) -> None:
    print(plain(f"tidetable: {line}"), file=sys.stderr, flush=True)


def _exit_at_once(code: int) -> None:
    """Exits without waiting for the runner's thread, which may hang on a server that is out of reach."""
    sys.stdout.flush()
    os._exit(code)
