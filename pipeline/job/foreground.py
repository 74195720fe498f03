"""Runs a job on the DirectRunner, in this process, from its start to an orderly stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.tables.table_guard import AnotherTable
from pipeline.core.notation.times import format_time
from pipeline.job.checks import check_launch
from pipeline.job.reading_claim import ReadingClaim
from pipeline.job.saying import in_json, renewed_line, say, tell_systemd
from pipeline.job.settings import Settings, Target
from pipeline.job.status import ShownStatus, StatusOf
from pipeline.private_apis.direct_runner import PullGate, patched_direct_runner
from pipeline.private_apis.job_failures import cause_of, hide
from pipeline.transforms.metrics import results_of, totals_of
from pipeline.transforms.windows_here import HERE
from pipeline.transforms.woken_windows import NOTES_HERE

# A stop may take 40 seconds. The rest is for the runner's threads to end.
_DRAIN_TIMEOUT_S = 33.0
# How often to look at the job.
_LOOK_S = 2.0
# Beam's connector retries silently for ten minutes: without progress for this long, we report why.
_STALL_S = 15.0
# The runner's thread may outlive a job that failed. Without the gate, it would acknowledge what it has not processed.
_until_exit = ExitStack()
_LEFT = "what is not written comes again, and aggregates may lack events of the last firing interval"


def run_until_stopped(
    pipeline: beam.Pipeline, targets: Sequence[Target], settings: Settings, status_file: Path | None = None
) -> int:
    """Runs the pipeline until SIGINT or SIGTERM, then writes all messages that it has pulled and prints the metrics.

    Args:
        pipeline: the pipeline.
        targets: the tables that it writes.
        settings: the job's settings.
        status_file: the file to write the job's status to while it makes progress; None for none.

    Returns:
        The exit code: 0 after an orderly stop, 1 if the job failed or could not write all messages.
    """
    claim = ReadingClaim(settings, targets, say)
    if (last_us := claim.take()) is not None:
        _tell_of_crash(last_us)
    stop = _StopSignal()
    HERE.watched, HERE.after_crash = True, last_us is not None
    NOTES_HERE.clear()
    hide(AnotherTable)  # each of the runner's attempts would log it
    with renewed_line() as line:
        gate = _until_exit.enter_context(patched_direct_runner(claim.is_held))
        claim.keep(_end_as_lost)
        result = pipeline.run()
        watch = _Watch(result, stop.wake, targets)
        say(f"running, reading {settings.input_subscription or settings.input_topic}; Ctrl-C stops")
        tell_systemd(READY="1")
        shown = ShownStatus(StatusOf(result, gate.longest_wait_s), line, status_file)
        stalls = _Stalls(targets, settings)
        while not stop.wake.wait(_LOOK_S):
            idle_s = _idle_s(gate)
            stalls.look(idle_s)
            shown.look(progress=idle_s <= _STALL_S)
        drained = flushed = False
        if watch.failure is None:
            say("stopping: writing all messages that were pulled; a second signal stops at once")
            drained, flushed = _drain(gate, watch)
        if watch.failure is not None:
            gate.fail()
            say(f"the job failed: {_cause(watch.failure)}", "ERROR")
            if not isinstance(watch.failure, AnotherTable) and (problem := _problem(targets, settings)):
                say(problem, "ERROR")
            return 1
        if not drained:
            say(f"not everything could be written within {_DRAIN_TIMEOUT_S:.0f} s; {_LEFT}", "ERROR")
            _exit_at_once(1)
        result.cancel()
    if flushed:
        with suppress(ServerError):  # then the next process restores a few windows more
            NOTES_HERE.finish()
        claim.release()  # otherwise the next process tells what this one left
    _print_metrics(result)
    if flushed and settings.early_firing:
        say("stopped; everything is written")
    elif flushed:
        say("stopped; windows that have not ended have no aggregates yet, as --early-firing is 0")
    else:
        say("stopped; aggregates may lack events of the last firing interval")
    return 0


def _tell_of_crash(last_us: int) -> None:
    """Tells what follows from a process that did not stop in order."""
    seen = format_time(last_us // 10**6 * 10**6)
    say(
        f"the process before this one did not stop in order; it was last seen at {seen}. "
        "The windows that it had begun continue from their raw rows; those whose raw rows can't serve are listed for "
        "tidetable repair --listed",
        "WARNING",
    )


def _end_as_lost(why: str) -> None:
    """Ends a process that is no longer the one to read and write: it has slept, or could not reach the table."""
    say(f"the job failed: {why}; {_LEFT}", "ERROR")
    _exit_at_once(1)


def _idle_s(gate: PullGate) -> float:
    """Returns the time without progress. All groups fire between two pulls, and may restore windows for minutes."""
    return min(gate.seconds_since_pull, HERE.seconds_since_read)


class _Stalls:
    """Reports while the job makes no progress, and why."""

    def __init__(self, targets: Sequence[Target], settings: Settings) -> None:
        self._of_checks = targets, settings
        self._report_s = 0.0

    def look(self, idle_s: float) -> None:
        """Reports now, if the job has made no progress for a while, and it was not reported lately."""
        if idle_s > _STALL_S and time.monotonic() >= self._report_s:
            self._report_s = time.monotonic() + _STALL_S
            # In a thread: a stop must not wait for a server that does not answer.
            threading.Thread(target=self._report, args=[idle_s], daemon=True).start()

    def _report(self, idle_s: float) -> None:
        why = _problem(*self._of_checks) or "the servers answer, so the messages pulled last take this long"
        say(f"no progress for {idle_s:.0f} s, still trying: {why}", "WARNING")


def _problem(targets: Sequence[Target], settings: Settings) -> str | None:
    """Returns the problem that the launch checks find now; None if they find none."""
    try:
        for target in targets:
            target.guard().check_now(wait=False)
        check_launch(settings, targets)
    except ServerError as problem:
        return str(problem)
    return None


class _StopSignal:
    """Handles the signals that end a job: the first asks for an orderly stop, the second stops at once.

    A terminal that hangs up, as an SSH connection that breaks, sends SIGHUP more than once. Under nohup, it is ignored.
    """

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._requested = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._requested and number == signal.SIGHUP:
            return
        if self._requested:
            say(f"stopped at once; {_LEFT}", "ERROR")
            _exit_at_once(128 + number)
        self._requested = True
        self.wake.set()


class _Watch:
    """Waits for the job to end by itself: a job that reads for ever ends only if it fails.

    It fails too if one of its tables is another one by now, also while no message comes.
    """

    def __init__(self, result: PipelineResult, wake: threading.Event, targets: Sequence[Target]) -> None:
        self.failure: BaseException | None = None
        self._result, self._wake, self._targets = result, wake, targets
        for wait in (self._wait, self._wait_for_tables):
            threading.Thread(target=wait, daemon=True).start()

    def _wait_for_tables(self) -> None:
        try:
            while not self._wake.wait(_STALL_S):
                for target in self._targets:
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
    if in_json():
        say("totals", totals={name: total for name, total in sorted(totals_of(result).items()) if total})
        return
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
    """Returns the message of a ServerError, or the class and the message of any other error, in one line."""
    line = cause_of(failure) if isinstance(failure, ServerError) else f"{type(failure).__name__}: {failure}"[:500]
    return " ".join(line.split())


def _exit_at_once(code: int) -> None:
    """Exits without waiting for the runner's thread, which may hang on a server that is out of reach."""
    sys.stdout.flush()
    os._exit(code)
