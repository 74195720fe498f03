"""Subscriptions and pulling: Pub/Sub's API for subscribers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.pubsub import MAX_MESSAGES, Topics
from pipeline.local.embedded.refusals import RequestRefused, check_built, invalid, not_built
from pipeline.local.embedded.resources import check_name, of_project, page
from pipeline.local.embedded.subscriptions import MemorySubscription, Received

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
_BUILT = _UPDATED | _FIXED | {"expiration_policy"}

_Subscription = types.Subscription.pb()


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
    check_built(declared, _BUILT, "subscription")
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
