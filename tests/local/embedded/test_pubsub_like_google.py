"""The built-in Pub/Sub answers as Google's emulator does: the same random operations on both, message by message."""

import os
import time
import uuid
from collections import defaultdict
from itertools import count

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import StatusCode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local.embedded.calls import Calls
from tests.support.exhaustive import examples

_EXAMPLES = int(os.environ.get("EMULATOR_EXAMPLES", 0))
TOPICS, SUBSCRIPTIONS = ("topic-a", "topic-b"), tuple(f"subscription-{letter}" for letter in "abcd")
MANY = 1000

topics, subscriptions = st.sampled_from(TOPICS), st.sampled_from(SUBSCRIPTIONS)
bad_names = st.sampled_from(["", "x", "projects/p/topics/x", "topics/x"])
sizes = st.sampled_from([{}, {"page_size": 1}, {"page_size": 2}, {"page_size": 5}])
deadlines = st.sampled_from([{"ack_deadline_seconds": 60}, {"ack_deadline_seconds": 600}])  # none passes here
retentions = st.sampled_from([{}, {"message_retention_duration": {"seconds": 600}}])
letters = st.builds(
    lambda topic, most: {"dead_letter_policy": {"dead_letter_topic": topic, **most}},
    st.sampled_from([*TOPICS, "nowhere"]),
    st.sampled_from([{}, {"max_delivery_attempts": 5}, {"max_delivery_attempts": 100}]),
)
refused_settings = st.sampled_from(
    [
        {"ack_deadline_seconds": 601},
        {"ack_deadline_seconds": -1},
        {"message_retention_duration": {"seconds": 599}},
        {"message_retention_duration": {"seconds": 32 * 24 * 3600}},
        {"dead_letter_policy": {"dead_letter_topic": "topic-a", "max_delivery_attempts": 4}},
        {"dead_letter_policy": {"dead_letter_topic": "topic-a", "max_delivery_attempts": 101}},
        {"dead_letter_policy": {"max_delivery_attempts": 5}},
        {"retry_policy": {"minimum_backoff": {"seconds": 601}}},
        {"retry_policy": {"maximum_backoff": {"seconds": 601}}},
        {"retry_policy": {"minimum_backoff": {"seconds": 20}, "maximum_backoff": {"seconds": 10}}},
    ]
)
messages = st.builds(
    lambda attributes, key: {"attributes": attributes, "ordering_key": key},
    st.sampled_from([{}, {"a": "b"}, {"a": "", "é": "ü" * 10}]),
    st.sampled_from(["", "", "k", "l"]),
)
publishing = st.one_of(
    *[st.lists(messages, min_size=size, max_size=6) for size in (1, 2, 3)],
    st.sampled_from(
        [[], [{"data": b""}], [{"data": b"x"}, {"data": b"", "ordering_key": "k"}], [{"data": b"x"}] * 1001]
    ),
)
subset = st.sampled_from([*range(1, 8), 7])  # bits: which of the messages that were received
ADMINISTRATION = [
    st.tuples(st.just("CreateTopic"), st.builds(lambda name, labels: {"name": name, **labels},
              st.one_of(topics, topics, bad_names), st.sampled_from([{}, {"labels": {"a": "b"}}]))),
    st.tuples(st.just("GetTopic"), st.builds(lambda name: {"topic": name}, st.one_of(topics, bad_names))),
    st.tuples(st.just("ListTopics"), sizes),
    st.tuples(st.just("ListTopicSubscriptions"), st.builds(lambda name: {"topic": name}, topics)),
    st.tuples(st.just("DeleteTopic"), st.builds(lambda name: {"topic": name}, st.sampled_from([*TOPICS, "x"]))),
    st.tuples(st.just("CreateSubscription"), st.builds(
        lambda name, topic, ordered, retain, *parts: {
            "name": name, "topic": topic, "enable_message_ordering": ordered, "retain_acked_messages": retain,
            **{key: value for part in parts for key, value in part.items()},
        },
        subscriptions, st.one_of(topics, topics, bad_names), st.booleans(), st.booleans(), deadlines, retentions,
        st.one_of(st.just({}), st.just({}), letters),
    )),
    st.tuples(st.just("CreateSubscription"), st.builds(
        lambda name, topic, refused: {"name": name, "topic": topic, **refused}, subscriptions, topics, refused_settings
    )),
    st.tuples(st.just("GetSubscription"), st.builds(lambda name: {"subscription": name}, subscriptions)),
    st.tuples(st.just("ListSubscriptions"), sizes),
    st.tuples(st.just("DeleteSubscription"), st.builds(lambda name: {"subscription": name}, subscriptions)),
    st.tuples(st.just("UpdateSubscription"), st.builds(
        lambda name, fields, others: {
            "subscription": {"name": name, **fields, **others}, "update_mask": {"paths": list(fields or others)[:1]}
        },
        subscriptions, st.one_of(deadlines, retentions, letters, refused_settings, st.just({"topic": "topic-a"}),
                                 st.just({"enable_message_ordering": True})),
        st.sampled_from([{}, {"retain_acked_messages": True}]),
    )),
    st.tuples(st.sampled_from(["Acknowledge", "ModifyAckDeadline"]), st.builds(
        lambda name, ids: {"subscription": name, "ack_ids": ids}, subscriptions, st.sampled_from([[], ["x"]])
    )),
    st.tuples(st.just("Seek"), st.builds(lambda name, when: {"subscription": name, **when}, subscriptions,
                                         st.sampled_from([{}, {"time": "past"}, {"time": "future"}]))),
]  # fmt: skip
PUBLISH = st.tuples(
    st.just("Publish"),
    st.builds(lambda name, each: {"topic": name, "messages": each}, st.sampled_from([*TOPICS, "topic-a"]), publishing),
)
PULL = st.tuples(
    st.just("Pull"),
    st.builds(
        lambda name, most: {"subscription": name, "max_messages": most},
        subscriptions, st.sampled_from([0, 1, 2, MANY, MANY]),
    ),
)  # fmt: skip
ACKNOWLEDGE = st.tuples(
    st.just("Acknowledge"), st.builds(lambda name, some: {"subscription": name, "some": some}, subscriptions, subset)
)
# Google's emulator forwards a dead letter with the next pull, the built-in one at once: so one follows.
MODIFY = st.builds(
    lambda name, some, seconds: [
        ("ModifyAckDeadline", {"subscription": name, "some": some, "ack_deadline_seconds": seconds}),
        ("Pull", {"subscription": name, "max_messages": MANY}),
    ],
    subscriptions, subset, st.sampled_from([0, 0, 0, 0, 30, -1]),
)  # fmt: skip
RECEIVE = st.builds(
    lambda name, most, some: [
        ("Pull", {"subscription": name, "max_messages": most}),
        ("Acknowledge", {"subscription": name, "some": some}),
    ],
    subscriptions, st.sampled_from([1, 2, MANY]), subset,
)  # fmt: skip
# A message is dead after five deliveries.
TIRESOME = st.builds(
    lambda name: [
        ("Pull", {"subscription": name, "max_messages": MANY}),
        *[
            ("ModifyAckDeadline", {"subscription": name, "some": 7, "ack_deadline_seconds": 0}),
            ("Pull", {"subscription": name, "max_messages": MANY}),
        ]
        * 5,
    ],
    subscriptions,
)
ONE = st.sampled_from([PUBLISH, PUBLISH, PULL, PULL, ACKNOWLEDGE, *ADMINISTRATION[::-1]]).flatmap(
    lambda each: st.lists(each, min_size=1, max_size=1)
)
OPERATIONS = st.lists(
    st.sampled_from([*[ONE] * 7, RECEIVE, RECEIVE, MODIFY, TIRESOME]).flatmap(lambda each: each),
    min_size=15,
    max_size=30,
).map(lambda parts: [operation for part in parts for operation in part])
SLOW = {"ack_deadline_seconds": 600}
BEGIN = [
    ("CreateTopic", {"name": "topic-a"}),
    ("CreateTopic", {"name": "topic-b"}),
    ("CreateSubscription", {"name": "subscription-a", "topic": "topic-a"} | SLOW),
    ("CreateSubscription", {"name": "subscription-b", "topic": "topic-a", "enable_message_ordering": True} | SLOW),
    (
        "CreateSubscription",
        {"name": "subscription-c", "topic": "topic-a", "dead_letter_policy": {"dead_letter_topic": "topic-b"}} | SLOW,
    ),
    ("CreateSubscription", {"name": "subscription-d", "topic": "topic-b"} | SLOW),
]


