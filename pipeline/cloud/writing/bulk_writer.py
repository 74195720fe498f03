"""Writes rows to one table with ``MutateRows``: many rows in a request, several requests at once.

A cell ends with the value that was added last. Bigtable applies concurrent requests, and the entries of one request, in
any order, but the mutations of one entry in theirs. So additions to one row become one entry, and a request waits while
one of its rows is in flight.

One gap remains, as with every client that retries. If a response is lost, the server may still apply the request later.
The retry writes the same values, so this does harm only if a newer value of the same cell is confirmed before the
server applies the old request. Three things make that unlikely: the server gets an attempt's timeout as its deadline
and then drops the request, the timeout is as long as in Google's clients, and only a broken connection ends an attempt
before its timeout.
"""

import base64
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import grpc
from google.api_core.exceptions import Aborted, DeadlineExceeded, GoogleAPICallError, from_grpc_status
from google.api_core.gapic_v1.method import wrap_method
from google.api_core.gapic_v1.routing_header import to_grpc_metadata
from google.api_core.retry import exponential_sleep_generator
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports.base import DEFAULT_CLIENT_INFO
from google.cloud.bigtable_v2.types import FeatureFlags, MutateRowsResponse
from google.rpc.error_details_pb2 import RetryInfo

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerError, explained, is_too_large, is_transient
from pipeline.cloud.connection.names import TableName
from pipeline.core.events.dead_letter import RefusedRow
from pipeline.core.rows.rows import ENTRY_OVERHEAD, EncodedRow, Row, encoded, entry_of, request_header, request_of

_EXHAUSTED_SHARE = 0.5  # the part of the window that stays when the server has no resources left
_SLOW_SHARE = 0.75  # the part that stays when a response is slow
_SLOW_RATIO = 4.0  # a response is slow if it takes this many times the typical latency
_SLOW_S = 1.0  # and at least this long
_SMOOTHING = 0.05  # weight of the latest response in the typical latency

# The same bounds as in Google's clients with batch write flow control, such as the one for Java.
_MIN_FACTOR, _MAX_FACTOR = 0.7, 1.3
_MAX_WAIT_S = 10.0  # for one request, however low the rate
_RATE_EXPIRES_S = 300.0  # a rate ends this long after its period if the server sends no other


class RateLimiter:
    """Limits how many requests are in flight and when the next one leaves. Safe for any number of threads.

    The window of requests in flight grows by one with as many responses as it has requests, up to its maximum. It
    shrinks by half when the server has no resources, and by a quarter when a response takes far longer than usual; at
    most once for the requests in flight at that time.

    Bigtable's batch write flow control (``RateLimitInfo`` in google/bigtable/v2/bigtable.proto) sends a factor for the
    load, in rows a second, and a period in which no other factor applies.

    Args:
        max_in_flight: the maximum number of requests in flight.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, max_in_flight: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._lock = threading.Lock()
        self._window = float(max_in_flight)
        self._narrowed_at = float("-inf")
        self._typical_s: float | None = None
        self._rate: float | None = None  # rows a second; None for no limit
        self._free_at = float("-inf")  # when the next request may leave
        self._adjust_at = float("-inf")  # when the period of the last factor ends
        self._rows_since: tuple[float, int] = (clock(), 0)  # start of the measurement of the load, and rows since then

    @property
    def in_flight(self) -> int:
        """The number of requests that may be in flight now."""
        return max(1, int(self._window))

    @property
    def rows_a_second(self) -> float | None:
        """The rate that the server asked for; None if it has not."""
        return self._rate

    def wait_s(self, rows: int) -> float:
        """Returns the delay before a request with this number of rows. The caller has to send it then."""
        with self._lock:
            now = self._clock()
            since, sent = self._rows_since
            self._rows_since = since, sent + rows
            if self._rate is not None and now > self._adjust_at + _RATE_EXPIRES_S:
                self._rate = None
            if self._rate is None:
                return 0.0
            leaves_at = max(now, self._free_at)
            self._free_at = leaves_at + min(rows / self._rate, _MAX_WAIT_S)
            return leaves_at - now

    def record_response(self, began: float, took_s: float) -> None:
        """Records the latency of a request that left at ``began``, by the clock."""
        with self._lock:
            typical_s = took_s if self._typical_s is None else self._typical_s
            self._typical_s = typical_s + _SMOOTHING * (took_s - typical_s)
            if took_s > max(_SLOW_S, _SLOW_RATIO * typical_s):
                self._narrow(began, _SLOW_SHARE)
            else:
                self._window = min(self._max_in_flight, self._window + 1 / max(self._window, 1.0))

    def record_exhausted(self, began: float) -> None:
        """Records that the server had no resources for a request that left at ``began``, or for a row of it."""
        with self._lock:
            self._narrow(began, _EXHAUSTED_SHARE)

    def adjust(self, factor: float, period_s: float) -> None:
        """Multiplies the load by the server's factor, and ignores other factors for the period."""
        with self._lock:
            now = self._clock()
            if now < self._adjust_at or not factor > 0:
                return
            since, sent = self._rows_since
            load = sent / (now - since) if now > since else 0.0
            self._adjust_at = now + period_s
            self._rows_since = now, 0
            factor = min(max(factor, _MIN_FACTOR), _MAX_FACTOR)
            if self._rate is not None:
                self._rate *= factor
            elif factor < 1 and load > 0:
                self._rate = load * factor

    def _narrow(self, began: float, share: float) -> None:
        if began >= self._narrowed_at:  # an earlier request tells nothing about the narrower window
            self._narrowed_at = self._clock()
            self._window = max(1.0, self._window * share)


