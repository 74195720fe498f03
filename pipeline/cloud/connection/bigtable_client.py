"""A client of Bigtable's data API that receives rows of any size."""

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any

import grpc
import grpc.experimental
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport

# The thread that asks for a response receives it. By default, another thread receives it and wakes this one, which
# takes longer than all the rest if rows are small.
_OPTION = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
_open, _opening = ExitStack(), Lock()
atexit.register(_open.close)


@contextmanager
def bigtable_client() -> Iterator[BigtableClient]:
    """Opens the client beneath Google's "data" client, and closes it after the block.

    A short read takes half as long as with the "data" client, whose import loads the administration, monitoring and
    asynchronous clients.

    Connects to the emulator if BIGTABLE_EMULATOR_HOST is set. The channel to it accepts rows of any size, as Google's
    channel to the service does; gRPC's default limit is 4 MB.
    """
    emulator = os.environ.get("BIGTABLE_EMULATOR_HOST")
    transport: Any = partial(BigtableGrpcTransport, channel=_channel)
    if emulator:
        channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1), _OPTION])
        transport = BigtableGrpcTransport(host=emulator, channel=channel)
    with BigtableClient(transport=transport) as client:
        yield client


def shared_client() -> BigtableClient:
    """Returns this process's client of the service, or of the emulator. It stays open: a bundle is too short for it."""
    with _opening:
        return _shared_client(os.environ.get("BIGTABLE_EMULATOR_HOST"))


@cache
def _shared_client(_emulator: str | None) -> BigtableClient:
    return _open.enter_context(bigtable_client())


def _channel(*arguments: Any, options: Iterable[tuple[str, Any]], **more: Any) -> grpc.Channel:
    return BigtableGrpcTransport.create_channel(*arguments, options=[*options, _OPTION], **more)
