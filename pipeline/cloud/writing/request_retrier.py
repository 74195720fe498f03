"""Sends the rows of one request until each is confirmed or refused."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from google.api_core.exceptions import Aborted, DeadlineExceeded, GoogleAPICallError
from google.api_core.retry import exponential_sleep_generator

from pipeline.cloud.connection.errors import is_too_large
from pipeline.cloud.writing.mutate_rows import (
    Fault,
    MutateRowsResult,
    code_of,
    fault_of_call,
    fault_of_entry,
    retry_delay_s,
)
from pipeline.cloud.writing.rate_limiter import RateLimiter
from pipeline.core.dead_letters.refused_rows import RefusedRow
from pipeline.core.rows.mutation_bytes import entry_of, request_of

# Bounds of the delay before a retry. The upper one doubles with each retry; the delay is random.
_FIRST_DELAY_S = 0.05
_MAX_DELAY_S = 10.0

Entry = tuple[bytes, list[bytes]]
"""A row's key, and its encoded mutations: one item for each time that the row was added, in that order."""
Send = Callable[[bytes, int, float], MutateRowsResult]
"""Sends an encoded request with this number of entries, with a timeout in seconds."""


@dataclass
class Tally:
    """Statistics of a writer. A row counts as often as it was added."""

    rows: int = 0
    """Confirmed rows."""
    size_bytes: int = 0
    """Bytes of all requests."""
    requests: int = 0
    """Requests, including retries."""
    retries: Counter[str] = field(default_factory=Counter)
    """Entries that were sent again, by the name of the status that caused it."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Statuses of entries, by their numbers in gRPC. An entry counts as often as it was sent."""
    latencies_ms: list[int] = field(default_factory=list)
    """The latency of each request."""
    rows_in_flight: list[int] = field(default_factory=list)
    """The rows in flight whenever a request left, including its own."""

    def add(self, other: "Tally") -> None:
        """Adds the other's statistics."""
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        self.requests += other.requests
        self.retries += other.retries
        self.statuses += other.statuses
        self.latencies_ms += other.latencies_ms
        self.rows_in_flight += other.rows_in_flight


