"""Shares work among processes of this machine."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar

from pipeline.cloud.connection.errors import ServerError

R = TypeVar("R")

SPAWN = multiprocessing.get_context("spawn")
"""How the processes start: gRPC does not survive a fork."""


class Processes:
    """Processes that take one call after the other. Create them with :func:`processes_of`.

    Args:
        pool: the processes.
        count: their number.
    """

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count

    def each(self, function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Yields the results of a function for the arguments of calls, as they are there."""
        running = set[Future[R]]()
        for arguments in calls:
            running.add(self._pool.submit(function, *arguments))
            if len(running) >= 2 * self._count:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        yield from (each.result() for each in as_completed(running))


@contextmanager
def processes_of(count: int, begin: Callable[..., Any] = bool, *arguments: Any) -> Iterator[Processes]:
    """Starts processes for the length of a ``with`` block. An exception in it ends them at once, and so does Ctrl-C.

    Args:
        count: the number of processes.
        begin: the function that each calls first.
        arguments: the arguments of that function.

    Raises:
        ServerError: a process has ended.
    """
    pool = ProcessPoolExecutor(count, SPAWN, _begin, (begin, arguments))
    try:
        with pool:
            try:
                with _deaf():
                    for _ in range(count):
                        pool.submit(bool)  # starts a process, as long as none is idle
                yield Processes(pool, count)
            except BaseException:
                children = multiprocessing.active_children()
                for child in children:
                    child.terminate()
                for child in children:
                    child.join()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as failure:
        raise ServerError(
            "one of this command's processes has ended, perhaps for lack of memory; run the same command again"
        ) from failure


@contextmanager
def _deaf() -> Iterator[None]:
    """Leaves Ctrl-C out within the block, and in processes that are started in it: the first process ends them."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(begin: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    begin(*arguments)


def _end_with_parent() -> None:
    """Ends this process when the one that started it has ended: the pool itself would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
