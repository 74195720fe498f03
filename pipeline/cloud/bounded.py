"""Bounds the number of rows that an answer may read."""

import threading
from collections.abc import Iterator
from typing import Any

from pipeline.cloud.names import TableName
from pipeline.cloud.problems import ServerProblem
from pipeline.core.rows import Row
from pipeline.core.schema.seeks import ReadRows


class TooManyRows(ServerProblem):
    """An answer would have to read more rows than its caller allows."""


def bounded(read: ReadRows, most: int, name: TableName) -> ReadRows:
    """Returns a function that reads rows, from any thread, until they are more than ``most`` together.

    It raises TooManyRows then. At most a page more is read.
    """
    lock, count = threading.Lock(), 0

    def reading(*args: Any, reverse: bool) -> Iterator[Row]:
        nonlocal count
        for row in read(*args, reverse=reverse):
            with lock:
                count += 1
            if count > most:
                raise TooManyRows(
                    f"table {name}: the answer needs more than {most:,} rows; ask for a shorter range or fewer "
                    "sensors, or allow more rows"
                )
            yield row

    return reading
