"""The request of a repair, as the command's options state it."""

from dataclasses import dataclass
from datetime import timedelta

from pipeline.cloud.connection.names import TableName
from pipeline.core.events.event import LATEST_US
from pipeline.core.schema.changes import DeclaredSchema


@dataclass(frozen=True)
class Request:
    """The requested repair.

    Args:
        table: the table's name.
        declared: the schema that the flags declare.
        start_us: the start of the range of windows; ignored with ``listed``.
        end_us: the end of the range.
        sensors: the sensors to repair; None for all.
        listed: whether to repair the windows of the work list instead of a time range.
        dry_run: whether to write nothing.
        force: whether to include windows that may be partly collected, or that a job may still write.
        allowed_lateness: the allowed lateness of the job that writes the table; zero if no job is running.
        late_firing: the late firing interval of that job.
        report: the folder for the findings; None to keep no report.
        rolls_up: whether roll-ups follow the aggregate rows that are rewritten.
    """

    table: TableName
    declared: DeclaredSchema
    start_us: int = 0
    end_us: int = LATEST_US + 1
    sensors: frozenset[str] | None = None
    listed: bool = False
    dry_run: bool = False
    force: bool = False
    allowed_lateness: timedelta = timedelta(hours=1)
    late_firing: timedelta = timedelta(minutes=1)
    report: str | None = None
    rolls_up: bool = True