_METHOD = "/google.bigtable.v2.Bigtable/MutateRows"
_Response = MutateRowsResponse.pb()  # the plain protobuf class, many times as fast as its wrapper

# Asks the server for flow control (RateLimitInfo) and for the delay before a retry (RetryInfo).
_FEATURES = FeatureFlags(mutate_rows_rate_limit=True, mutate_rows_rate_limit2=True, retry_info=True)
_METADATA = (("bigtable-features", base64.urlsafe_b64encode(FeatureFlags.serialize(_FEATURES)).decode()),)

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
_SERVER_CODES = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"})


class Fault(Enum):
    """The part at fault for a failure; the value is the remedy."""

    TRANSIENT = "retry"
    ROW = "refuse the row"
    REQUEST = "some row of the request is at fault: send its rows apart to find it"
    SERVER = "raise"


class MutateRowsResult(NamedTuple):
    """The result of one request."""

    has_status: bytes
    """One byte for each entry: 1 if the server returned its status, else 0."""
    errors: Mapping[int, GoogleAPICallError]
    """The statuses other than OK, by the entry's index."""
    call_error: GoogleAPICallError | None
    """The error that ended the call, if it failed."""
    rate_limit: tuple[float, float] | None
    """The last ``RateLimitInfo``: a factor for the load, and the seconds in which no other factor applies."""
    took_s: float


Call = Callable[..., Iterable[Any]]


def call_for(client: BigtableClient, name: TableName) -> Call:
    """Returns a function that sends an encoded ``MutateRowsRequest``: the client's own method would encode it again."""
    method = client.transport.grpc_channel.unary_stream(_METHOD, response_deserializer=_Response.FromString)
    wrapped = wrap_method(method, client_info=DEFAULT_CLIENT_INFO)
    return partial(wrapped, retry=None, metadata=(*_METADATA, to_grpc_metadata(name.target)))


def mutate_rows(call: Call, request: bytes, entries: int, timeout_s: float) -> MutateRowsResult:
    """Sends an encoded ``MutateRowsRequest`` with this number of entries, once.

    The server gets the timeout as the deadline of the call.
    """
    began = time.monotonic()
    has_status = bytearray(entries)
    statuses: dict[int, Any] = {}
    rate_limit = None
    call_error = None
    try:
        for response in call(request, timeout=timeout_s):
            entries_of = response.entries
            for index in [entry.index for entry in entries_of]:
                has_status[index] = 1
            statuses |= {entry.index: entry.status for entry in entries_of if entry.status.code}
            if response.HasField("rate_limit_info"):
                info = response.rate_limit_info
                rate_limit = info.factor, info.period.ToTimedelta().total_seconds()
    except GoogleAPICallError as caught:
        call_error = caught
    errors = {index: _error_of(status) for index, status in statuses.items()}
    return MutateRowsResult(bytes(has_status), errors, call_error, rate_limit, time.monotonic() - began)


def fault_of_entry(error: GoogleAPICallError) -> Fault:
    """Classifies the status of one entry."""
    if is_transient(error):
        return Fault.TRANSIENT
    return Fault.SERVER if code_of(error) in _SERVER_CODES else Fault.ROW


