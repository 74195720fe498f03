"""The name of every counter and distribution, all in one namespace; how steps make them, and how results are read.

Counters that belong to a table are added up over all tables.
"""

from collections import Counter as Totals
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands read totals by these names, and must not wait for Beam's import
    from apache_beam.metrics.metricbase import Counter, Distribution
    from apache_beam.runners.runner import PipelineResult

NAMESPACE = "tidetable"

# The streaming job. ``backfill`` uses the same names for the same things.

# Pub/Sub messages read.
MESSAGES = "messages"
# Batches without an event.
EMPTY_BATCHES = "empty_batches"
# Fields of built-in messages that their types do not have.
UNKNOWN_FIELDS = "unknown_fields"
# Events whose time is not the first that is set in a mapping's list of times, since that is invalid or not plausible.
REPLACED_TIMES = "replaced_times"
# Valid events that every table has a place for.
EVENTS = "events"
# Readings that events lost, since they were not finite, out of their range or left out by a mapping.
READINGS_DROPPED = "readings_dropped"
# Dead letters of refusals, in all; ROW_REFUSED among them. dead_letters_of() names the counter of each reason.
DEAD_LETTERS = "dead_letters"
# Dead letters that came back ten times and were refused again. The log names each of them.
LETTERS_DROPPED = "letters_dropped"
# Raw rows handed to the writers.
RAW_ROWS = "raw_rows"
# Aggregate rows handed to the writers.
AGGREGATE_ROWS = "aggregate_rows"
# Panes that fired, by their timing.
PANES_EARLY = "panes_early"
PANES_ON_TIME = "panes_on_time"
PANES_LATE = "panes_late"
# Panes of windows with more metrics than fit in a row: never written; their windows are put on the work list.
PANES_TOO_WIDE = "panes_too_wide"
# Windows that began before the job and were restored from what the table stores.
WINDOWS_RESTORED = "windows_recalled"
# Windows whose stored rows may be incomplete: they are put on the work list.
WINDOWS_INCOMPLETE = "windows_unsure"
# Windows computed anew from their raw rows, because events came after they were closed.
WINDOWS_RECOMPUTED = "windows_recomputed"
# Windows that backfills listed beside the job, woken. The same window may be woken three times.
WINDOWS_WOKEN = "windows_woken"
# Accumulators of more than 20 MB, at each pane of their group. The log names each of them.
LARGE_ACCUMULATORS = "large_accumulators"
# Firings of a group that commit more than 45 MB, a quarter of Dataflow's limit. The log names one a minute.
LARGE_GROUPS = "large_groups"
# Events that came after their window was closed.
LATE_EVENTS = "late_events"
# Events older than their family keeps, which Bigtable soon collects.
EXPIRED_EVENTS = "expired_events"
# Distribution: decoding time minus event time in ms, of the oldest and the newest event of each message. Negative if
# the publisher's clock is ahead.
EVENT_DELAY_MS = "event_delay_ms"

# For each type that is read through a mapping or a decoder function: messages; valid events; messages or elements that
# conditions of the mapping left out; and messages refused, even for one element only. of_type() names the counters.
TYPE_COUNTERS = ("messages_of", "events_of", "skipped_of", "refused_of")

# The bulk writer.

# Rows confirmed; a row that is written again counts again.
BULK_ROWS = "bulk_rows"
# Bytes of all requests.
BULK_BYTES = "bulk_bytes"
# Requests, including retries.
BULK_REQUESTS = "bulk_requests"
# Rows that Bigtable refused. They also count as dead letters.
BULK_REFUSED = "bulk_refused"
# Distribution: milliseconds from a request to the end of its response.
BULK_LATENCY_MS = "bulk_latency_ms"
# Distribution: rows in flight whenever a request is sent, including its own.
BULK_ROWS_IN_FLIGHT = "bulk_rows_in_flight"

# ``backfill``.

# Records read from files, valid or not.
BACKFILL_RECORDS = "records"
# Records that are not events.
BACKFILL_REFUSED_RECORDS = "refused_records"
# Files that could not be read to the end.
BACKFILL_UNREADABLE_FILES = "unreadable_files"
# Windows put on the work list.
BACKFILL_WINDOWS_LISTED = WINDOWS_WOKEN
# Windows left unchanged, and listed.
BACKFILL_WINDOWS_LEFT = WINDOWS_INCOMPLETE

# ``repair``.

