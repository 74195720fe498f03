"""Pub/Sub's API: topics and publishing, subscriptions and pulling."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.refusals import RequestRefused, invalid, not_built
from pipeline.local.embedded.schemas import Schemas, check_name
from pipeline.local.embedded.subscriptions import MemorySubscription

# As cloud.google.com/pubsub/quotas documents them.
MAX_MESSAGES = 1000
MAX_REQUEST_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

_DEADLINE_S, _MAX_DEADLINE_S = 10, 600
_RETENTION_S = 7 * 24 * 3600
_POLL_S = 2.0  # how long a pull waits for a message
_DELETED_TOPIC = "_deleted-topic_"
_PUBLISHED = {"name", "labels", "message_retention_duration", "schema_settings"}
_SUBSCRIBED = {
    "name", "topic", "push_config", "ack_deadline_seconds", "retain_acked_messages", "message_retention_duration",
    "labels", "enable_message_ordering", "expiration_policy", "dead_letter_policy", "retry_policy",
}  # fmt: skip
_UPDATED = {"ack_deadline_seconds", "labels", "message_retention_duration", "retain_acked_messages"}

_Topic, _Subscription = types.Topic.pb(), types.Subscription.pb()


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
        if name not in self.topics:
            raise RequestRefused(StatusCode.NOT_FOUND, "Topic not found")
        return self.topics[name]

    def subscription(self, name: str) -> MemorySubscription:
        """Returns a subscription. Refuses a name that no subscription has."""
        if name not in self.subscriptions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Subscription does not exist")
        return self.subscriptions[name]

    def publish(self, topic: str, messages: Iterable[Any]) -> None:
        """Gives messages their ids and times, and delivers them to the topic's subscriptions."""
        subscriptions, now_us = self.of_topic(topic), self.now_us()
        for message in messages:
            message.message_id = str(next(self._ids))
            message.publish_time.FromMicroseconds(now_us)
            for subscription in subscriptions:
                subscription.publish(message)

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
        _check_built(request, _PUBLISHED, "topic")
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
        topics = self._state.topics.values()
        return types.ListTopicsResponse.pb()(topics=_of_project(topics, request.project))

    @method(types.ListTopicSubscriptionsRequest, types.ListTopicSubscriptionsResponse)
    async def ListTopicSubscriptions(self, request: Any) -> Any:
        self._state.topic(request.topic)
        names = sorted(each.declared.name for each in self._state.of_topic(request.topic))
        return types.ListTopicSubscriptionsResponse.pb()(subscriptions=names)

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


