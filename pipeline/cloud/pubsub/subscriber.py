"""A Pub/Sub subscriber client that receives messages of any size."""

import os

import grpc
from google.cloud.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport


def subscriber_client() -> SubscriberClient:
    """Returns Google's client, connected to the emulator if PUBSUB_EMULATOR_HOST is set.

    For the emulator, Google's client would open a channel with gRPC's default limit of 4 MB. A message may have 10 MB,
    and so may a pull of many small ones. This channel has no limit, like Google's to the service.
    """
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    if not emulator:
        return SubscriberClient()
    channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
    return SubscriberClient(transport=SubscriberGrpcTransport(host=emulator, channel=channel))
