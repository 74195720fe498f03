"""The status of a job that runs here: what it has done, how long messages wait, and what it has left to do."""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from apache_beam.runners.runner import PipelineResult

from pipeline.core.notation.text import counted
from pipeline.job.saying import RenewedLine, say, tell_systemd
from pipeline.transforms import metrics
from pipeline.transforms.windows_here import HERE

_LOG_S = 60.0
# Rates and lags are those of this time: pulls come in bursts.
_RATE_S = 10.0


class Standing(NamedTuple):
    """A job's counts so far.

    Attributes:
        at_s: the time of a monotonic clock.
        totals: the counters.
        delays: the number of delays of events that were measured.
        delays_ms: the sum of the delays.
    """

    at_s: float
    totals: Mapping[str, int]
    delays: int = 0
    delays_ms: int = 0


@dataclass(frozen=True)
class Status:
    """The status of a job: the keys of its JSON.

    Attributes:
        since: the time at which the job began, in UTC.
        events_per_s: the number of events a second, of late.
        oldest_message_s: the time from the publication of the oldest message that was in process until now, or until
            it was processed; None if there was none.
        raw_rows: the number of raw rows that were written.
        aggregate_rows: the number of aggregate rows that were written.
        dead_letters: the number of dead letters.
        windows_open: the number of open windows.
        windows_to_restore: the number of windows that are left to restore from the table.
        windows_to_recompute: the number of closed windows that are left to compute again.
        events: the number of events.
        late_events: the number of late events.
        lag_s: the mean time by which events were behind the clock when they were decoded, of late; None without any.
    """

    since: str
    events_per_s: float
    oldest_message_s: float | None
    raw_rows: int
    aggregate_rows: int
    dead_letters: int
    windows_open: int
    windows_to_restore: int
    windows_to_recompute: int
    events: int
    late_events: int
    lag_s: float | None

    def parts(self) -> list[str]:
        """Returns the status in words, the most important first."""
        oldest = self.oldest_message_s
        parts = [
            f"{self.events_per_s:,.0f} events/s",
            "no message waits" if oldest is None else f"oldest message {_duration(oldest)}",
            counted(self.raw_rows + self.aggregate_rows, "row"),
            counted(self.dead_letters, "dead letter"),
            f"{counted(self.windows_open, 'window')} open",
            f"since {_clock_of(self.since)}",
            counted(self.events, "event"),
        ]
        if self.lag_s is not None:
            parts.append(f"lag {_duration(self.lag_s)}")
        if self.late_events:
            parts.append(counted(self.late_events, "late event"))
        if self.windows_to_recompute:
            parts.insert(0, f"computing closed windows again: {self.windows_to_recompute:,} left")
        if self.windows_to_restore:
            parts.insert(0, f"restoring windows from the table: {self.windows_to_restore:,} left")
        return parts


class StatusOf:
    """Finds the status of a running job.

    Args:
        job: the job.
        longest_wait_s: a function that returns the longest time from a message's publication until now, or until it was
            processed, of those in process since its last call.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        job: PipelineResult,
        longest_wait_s: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._standings = deque([Standing(clock(), {})])

    def next(self) -> Status | None:
        """Returns the status; None if it can't be found now."""
        try:
            now = self._standing()
        except RuntimeError:  # the DirectRunner added a metric to a dictionary while it was read here
            return None
        while len(self._standings) > 1 and self._standings[1].at_s <= now.at_s - _RATE_S:
            self._standings.popleft()
        last = self._standings[0]
        self._standings.append(now)

        def total(name: str) -> int:
            return now.totals.get(name, 0)

        rate = (total(metrics.EVENTS) - last.totals.get(metrics.EVENTS, 0)) / max(now.at_s - last.at_s, 1e-3)
        delays = now.delays - last.delays
        oldest_s = self._longest_wait_s()
        return Status(
            self._since,
            round(rate, 1),
            None if oldest_s is None else round(oldest_s, 1),
            total(metrics.RAW_ROWS),
            total(metrics.AGGREGATE_ROWS),
            total(metrics.DEAD_LETTERS),
            HERE.open,
            HERE.left_to_restore,
            HERE.left_to_recompute,
            total(metrics.EVENTS),
            total(metrics.LATE_EVENTS),
            round((now.delays_ms - last.delays_ms) / delays / 1000, 1) if delays else None,
        )

    def _standing(self) -> Standing:
        delays = [
            each.committed
            for each in metrics.results_of(self._job)["distributions"]
            if each.key.metric.name == metrics.EVENT_DELAY_MS and each.committed
        ]
        return Standing(
            self._clock(),
            metrics.totals_of(self._job),
            sum(each.count for each in delays),
            sum(each.sum for each in delays),
        )


class ShownStatus:
    """Shows a job's status: by a line that is renewed, or by a line of the log every minute, in a file, and to systemd.

    Args:
        status: the job's status.
        line: the line to renew; None for a log.
        file: the file to write the status to; None for none.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        status: StatusOf,
        line: RenewedLine | None,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status, self._line, self._file, self._clock = status, line, file, clock
        self._log_s = clock() + _LOG_S

    def look(self, *, progress: bool = True) -> None:
        """Shows the status now. Only if the job makes progress, renews the file and tells systemd's watchdog."""
        status = self._status.next()
        if status is None:
            return
        parts = status.parts()
        tell_systemd(STATUS=", ".join(parts), **({"WATCHDOG": "1"} if progress else {}))
        if self._file is not None and progress:
            with suppress(OSError):  # its age tells it
                write_status(self._file, vars(status))
        now_s = self._clock()
        if self._line is not None:
            self._line.renew(parts)
        elif now_s >= self._log_s:
            self._log_s = now_s + _LOG_S
            say(", ".join(parts), **vars(status))


def write_status(file: Path, status: Mapping[str, Any]) -> None:
    """Writes a status file, which others see as a whole. Its age tells how long the job has made no progress."""
    beside = file.with_name(f"{file.name}.new")
    beside.write_text(json.dumps(status) + "\n")
    beside.replace(file)


def _clock_of(since: str) -> str:
    """Returns the time of today, or the day."""
    return f"{since[11:16]} UTC" if since[:10] == datetime.now(UTC).strftime("%Y-%m-%d") else since[:10]


def _duration(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.1f} s"
