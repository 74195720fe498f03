"""The line that a job at a terminal prints now and then: its progress, and the delay of its events."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from apache_beam.runners.runner import PipelineResult

from pipeline.core.notation.text import counted
from pipeline.transforms import metrics


class Standing(NamedTuple):
    """A job's counts so far."""

    at_s: float  # monotonic
    totals: Mapping[str, int]
    delays: int = 0
    delays_ms: int = 0  # their sum
    longest_wait_s: float | None = None  # from a message's publication until it was processed, since the last line


class StatusLine:
    """Describes the progress of a running job since the last line.

    Args:
        job: the job.
        longest_wait_s: returns the longest time from a message's publication until it was processed, of those since
            its last call.
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
        self._last = Standing(clock(), {})

    def next(self) -> str | None:
        """Returns a line; None if the job has counted nothing since the last one."""
        try:
            now = self._standing()
        except RuntimeError:  # the DirectRunner added a metric to a dictionary while it was read here
            return None
        last, self._last = self._last, now
        return None if now.totals == last.totals else describe(last, now)

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
            self._longest_wait_s(),
        )


def describe(last: Standing, now: Standing) -> str:
    """Returns one line: the totals, and, since the last line, the rate, the mean lag and the message that took longest.

    The lag is that of events behind the clock. It includes what they took until they were published; the message's time
    does not.
    """

    def total(name: str) -> int:
        return now.totals.get(name, 0)

    rate = (total(metrics.EVENTS) - last.totals.get(metrics.EVENTS, 0)) / (now.at_s - last.at_s)
    parts = [
        f"{counted(total(metrics.EVENTS), 'event')} ({rate:,.0f} a second)",
        counted(total(metrics.RAW_ROWS), "raw row"),
        counted(total(metrics.AGGREGATE_ROWS), "aggregate row"),
        counted(total(metrics.DEAD_LETTERS), "dead letter"),
    ]
    if new := now.delays - last.delays:
        parts.append(f"lag {_duration((now.delays_ms - last.delays_ms) / new / 1000)}")
    if now.longest_wait_s is not None:
        parts.append(f"oldest message {_duration(now.longest_wait_s)}")
    if late := total(metrics.LATE_EVENTS):
        parts.append(counted(late, "late event"))
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.1f} s"
