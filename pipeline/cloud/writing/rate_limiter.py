"""Adapts the rate of writes to the server: to its refusals, its latency and its flow control."""

import threading
import time
from collections.abc import Callable

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
