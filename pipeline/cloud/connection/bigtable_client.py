"""A client of Bigtable's data API that receives rows of any size."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport


@contextmanager
def bigtable_client() -> Iterator[BigtableClient]:
    """Opens the client beneath Google's "data" client, and closes it after the block.

    A short read takes half as long as with the "data" client, whose import loads the administration, monitoring and
    asynchronous clients.

    Connects to the emulator if BIGTABLE_EMULATOR_HOST is set. The channel to it accepts rows of any size, as Google's
    channel to the service does; gRPC's default limit is 4 MB.
    """
    emulator = os.environ.get("BIGTABLE_EMULATOR_HOST")
    transport = None
    if emulator:
        channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
        transport = BigtableGrpcTransport(host=emulator, channel=channel)
    with BigtableClient(transport=transport) as client:
        yield client
