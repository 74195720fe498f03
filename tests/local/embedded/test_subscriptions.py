"""A subscription in memory, by a clock that the tests set: deadlines, redelivery, order, dead letters, seeks."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.pubsub_v1 import types

from pipeline.local.embedded.services import RequestRefused
from pipeline.local.embedded.subscriptions import MemorySubscription

NAME, LETTERS = "projects/project-1/subscriptions/subscription-1", "projects/project-1/topics/letters"
SECOND_US = 1_000_000
FORWARDING = {"dead_letter_policy": {"dead_letter_topic": LETTERS, "max_delivery_attempts": 5}}
PATIENT = {"retry_policy": {"minimum_backoff": {"seconds": 3}, "maximum_backoff": {"seconds": 10}}}


class Watched(MemorySubscription):
    """A subscription with its clock, in seconds, and the dead letters that it forwards."""

    def __init__(self, **declared):
        self.now_s = 1_700_000_000
        self.letters, self.has_letters = [], True
        week = {"message_retention_duration": Duration(seconds=7 * 24 * 3600)}
        subscription = types.Subscription.pb(
            types.Subscription(name=NAME, **{"ack_deadline_seconds": 10} | week | declared)
        )
        super().__init__(subscription, lambda: self.now_s * SECOND_US, self._letter_arrives)

    def send(self, *texts, key=""):
        """Publishes messages."""
        for text in texts:
            message = types.PubsubMessage.pb()(data=text.encode(), ordering_key=key)
            message.publish_time.FromSeconds(self.now_s)
            self.publish(message)

    def receive(self, most=100, **limits):
        """Returns the texts of the messages that are delivered, with the ids that acknowledge them."""
        return {each.message.data.decode(): each.ack_id for each in self.take(most, **limits)}

    def _letter_arrives(self, topic, message):
        assert topic == LETTERS
        self.letters.append(message)
        return self.has_letters


class TestDeadlines:
    def test_a_message_is_delivered_again_after_its_deadline(self):
        """A message that nobody acknowledges is delivered again when its deadline has passed, not before."""
        subscription = Watched()
        subscription.send("a")
        assert list(subscription.receive()) == ["a"]
        subscription.now_s += 9
        assert subscription.receive() == {}
        subscription.now_s += 1
        assert list(subscription.receive()) == ["a"]

    def test_an_acknowledged_message_is_gone(self):
        """A message that is acknowledged in time is not delivered again."""
        subscription = Watched()
        subscription.send("a", "b")
        subscription.acknowledge([subscription.receive()["a"]])
        subscription.now_s += 60
        assert list(subscription.receive()) == ["b"]

    def test_a_late_acknowledgement_is_ignored(self):
        """The id of a delivery that was followed by another acknowledges nothing; nor does one twice."""
        subscription = Watched()
        subscription.send("a")
        first = subscription.receive()["a"]
        subscription.now_s += 10
        second = subscription.receive()["a"]
        subscription.acknowledge([first, first])
        subscription.now_s += 10
        assert list(subscription.receive()) == ["a"]
        subscription.acknowledge([second])

    def test_a_deadline_is_moved(self):
        """A deadline begins anew when it is moved, earlier or later; a deadline of a stream replaces the first."""
        subscription = Watched()
        subscription.send("a", "b")
        ids = subscription.receive()
        subscription.extend([ids["a"]], 60)
        subscription.extend([ids["b"]], 2)
        subscription.now_s += 2
        assert list(subscription.receive(deadline_s=20)) == ["b"]
        subscription.now_s += 19
        assert subscription.receive() == {}
        subscription.now_s += 39
        assert list(subscription.receive()) == ["a", "b"]

    def test_a_refused_message_comes_at_once(self):
        """A deadline of zero delivers a message again."""
        subscription = Watched()
        subscription.send("a")
        subscription.extend([subscription.receive()["a"]], 0)
        assert list(subscription.receive()) == ["a"]

    @pytest.mark.parametrize("ack_id", ["x", "", f"{NAME}:x", "projects/project-1/subscriptions/other:1"])
    def test_ids_of_nobody(self, ack_id):
        """An id that the subscription cannot have given is refused, and no other is acknowledged with it."""
        subscription = Watched()
        subscription.send("a")
        ids = [subscription.receive()["a"], ack_id]
        for change in (subscription.acknowledge, lambda ids: subscription.extend(ids, 0)):
            with pytest.raises(RequestRefused, match="Invalid ack id"):
                change(ids)
        subscription.now_s += 10
        assert list(subscription.receive()) == ["a"]


class TestSize:
    def test_a_response_has_at_most_four_megabytes(self):
        """Messages that would exceed a response come with the next one; a large message comes alone."""
        subscription = Watched()
        subscription.send("a" * 9_000_000, "b" * 3_000_000, "c" * 2_000_000, "d")
        taken = [[text[0] for text in subscription.receive()] for _ in range(4)]
        assert taken == [["a"], ["b"], ["c", "d"], []]

    def test_no_more_than_wanted(self):
        """The limits of a pull hold: a number of messages, or bytes."""
        subscription = Watched()
        subscription.send("aaa", "bbb", "ccc")
        assert list(subscription.receive(1)) == ["aaa"]
        assert list(subscription.receive(most_bytes=1)) == ["bbb"]
        assert list(subscription.receive(most_bytes=100)) == ["ccc"]


class TestOrder:
    def test_a_key_waits_for_what_was_delivered(self):
        """While messages of an ordering key are delivered, the next ones of that key wait; others do not."""
        subscription = Watched(enable_message_ordering=True)
        subscription.send("a1", "a2", key="a")
        ids = subscription.receive()
        subscription.send("a3", key="a")
        subscription.send("b1", key="b")
        subscription.send("free")
        assert list(subscription.receive()) == ["b1", "free"]
        subscription.acknowledge([ids["a1"]])
        assert subscription.receive() == {}
        subscription.acknowledge([ids["a2"]])
        assert list(subscription.receive()) == ["a3"]

    def test_a_refused_message_comes_before_later_ones(self):
        """A message that is delivered again precedes later ones of its key, which wait until it can be."""
        subscription = Watched(enable_message_ordering=True)
        subscription.send("a1", "a2", key="a")
        ids = subscription.receive()
        subscription.send("a3", key="a")
        subscription.extend([ids["a1"]], 0)
        assert subscription.receive() == {}
        subscription.now_s += 10
        assert list(subscription.receive()) == ["a1", "a2", "a3"]

    def test_without_ordering_keys_mean_nothing(self):
        """A subscription without ordering delivers messages of a key although others are delivered."""
        subscription = Watched()
        subscription.send("a1", key="a")
        subscription.receive()
        subscription.send("a2", key="a")
        assert list(subscription.receive()) == ["a2"]


class TestDeadLetters:
    def test_the_last_attempt_makes_a_dead_letter(self):
        """After the last attempt, by refusal or deadline, a message goes to the topic, with where it comes from."""
        subscription = Watched(**FORWARDING)
        subscription.send("a", key="k")
        for attempt in range(1, 6):
            (received,) = subscription.take(10)
            assert received.attempt == attempt
            assert subscription.letters == []
            if attempt % 2:
                subscription.extend([received.ack_id], 0)
            else:
                subscription.now_s += 10
        (letter,) = subscription.letters
        assert (letter.data, letter.ordering_key) == (b"a", "k")
        assert dict(letter.attributes) == {
            "CloudPubSubDeadLetterSourceDeliveryCount": "5",
            "CloudPubSubDeadLetterSourceSubscription": "subscription-1",
            "CloudPubSubDeadLetterSourceSubscriptionProject": "project-1",
            "CloudPubSubDeadLetterSourceTopicPublishTime": "2023-11-14T22:13:20Z",
        }
        subscription.now_s += 600
        assert subscription.take(10) == []

    def test_a_topic_that_is_gone_receives_nothing(self):
        """While the dead-letter topic does not exist, a message is delivered again."""
        subscription = Watched(**FORWARDING)
        subscription.has_letters = False
        subscription.send("a")
        for _ in range(7):
            subscription.extend([subscription.receive()["a"]], 0)
        assert list(subscription.receive()) == ["a"]

    def test_without_a_policy_attempts_are_not_told(self):
        """A subscription without a dead-letter policy delivers for ever, and its attempt is 0."""
        subscription = Watched()
        subscription.send("a")
        for _ in range(10):
            (received,) = subscription.take(10)
            assert received.attempt == 0
            subscription.extend([received.ack_id], 0)
        assert subscription.letters == []

    def test_a_seek_begins_to_count_anew(self):
        """After a seek, a message's next delivery is its first."""
        subscription = Watched(**FORWARDING)
        subscription.send("a")
        subscription.take(1)
        subscription.seek(0)
        assert [each.attempt for each in subscription.take(1)] == [1]


