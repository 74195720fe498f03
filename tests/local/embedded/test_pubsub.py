"""The built-in Pub/Sub, as its clients see it: limits, streams, and Google's own client."""

import queue
import threading
import time
import uuid

import grpc
import pytest
from google.api_core.exceptions import InvalidArgument
from google.cloud import pubsub_v1
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.local.embedded import pubsub as limits
from tests.local.embedded.calls import Calls
from tests.support.waiting import eventually

MB = 1_000_000


@pytest.fixture(scope="module")
def calls(embedded):
    return Calls(embedded)


@pytest.fixture
def names(calls):
    """Returns a function that creates a subscription of a new topic, and returns the names of both."""
    project = f"projects/p-{uuid.uuid4().hex}"

    def create(**declared):
        topic, subscription = f"{project}/topics/topic-1", f"{project}/subscriptions/subscription-1"
        calls.ask("CreateTopic", name=topic)
        calls.ask("CreateSubscription", name=subscription, topic=topic, **declared)
        return topic, subscription

    return create


class TestLimits:
    @pytest.mark.parametrize(
        ("most", "too_many"),
        [
            ([{"data": b"x"}] * 1000, [{"data": b"x"}] * 1001),
            ([{"data": b"x" * 9_999_000}], [{"data": b"x" * 10_000_000}]),
            ([{"data": b"x" * 999_000}] * 10, [{"data": b"x" * MB}] * 10),
            ([{"attributes": {f"a{n}": "" for n in range(100)}}], [{"attributes": {f"a{n}": "" for n in range(101)}}]),
            ([{"attributes": {"k" * 256: ""}}], [{"attributes": {"k" * 257: ""}}]),
            ([{"attributes": {"ü" * 128: ""}}], [{"attributes": {"ü" * 129: ""}}]),
            ([{"attributes": {"k": "v" * 1024}}], [{"attributes": {"k": "v" * 1025}}]),
            ([{"attributes": {"agoog": ""}}], [{"attributes": {"googa": ""}}]),
            ([{"attributes": {"a": ""}}], [{"attributes": {"": "a"}}]),
            ([{"data": b"x", "ordering_key": "k" * 1024}], [{"data": b"x", "ordering_key": "k" * 1025}]),
            ([{"data": b"x"}], [{"ordering_key": "k"}]),
            ([{"data": b"x"}], []),
            ([{"data": b"x"}], [{"data": b"x"}, {}]),
        ],
        ids=[
            "messages", "one message", "a request", "attributes", "bytes of a key", "letters of a key", "a value",
            "reserved keys", "empty keys", "an ordering key", "a key alone", "no message", "an empty message",
        ],
    )  # fmt: skip
    def test_publish(self, calls, names, most, too_many):
        """What just fits is published whole; what does not is refused, and nothing of it is published."""
        topic, subscription = names()
        assert calls.code("Publish", topic=topic, messages=too_many) is StatusCode.INVALID_ARGUMENT
        pulled = calls.ask("Pull", subscription=subscription, max_messages=1, return_immediately=True)
        assert list(pulled.received_messages) == []
        assert len(set(calls.ask("Publish", topic=topic, messages=most).message_ids)) == len(most)

    def test_they_are_the_documented_ones(self):
        """The limits are those of Pub/Sub's page on quotas."""
        assert (limits.MAX_MESSAGES, limits.MAX_REQUEST_BYTES, limits.MAX_ATTRIBUTES) == (1000, 10 * MB, 100)
        assert (limits.MAX_KEY_BYTES, limits.MAX_VALUE_BYTES, limits.MAX_ORDERING_KEY_BYTES) == (256, 1024, 1024)

    @pytest.mark.parametrize(
        "declared",
        [
            {"filter": 'attributes.a = "b"'},
            {"enable_exactly_once_delivery": True},
            {"push_config": {"push_endpoint": "https://example.com"}},
            {"bigquery_config": {"table": "a.b.c"}},
            {"detached": True},
        ],
        ids=lambda declared: next(iter(declared)),
    )
    def test_what_is_not_built_says_so(self, names, declared):
        """A subscription with a setting that would have no effect is refused, with the setting's name."""
        with pytest.raises(
            grpc.RpcError, match=f"the built-in emulator has no ({next(iter(declared))}|push_endpoint) of"
        ):
            names(**declared)


