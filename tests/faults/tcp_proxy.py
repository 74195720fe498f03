"""A loopback proxy in front of any server, whose connections can be cut or stalled."""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any

_CHUNK = 65_536


class TcpProxy:
    """Forwards connections to a target until it is cut or held.

    ``with TcpProxy("127.0.0.1:8086") as proxy:`` serves at ``proxy.address`` for as long as the block runs.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._flowing = asyncio.Event()
        self._pipes: set[asyncio.Task] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._bound = _bound(0)
        self.address = f"127.0.0.1:{self._bound.getsockname()[1]}"
        self.connections = 0
        """Connections accepted so far."""

    def __enter__(self) -> "TcpProxy":
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._bound.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Closes every connection, and refuses new ones until :meth:`heal`."""
        self._do(self._cut())

    def hold(self) -> None:
        """Keeps connections and accepts new ones, but forwards nothing until :meth:`heal`, like a stopped process."""
        self._do(self._hold())

    def heal(self) -> None:
        """Forwards everything again, at the same address."""
        self._do(self._heal())

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _heal(self) -> None:
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=self._bound)

    async def _hold(self) -> None:
        self._flowing.clear()

    async def _cut(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        # A bound socket that does not listen refuses connections and keeps the port.
        self._bound = _bound(int(self.address.rpartition(":")[2]))
        for writer in self._writers:
            writer.transport.abort()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._pipes.add(asyncio.current_task())
        self._writers.add(writer)
        upstream = None
        try:
            answers, upstream = await asyncio.open_connection(self._host, self._port)
            self._writers.add(upstream)
            ends = [asyncio.create_task(pipe) for pipe in (self._pump(reader, upstream), self._pump(answers, writer))]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the connection was cut, or the target does not answer
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._pipes.discard(asyncio.current_task())

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