class SubscriptionsApi(Service):
    """Subscriptions and pulling: ``google.pubsub.v1.Subscriber``."""

    name = "google.pubsub.v1.Subscriber"

    def __init__(self, state: Topics) -> None:
        self._state = state

    @method(_Subscription, _Subscription)
    async def CreateSubscription(self, request: Any) -> Any:
        check_name(request.name, "subscriptions")
        _check_built(request, _SUBSCRIBED, "subscription")
        _check_built(request.push_config, set(), "push configuration")
        if request.topic not in self._state.topics:
            raise RequestRefused(StatusCode.NOT_FOUND, "Subscription topic does not exist")
        if request.name in self._state.subscriptions:
            raise RequestRefused(StatusCode.ALREADY_EXISTS, "Subscription already exists")
        request.push_config.SetInParent()
        request.ack_deadline_seconds = request.ack_deadline_seconds or _DEADLINE_S
        _check_deadline(request.ack_deadline_seconds)
        if not request.HasField("message_retention_duration"):
            request.message_retention_duration.CopyFrom(Duration(seconds=_RETENTION_S))
        letters = request.dead_letter_policy.dead_letter_topic
        if letters and letters not in self._state.topics:
            raise RequestRefused(StatusCode.NOT_FOUND, "Dead letter topic does not exist")
        self._state.subscriptions[request.name] = MemorySubscription(
            request, self._state.now_us, lambda message: self._state.publish(letters, [message])
        )
        return request

    @method(types.GetSubscriptionRequest, _Subscription)
    async def GetSubscription(self, request: Any) -> Any:
        return self._state.subscription(request.subscription).declared

    @method(types.UpdateSubscriptionRequest, _Subscription)
    async def UpdateSubscription(self, request: Any) -> Any:
        declared = self._state.subscription(request.subscription.name).declared
        if unknown := set(request.update_mask.paths) - _UPDATED:
            raise not_built(f"update of {min(unknown)}")
        if "ack_deadline_seconds" in request.update_mask.paths:
            _check_deadline(request.subscription.ack_deadline_seconds)
        request.update_mask.MergeMessage(request.subscription, declared)
        return declared

    @method(types.ListSubscriptionsRequest, types.ListSubscriptionsResponse)
    async def ListSubscriptions(self, request: Any) -> Any:
        declared = [each.declared for each in self._state.subscriptions.values()]
        return types.ListSubscriptionsResponse.pb()(subscriptions=_of_project(declared, request.project))

    @method(types.DeleteSubscriptionRequest, Empty)
    async def DeleteSubscription(self, request: Any) -> Any:
        self._state.subscription(request.subscription)
        del self._state.subscriptions[request.subscription]
        return Empty()

    @method(types.PullRequest, types.PullResponse)
    async def Pull(self, request: Any) -> Any:
        subscription = self._state.subscription(request.subscription)
        if request.max_messages <= 0:
            raise invalid("No max_messages specified")
        taken = subscription.take(request.max_messages)
        if not taken and not request.return_immediately:
            await subscription.wait(_POLL_S)
            taken = subscription.take(request.max_messages)
        return _received(types.PullResponse.pb()(), taken)

    @method(types.StreamingPullRequest, types.StreamingPullResponse, streams=True, takes_stream=True)
    async def StreamingPull(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        first = await anext(aiter(requests))
        subscription = self._state.subscription(first.subscription)
        deadline_s, most = first.stream_ack_deadline_seconds, first.max_outstanding_messages or MAX_MESSAGES
        _check_deadline(deadline_s)
        reading = asyncio.create_task(_read(requests, subscription))
        try:
            while not reading.done():
                if taken := subscription.take(min(most, MAX_MESSAGES), deadline_s):
                    response = types.StreamingPullResponse.pb()()
                    properties = response.subscription_properties
                    properties.message_ordering_enabled = subscription.declared.enable_message_ordering
                    yield _received(response, taken)
                else:
                    await subscription.wait(_POLL_S)
                self._state.subscription(first.subscription)  # it may have been deleted
            reading.result()
        finally:
            reading.cancel()

    @method(types.AcknowledgeRequest, Empty)
    async def Acknowledge(self, request: Any) -> Any:
        self._state.subscription(request.subscription).acknowledge(_some(request.ack_ids))
        return Empty()

    @method(types.ModifyAckDeadlineRequest, Empty)
    async def ModifyAckDeadline(self, request: Any) -> Any:
        subscription = self._state.subscription(request.subscription)
        _check_deadline(request.ack_deadline_seconds)
        subscription.extend(_some(request.ack_ids), request.ack_deadline_seconds)
        return Empty()

    @method(types.SeekRequest, types.SeekResponse)
    async def Seek(self, request: Any) -> Any:
        subscription = self._state.subscription(request.subscription)
        if request.WhichOneof("target") is None:
            raise invalid("No target was specified in the SeekRequest. Must specify either a time or a snapshot")
        if request.WhichOneof("target") == "snapshot":
            raise not_built("snapshots")
        subscription.seek(request.time.ToMicroseconds())
        return types.SeekResponse.pb()()


async def _read(requests: AsyncIterator[Any], subscription: MemorySubscription) -> None:
    """Carries out what a stream says of the messages that it received."""
    async for request in requests:
        subscription.acknowledge(request.ack_ids)
        for ack_id, seconds in zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True):
            subscription.extend([ack_id], seconds)


def _received(response: Any, taken: list[tuple[str, Any]]) -> Any:
    for ack_id, message in taken:
        response.received_messages.add(ack_id=ack_id, message=message)
    return response


def _some(ack_ids: Any) -> Any:
    if not ack_ids:
        raise invalid("No ack ids specified.")
    return ack_ids


def _of_project(declared: Any, project: str) -> list[Any]:
    return sorted(
        (each for each in declared if each.name.startswith(f"{project}/")), key=lambda declared: declared.name
    )


def _check_built(message: Any, built: set[str], what: str) -> None:
    for field, _ in message.ListFields():
        if field.name not in built:
            raise not_built(f"{field.name} of a {what}")


def _check_deadline(seconds: int) -> None:
    if not 0 <= seconds <= _MAX_DEADLINE_S:
        raise invalid("ack_deadline_secs out of bounds")


def _check_messages(request: Any) -> None:
    if not request.messages:
        raise invalid("No messages to publish")
    if len(request.messages) > MAX_MESSAGES:
        raise invalid("Too many messages to publish")
    if request.ByteSize() > MAX_REQUEST_BYTES:
        raise invalid(f"A request must not exceed {MAX_REQUEST_BYTES} bytes")
    for message in request.messages:
        if not (message.data or message.attributes):
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