class Stream:
    """A streaming pull.

    Args:
        address: the server's address.
        first: the fields of the first request.
    """

    def __init__(self, address, **first):
        self._requests = queue.Queue()
        self.send(**first)
        self._call = grpc.insecure_channel(address).stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=lambda message: type(message).serialize(message),
            response_deserializer=types.StreamingPullResponse.pb().FromString,
        )(iter(self._requests.get, None))
        self.texts, self.ids, self.end = [], {}, None
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **fields):
        """Sends a request."""
        self._requests.put(types.StreamingPullRequest(**fields))

    def close(self):
        """Ends the requests."""
        self._requests.put(None)

    def _read(self):
        try:
            for response in self._call:
                for each in response.received_messages:
                    self.ids[each.message.data.decode()] = each.ack_id
                    self.texts.append(each.message.data.decode())
        except grpc.RpcError as error:
            self.end = error.code()
        else:
            self.end = StatusCode.OK


@pytest.fixture
def servers(pubsub, embedded):
    return [pubsub, embedded]


def publish(calls, topic, *texts, key=""):
    calls.ask("Publish", topic=topic, messages=[{"data": text.encode(), "ordering_key": key} for text in texts])


class TestStreams:
    @pytest.fixture
    def stream(self, embedded):
        """Returns a function that begins a stream, which ends with the test."""
        begun = []

        def begin(subscription, **first):
            begun.append(Stream(embedded, subscription=subscription, **{"stream_ack_deadline_seconds": 10} | first))
            return begun[-1]

        yield begin
        for each in begun:
            each.close()
        eventually(lambda: all(each.end for each in begun))

    def test_messages_come_as_they_are_published(self, calls, names, stream):
        """A stream delivers what waits and what is published later; a message that it refuses comes again."""
        topic, subscription = names()
        publish(calls, topic, "a")
        reading = stream(subscription)
        eventually(lambda: reading.texts == ["a"])
        publish(calls, topic, "b", "c")
        eventually(lambda: reading.texts == ["a", "b", "c"])
        reading.send(ack_ids=[reading.ids["a"], reading.ids["c"]])
        reading.send(modify_deadline_ack_ids=[reading.ids["b"]], modify_deadline_seconds=[0])
        eventually(lambda: reading.texts == ["a", "b", "c", "b"])

    @pytest.mark.parametrize("limit", [{"max_outstanding_messages": 2}, {"max_outstanding_bytes": 10}])
    def test_flow_control(self, calls, names, stream, limit):
        """A stream has no more messages or bytes than it wants; what it acknowledges makes room at once."""
        topic, subscription = names()
        reading = stream(subscription, **limit)
        publish(calls, topic, *"abcd")
        eventually(lambda: len(reading.texts) >= (first := 2 if "max_outstanding_messages" in limit else 1) and first)
        time.sleep(0.1)
        held = len(reading.texts)
        assert held < 4
        began = time.monotonic()
        reading.send(ack_ids=[reading.ids["a"]])
        eventually(lambda: len(reading.texts) == held + 1)
        assert time.monotonic() - began < 1

    def test_a_key_goes_on_at_once(self, calls, names, stream):
        """The next messages of an ordering key follow as soon as those before them are acknowledged."""
        topic, subscription = names(enable_message_ordering=True)
        reading = stream(subscription)
        publish(calls, topic, "a", key="k")
        eventually(lambda: reading.texts == ["a"])
        publish(calls, topic, "b", key="k")
        began = time.monotonic()
        reading.send(ack_ids=[reading.ids["a"]])
        eventually(lambda: reading.texts == ["a", "b"])
        assert time.monotonic() - began < 1

    @pytest.mark.parametrize(
        "request_",
        [
            {"ack_ids": ["x"]},
            {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [0]},
            {"modify_deadline_ack_ids": ["x"]},
            {"subscription": "again"},
            {"stream_ack_deadline_seconds": 5},
        ],
        ids=str,
    )
    def test_a_request_that_is_refused_ends_the_stream(self, servers, request_):
        """A later request that is not valid ends the stream with its error, on both emulators."""
        for address in servers:
            calls, project = Calls(address), f"projects/p-{uuid.uuid4().hex}"
            calls.ask("CreateTopic", name=f"{project}/topics/topic-1")
            subscription = f"{project}/subscriptions/subscription-1"
            calls.ask("CreateSubscription", name=subscription, topic=f"{project}/topics/topic-1")
            reading = Stream(address, subscription=subscription, stream_ack_deadline_seconds=10)
            reading.send(**{"subscription": subscription} if "subscription" in request_ else request_)
            eventually(lambda reading=reading: reading.end is StatusCode.INVALID_ARGUMENT)
            reading.close()

    @pytest.mark.parametrize("deadline_s", [0, 9, 601])
    def test_the_first_request(self, servers, deadline_s):
        """A stream without a deadline within bounds does not begin, nor does one of an unknown subscription."""
        for address in servers:
            calls, project = Calls(address), f"projects/p-{uuid.uuid4().hex}"
            subscription = f"{project}/subscriptions/subscription-1"
            unknown = Stream(address, subscription=subscription, stream_ack_deadline_seconds=10)
            eventually(lambda unknown=unknown: unknown.end is StatusCode.NOT_FOUND)
            calls.ask("CreateTopic", name=f"{project}/topics/topic-1")
            calls.ask("CreateSubscription", name=subscription, topic=f"{project}/topics/topic-1")
            bad = Stream(address, subscription=subscription, stream_ack_deadline_seconds=deadline_s)
            eventually(lambda bad=bad: bad.end is StatusCode.INVALID_ARGUMENT)

    def test_a_deleted_subscription_ends_its_streams(self, calls, names, stream):
        """A stream ends at once when its subscription is deleted."""
        topic, subscription = names()
        reading = stream(subscription)
        publish(calls, topic, "a")
        eventually(lambda: reading.texts == ["a"])
        began = time.monotonic()
        calls.ask("DeleteSubscription", subscription=subscription)
        eventually(lambda: reading.end is StatusCode.NOT_FOUND)
        assert time.monotonic() - began < 1


