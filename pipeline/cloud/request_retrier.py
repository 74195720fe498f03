"""The rows of one request, sent until each is confirmed or refused."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from google.api_core.exceptions import Aborted, DeadlineExceeded, GoogleAPICallError
from google.api_core.retry import exponential_sleep_generator

from pipeline.cloud.errors import is_too_large
from pipeline.cloud.mutate_rows import Answer, Fault, code_of, fault_of_call, fault_of_entry, retry_delay_s
from pipeline.cloud.rate_limiter import RateLimiter
from pipeline.core.mutation_bytes import entry_of, request_of
from pipeline.core.refused_rows import RefusedRow

_FIRST_DELAY_S = 0.05  # before a retry, at most: it doubles, and a random part of it is waited for
_LONGEST_DELAY_S = 10.0

Entry = tuple[bytes, list[bytes]]
"""A row's key, and the encoded mutations of each time that it was added, in that order."""
Send = Callable[[bytes, int, float], Answer]
"""Of an encoded request, its entries and a timeout in seconds."""


@dataclass
class Tally:
    """What writing has come to; rows count as often as they were added."""

    rows: int = 0
    """Confirmed."""
    size_bytes: int = 0
    """Of all requests."""
    requests: int = 0
    """Retries among them."""
    retries: Counter[str] = field(default_factory=Counter)
    """Entries that were sent again, by the status that they were sent again for."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Of entries, as often as they were sent, by number as gRPC has them."""
    latencies_ms: list[int] = field(default_factory=list)
    """Of every request."""
    rows_in_flight: list[int] = field(default_factory=list)
    """Whenever a request left, with its own."""

    def add(self, other: "Tally") -> None:
        """Counts what the other has counted."""
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        self.requests += other.requests
        self.retries += other.retries
        self.statuses += other.statuses
        self.latencies_ms += other.latencies_ms
        self.rows_in_flight += other.rows_in_flight


