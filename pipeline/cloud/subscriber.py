"""A Pub/Sub subscriber client that can receive every message there can be."""

import os

import grpc
from google.cloud.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport


def subscriber_client() -> SubscriberClient:
    """Google's client, on the emulator where PUBSUB_EMULATOR_HOST says so.

    For the emulator Google's client makes a channel with gRPC's limit of 4 MB, which a message of up to 10 MB does
    not get through, nor a pull of many smaller ones; this one has no limit, as Google's has for the service.
    """
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    if not emulator:
        return SubscriberClient()
    channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
    return SubscriberClient(transport=SubscriberGrpcTransport(host=emulator, channel=channel))
