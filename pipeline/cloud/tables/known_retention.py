"""The retention of a table that is being read: asked for when an answer depends on it, and again after a minute."""

import threading
import time
from collections.abc import Callable

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema

_VALID_S = 60.0


class KnownRetention:
    """Returns a table's retention when called, in any thread.

    Without the permission ``bigtable.tables.get``, or if the administration's server is out of reach, returns one that
    knows nothing, so that no answer counts as complete.
    """

    def __init__(self, name: TableName, schema: TableSchema, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._schema = schema
        self._clock = clock
        self._lock = threading.Lock()
        self._read_s = -_VALID_S
        self._retention: Retention | None = None

    def __call__(self) -> Retention:
        # While one thread asks again, the others go on with the last answer: the server may take its time.
        if self._is_due() and self._lock.acquire(blocking=self._retention is None):
            try:
                if self._is_due():
                    self._retention = self._read()
                    self._read_s = self._clock()
            finally:
                self._lock.release()
        return self._retention or Retention.unknown(self._schema)

    def _is_due(self) -> bool:
        return self._clock() - self._read_s >= _VALID_S

    def _read(self) -> Retention:
        # Slow to import: few commands need it.
        from pipeline.cloud.tables.retention_notes import retention_of
        from pipeline.cloud.tables.tables import describe

        try:
            return retention_of(self._name, self._schema, describe(self._name))
        except ServerProblem:
            return Retention.unknown(self._schema)
