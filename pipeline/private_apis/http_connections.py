"""HTTP connections that slow clients can't keep for ever, and can't use up.

Uvicorn waits without end for the rest of a request, and for a client that does not read its answer. Here, each wait is
limited; and if there are too many connections, the one that has waited longest for its client is closed.

Relies on, in ``uvicorn``:

- ``H11Protocol`` in uvicorn/protocols/http/h11_impl.py: ``connections`` has all connections of the server, ``cycle`` is
  the request being answered or answered last, ``handle_events`` begins it, and ``on_response_complete`` ends it.
- Its ``handle_events`` answers 503 if ``limit_concurrency`` connections or more exist, this one included.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 500
PATIENCE_S = 10.0
"""The time that a client has for a whole request, and for reading what fills the connection's buffer."""


class BoundedConnection(H11Protocol):
    """A connection that waits for its client for a limited time. Pass it to uvicorn as ``http``."""

    _deadline: asyncio.TimerHandle | None = None  # while it waits for the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, BoundedConnection) and each._deadline]
            if waiting:
                min(waiting, key=BoundedConnection._waits_until)._end()
        self._wait()

    def handle_events(self) -> None:
        super().handle_events()
        self._go_on()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(PATIENCE_S, self._end)

    def _go_on(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _waits_until(self) -> float:
        return self._deadline.when() if self._deadline else float("inf")

    def _end(self) -> None:
        self._stop_waiting()
        self.connections.discard(self)
        self.transport.abort()
