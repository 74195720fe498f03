"""Checks for a running job whether its table is still the table that it was launched with.

A table can be deleted and created again under a job. If the new one has families of the same names, Bigtable takes the
job's rows, under keys that no reader of the new table looks for. So steps that write rows ask before a bundle ends.
"""

import logging
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from threading import Lock

from google.api_core.exceptions import NotFound, PermissionDenied, ResourceExhausted

from pipeline.cloud.connection.bigtable_client import shared_client
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import TIMEOUT_S, RowReader
from pipeline.cloud.tables.schema_store import parsed_text, read_text_and_ids, text_of
from pipeline.core.notation.times import format_time
from pipeline.core.schema.changes import changes
from pipeline.core.schema.table_schema import TableSchema

_PATIENCE_S = 600.0  # for an unreachable table; Beam's connector waits as long when it writes
_QUOTA_S = 1.0  # the pause after a read beyond a quota
_LOGGER = logging.getLogger(__name__)


class AnotherTable(ServerError):
    """A table is not the table that the job was launched with."""


class _Checks:
    """The checks of a table in this process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.began_s = 0.0  # when the last check began
        self.good_us = 0  # when the last good check began, in microseconds since the epoch; 0 if none was good
        self.problem: str | None = "not checked yet"  # what the last check found
        self.compared: bytes | None = None  # the last text that fits the job's schema


_all_checks: defaultdict[tuple["TableGuard", str | None], _Checks] = defaultdict(_Checks)


@dataclass(frozen=True)
class TableGuard:
    """A table as a job was launched with it. Equal guards in a process share their checks.

    Attributes:
        name: the table.
        text: the job's schema, as a table stores it.
        table_id: the table's id at the launch; empty if it is not known.
        every_s: the time between two checks; with 0, each bundle is checked twice. With more, a table that was created
            this long after the other was deleted gets no bundle unnoticed: the last good check was before both, so
            another one is due.
    """

    name: TableName
    text: bytes
    table_id: bytes
    every_s: float

    @classmethod
    def of(cls, name: TableName, schema: TableSchema, table_id: bytes, every_s: float) -> "TableGuard":
        """Returns the guard of a table whose job has this schema."""
        return cls(name, text_of(schema), table_id, every_s)

    def check(self) -> None:
        """Checks the table if a check is due. Call it before a bundle writes, and when all its rows are written.

        The first call keeps rows out of another table. The second one fails a bundle whose rows may be in one. Waits
        for an unreachable server as long as writes do.

        Raises:
            AnotherTable: the table is gone, was created again, or stores a schema that the job's rows do not fit.
            ServerError: the server refuses the read, or stays unreachable.
        """
        checks = self._checks
        with checks.lock:
            if checks.began_s and time.monotonic() < checks.began_s + self.every_s:
                if checks.problem is not None:
                    raise AnotherTable(checks.problem)
            else:
                self._check(checks, _PATIENCE_S)

    def check_now(self, *, wait: bool = True) -> None:
        """Checks the table after something failed. Does nothing if the server does not answer.

        With ``wait``, waits for a check that goes on in another thread, perhaps as long as the server is away.
        """
        checks = self._checks
        if not checks.lock.acquire(blocking=wait):
            return
        try:
            self._check(checks, TIMEOUT_S)
        except AnotherTable:
            raise
        except ServerError as problem:  # the caller has a reason of its own
            _LOGGER.info("%s", problem)
        finally:
            checks.lock.release()

    @property
    def _checks(self) -> _Checks:
        return _all_checks[self, os.environ.get("BIGTABLE_EMULATOR_HOST")]

    def _check(self, checks: _Checks, patience_s: float) -> None:
        began_s, began_us = time.monotonic(), time.time_ns() // 1000
        problem = self._problem(checks, patience_s)
        checks.began_s = began_s
        if problem is None:
            checks.problem, checks.good_us = None, began_us
            return
        since = ""
        if checks.good_us:
            at = format_time(checks.good_us // 1_000_000 * 1_000_000)
            since = f"; rows that this worker wrote since {at} may be gone, or in the new table"
        checks.problem = (
            f"table {self.name} {problem}{since}; start another job, but first see 'A table is created again' in "
            "docs/guarantees.md"
        )
        raise AnotherTable(checks.problem)

    def _problem(self, checks: _Checks, patience_s: float) -> str | None:
        """Returns why the table is another one; None if it is the same, or if this process may not look."""
        try:
            text, ids = self._read(patience_s)
            different = None if text is None or text in (self.text, checks.compared) else self._different(text)
            if self.table_id and self.table_id not in ids:
                again = "was deleted and created again while the job ran"
                return f"{again}; it {different}" if different else again
        except ServerError as problem:
            if isinstance(problem.__cause__, NotFound):
                return "was deleted while the job ran"
            if not isinstance(problem.__cause__, PermissionDenied):
                raise
            if not checks.good_us:
                _LOGGER.warning("%s; so this worker would not notice if the table were created again", problem)
            return None
        if different is None:
            checks.compared = text
        return different

    def _read(self, patience_s: float) -> tuple[bytes | None, frozenset[bytes]]:
        """Returns the text and the ids that the table stores."""
        with explained(self.name):
            client = shared_client()
        until_s = time.monotonic() + patience_s
        while True:
            try:
                return read_text_and_ids(RowReader(client, self.name, patience_s))
            except ServerError as problem:
                # The reader retries everything else that may pass.
                if not isinstance(problem.__cause__, ResourceExhausted) or time.monotonic() > until_s:
                    raise
            time.sleep(_QUOTA_S)

    def _different(self, text: bytes) -> str | None:
        """Returns how rows of the job's schema do not fit the stored one; None if they do, after a warning."""
        try:
            stored = parsed_text(self.name, text)
        except ServerError as problem:
            return f"has a schema that this release can't read: {problem}"
        found = [each for each in changes(parsed_text(self.name, self.text), stored) if not each.for_people]
        if unfit := [change.made for change in found if not change.safe]:
            return f"has a schema that the job's rows do not fit: {'; '.join(unfit)}"
        if found:
            _LOGGER.warning(
                "Table %s: its schema has changed since the job was launched: %s. The job's rows fit; start the job "
                "again, or update it, to take the change.",
                self.name,
                "; ".join(change.made for change in found),
            )
        return None
