"""The server: Bigtable and Pub/Sub on one loopback port."""

import time
from collections.abc import Callable

import grpc

from pipeline.local.embedded.bigtable import BigtableData, BigtableTableAdmin
from pipeline.local.embedded.pubsub import SubscriptionsApi, Topics, TopicsApi
from pipeline.local.embedded.schemas import Schemas
from pipeline.local.embedded.services import Methods
from pipeline.local.embedded.tables import MAX_ROW_BYTES, MemoryTable

# A row may fill a message.
_OPTIONS = [("grpc.max_receive_message_length", MAX_ROW_BYTES), ("grpc.max_send_message_length", MAX_ROW_BYTES)]


def clock_us() -> int:
    """Returns the current time in µs since the epoch."""
    return time.time_ns() // 1000


async def started(port: int = 0, now_us: Callable[[], int] = clock_us) -> tuple[grpc.aio.Server, int]:
    """Starts the server.

    Args:
        port: a port on 127.0.0.1; 0 for a free one.
        now_us: the clock: ages of cells and acknowledgement deadlines go by it.

    Returns:
        The server and its port.

    Raises:
        RuntimeError: the port is in use.
    """
    tables: dict[str, MemoryTable] = {}
    topics = Topics(now_us)
    schemas = Schemas(topics.topics)
    bigtable = BigtableData(tables), BigtableTableAdmin(tables, now_us)
    pubsub = TopicsApi(topics, schemas), SubscriptionsApi(topics), schemas
    server = grpc.aio.server(handlers=[Methods(*bigtable, *pubsub)], options=[*_OPTIONS, ("grpc.so_reuseport", 0)])
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


async def serve(port: int) -> None:
    """Serves until the process ends."""
    server, _ = await started(port)
    await server.wait_for_termination()
