"""The messages of a job on standard error: lines of text, or of JSON as Cloud Logging reads them.

At a terminal, the last line may be one that is renewed. Whatever else is written to standard error takes its place.
"""

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from pipeline.core.notation.text import json_line, plain

_as_json = False


def say(text: str, severity: str = "INFO", **fields: Any) -> None:
    """Prints a message in one line; fields are for programs, and only in JSON.

    A job goes on if nobody reads its messages: the terminal hung up, Ctrl-C ended ``tee`` too, or a disk is full.

    Args:
        text: the message.
        severity: one of Cloud Logging's: INFO, WARNING, ERROR or CRITICAL.
        fields: more keys of the line of JSON.
    """
    if _as_json:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json_line({"severity": severity, "time": now, "message": text} | fields)
    else:
        line = plain(f"tidetable: {text}")
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def use_json() -> None:
    """Makes each message of this process a line of JSON: also what is logged, warnings, and uncaught errors."""
    global _as_json
    _as_json = True
    logging.basicConfig(handlers=[_JsonHandler()], format="%(message)s")
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda *error: logging.critical("uncaught error", exc_info=error)
    threading.excepthook = lambda args: logging.critical(
        "uncaught error", exc_info=(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    )


def in_json() -> bool:
    """Returns whether messages are lines of JSON."""
    return _as_json


def tell_systemd(**assignments: str) -> None:
    """Tells systemd of the state of this process, if it started it as a service of ``Type=notify``.

    See https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        lines = "\n".join(f"{name}={value}" for name, value in assignments.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(lines.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


class _JsonHandler(logging.Handler):
    """Says what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), record.levelname, logger=record.name)


class RenewedLine:
    """Standard error at a terminal, whose last line can be renewed. What others write replaces that line.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()  # a signal's handler may write while the same thread does
        self._shown, self._line_ended = False, True

    def renew(self, parts: Sequence[str]) -> None:
        """Shows as many of the first parts as fit in the width of the terminal, in place of those shown before."""
        with self._lock, suppress(OSError):
            if self._line_ended:  # otherwise a line is being written
                self._stream.write(f"\r{fitting(parts, self._width())}\x1b[K")
                self._stream.flush()
                self._shown = True

    def write(self, text: str) -> int:
        """Writes a text as streams do, where the renewed line was."""
        with self._lock:
            if self._shown:
                self._stream.write("\r\x1b[K")
                self._shown = False
            self._line_ended = text.endswith("\n") if text else self._line_ended
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80


def fitting(parts: Sequence[str], width: int) -> str:
    """Returns as many of the first parts as fit in one line of a terminal, which wraps a line as long as its width."""
    while len(", ".join(parts)) >= width and len(parts) > 1:
        parts = parts[:-1]
    return ", ".join(parts)[: max(width - 1, 0)]


@contextmanager
def renewed_line() -> Iterator[RenewedLine | None]:
    """Yields a line that can be renewed, below all that is written within the block; None for a log."""
    if _as_json or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    terminal, line = sys.stderr, RenewedLine(sys.stderr)
    # Beam has logged something, and so made a handler that keeps the stream.
    handlers = [each for each in logging.getLogger().handlers if getattr(each, "stream", None) is terminal]
    with redirect_stderr(line):
        for handler in handlers:
            handler.stream = line  # type: ignore[attr-defined]
        try:
            yield line
        finally:
            with suppress(OSError):
                line.write("")
                line.flush()
            for handler in handlers:
                handler.stream = terminal  # type: ignore[attr-defined]
