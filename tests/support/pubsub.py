"""Helpers for tests of publishing: a topic whose messages can be pulled, and a scripted server."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress

import grpc
from google.api_core.exceptions import AlreadyExists
from google.cloud.pubsub_v1 import PublisherClient
from google.pubsub_v1.types import PublishRequest, PublishResponse

from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.events.message import Message


class Inbox:
    """A topic, new unless it is named, and the messages that arrive there from now on."""

    def __init__(self, *, topic: str | None = None, ordered: bool = False) -> None:
        name = uuid.uuid4().hex
        self.topic = topic or f"projects/test-project/topics/t-{name}"
        self.subscription = f"projects/test-project/subscriptions/s-{name}"
        self._subscriber = subscriber_client()
        with suppress(AlreadyExists):  # other tests may use a topic of the documentation
            PublisherClient().create_topic(name=self.topic)
        self._subscriber.create_subscription(
            {"name": self.subscription, "topic": self.topic, "enable_message_ordering": ordered}
        )

    def take(self, count: int) -> list[Message]:
        """Waits for this many messages and returns them, with any others from the last pull."""
        messages: list[Message] = []
        deadline = time.monotonic() + 30
        while len(messages) < count and time.monotonic() < deadline:
            received = self._subscriber.pull(subscription=self.subscription, max_messages=1000).received_messages
            if received:
                self._subscriber.acknowledge(subscription=self.subscription, ack_ids=[one.ack_id for one in received])
            messages += [_plain(one.message) for one in received]
        return messages

    def delete_topic(self) -> None:
        PublisherClient().delete_topic(topic=self.topic)


def _plain(message) -> Message:
    return Message(message.data, dict(message.attributes), ordering_key=message.ordering_key)


class Server:
    """A Pub/Sub server that does what the emulator can't: it refuses to show the topic and holds back responses."""

    def __init__(self) -> None:
        self.received = 0
        self._lock = threading.Lock()
        self.on_publish: Callable[[grpc.ServicerContext], None] = lambda _: None

    def get_topic(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you to see")

    def publish(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        count = len(PublishRequest.deserialize(request).messages)
        with self._lock:
            self.received += count
        self.on_publish(context)
        return PublishResponse.serialize(PublishResponse(message_ids=[uuid.uuid4().hex] * count))


@contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    """Runs the server; yields it and its address."""
    one = Server()
    with serving_service("google.pubsub.v1.Publisher", {"GetTopic": one.get_topic, "Publish": one.publish}) as address:
        yield one, address


@contextmanager
def serving_service(
    service: str, methods: Mapping[str, Callable[[bytes, grpc.ServicerContext], bytes]]
) -> Iterator[str]:
    """Runs a gRPC server with the methods of a service, which take and return bytes; yields its address."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    rpc = grpc.server(futures.ThreadPoolExecutor(32), [grpc.method_handlers_generic_handler(service, handlers)])
    port = rpc.add_insecure_port("127.0.0.1:0")
    rpc.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        rpc.stop(0).wait()