class RequestRetrier:
    """Sends the rows of one request until each is confirmed or refused; made for one thread, which calls :meth:`run`.

    Transient failures are retried, those rows alone. Where a row that was added more than once is refused, its
    additions are sent apart, in their order, to find the one at fault; and where a whole request is refused as
    invalid, its rows are. A row's earlier addition is always settled before a later one is sent.

    Args:
        head: what the request begins with.
        entries: by key; not changed.
        send: one attempt.
        pace: when to.
        deadline_s: how long after the first attempt to give up.
        attempt_s: how long an attempt may take.
        stopping: set when nothing is to be tried again.
        trusted: set when the server has taken a row: then a request that it says is invalid is so for its rows.

    Attributes:
        left: rows that are neither confirmed nor refused.
        refused: by the server, each with what it was refused for.
        problem: why rows are left; None where there was none, or it was stopped.
        tally: to be read when it is done.
    """

    def __init__(
        self,
        head: bytes,
        entries: Mapping[bytes, list[bytes]],
        send: Send,
        pace: RateLimiter,
        *,
        deadline_s: float,
        attempt_s: float,
        stopping: threading.Event,
        trusted: threading.Event,
    ) -> None:
        self.keys = entries.keys()
        self.left = sum(map(len, entries.values()))
        self.refused: list[RefusedRow] = []
        self.problem: BaseException | None = None
        self.tally = Tally()
        self._head = head
        self._groups: list[list[Entry]] = [list(entries.items())]  # the last one is next
        self._suspects: list[tuple[Entry, GoogleAPICallError]] = []
        self._send = send
        self._pace = pace
        self._deadline_s = deadline_s
        self._attempt_s = attempt_s
        self._stopping = stopping
        self._trusted = trusted
        self._delays = _delays()
        self._first: GoogleAPICallError | None = None  # of the failures that pass, the first that says something
        self._give_up_at = float("inf")

    def run(self) -> None:
        """Returns when there is nothing left to try. Raises only for a bug."""
        while self._groups and not self.problem:
            group = self._groups.pop()
            if self._stopping.wait(self._pace.wait_s(len(group))):
                return
            if self._give_up_at == float("inf"):
                self._give_up_at = time.monotonic() + self._deadline_s
            if self._take(group, self._attempt(group)):
                return
        if not self.problem:
            self._judge_suspects()

    def _attempt(self, group: list[Entry]) -> Answer:
        request = request_of(self._head, group)
        began = time.monotonic()
        timeout_s = max(min(self._attempt_s, self._give_up_at - began), 0.001)
        answer = self._send(request, len(group), timeout_s)
        self.tally.requests += 1
        self.tally.size_bytes += len(request)
        self.tally.latencies_ms.append(round(answer.took_s * 1000))
        failures = [*answer.statuses.values(), *([answer.error] if answer.error else [])]
        if any(code_of(failure) == "RESOURCE_EXHAUSTED" and not is_too_large(failure) for failure in failures):
            self._pace.exhausted(began)
        else:
            self._pace.answered(began, answer.took_s)
        if answer.rate_limit:
            self._pace.told(*answer.rate_limit)
        return answer

    def _take(self, group: list[Entry], answer: Answer) -> bool:
        """Settles what the answer settles, and puts the rest where it is sent again. True: no more is to be sent."""
        statuses, error = answer.statuses, answer.error
        good = answer.answered.count(1) - len(statuses)
        self.tally.statuses[0] += good
        if good:
            self._trusted.set()
        if good == len(group):
            self._confirm(sum(len(mutations) for _, mutations in group))
            self._delays = _delays()
            return False
        if error is not None and fault_of_call(error) is Fault.REQUEST and not any(answer.answered):
            self._split(group, error)
            return False
        again: list[Entry] = []
        later: list[Entry] = []
        passing: list[GoogleAPICallError] = []
        missing = error or Aborted(f"the server answered {sum(answer.answered)} of {len(group)} rows")
        for index, entry in enumerate(group):
            if not answer.answered[index]:
                status, fault = missing, fault_of_call(missing)
                # What a request is refused for as a whole is known only of one that nothing was answered of.
                fault = Fault.PASSING if fault is Fault.REQUEST else fault
            elif index in statuses:
                status = statuses[index]
                fault = fault_of_entry(status)
            else:
                self._confirm(len(entry[1]))
                continue
            self.tally.statuses[_number_of(status)] += 1
            if fault is Fault.SERVER:
                self.problem = self.problem or status
            elif fault is Fault.PASSING:
                again.append(entry)
                passing.append(status)
            elif len(entry[1]) > 1:
                half = len(entry[1]) // 2
                again.append((entry[0], entry[1][:half]))
                later.append((entry[0], entry[1][half:]))
            else:
                self._refuse(entry, status)
        if self.problem:
            return True
        self._groups += filter(None, (later, again))
        return bool(passing) and self._bear(passing)

    def _bear(self, failures: list[GoogleAPICallError]) -> bool:
        """Waits before the next try. True where there is to be none."""
        self.tally.retries.update(map(code_of, failures))
        telling = next((each for each in failures if not isinstance(each, DeadlineExceeded)), failures[0])
        if self._first is None or isinstance(self._first, DeadlineExceeded):
            self._first = telling
        delay_s = max(next(self._delays), retry_delay_s(failures))
        if delay_s >= self._give_up_at - time.monotonic():
            self.problem = self._first
            return True
        return self._stopping.wait(delay_s)

    def _split(self, group: list[Entry], error: GoogleAPICallError) -> None:
        """Of a request that is refused as a whole: halves of it, down to one addition of one row."""
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

    def _judge_suspects(self) -> None:
        """Each was refused as a request of its own: its fault, if the server takes other rows that are sent so."""
        for entry, error in self._suspects:
            if self._trusted.is_set():
                self._refuse(entry, error)
            else:
                self.problem = self.problem or error

    def _confirm(self, rows: int) -> None:
        self.left -= rows
        self.tally.rows += rows

    def _refuse(self, entry: Entry, error: GoogleAPICallError) -> None:
        self.left -= 1
        self.refused.append(RefusedRow(entry[0], code_of(error), error.message, entry_of(*entry)))


def _delays() -> Iterator[float]:
    return exponential_sleep_generator(_FIRST_DELAY_S, _LONGEST_DELAY_S)


def _number_of(error: GoogleAPICallError) -> int:
    code = error.grpc_status_code
    return code.value[0] if hasattr(code, "value") else int(code)
