"""Pub/Sub's API: topics and publishing, subscriptions and pulling."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.local.embedded.resources import check_name, of_project, page
from pipeline.local.embedded.schemas import Schemas
from pipeline.local.embedded.services import RequestRefused, Service, check_built, invalid, method, not_built
from pipeline.local.embedded.subscriptions import MemorySubscription, Received

# As cloud.google.com/pubsub/quotas documents them.
MAX_MESSAGES = 1000
MAX_REQUEST_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

_DAY_S = 24 * 3600
_DEADLINE_S, _MAX_DEADLINE_S, _MIN_STREAM_DEADLINE_S = 10, 600, 10
_RETENTION_S, _MIN_RETENTION_S, _MAX_RETENTION_S = 7 * _DAY_S, 600, 31 * _DAY_S
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 10, 600
_ATTEMPTS, _MAX_ATTEMPTS = 5, 100
_POLL_S = 2.0  # how long a pull waits for a message
_UPDATED = {
    "ack_deadline_seconds", "dead_letter_policy", "labels", "message_retention_duration", "push_config",
    "retain_acked_messages", "retry_policy",
}  # fmt: skip
_FIXED = {"name", "topic", "enable_message_ordering"}
_SUBSCRIPTION_FIELDS = _UPDATED | _FIXED | {"expiration_policy"}
_DELETED_TOPIC = "_deleted-topic_"
_TOPIC_FIELDS = {"name", "labels", "schema_settings"}
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
        check_built(request, _TOPIC_FIELDS, "topic")
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


class SubscriptionsApi(Service):
    """Subscriptions and pulling: ``google.pubsub.v1.Subscriber``."""

    name = "google.pubsub.v1.Subscriber"

    def __init__(self, state: Topics) -> None:
        self._state = state

    @method(_Subscription, _Subscription)
    async def CreateSubscription(self, request: Any) -> Any:
        check_name(request.name, "subscriptions")
        check_name(request.topic, "topics")
        _check_deadline(request.ack_deadline_seconds)
        if request.name in self._state.subscriptions:
            raise RequestRefused(StatusCode.ALREADY_EXISTS, "Subscription already exists")
        if request.topic not in self._state.topics:
            raise RequestRefused(StatusCode.NOT_FOUND, "Subscription topic does not exist")
        _complete(request)
        self._complete_letters(request)
        state = self._state
        state.subscriptions[request.name] = MemorySubscription(request, state.now_us, state.forward)
        return request

    @method(types.GetSubscriptionRequest, _Subscription)
    async def GetSubscription(self, request: Any) -> Any:
        return self._state.subscription(request.subscription).declared

    @method(types.UpdateSubscriptionRequest, _Subscription)
    async def UpdateSubscription(self, request: Any) -> Any:
        declared = self._state.subscription(request.subscription.name).declared
        if not request.update_mask.paths:
            raise invalid("The update_mask must have paths")
        for path in request.update_mask.paths:
            if path in _FIXED or path not in _Subscription.DESCRIPTOR.fields_by_name:
                raise invalid(f"{path} is not a field of a subscription that can be updated")
            if path not in _UPDATED:
                raise not_built(f"update of {path}")
        updated = _Subscription()
        updated.CopyFrom(declared)
        request.update_mask.MergeMessage(request.subscription, updated, True, True)
        _complete(updated)
        if "dead_letter_policy" in request.update_mask.paths:
            self._complete_letters(updated)
        declared.CopyFrom(updated)
        return declared

    @method(types.ListSubscriptionsRequest, types.ListSubscriptionsResponse)
    async def ListSubscriptions(self, request: Any) -> Any:
        found, token = page(of_project(self._state.subscriptions, request.project), request)
        declared = [each.declared for each in found]
        return types.ListSubscriptionsResponse.pb()(subscriptions=declared, next_page_token=token)

    @method(types.DeleteSubscriptionRequest, Empty)
    async def DeleteSubscription(self, request: Any) -> Any:
        self._state.subscription(request.subscription)
        self._state.subscriptions.pop(request.subscription).wake()
        return Empty()

    @method(types.PullRequest, types.PullResponse)
    async def Pull(self, request: Any) -> Any:
        subscription = self._state.subscription(request.subscription)
        if request.max_messages <= 0:
            raise invalid("No max_messages specified")
        most = min(request.max_messages, MAX_MESSAGES)
        taken = subscription.take(most)
        if not taken and not request.return_immediately:
            await subscription.wait(_POLL_S)
            taken = subscription.take(most)
        return _response(types.PullResponse.pb()(), taken)

    @method(types.StreamingPullRequest, types.StreamingPullResponse, streams=True, takes_stream=True)
    async def StreamingPull(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        first = await anext(aiter(requests), None)
        if first is None:
            return
        stream = _SubscriberStream(self._state.subscription(first.subscription), first)
        reading = asyncio.create_task(stream.read(requests))
        try:
            while not reading.done():
                if taken := stream.take():
                    yield stream.response(taken)
                else:
                    await stream.subscription.wait(_POLL_S)
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

    def _complete_letters(self, declared: Any) -> None:
        if not declared.HasField("dead_letter_policy"):
            return
        policy = declared.dead_letter_policy
        if policy.dead_letter_topic not in self._state.topics:
            raise RequestRefused(StatusCode.NOT_FOUND, "Dead letter topic not found")
        policy.max_delivery_attempts = policy.max_delivery_attempts or _ATTEMPTS
        if not _ATTEMPTS <= policy.max_delivery_attempts <= _MAX_ATTEMPTS:
            message = f"max_delivery_attempts must be between {_ATTEMPTS} and {_MAX_ATTEMPTS}"
            raise RequestRefused(StatusCode.OUT_OF_RANGE, message)


class _SubscriberStream:
    """What a subscriber receives of a subscription through one stream, within its flow control."""

    def __init__(self, subscription: MemorySubscription, first: Any) -> None:
        self.subscription = subscription
        self._deadline_s = _stream_deadline(first)
        self._most = first.max_outstanding_messages
        self._most_bytes = first.max_outstanding_bytes
        self._held: dict[str, int] = {}  # bytes by acknowledgement id

    async def read(self, requests: AsyncIterator[Any]) -> None:
        """Carries out what the subscriber says of the messages that it received."""
        try:
            async for request in requests:
                self._carry_out(request)
                self.subscription.wake()
        finally:
            self.subscription.wake()

    def take(self) -> list[Received]:
        """Delivers as many messages as the subscriber wants."""
        self._held = {ack_id: size for ack_id, size in self._held.items() if self.subscription.holds(ack_id)}
        most, most_bytes = MAX_MESSAGES, sys.maxsize
        if self._most > 0:
            most = min(most, self._most - len(self._held))
        if self._most_bytes > 0:
            most_bytes = self._most_bytes - sum(self._held.values())
        if most <= 0 or most_bytes <= 0:
            return []
        taken = self.subscription.take(most, self._deadline_s, most_bytes)
        self._held |= {each.ack_id: each.message.ByteSize() for each in taken}
        return taken

    def response(self, taken: list[Received]) -> Any:
        """Returns the response that delivers messages."""
        response = types.StreamingPullResponse.pb()()
        properties = response.subscription_properties
        properties.message_ordering_enabled = self.subscription.declared.enable_message_ordering
        return _response(response, taken)

    def _carry_out(self, request: Any) -> None:
        if request.subscription:
            raise invalid("subscription may only be set in first message")
        if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
            raise invalid("ack IDs and deadlines must have the same size")
        if request.stream_ack_deadline_seconds:
            self._deadline_s = _stream_deadline(request)
        self.subscription.acknowledge(request.ack_ids)
        for ack_id, seconds in zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True):
            _check_deadline(seconds)
            self.subscription.extend([ack_id], seconds)


def _response(response: Any, taken: list[Received]) -> Any:
    for ack_id, message, attempt in taken:
        response.received_messages.add(ack_id=ack_id, message=message, delivery_attempt=attempt)
    return response


def _some(ack_ids: Any) -> Any:
    if not ack_ids:
        raise invalid("No ack ids specified.")
    return ack_ids


def _complete(declared: Any) -> None:
    """Fills in what a subscription leaves to Pub/Sub, and refuses what is out of bounds or not built."""
    check_built(declared, _SUBSCRIPTION_FIELDS, "subscription")
    check_built(declared.push_config, set(), "push configuration")
    declared.push_config.SetInParent()
    declared.ack_deadline_seconds = declared.ack_deadline_seconds or _DEADLINE_S
    _check_deadline(declared.ack_deadline_seconds)
    _default(declared, "message_retention_duration", _RETENTION_S)
    if not _MIN_RETENTION_S <= declared.message_retention_duration.seconds <= _MAX_RETENTION_S:
        raise invalid("message_retention_duration out of bounds")
    if declared.HasField("retry_policy"):
        policy = declared.retry_policy
        _default(policy, "minimum_backoff", _MIN_BACKOFF_S)
        _default(policy, "maximum_backoff", _MAX_BACKOFF_S)
        least, most = policy.minimum_backoff.ToTimedelta(), policy.maximum_backoff.ToTimedelta()
        if not 0 <= least.total_seconds() <= most.total_seconds() <= _MAX_BACKOFF_S:
            raise invalid(f"Backoffs must be between 0 s and {_MAX_BACKOFF_S} s, and the minimum not the larger")


def _default(message: Any, field: str, seconds: int) -> None:
    if not message.HasField(field):
        getattr(message, field).CopyFrom(Duration(seconds=seconds))


def _check_deadline(seconds: int) -> None:
    if not 0 <= seconds <= _MAX_DEADLINE_S:
        raise invalid("ack_deadline_secs out of bounds")


def _stream_deadline(request: Any) -> int:
    if not _MIN_STREAM_DEADLINE_S <= request.stream_ack_deadline_seconds <= _MAX_DEADLINE_S:
        raise invalid(f"stream_ack_deadline_seconds must be between {_MIN_STREAM_DEADLINE_S} and {_MAX_DEADLINE_S}")
    return int(request.stream_ack_deadline_seconds)
