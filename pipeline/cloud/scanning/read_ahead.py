"""Reads several sensors at a time, each ahead of its reader."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

_T = TypeVar("_T")

_THREADS = 8
_RECORDS = 8000  # ahead, over all sensors


class ReadAhead:
    """Reads ahead in threads, until the connection closes."""

    def __init__(self, connection: ExitStack) -> None:
        self._threads = ThreadPoolExecutor(_THREADS)
        # Drops reads ahead that nobody needs any more.
        connection.callback(self._threads.shutdown, cancel_futures=True)

    def each(self, records: Iterable[Iterator[_T]], size: int) -> list[Iterator[_T]]:
        """Returns the same iterators, while other threads read the next ``size`` records of each."""
        return [self._ahead(each, size) for each in records]

    def merged(
        self, sensors: list[str], records: Callable[[str, int], Iterator[_T]], key: Callable[[_T], Any]
    ) -> Iterator[_T]:
        """Returns the records of several sensors, merged by a key.

        Args:
            sensors: the sensors' ids.
            records: a function of a sensor and a page's number of rows: its records, in the order of the key.
            key: the key.
        """
        size = max(_RECORDS // max(len(sensors), 1), 10)
        return merge(*self.each((records(sensor, size) for sensor in sensors), size), key=key)

    def _ahead(self, records: Iterator[_T], size: int) -> Iterator[_T]:
        batch = self._threads.submit(list, islice(records, size))

        def batches() -> Iterator[_T]:
            nonlocal batch
            while ready := batch.result():
                batch = self._threads.submit(list, islice(records, size))
                yield from ready

        return batches()
