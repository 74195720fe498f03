"""Lets one process on the DirectRunner read a subscription into a table.

Such a process has its windows in memory. Of two on one subscription, each would get a part of the messages, and count
only these in open windows. So a process claims the subscription in each of its tables before it reads, and renews the
claim while it runs. The claim is a cell of the row ``schema#reader``, which no reader takes for one of its rows, in a
family that every table has. Its column is the subscription.

A stop in order removes the claim. After a crash it stays, and tells the next process two things: when the process was
last alive, and whether it is gone. On the same machine that is known at once. Otherwise a claim that does not change
for :data:`LEASE_S` is over; no two clocks are compared. A process that could not renew its claim reads nothing more
before that time is over.

With ``--input-topic``, each process has a subscription of its own, gets all messages and claims nothing.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables.compared_cell import ComparedCell
from pipeline.core.notation.times import format_time
from pipeline.job.settings import Settings, Target

LEASE_S = 30.0
_READ_S = 20.0  # after the last renewal: the rest of the lease is for a request that is under way
_RENEW_S = 5.0
_LOOK_S = 0.5
_ENDING_S = 10.0  # for a process of this machine, which may be about to end; if not, it renews its claim before
_PATIENCE_S = 5.0  # of each request of a renewal, for a server that does not answer
_MAX_HOST = 255  # characters: other programs may have written anything
_ROW_KEY = b"schema#reader"


class Process(NamedTuple):
    """A process that claims a subscription.

    Attributes:
        token: a text that no other process has.
        alive_us: the time of the last renewal, by the clock of the process.
        pid: the number of the process, in its machine or container.
        started: the time at which it began, in ticks of its machine; empty if the system does not tell.
        machine: one start of its machine, and the container; empty if the system does not tell.
        host: the name of its machine, for people.
    """

    token: str
    alive_us: int
    pid: int
    started: str
    machine: str
    host: str

    @classmethod
    def this(cls) -> "Process":
        """Returns this process."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            machine = f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
        except OSError:
            machine = ""  # not Linux
        pid = os.getpid()
        return cls(secrets.token_hex(8), 0, pid, _start_of(pid) or "", machine, socket.gethostname())

    @classmethod
    def of(cls, value: bytes) -> "Process":
        """Returns the process of a claim; one that nobody knows for what is none."""
        token, alive_us, pid, started, machine, host, *_ = [*value.decode(errors="replace").split("\n"), *[""] * 6]
        return cls(token, _number(alive_us), _number(pid), started, machine, host[:_MAX_HOST])

    def value(self) -> bytes:
        """Returns the claim's value: a line for each attribute."""
        return "\n".join(map(str, self)).encode()

    def runs(self, here: "Process") -> bool | None:
        """Returns whether the process still runs; None if it is not of the machine and the container of ``here``."""
        if not here.machine or (self.machine, self.host) != (here.machine, here.host):
            return None
        started = _start_of(self.pid)
        return None if started is None else started == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, last seen at {format_time(self.alive_us // 10**6 * 10**6)}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else 0


def _start_of(pid: int) -> str | None:
    """Returns when a process of this machine began, in ticks; empty if it does not run, and None if nothing tells."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        try:
            os.kill(pid, 0)  # sends nothing
        except ProcessLookupError:
            return ""
        except OSError:
            pass  # another user's, which this system hides
        return None
    return "" if state in "ZX" else fields[18]


def _now_s() -> float:
    """Returns the time of a clock that also goes on while the machine sleeps, if the system has one: Linux has."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ReadingClaim:
    """A process's claim of a subscription, in each of its tables.

    Args:
        settings: the job's settings.
        targets: the job's tables.
        say: a function that prints a line.
    """

    def __init__(self, settings: Settings, targets: Sequence[Target], say: Callable[[str], None]) -> None:
        self._subscription, self._say = settings.input_subscription, say
        column = (self._subscription or "").encode()
        self._cells = [ComparedCell(each.name, _ROW_KEY, each.schema.families[0], column) for each in targets]
        if not self._subscription:
            self._cells = []
        self._process = Process.this()
        self._values: dict[ComparedCell, bytes] = {}
        self._renewed_s = _now_s()
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> int | None:
        """Claims the subscription. Waits while nothing tells whether the process that has the claim still runs.

        Returns:
            The time at which the process before was last alive, in µs since the epoch, if it did not stop in order.

        Raises:
            ServerError: another process reads the subscription into a table, or a table is out of reach.
        """
        last_us = None
        try:
            for cell in self._cells:
                before = self._free(cell)
                if not self._write(cell, before):
                    raise self._refused(cell, None)
                if before is not None:
                    last_us = max(last_us or 0, Process.of(before).alive_us)
        except BaseException:
            self.release()
            raise
        return last_us

    def keep(self, lost: Callable[[str], None]) -> None:
        """Renews the claim in a thread, which calls ``lost`` with a message if another process has taken it."""
        self._renewed_s = _now_s()
        self._renewing = threading.Thread(target=self._renew_until_ended, args=(lost,), daemon=True)
        self._renewing.start()

    def is_held(self) -> bool:
        """Returns whether the process may read: no other can have the claim yet."""
        return not self._cells or _now_s() < self._renewed_s + _READ_S

    def release(self) -> None:
        """Removes the claim, after everything is written."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        for cell, value in self._values.items():
            with suppress(ServerError):  # then the next process waits a little longer
                cell.replace(value, None, patience_s=_PATIENCE_S)

    def _free(self, cell: ComparedCell) -> bytes | None:
        """Returns the value of a claim that is over; None if there is none."""
        with RowReader.open(cell.name) as reader:
            first = value = cell.read(reader)
            if first is None:
                return None
            process = Process.of(first)
            runs = process.runs(self._process)
            if runs is None:
                self._say(f"waiting for up to {LEASE_S:.0f} s to see whether {process} still reads the subscription")
            until_s = time.monotonic() + (LEASE_S if runs is None else _ENDING_S)
            while value == first and runs is not False and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
                value, runs = cell.read(reader), process.runs(self._process)
            if value is not None and (value != first or runs):
                raise self._refused(cell, Process.of(value))
            return value

    def _refused(self, cell: ComparedCell, process: Process | None) -> ServerError:
        return ServerError(
            f"subscription {self._subscription} is being read into table {cell.name} by "
            f"{process or 'another process'}; each of two would get a part of the messages, so stop that one first"
        )

    def _write(self, cell: ComparedCell, before: bytes | None) -> bool:
        now_us = time.time_ns() // 1000
        value = self._process._replace(alive_us=now_us).value()
        written = cell.replace(before, value, now_us - now_us % 1000, _PATIENCE_S)
        if written:
            self._values[cell] = value
        return written

    def _renew_until_ended(self, lost: Callable[[str], None]) -> None:
        waits = False
        while not self._ended.wait(_RENEW_S):
            began_s = _now_s()
            try:
                taken = [process for cell in self._cells if (process := self._renew(cell))]
            except ServerError as problem:
                if not waits and not self.is_held():
                    waits = True
                    self._say(f"reading waits until the claim of the subscription can be renewed: {problem}")
                continue
            if taken:
                lost(f"subscription {self._subscription} has been taken over by {taken[0]}")
                return
            self._renewed_s, waits = began_s, False

    def _renew(self, cell: ComparedCell) -> Process | None:
        """Renews the claim of a table. Returns the process that has it instead, if any."""
        before: bytes | None = self._values[cell]
        while not self._write(cell, before):  # perhaps the answer to a renewal was lost
            with RowReader.open(cell.name, _PATIENCE_S) as reader:
                before = cell.read(reader)
            if before is not None and (process := Process.of(before)).token != self._process.token:
                return process
        return None
