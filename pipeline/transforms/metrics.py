"""Every counter and distribution of the pipeline, under one namespace.

| name | counts |
|---|---|
| ``messages`` | Pub/Sub messages read |
| ``empty_batches`` | batches without an event |
| ``events`` | valid events that every table has a place for |
| ``dead_letters``, ``dead_letters_<REASON>`` | dead letters, in all and for each reason, ``ROW_REFUSED`` among them |
| ``letters_dropped`` | dead letters that came back ten times and were refused again: the log names each |
| ``raw_rows`` | raw rows handed to the writers |
| ``aggregate_rows`` | aggregate rows handed to the writers: the last pane of each window in a bundle |
| ``panes_early``, ``panes_on_time``, ``panes_late`` | panes that fired, by timing; once for each table that has them |
| ``panes_held_back`` | panes of windows that began before the job, while they lack something that the table holds |
| ``panes_too_wide`` | panes of windows with more than 10,000 metrics: never written, and put on the work list |
| ``windows_recalled`` | windows that began before the job, of which it read what the table holds |
| ``windows_unsure`` | those of them of which that may not be all: they are put on the work list |
| ``late_events`` | events later than the allowed lateness: in no aggregate until a repair; for each table |
| ``expired_events`` | events older than a family keeps, and soon collected; for each table |
| ``event_delay_ms`` | distribution: decoding minus event time, in ms, of each message's oldest and newest event |

Where a clock is ahead, a delay is negative.
"""

from apache_beam.metrics.metric import Metrics
from apache_beam.metrics.metricbase import Counter, Distribution
from apache_beam.utils.windowed_value import PaneInfoTiming

NAMESPACE = "tidetable"

MESSAGES = "messages"
EMPTY_BATCHES = "empty_batches"
EVENTS = "events"
DEAD_LETTERS = "dead_letters"
LETTERS_DROPPED = "letters_dropped"
RAW_ROWS = "raw_rows"
AGGREGATE_ROWS = "aggregate_rows"
PANES = {
    PaneInfoTiming.EARLY: "panes_early",
    PaneInfoTiming.ON_TIME: "panes_on_time",
    PaneInfoTiming.LATE: "panes_late",
}
PANES_HELD_BACK = "panes_held_back"
PANES_TOO_WIDE = "panes_too_wide"
WINDOWS_RESTORED = "windows_recalled"
WINDOWS_INCOMPLETE = "windows_unsure"
LATE_EVENTS = "late_events"
EXPIRED_EVENTS = "expired_events"
EVENT_DELAY_MS = "event_delay_ms"


def counter(name: str) -> Counter:
    """The counter of that name in our namespace."""
    return Metrics.counter(NAMESPACE, name)


def distribution(name: str) -> Distribution:
    """The distribution of that name in our namespace."""
    return Metrics.distribution(NAMESPACE, name)


class BundleCounts:
    """Counts of a bundle, handed on when it ends: a counter takes longer for one than a dictionary for many.

    Part of a DoFn: it pickles.

    Attributes:
        of: by name.
    """

    def __init__(self, *names: str) -> None:
        self._counters = {name: counter(name) for name in names}
        self.start()

    def start(self) -> None:
        """Begins a bundle; what one that failed has counted comes again."""
        self.of = dict.fromkeys(self._counters, 0)

    def finish(self) -> None:
        """Ends a bundle."""
        for name, count in self.of.items():
            if count:
                self._counters[name].inc(count)
        self.start()


def dead_letters_of(reason: str) -> str:
    """The name of the counter of dead letters for one reason."""
    return f"{DEAD_LETTERS}_{reason}"
