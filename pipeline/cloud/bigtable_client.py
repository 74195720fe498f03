"""A client of Bigtable's data API that receives rows of any size."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.cloud.bigtable.data import BigtableDataClient
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport


@contextmanager
def bigtable_client(project: str) -> Iterator[BigtableClient]:
    """Opens the client beneath Google's "data" client, over its connection, and closes it after the block.

    Connects to the emulator if BIGTABLE_EMULATOR_HOST is set. Google's client would then open a channel with gRPC's
    default limit of 4 MB, and a larger row would fail. This channel has no limit, like Google's to the service.
    """
    emulator = os.environ.get("BIGTABLE_EMULATOR_HOST")
    if emulator:
        channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
        with BigtableClient(transport=BigtableGrpcTransport(host=emulator, channel=channel)) as client:
            yield client
    else:
        with BigtableDataClient(project=project) as connection:
            yield BigtableClient(transport=connection.transport)
