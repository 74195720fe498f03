"""How fast a server wants to be written to, as far as it shows: by refusing, by taking longer, and by saying so."""

import threading
import time
from collections.abc import Callable

_NARROWED_BY = 0.5  # where the server has no resources left
_EASED_BY = 0.75  # where it takes longer
_SLOW = 4.0  # times as long as usual: that is longer
_SLOW_S = 1.0  # and less than this never is
_USUAL_SHARE = 0.05  # of the latest request in what is usual

# As the clients that have Bigtable's batch write flow control, Java's for one, bound what it says.
_LEAST_FACTOR, _MOST_FACTOR = 0.7, 1.3
_LONGEST_WAIT_S = 10.0  # of a request, however slow it is to be
_FORGOTTEN_S = 300.0  # after this long without a word, a rate no longer holds


class RateLimiter:
    """How many requests may be in flight, and when the next one may leave. Any number of threads may use it.

    The window of requests in flight grows by one for each window's worth of answers, up to its most, and shrinks by
    a share: where the server refuses for want of resources by half, where it takes far longer than it usually does by
    a quarter; at most once for the requests that were in flight at the time.

    Bigtable's batch write flow control (``RateLimitInfo`` in google/bigtable/v2/bigtable.proto) gives a factor for
    the load, and for how long no other factor counts: the load is rows a second.

    Args:
        most: requests in flight.
        clock: seconds that never go back.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._window = float(most)
        self._narrowed_at = float("-inf")
        self._usual_s: float | None = None
        self._rate: float | None = None  # rows a second; None: as they come
        self._free_at = float("-inf")  # when the next request may leave
        self._adjust_at = float("-inf")  # from when on the server's next word counts
        self._rows_since: tuple[float, int] = (clock(), 0)  # the load: rows since when

    @property
    def in_flight(self) -> int:
        """How many requests may be in flight at once."""
        return max(1, int(self._window))

    @property
    def rows_a_second(self) -> float | None:
        """What the server wants at most; None where it has not said."""
        return self._rate

    def wait_s(self, rows: int) -> float:
        """How long a request of so many rows is to wait before it leaves; it is taken for granted that it then does."""
        with self._lock:
            now = self._clock()
            since, sent = self._rows_since
            self._rows_since = since, sent + rows
            if self._rate is not None and now > self._adjust_at + _FORGOTTEN_S:
                self._rate = None
            if self._rate is None:
                return 0.0
            leaves_at = max(now, self._free_at)
            self._free_at = leaves_at + min(rows / self._rate, _LONGEST_WAIT_S)
            return leaves_at - now

    def answered(self, began: float, took_s: float) -> None:
        """A request that began then, by the clock, was answered."""
        with self._lock:
            usual_s = took_s if self._usual_s is None else self._usual_s
            self._usual_s = usual_s + _USUAL_SHARE * (took_s - usual_s)
            if took_s > max(_SLOW_S, _SLOW * usual_s):
                self._narrow(began, _EASED_BY)
            else:
                self._window = min(self._most, self._window + 1 / max(self._window, 1.0))

    def exhausted(self, began: float) -> None:
        """The server had no resources for a request, or a row, that began then."""
        with self._lock:
            self._narrow(began, _NARROWED_BY)

    def told(self, factor: float, period_s: float) -> None:
        """The server wants so many times the load, and no other change of it for so long."""
        with self._lock:
            now = self._clock()
            if now < self._adjust_at or not factor > 0:
                return
            since, sent = self._rows_since
            load = sent / (now - since) if now > since else 0.0
            self._adjust_at = now + period_s
            self._rows_since = now, 0
            factor = min(max(factor, _LEAST_FACTOR), _MOST_FACTOR)
            if self._rate is not None:
                self._rate *= factor
            elif factor < 1 and load > 0:
                self._rate = load * factor

    def _narrow(self, began: float, share: float) -> None:
        if began >= self._narrowed_at:  # earlier ones say nothing of the narrower window
            self._narrowed_at = self._clock()
            self._window = max(1.0, self._window * share)