# Events read again. An event in several rows may count more than once.
REPAIR_EVENTS = EVENTS
# Windows of every tier that have raw rows or an aggregate row.
REPAIR_WINDOWS_CHECKED = "repair_windows_checked"
# Checked windows whose aggregate row is missing, differs, or has no raw rows.
REPAIR_WINDOWS_WRONG = "repair_windows_wrong"
# Wrong windows whose aggregate row was replaced or deleted.
REPAIR_WINDOWS_REWRITTEN = "repair_windows_rewritten"
# Windows left unchanged because foreign raw rows may belong to them.
REPAIR_WINDOWS_UNTOUCHED = "repair_windows_untouched"
# Foreign rows beyond the first 1,000 in a part of the table. A row may count more than once.
REPAIR_FOREIGN_ROWS_UNNAMED = "repair_foreign_rows_unnamed"
# A repair of roll-ups counts by the same names, since Dataflow has no more of them: the rows of groups that there
# should be, and those that tell of sensors where none are; those that are missing or differ, or whose parts do.
REPAIR_ROLLUPS_CHECKED, REPAIR_ROLLUPS_WRONG = REPAIR_WINDOWS_CHECKED, REPAIR_WINDOWS_WRONG
# Rows of newest readings that are missing or differ.
REPAIR_NEWEST_WRONG = AGGREGATE_ROWS
# What sensors contribute to roll-ups of a window, if that is missing or differs.
REPAIR_CONTRIBUTIONS_WRONG = REPAIR_WINDOWS_REWRITTEN
# Rows of groups of roll-ups that ``backfill`` and ``repair`` write: late panes, as it were.
ROLLUP_ROWS = PANES_LATE
# An export by a job: events or windows, and foreign rows, each of which may count more than once.
EXPORTED, EXPORT_FOREIGN_ROWS = EVENTS, REPAIR_FOREIGN_ROWS_UNNAMED
# Aggregate rows without the metadata that roll-ups group by: raw rows no longer tell it, or do.
REPAIR_ROWS_WITHOUT_MEMBER, REPAIR_ROWS_TO_RECOMPUTE = REPAIR_WINDOWS_UNTOUCHED, WINDOWS_RECOMPUTED


def of_type(counter: str, message_type: str) -> str:
    """Returns the name of one of ``TYPE_COUNTERS`` for a message type, or for ``module:function`` of a decoder."""
    return f"{counter}_{message_type.replace(':', '.')}"  # names of metrics in Cloud Monitoring have no colon


def dead_letters_of(reason: str) -> str:
    """Returns the name of the counter of dead letters for one reason."""
    return f"{DEAD_LETTERS}_{reason}"


def dead_letter_reason(name: str) -> str | None:
    """Returns the reason whose dead letters a counter counts; None for any other counter."""
    reason = name.removeprefix(f"{DEAD_LETTERS}_")
    return None if reason == name else reason


def bulk_retries_of(code: str) -> str:
    """Returns the name of the counter of rows that were sent again after this status, like ``UNAVAILABLE``."""
    return f"bulk_retries_{code}"


def counter(name: str) -> "Counter":
    """Returns the counter of that name."""
    from apache_beam.metrics.metric import Metrics

    return Metrics.counter(NAMESPACE, name)


def distribution(name: str) -> "Distribution":
    """Returns the distribution of that name."""
    from apache_beam.metrics.metric import Metrics

    return Metrics.distribution(NAMESPACE, name)


def results_of(job: "PipelineResult") -> dict[str, list[Any]]:
    """Returns the counters and distributions of a job that are in the namespace, as ``MetricResults.query`` does."""
    from apache_beam.metrics.metric import MetricsFilter

    return job.metrics().query(MetricsFilter().with_namespace(NAMESPACE))


def totals_of(job: "PipelineResult") -> dict[str, int]:
    """Returns the total of each counter over all steps of a job."""
    totals: Totals[str] = Totals()
    for found in results_of(job)["counters"]:
        totals[found.key.metric.name] += found.committed or 0
    return dict(totals)


class BundleCounts:
    """Counts within a bundle, and adds the counts to the counters when it ends. Part of a DoFn: it pickles.

    Incrementing a counter once takes longer than incrementing a number in a dictionary many times.

    Attributes:
        of: the counts by name.
    """

    def __init__(self, *names: str) -> None:
        self._counters = {name: counter(name) for name in names}
        self.start()

    def start(self) -> None:
        """Begins a bundle. Drops the counts of a bundle that failed: its elements come again."""
        self.of = dict.fromkeys(self._counters, 0)

    def finish(self) -> None:
        """Ends a bundle."""
        for name, count in self.of.items():
            if count:
                self._counters[name].inc(count)
        self.start()
