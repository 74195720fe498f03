"""Runs a program from its first import to its last byte of output: Ctrl-C, closed pipes, full disks, odd encodings.

Imports next to nothing, because Ctrl-C during its own imports would print a traceback.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TextIO

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended

# The system's errors of a device that takes no more data.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


class Importing:
    """Within the block, Ctrl-C ends the process at once, without a traceback: ``with Importing():``.

    Use it for imports only, which need no clean-up. As an exception, Ctrl-C could get lost in a callback, or in an
    extension module that reports it as an ImportError.
    """

    def __enter__(self) -> None:
        self._replaced = None
        # Not if a shell ignores SIGINT or another handler is set; and only the main thread may set a handler.
        if (
            signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and threading.current_thread() is threading.main_thread()
        ):
            self._replaced = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

    def __exit__(self, *_: object) -> None:
        if self._replaced:
            signal.signal(signal.SIGINT, self._replaced)


def run(program: Callable[[], int | None]) -> NoReturn:
    """Runs a program and exits with its code: 130 after Ctrl-C, 1 if its output could not be written.

    If the reader of standard output has gone, prints nothing; if the disk is full, prints one line.
    """
    if os.getpid() == 1:  # in a container: without a handler, the system would ignore SIGTERM
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    try:
        for stream in (sys.stdout, sys.stderr):
            _escape(stream)
        try:
            sys.exit(program())
        finally:
            _flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _discard_output()
        # The error of a failed write has no file name; commands name their own files.
        sys.exit(f"tidetable: {error.filename or 'standard output'}: {error.strerror}")


def _escape(stream: TextIO | None) -> None:
    """Lets a stream escape the characters that its encoding lacks."""
    if stream is not None and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    if sys.stdout is not None:  # None if it was closed from the start
        sys.stdout.flush()


def _discard_output() -> None:
    """Keeps Python from writing the rest of the output when it exits, which would fail again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