class RequestRetrier:
    """Sends the rows of one request until each is confirmed or refused. One thread calls :meth:`run`.

    After a transient failure, sends only the affected rows again. If the server refuses a row that was added more than
    once, sends its additions apart, in order, to find the one at fault. If the server refuses a whole request as
    invalid, sends its rows apart. Settles an earlier addition to a row before it sends a later one.

    Args:
        head: the encoded request without its entries.
        entries: the entries by key; not changed.
        send: makes one attempt.
        limiter: decides when an attempt is made.
        deadline_s: the seconds after the first attempt in which others follow.
        attempt_s: the timeout of an attempt, in seconds.
        stopping: an event that ends all retries.
        server_accepts: an event that is set once the server has accepted a row. From then on, a request that the server
            refuses as invalid is the fault of its rows.

    Attributes:
        rows_left: the number of rows that are neither confirmed nor refused.
        refused: the rows that the server refused, each with the reason.
        problem: the reason why rows are left; None if none are, or if the retrier was stopped.
        tally: statistics, complete after :meth:`run`.
    """

    def __init__(
        self,
        head: bytes,
        entries: Mapping[bytes, list[bytes]],
        send: Send,
        limiter: RateLimiter,
        *,
        deadline_s: float,
        attempt_s: float,
        stopping: threading.Event,
        server_accepts: threading.Event,
    ) -> None:
        self.keys = entries.keys()
        self.rows_left = sum(map(len, entries.values()))
        self.refused: list[RefusedRow] = []
        self.problem: BaseException | None = None
        self.tally = Tally()
        self._head = head
        self._groups: list[list[Entry]] = [list(entries.items())]  # a stack: the last group is next
        self._suspects: list[tuple[Entry, GoogleAPICallError]] = []
        self._send = send
        self._limiter = limiter
        self._deadline_s = deadline_s
        self._attempt_s = attempt_s
        self._stopping = stopping
        self._server_accepts = server_accepts
        self._delays = _delays()
        self._cause: GoogleAPICallError | None = None  # the first transient error that is more than a timeout
        self._give_up_at = float("inf")

    def run(self) -> None:
        """Makes attempts until none is left to make. Raises only for a bug."""
        while self._groups and not self.problem:
            group = self._groups.pop()
            if self._stopping.wait(self._limiter.wait_s(len(group))):
                return
            if self._give_up_at == float("inf"):
                self._give_up_at = time.monotonic() + self._deadline_s
            if self._settle(group, self._attempt(group)):
                return
        if not self.problem:
            self._settle_suspects()

    def _attempt(self, group: list[Entry]) -> MutateRowsResult:
        request = request_of(self._head, group)
        began = time.monotonic()
        timeout_s = max(min(self._attempt_s, self._give_up_at - began), 0.001)
        result = self._send(request, len(group), timeout_s)
        self.tally.requests += 1
        self.tally.size_bytes += len(request)
        self.tally.latencies_ms.append(round(result.took_s * 1000))
        failures = [*result.errors.values(), *([result.call_error] if result.call_error else [])]
        if any(code_of(failure) == "RESOURCE_EXHAUSTED" and not is_too_large(failure) for failure in failures):
            self._limiter.record_exhausted(began)
        else:
            self._limiter.record_response(began, result.took_s)
        if result.rate_limit:
            self._limiter.adjust(*result.rate_limit)
        return result

    def _settle(self, group: list[Entry], result: MutateRowsResult) -> bool:
        """Confirms or refuses the entries that the result settles and queues the others. True ends all attempts."""
        call_error = result.call_error
        confirmed = result.has_status.count(1) - len(result.errors)
        self.tally.statuses[0] += confirmed
        if confirmed:
            self._server_accepts.set()
        if confirmed == len(group):
            self._confirm(sum(len(mutations) for _, mutations in group))
            self._delays = _delays()
            return False
        if call_error is not None and fault_of_call(call_error) is Fault.REQUEST and not any(result.has_status):
            self._split(group, call_error)
            return False
        return self._settle_each(group, result)

    def _settle_each(self, group: list[Entry], result: MutateRowsResult) -> bool:
        again: list[Entry] = []
        later: list[Entry] = []
        transient: list[GoogleAPICallError] = []
        has_status, errors = result.has_status, result.errors
        missing = result.call_error or Aborted(f"the server returned {sum(has_status)} statuses for {len(group)} rows")
        for index, entry in enumerate(group):
            error = errors.get(index) if has_status[index] else missing
            if error is None:
                self._confirm(len(entry[1]))
                continue
            fault = fault_of_entry(error) if has_status[index] else fault_of_call(error)
            if error is missing and fault is Fault.REQUEST:
                # The server refuses a whole request only before it returns any status: this was another failure.
                fault = Fault.TRANSIENT
            self.tally.statuses[_number_of(error)] += 1
            if fault is Fault.SERVER:
                self.problem = self.problem or error
            elif fault is Fault.TRANSIENT:
                again.append(entry)
                transient.append(error)
            elif len(entry[1]) > 1:
                half = len(entry[1]) // 2
                again.append((entry[0], entry[1][:half]))
                later.append((entry[0], entry[1][half:]))
            else:
                self._refuse(entry, error)
        if self.problem:
            return True
        self._groups += filter(None, (later, again))
        return bool(transient) and self._back_off(transient)

    def _back_off(self, failures: list[GoogleAPICallError]) -> bool:
        """Waits before the next attempt. Returns True to make none."""
        self.tally.retries.update(map(code_of, failures))
        if self._cause is None or isinstance(self._cause, DeadlineExceeded):
            # A timeout tells less than any other failure.
            self._cause = next((each for each in failures if not isinstance(each, DeadlineExceeded)), failures[0])
        delay_s = max(next(self._delays), retry_delay_s(failures))
        if delay_s >= self._give_up_at - time.monotonic():
            self.problem = self._cause
            return True
        return self._stopping.wait(delay_s)

    def _split(self, group: list[Entry], error: GoogleAPICallError) -> None:
        """Queues the halves of a request that was refused as a whole, down to one addition to one row."""
        self.tally.statuses[_number_of(error)] += len(group)
        if len(group) > 1:
            half = len(group) // 2
            self._groups += (group[half:], group[:half])
            return
        (key, mutations), *_ = group
        if len(mutations) > 1:
            half = len(mutations) // 2
            self._groups += ([(key, mutations[half:])], [(key, mutations[:half])])
        elif is_too_large(error):
            self._refuse(group[0], error)
        else:
            self._suspects.append((group[0], error))

    def _settle_suspects(self) -> None:
        """Refuses the additions that the server refused in requests of their own, if it has accepted other rows."""
        for entry, error in self._suspects:
            if self._server_accepts.is_set():
                self._refuse(entry, error)
            else:
                self.problem = self.problem or error

    def _confirm(self, rows: int) -> None:
        self.rows_left -= rows
        self.tally.rows += rows

    def _refuse(self, entry: Entry, error: GoogleAPICallError) -> None:
        self.rows_left -= 1
        self.refused.append(RefusedRow(entry[0], code_of(error), error.message, entry_of(*entry)))


def _delays() -> Iterator[float]:
    return exponential_sleep_generator(_FIRST_DELAY_S, _MAX_DELAY_S)


def _number_of(error: GoogleAPICallError) -> int:
    code = error.grpc_status_code
    return code.value[0] if hasattr(code, "value") else int(code)