class TestRetries:
    @pytest.mark.parametrize("by_deadline", [False, True])
    def test_each_retry_waits_longer(self, by_deadline):
        """The pause before a redelivery doubles with each attempt, up to the maximum."""
        subscription = Watched(**PATIENT)
        subscription.send("a")
        pauses = []
        for _ in range(4):
            (received,) = subscription.take(10)
            if by_deadline:
                subscription.now_s += 10
                assert subscription.receive() == {}
            else:
                subscription.extend([received.ack_id], 0)
            pauses.append(0)
            while not subscription._waiting:
                subscription.now_s += 1
                pauses[-1] += 1
                subscription._expire()
        assert pauses == [3, 6, 10, 10]

    def test_a_key_waits_for_a_retry(self):
        """Later messages of an ordering key wait while one before them waits for its retry."""
        subscription = Watched(enable_message_ordering=True, **PATIENT)
        subscription.send("a1", key="a")
        subscription.extend([subscription.receive()["a1"]], 0)
        subscription.send("a2", key="a")
        assert subscription.receive() == {}
        subscription.now_s += 3
        assert list(subscription.receive()) == ["a1", "a2"]

    def test_a_retry_cannot_be_acknowledged(self):
        """The id of a refused delivery acknowledges nothing while its message waits for its retry."""
        subscription = Watched(**PATIENT)
        subscription.send("a")
        ack_id = subscription.receive()["a"]
        subscription.extend([ack_id], 0)
        subscription.acknowledge([ack_id])
        subscription.now_s += 3
        assert list(subscription.receive()) == ["a"]