def fault_of_call(error: GoogleAPICallError) -> Fault:
    """Classifies the error of a whole call. No row is at fault for a missing table, for example."""
    if is_too_large(error) or code_of(error) == "INVALID_ARGUMENT":
        return Fault.REQUEST
    return Fault.TRANSIENT if is_transient(error) else Fault.SERVER


def code_of(error: GoogleAPICallError) -> str:
    """Returns the name of the status code, such as ``UNAVAILABLE``."""
    code = error.grpc_status_code
    return getattr(code, "name", None) or str(code)


def retry_delay_s(errors: Iterable[GoogleAPICallError]) -> float:
    """Returns the longest delay that the server asks for before a retry; 0 if it asks for none."""
    delays = (
        detail.retry_delay.ToTimedelta().total_seconds()
        for error in errors
        for detail in error.details
        if isinstance(detail, RetryInfo)
    )
    return max(delays, default=0.0)


def _error_of(status: Any) -> GoogleAPICallError:
    """Converts a ``google.rpc.Status`` to the exception that Google's clients would raise."""
    return from_grpc_status(status.code, status.message, details=_retry_infos(status.details))


def _retry_infos(details: Sequence[Any]) -> list[RetryInfo]:
    found = []
    for detail in details:
        info = RetryInfo()
        if detail.Is(RetryInfo.DESCRIPTOR) and detail.Unpack(info):
            found.append(info)
    return found


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


_MAX_MUTATIONS = 100_000  # in a request: Bigtable's limit


@dataclass(frozen=True)
class Limits:
    """Limits of a writer's memory and of its attempts.

    A writer keeps at most ``in_flight + 1`` requests in memory. Those in flight take a few times their size, as bytes
    and as protobuf.
    """

    mutations: int = 6_000
    """Cells in a request. A row with more goes in several requests, one after the other."""
    size_bytes: int = 2 << 20
    """Encoded bytes in a request. A larger row goes alone."""
    in_flight: int = 4
    """Concurrent requests."""
    deadline_s: float = 600.0
    """The time for which a row is retried."""
    attempt_s: float = 60.0
    """Timeout of an attempt, as in Google's clients."""
    refused: int = 10_000
    """Refused rows between two calls of ``finish``. With more, the rows are not to blame."""

    def __post_init__(self) -> None:
        if not 0 < self.mutations <= _MAX_MUTATIONS:
            raise ValueError(f"a request has 1 to {_MAX_MUTATIONS} mutations, not {self.mutations}")


