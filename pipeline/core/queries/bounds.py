"""Bounds the number of rows that an answer may read."""

import threading
from collections.abc import Iterator

from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.rows.rows import Row


class TooManyRows(ValueError):
    """An answer would have to read more rows than its caller allows."""


class BoundedReads:
    """A ReadRows, for any threads, that raises TooManyRows once it has read more than ``most`` rows.

    Attributes:
        rows: the number of rows read so far.
    """

    def __init__(self, read: ReadRows, most: int) -> None:
        self.rows = 0
        self._read = read
        self._most = most
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """The number of rows that may still be read."""
        return max(self._most - self.rows, 0)

    def __call__(self, selection: RowSelection) -> Iterator[Row]:
        for row in self._read(selection):
            with self._lock:
                self.rows += 1
            if self.rows > self._most:
                raise TooManyRows(
                    f"the answer needs more than {self._most:,} rows: ask for a shorter range or fewer sensors, or "
                    "allow more rows"
                )
            yield row
