"""A client of Bigtable's data API that can receive every row there can be."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.cloud.bigtable.data import BigtableDataClient
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport


@contextmanager
def bigtable_client(project: str) -> Iterator[BigtableClient]:
    """The client that Google's "data" client is built on, over its connection: closed after the block.

    On the emulator where BIGTABLE_EMULATOR_HOST says so. For that Google's client makes a channel with gRPC's limit of
    4 MB, which a larger row does not get through; this one has no limit, as Google's has for the service.
    """
    emulator = os.environ.get("BIGTABLE_EMULATOR_HOST")
    if emulator:
        channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
        with BigtableClient(transport=BigtableGrpcTransport(host=emulator, channel=channel)) as client:
            yield client
    else:
        with BigtableDataClient(project=project) as connection:
            yield BigtableClient(transport=connection.transport)