class TestGooglesClient:
    @pytest.fixture(autouse=True)
    def _environment(self, embedded, monkeypatch):
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", embedded)

    def test_it_publishes_and_receives(self, names):
        """Google's clients publish with ordering keys, and a streaming pull receives all in order, once each."""
        topic, subscription = names(enable_message_ordering=True)
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        publisher = pubsub_v1.PublisherClient(publisher_options=options)
        sent = [(f"key-{number % 7}", b"%d" % number) for number in range(1000)]
        results = [publisher.publish(topic, data, ordering_key=key, n=key) for key, data in sent]
        assert len({result.result(30) for result in results}) == len(sent)
        publisher.stop()

        received = []

        def take(message):
            received.append((message.ordering_key, message.data))
            message.ack()

        with pubsub_v1.SubscriberClient() as subscriber:
            pulling = subscriber.subscribe(subscription, take)
            eventually(lambda: len(received) >= len(sent))
            pulling.cancel()
            pulling.result(30)
            left = subscriber.pull(subscription=subscription, max_messages=10, return_immediately=True)
        assert not left.received_messages
        assert sorted(received) == sorted(sent)
        for number in range(7):
            key = f"key-{number}"
            assert [data for of, data in received if of == key] == [data for of, data in sent if of == key]

    def test_it_raises_the_errors(self, names):
        """Google's clients raise the errors that they would raise with Pub/Sub."""
        topic, _ = names()
        publisher = pubsub_v1.PublisherClient()
        with pytest.raises(InvalidArgument, match="100 attributes"):
            publisher.publish(topic, b"x", **{f"a{n}": "" for n in range(101)}).result(30)
        publisher.stop()


@pytest.mark.parametrize("project", ["p", "A_b", "1"])
def test_any_project(calls, project):
    """As with Google's emulator, any id of a project will do."""
    topic = f"projects/{project}/topics/t-{uuid.uuid4().hex}"
    calls.ask("CreateTopic", name=topic)
    assert topic in [each.name for each in calls.ask("ListTopics", project=f"projects/{project}").topics]
