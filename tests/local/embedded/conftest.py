"""The built-in emulator, in a thread of the tests."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pipeline.local.embedded.server import started


@pytest.fixture(scope="session")
def embedded() -> Iterator[str]:
    """The address of the built-in emulator."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server, port = asyncio.run_coroutine_threadsafe(started(), loop).result(30)
    yield f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