class Server(Calls):
    """A server, and a project in it."""

    def __init__(self, address, project):
        super().__init__(address)
        self._project = project
        self._received = defaultdict(dict)  # the newest acknowledgement ids by subscription and message

    def answer(self, name, fields):
        """Returns the answer to an operation, without what may vary: ids, and times of the server."""
        fields = self._named(fields)
        if name == "Seek" and "time" in fields:
            fields["time"] = Timestamp(seconds=int(time.time()) + {"past": -3600, "future": 3600}[fields["time"]])
        if (some := fields.pop("some", None)) is not None:
            held = sorted(self._received[fields["subscription"]].items())
            fields["ack_ids"] = [ack_id for number, (_, ack_id) in enumerate(held) if some >> number % 3 & 1]
        try:
            found = self.ask(name, **fields)
        except grpc.RpcError as error:
            return error.code()
        if name == "Pull":
            return self._pulled(fields["subscription"], found.received_messages)
        if name == "Publish":
            return len(found.message_ids)
        if name.startswith("List"):
            return self._listed(name, fields, found)
        return str(found)

    def _named(self, fields):
        """Returns a request's fields with full names of topics and subscriptions."""
        if isinstance(fields, dict):
            return {key: self._named(value) for key, value in fields.items()}
        if isinstance(fields, str) and fields.startswith(("topic-", "subscription-", "schema-", "nowhere")):
            kind = {"nowhere": "topics"}.get(fields, fields.partition("-")[0] + "s")
            return f"{self._project}/{kind}/{fields}"
        return fields

    def _pulled(self, subscription, received):
        found = []
        for each in received:
            attributes = dict(each.message.attributes)
            attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime", None)
            if subscription.endswith(f"/{attributes.get('CloudPubSubDeadLetterSourceSubscription')}"):
                # Google's emulator leaves these in a letter whose topic is gone.
                attributes = {name: value for name, value in attributes.items() if not name.startswith("CloudPubSub")}
            message = (each.message.data, sorted(attributes.items()), each.message.ordering_key, each.delivery_attempt)
            self._received[subscription][message[:3].__repr__()] = each.ack_id
            found.append(message)
        return found

    def _listed(self, name, fields, found):
        """Returns the pages of a list."""
        pages = [sorted(map(str, next(value for field, value in found.ListFields() if field.name != "next_page_token")))
                 if found.ListFields() else []]  # fmt: skip
        if found.next_page_token:
            more = self.ask(name, **fields | {"page_token": found.next_page_token})
            pages += self._listed(name, fields, more)
        return pages


