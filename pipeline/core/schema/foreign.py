"""Foreign rows: those that somebody else wrote, and that the table's schema does not."""

import threading
from collections.abc import Callable

from pipeline.core.rows import Row
from pipeline.core.schema.template import RawKey

_MAX_SHOWN = 200  # characters of a row's key, and of what is wrong with the row
_MAX_TOLD_APART = 1000


class ForeignRow(Exception):
    """A row that the schema does not write. ``str()`` says in one line which, and how it is not.

    Attributes:
        key: the row's.
        raw_key: what it says, where the key is one of the schema's and the cells are not.
    """

    def __init__(self, row: Row, error: Exception, raw_key: RawKey | None = None) -> None:
        super().__init__(f"row {_cut(repr(row.key))} is not one of this schema: {_cut(str(error))}")
        self.key = row.key
        self.raw_key = raw_key


OnForeign = Callable[[ForeignRow], object]
"""What is told of a row that the schema does not write: it raises, or the row is left out."""


def raise_foreign(problem: ForeignRow) -> None:
    """Lets no row be left out."""
    raise problem


class ForeignRows:
    """The foreign rows that were met. Any number of threads may add to them.

    Attributes:
        count: how many; each once, however often it was met, but for those behind the first 1,000.
    """

    def __init__(self) -> None:
        self.count = 0
        self._messages: dict[bytes, str] = {}
        self._lock = threading.Lock()

    def add(self, problem: ForeignRow) -> bool:
        """Adds a row. Returns whether it is one of the first, and new."""
        with self._lock:
            if problem.key in self._messages:
                return False
            self.count += 1
            if len(self._messages) == _MAX_TOLD_APART:
                return False
            self._messages[problem.key] = str(problem)
            return True

    @property
    def messages(self) -> dict[bytes, str]:
        """The first 1,000 rows by their keys, each with the line that says how it is foreign."""
        with self._lock:
            return dict(self._messages)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
