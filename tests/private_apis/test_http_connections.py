"""Connections that wait for their clients."""

import asyncio

from uvicorn import Config
from uvicorn.server import ServerState

from pipeline.private_apis.http_connections import MOST_CONNECTIONS, BoundedConnection

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Transport(asyncio.Transport):
    """A connection whose client does nothing but what the test does."""

    def __init__(self):
        super().__init__()
        self.written, self.aborted = b"", False

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.aborted

    def close(self):  # what the client has not read keeps a real one open
        pass

    def abort(self):
        self.aborted = True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class Loop:
    """A loop in which time passes when the test says so."""

    def __init__(self):
        self.now, self.timers = 0.0, []

    def call_later(self, delay, function):
        handle = asyncio.TimerHandle(self.now + delay, function, (), asyncio.get_running_loop())
        self.timers.append(handle)
        return handle

    def create_task(self, coroutine, **_):
        return asyncio.get_running_loop().create_task(coroutine)

    def pass_time(self, seconds):
        self.now += seconds
        for handle in [each for each in self.timers if each.when() <= self.now]:
            self.timers.remove(handle)
            if not handle.cancelled():
                handle._callback()


class Server:
    def __init__(self):
        self.config = Config(self.app, limit_concurrency=MOST_CONNECTIONS + 1, interface="asgi3")
        self.loop, self.state, self.answer = Loop(), ServerState(), asyncio.Event()

    async def app(self, scope, receive, send):
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def connected(self, data=b""):
        connection = BoundedConnection(self.config, self.state, {}, self.loop)
        connection.connection_made(Transport())
        if data:
            connection.data_received(data)
        return connection


def run(test):
    """Runs a test in a loop of its own."""

    def running():
        asyncio.run(test(Server()))

    running.__doc__ = test.__doc__
    return running


@run
async def test_a_request_that_never_ends(server):
    """A client has ten seconds for a whole request, whatever it sends meanwhile."""
    silent, slow = server.connected(), server.connected(REQUEST[:20])
    server.loop.pass_time(9)
    slow.data_received(b"X-More: x\r\n")
    assert not silent.transport.aborted
    server.loop.pass_time(1)
    assert silent.transport.aborted
    assert slow.transport.aborted
    assert not server.state.connections


@run
async def test_a_request_that_is_being_answered(server):
    """An answer may take its time; after it, the client has ten seconds for the next request."""
    connection = server.connected(REQUEST)
    server.loop.pass_time(100)
    assert not connection.transport.aborted
    server.answer.set()
    await asyncio.gather(*server.state.tasks)
    assert connection.transport.written.endswith(b"ok")
    server.loop.pass_time(4)
    connection.data_received(REQUEST[:20])
    server.loop.pass_time(6)
    assert connection.transport.aborted


@run
async def test_an_answer_that_is_not_read(server):
    """A client that reads nothing for ten seconds is cut off; one that goes on reading is not."""
    connections = [server.connected(REQUEST) for _ in range(2)]
    for connection in connections:
        connection.pause_writing()
    connections[1].resume_writing()
    server.loop.pass_time(10)
    assert [each.transport.aborted for each in connections] == [True, False]
    server.answer.set()
    connections[0].connection_lost(None)
    await asyncio.gather(*server.state.tasks)


@run
async def test_too_many_connections(server):
    """The connection that has waited longest makes room; a request is refused only if all others are being answered."""
    first = server.connected()
    server.loop.pass_time(1)
    rest = [server.connected() for _ in range(MOST_CONNECTIONS - 1)]
    assert not first.transport.aborted
    rest[0].data_received(REQUEST)
    server.connected(REQUEST)
    assert first.transport.aborted
    assert len(server.state.connections) == MOST_CONNECTIONS
    for each in rest[1:]:
        each.data_received(REQUEST)
    beyond = server.connected(REQUEST)
    server.answer.set()
    await asyncio.gather(*server.state.tasks)
    assert beyond.transport.written.startswith(b"HTTP/1.1 503 ")
    assert rest[-1].transport.written.startswith(b"HTTP/1.1 200 ")
