"""Topics: Pub/Sub's API for publishing."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.refusals import RequestRefused, check_built, invalid
from pipeline.local.embedded.resources import check_name, of_project, page
from pipeline.local.embedded.schemas import Schemas
from pipeline.local.embedded.subscriptions import MemorySubscription

# As cloud.google.com/pubsub/quotas documents them.
MAX_MESSAGES = 1000
MAX_REQUEST_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

_DELETED_TOPIC = "_deleted-topic_"
_BUILT = {"name", "labels", "schema_settings"}
_Topic = types.Topic.pb()


class Topics:
    """The topics and subscriptions.

    Args:
        now_us: the clock.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self.topics: dict[str, Any] = {}
        self.subscriptions: dict[str, MemorySubscription] = {}
        self._ids = count(1)

    def topic(self, name: str) -> Any:
        """Returns a topic. Refuses a name that no topic has."""
        check_name(name, "topics")
        if name not in self.topics:
            raise RequestRefused(StatusCode.NOT_FOUND, "Topic not found")
        return self.topics[name]

    def subscription(self, name: str) -> MemorySubscription:
        """Returns a subscription. Refuses a name that no subscription has."""
        check_name(name, "subscriptions")
        if name not in self.subscriptions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Subscription does not exist")
        return self.subscriptions[name]

    def publish(self, topic: str, messages: Iterable[Any]) -> None:
        """Gives messages their ids and times, and delivers them to the topic's subscriptions."""
        subscriptions, now_ms = self.of_topic(topic), self.now_us() // 1000
        for message in messages:
            message.message_id = str(next(self._ids))
            message.publish_time.FromMilliseconds(now_ms)
            for subscription in subscriptions:
                subscription.publish(message)

    def forward(self, topic: str, message: Any) -> bool:
        """Publishes a message to a topic if it exists; returns whether it does."""
        if topic in self.topics:
            self.publish(topic, [message])
        return topic in self.topics

    def of_topic(self, name: str) -> list[MemorySubscription]:
        """Returns a topic's subscriptions."""
        return [each for each in self.subscriptions.values() if each.declared.topic == name]


class TopicsApi(Service):
    """Topics and publishing: ``google.pubsub.v1.Publisher``."""

    name = "google.pubsub.v1.Publisher"

    def __init__(self, state: Topics, schemas: Schemas) -> None:
        self._state = state
        self._schemas = schemas

    @method(_Topic, _Topic)
    async def CreateTopic(self, request: Any) -> Any:
        check_name(request.name, "topics")
        check_built(request, _BUILT, "topic")
        if request.name in self._state.topics:
            raise RequestRefused(StatusCode.ALREADY_EXISTS, "Topic already exists")
        if request.HasField("schema_settings"):
            self._schemas.check_settings(request.schema_settings)
        self._state.topics[request.name] = request
        return request

    @method(types.GetTopicRequest, _Topic)
    async def GetTopic(self, request: Any) -> Any:
        return self._state.topic(request.topic)

    @method(types.ListTopicsRequest, types.ListTopicsResponse)
    async def ListTopics(self, request: Any) -> Any:
        topics, token = page(of_project(self._state.topics, request.project), request)
        return types.ListTopicsResponse.pb()(topics=topics, next_page_token=token)

    @method(types.ListTopicSubscriptionsRequest, types.ListTopicSubscriptionsResponse)
    async def ListTopicSubscriptions(self, request: Any) -> Any:
        self._state.topic(request.topic)
        names = [each.declared.name for each in self._state.of_topic(request.topic)]
        names, token = page(dict(zip(names, names, strict=True)), request)
        return types.ListTopicSubscriptionsResponse.pb()(subscriptions=names, next_page_token=token)

    @method(types.DeleteTopicRequest, Empty)
    async def DeleteTopic(self, request: Any) -> Any:
        self._state.topic(request.topic)
        for subscription in self._state.of_topic(request.topic):
            subscription.declared.topic = _DELETED_TOPIC
        del self._state.topics[request.topic]
        return Empty()

    @method(types.PublishRequest, types.PublishResponse)
    async def Publish(self, request: Any) -> Any:
        topic = self._state.topic(request.topic)
        _check_messages(request)
        if topic.HasField("schema_settings"):
            self._schemas.check(topic.schema_settings, request.messages)
        self._state.publish(request.topic, request.messages)
        return types.PublishResponse.pb()(message_ids=[message.message_id for message in request.messages])


def _check_messages(request: Any) -> None:
    if not request.messages:
        raise invalid("No messages to publish")
    if len(request.messages) > MAX_MESSAGES:
        raise invalid("Too many messages to publish")
    if request.ByteSize() > MAX_REQUEST_BYTES:
        raise invalid(f"A request must not exceed {MAX_REQUEST_BYTES} bytes")
    for message in request.messages:
        if not message.data and not message.attributes:
            raise invalid("Some messages are empty")
        if len(message.attributes) > MAX_ATTRIBUTES:
            raise invalid(f"A message must not have more than {MAX_ATTRIBUTES} attributes")
        if len(message.ordering_key.encode()) > MAX_ORDERING_KEY_BYTES:
            raise invalid(f"An ordering key must not exceed {MAX_ORDERING_KEY_BYTES} bytes")
        for key, value in message.attributes.items():
            if not key or key.startswith("goog"):
                raise invalid(f"An attribute's key must not be empty or begin with goog: {key!r}")
            if len(key.encode()) > MAX_KEY_BYTES or len(value.encode()) > MAX_VALUE_BYTES:
                raise invalid(
                    f"An attribute's key or value exceeds {MAX_KEY_BYTES} or {MAX_VALUE_BYTES} bytes: {key!r}"
                )