class TestSeek:
    def seek(self, subscription, seconds):
        subscription.seek((subscription.now_s + seconds) * SECOND_US)

    def test_to_the_future_acknowledges_all(self):
        """A seek acknowledges what was published before its time, delivered or not, and nothing later."""
        subscription = Watched()
        subscription.send("a", "b")
        subscription.receive(1)
        self.seek(subscription, 5)
        subscription.now_s += 60
        assert subscription.receive() == {}
        subscription.send("c")
        assert list(subscription.receive()) == ["c"]

    def test_to_the_past_delivers_what_is_kept(self):
        """A seek into the past delivers what is not acknowledged; all, if acknowledged messages are retained."""
        for retain, expected in ((False, ["b", "c"]), (True, ["a", "b", "c"])):
            subscription = Watched(retain_acked_messages=retain, enable_message_ordering=True)
            subscription.send("a", "b", "c", key="k")
            ids = subscription.receive()
            subscription.acknowledge([ids["a"]])
            self.seek(subscription, -5)
            assert list(subscription.receive()) == expected
            subscription.acknowledge([ids["b"]])  # of the delivery before the seek
            subscription.now_s += 10
            assert list(subscription.receive()) == expected

    def test_between(self):
        """A seek to a time delivers the messages from that time on."""
        subscription = Watched()
        subscription.send("a")
        subscription.now_s += 10
        subscription.send("b")
        subscription.receive()
        self.seek(subscription, 0)
        assert list(subscription.receive()) == ["b"]


def test_messages_are_dropped_after_their_retention():
    """A message that is older than the subscription retains is gone, whether it waits or was delivered."""
    subscription = Watched(message_retention_duration=Duration(seconds=600), retain_acked_messages=True)
    subscription.send("a", "b")
    ids = subscription.receive(1)
    subscription.now_s += 601
    subscription.send("c")
    assert list(subscription.receive()) == ["c"]
    subscription.acknowledge(ids.values())
    subscription.seek(0)
    assert list(subscription.receive()) == ["c"]