class Pulls:
    """How pulled messages are compared.

    No order is promised, but that of an ordering key; both servers deliver the oldest first until a message is
    delivered again. Then Google's emulator delivers it last, so all are pulled. With ordering, it also delivers again
    what follows a refused message and was acknowledged, so all are acknowledged or refused.
    """

    def __init__(self):
        self._ordered, self._disturbed = {}, set()

    def fields(self, name, fields):
        """Returns an operation's fields with a limit that both servers understand alike."""
        subscription = fields.get("subscription")
        if name == "CreateSubscription":
            self._ordered.setdefault(fields["name"], fields.get("enable_message_ordering", False))
        if name == "DeleteSubscription":
            self._ordered.pop(subscription, None)
            self._disturbed.discard(subscription)
        if name in ("ModifyAckDeadline", "Seek"):
            self._disturbed.add(subscription)
        if "some" in fields and self.are_ordered(subscription):
            return fields | {"some": 7}
        if name != "Pull":
            return fields
        free = not self.are_ordered(subscription) and subscription not in self._disturbed
        most = fields["max_messages"] if free or not fields["max_messages"] else MANY
        return fields | {"max_messages": most, "return_immediately": True}

    def are_ordered(self, subscription):
        """Returns whether a subscription delivers each ordering key's messages in order."""
        return self._ordered.get(subscription, False)

    def comparable(self, name, fields, answer):
        """Returns an answer without an order that nobody promises."""
        if name != "Pull" or not isinstance(answer, list):
            return answer
        if fields["subscription"] in self._disturbed:
            return sorted(answer)
        if not self.are_ordered(fields["subscription"]):
            return answer
        keys = defaultdict(list)
        for message in answer:
            keys[message[2]].append(message)
        return keys


def _meant(name, google, built_in):
    """Returns whether two answers differ as the documentation says."""
    return (name, google, built_in) in [
        ("ListTopicSubscriptions", [[]], StatusCode.NOT_FOUND),
        ("Acknowledge", "", StatusCode.INVALID_ARGUMENT),  # an unknown id, of a subscription with ordering
        ("ModifyAckDeadline", "", StatusCode.INVALID_ARGUMENT),
    ]


@pytest.fixture(scope="module")
def servers(googles, pubsub, embedded):
    return [pubsub, embedded]


def _differences(addresses, operations):
    """Yields the operations that the two servers answer differently, with both answers."""
    project = f"projects/p-{uuid.uuid4().hex}"
    google, built_in = (Server(address, project) for address in addresses)
    numbers, pulls = count(), Pulls()
    for name, given_fields in [*BEGIN, *operations]:
        fields = dict(given_fields)
        if name == "Publish":
            fields["messages"] = [{"data": b"%d" % next(numbers), **message} for message in fields["messages"]]
        if name.startswith("List") and name != "ListTopicSubscriptions":
            fields["project"] = project
        if name == "Seek" and "time" in fields and pulls.are_ordered(fields["subscription"]):
            continue  # Google's emulator has no seek with ordering
        fields = pulls.fields(name, fields)
        expected, found = (pulls.comparable(name, fields, server.answer(name, fields)) for server in (google, built_in))
        if found != expected and not _meant(name, expected, found):
            yield name, fields, expected, found


@settings(max_examples=_EXAMPLES or examples(60), database=None, derandomize=not _EXAMPLES)
@given(OPERATIONS)
def test_random_operations(servers, operations):
    """Every operation has the same answer, or the same error. ``EMULATOR_EXAMPLES=1000`` tries other operations."""
    assert next(_differences(servers, operations), None) is None