class BulkWriter:
    """Writes rows to one table, from one thread. Create it with :meth:`open`, or over a shared client.

    Args:
        client: the client, which :meth:`close` leaves open.
        name: the table.
        limits: the limits of memory and attempts.
    """

    def __init__(self, client: BigtableClient, name: TableName, limits: Limits | None = None) -> None:
        self.name = name
        self._limits = limits or Limits()
        self._head = request_header(str(name), name.app_profile)
        self._send: Send = partial(mutate_rows, call_for(client, name))
        self._limiter = RateLimiter(self._limits.in_flight)
        self._server_accepts = threading.Event()
        self._threads = ThreadPoolExecutor(self._limits.in_flight, f"write {name.table}")
        self._in_flight: list[RequestRetrier] = []
        self._done: SimpleQueue[RequestRetrier] = SimpleQueue()
        self._refused: list[RefusedRow] = []
        self._tally = Tally()
        self._reset()

    @classmethod
    @contextmanager
    def open(cls, name: TableName, **limits: Any) -> Iterator["BulkWriter"]:
        """Connects for the length of a ``with`` block, to the emulator if BIGTABLE_EMULATOR_HOST is set.

        Rows that were added but not finished may be lost. Raises ServerError without credentials.

        Args:
            name: the table.
            limits: fields of :class:`Limits`.
        """
        with ExitStack() as stack:
            with explained(name):
                client = stack.enter_context(bigtable_client())
            yield stack.enter_context(closing(cls(client, name, Limits(**limits))))

    def add(self, row: Row) -> None:
        """Adds one row; see :meth:`add_all`."""
        self.add_all((row,))

    def add_all(self, rows: Iterable[Row]) -> None:
        """Adds rows to write. A row without cells writes nothing.

        Sends each request that is full, and waits while the maximum is in flight.

        Raises:
            ServerError: rows of this call or an earlier one could not be written. The writer has dropped all rows
                added since the last ``finish``.
            ValueError: a cell has a negative timestamp.
        """
        size = self._limits.mutations
        for row in rows:
            for start in range(0, len(row.cells), size):
                self.add_encoded([encoded(Row(row.key, row.cells[start : start + size]))])

    def add_encoded(self, rows: Iterable[EncodedRow]) -> None:
        """Adds encoded rows; see :meth:`add_all`. The server refuses a row with more cells than a request may have."""
        max_mutations, max_bytes = self._limits.mutations, self._limits.size_bytes
        for key, mutations, count in rows:
            size = len(mutations) + len(key) + ENTRY_OVERHEAD
            if self._mutations + count > max_mutations or self._size + size > max_bytes:
                self._send_pending()
            if (additions := self._entries.get(key)) is None:
                self._entries[key] = [mutations]
            else:
                additions.append(mutations)
            self._mutations += count
            self._size += size

    def finish(self) -> list[RefusedRow]:
        """Waits until every row that was added since the last ``finish`` is confirmed or refused.

        Returns:
            the refused rows that no call of :meth:`refused` returned.

        Raises:
            ServerError: see :meth:`add_all`.
        """
        self._send_pending()
        while self._in_flight:
            self._settle(self._done.get())
        self._refused_rows = 0
        return self.refused()

    def refused(self) -> list[RefusedRow]:
        """Returns the refused rows that no earlier call returned. Calls before ``finish`` save memory."""
        refused, self._refused = self._refused, []
        return refused

    def take_tally(self) -> Tally:
        """Returns the statistics since the last call."""
        tally, self._tally = self._tally, Tally()
        return tally

    def abandon(self) -> int:
        """Drops all rows that are not finished. Returns their number once no request is in flight."""
        self._stopping.set()
        rows = sum(map(len, self._entries.values()))
        while self._in_flight:
            request = self._done.get()
            self._in_flight.remove(request)
            self._tally.add(request.tally)
            rows += request.rows_left
        self._reset()
        return rows

    def close(self) -> None:
        """Drops all rows that are not finished, waits for the requests in flight, and ends the threads."""
        self.abandon()
        self._threads.shutdown()

    def _reset(self) -> None:
        self._stopping = threading.Event()
        self._refused = []
        self._refused_rows = 0  # since the last finish
        self._reset_pending()

    def _reset_pending(self) -> None:
        self._entries: dict[bytes, list[bytes]] = {}  # the pending request's, which is not full yet
        self._mutations = 0
        self._size = len(self._head)

    def _send_pending(self) -> None:
        """Sends the pending request as soon as the limits allow it and none of its rows is in flight."""
        if not self._entries:
            return
        with suppress(Empty):
            while True:
                self._settle(self._done.get_nowait())
        while len(self._in_flight) >= self._limiter.in_flight or self._has_row_in_flight():
            self._settle(self._done.get())
        limits = self._limits
        request = RequestRetrier(
            self._head,
            self._entries,
            self._send,
            self._limiter,
            deadline_s=limits.deadline_s,
            attempt_s=limits.attempt_s,
            stopping=self._stopping,
            server_accepts=self._server_accepts,
        )
        self._in_flight.append(request)
        self._threads.submit(self._run, request)
        self._tally.rows_in_flight.append(sum(each.rows_left for each in self._in_flight))
        self._reset_pending()

    def _has_row_in_flight(self) -> bool:
        """Whether a row of the pending request is in flight."""
        return not all(request.keys.isdisjoint(self._entries) for request in self._in_flight)

    def _run(self, request: RequestRetrier) -> None:
        try:
            request.run()
        except BaseException as error:  # noqa: BLE001 (_settle raises it in the thread that adds rows)
            request.problem = error
        finally:
            self._done.put(request)

    def _settle(self, request: RequestRetrier) -> None:
        """Takes over the results of a request. Raises if rows of it are left, or too many rows were refused."""
        self._in_flight.remove(request)
        self._tally.add(request.tally)
        self._refused += request.refused
        self._refused_rows += len(request.refused)
        if problem := request.problem:
            rows = request.rows_left + self.abandon()
            if not isinstance(problem, GoogleAPICallError):
                raise problem
            raise self._problem(f"{rows} rows could not be written", code_of(problem), problem.message) from problem
        if self._refused_rows > self._limits.refused:
            self.abandon()
            row = request.refused[0]
            raise self._problem(f"more than {self._limits.refused} rows were refused", row.code, row.message)

    def _problem(self, what: str, code: str, message: str) -> ServerError:
        return ServerError(f"table {self.name}: {what}: {code}: {' '.join(message.split())[:300]}")
