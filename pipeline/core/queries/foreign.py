"""Foreign rows: rows in a table that its schema does not write, such as rows of another program."""

import threading
from collections.abc import Callable

from pipeline.core.rows.rows import Row
from pipeline.core.schema.key_template import RawKey

_MAX_SHOWN = 200  # characters of a row's key, and of the problem with it
_MAX_MESSAGES = 1000


class ForeignRow(Exception):
    """A row that the schema does not write. ``str()`` is one line: the row and the problem.

    Attributes:
        key: the row key.
        raw_key: the parsed key, if the key matches the schema and only the cells do not.
    """

    def __init__(self, row: Row, error: Exception, raw_key: RawKey | None = None) -> None:
        super().__init__(f"row {_cut(repr(row.key))} is not one of this schema: {_cut(str(error))}")
        self.key = row.key
        self.raw_key = raw_key


OnForeign = Callable[[ForeignRow], object]
"""Receives a row that the schema does not write. Raises, or returns to leave the row out."""


def raise_foreign(problem: ForeignRow) -> None:
    """Raises the problem: no row is left out."""
    raise problem


class ForeignRows:
    """Collects foreign rows. Thread-safe.

    Attributes:
        count: the number of foreign rows. Rows after the first 1,000 count each time they are added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._messages: dict[bytes, str] = {}
        self._lock = threading.Lock()

    def add(self, problem: ForeignRow) -> bool:
        """Adds a row. Returns whether it is new and among the first 1,000."""
        with self._lock:
            if problem.key in self._messages:
                return False
            self.count += 1
            if len(self._messages) == _MAX_MESSAGES:
                return False
            self._messages[problem.key] = str(problem)
            return True

    @property
    def messages(self) -> dict[bytes, str]:
        """The first 1,000 rows: a line about the problem by row key."""
        with self._lock:
            return dict(self._messages)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
