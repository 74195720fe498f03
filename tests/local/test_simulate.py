import json
import signal
import subprocess
import time
import uuid
from itertools import pairwise

import pytest
from click.testing import CliRunner
from google.cloud import pubsub_v1

from pipeline.cli.root import main
from pipeline.cloud.pubsub.publisher import Pacer
from pipeline.core.events.message import sensor_event
from pipeline.local.fleet import MALFORMED
from pipeline.local.simulate import LiveClock
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.support.preloaded import TIDETABLE
from tests.support.waiting import eventually

PROJECT = "test-project"


@pytest.fixture
def feed(pubsub):
    """Returns a topic and a function that pulls its messages."""
    publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    name = f"fleet-{uuid.uuid4().hex}"
    topic, subscription = publisher.topic_path(PROJECT, name), subscriber.subscription_path(PROJECT, name)
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=subscription, topic=topic)

    def pull(count):
        found = []

        def enough():
            received = subscriber.pull(subscription=subscription, max_messages=1000, return_immediately=True)
            if received.received_messages:
                ack_ids = [each.ack_id for each in received.received_messages]
                subscriber.acknowledge(subscription=subscription, ack_ids=ack_ids)
            found.extend(each.message for each in received.received_messages)
            return len(found) >= count

        eventually(enough)
        return found

    yield topic, pull
    publisher.stop()
    subscriber.close()


def simulate(*arguments):
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_the_summary_counts_what_arrives(feed):
    """The summary counts what arrives, including malformed messages of every reason."""
    topic, pull = feed
    result = simulate(
        "--topic",
        topic,
        "--sensor-count",
        "3",
        "--duration",
        "1h",
        "--interval",
        "60s",
        "--batch",
        "10",
        "--format=json",
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["malformed"].keys() == {reason.value for reason in MALFORMED}
    assert len(pull(summary["messages"])) == summary["messages"]
    assert 100 <= summary["events"] <= 180


def test_same_seed_and_end_same_messages(feed):
    """Two runs with one seed and one end publish the same payloads."""
    topic, pull = feed
    arguments = [
        "--topic",
        topic,
        "--sensor-count",
        "2",
        "--duration",
        "10m",
        "--end",
        "2026-02-17T12",
        "--seed",
        "7",
        "--format=json",
    ]
    first, second = (json.loads(simulate(*arguments).stdout) for _ in range(2))
    payloads = [message.data for message in pull(first["messages"] + second["messages"])]
    assert first["messages"] == second["messages"]
    assert all(payloads.count(payload) % 2 == 0 for payload in payloads)


def test_rate(feed, monkeypatch):
    """With --rate every event waits for a pacer of that rate."""
    topic, _ = feed
    waited = []
    monkeypatch.setattr(Pacer, "wait", lambda pacer, events: waited.append((pacer._rate, events)))
    arguments = ["--sensor-count", "1", "--duration", "10m", "--rate", "5", "--malformed", "0", "--format=json"]
    result = simulate("--topic", topic, *arguments)
    assert {rate for rate, _ in waited} == {5}
    assert sum(events for _, events in waited) == json.loads(result.stdout)["events"]


def test_live(feed):
    """With --live events happen during the run, at about the rate, and none is published before it happens."""
    topic, pull = feed
    arguments = ["--live", "--rate", "100", "--sensor-count", "10", "--duration", "2s", "--malformed", "0"]
    began = time.time()
    summary = json.loads(simulate("--topic", topic, *arguments, "--format=json").stdout)
    ended = time.time()
    events = [SensorEvent.FromString(each.data) for each in pull(summary["messages"])]
    assert len(events) == summary["events"]
    assert 150 <= len(events) <= 200  # some are dropped on the way, as of every simulated fleet
    times = [event.event_time.ToMicroseconds() / 1e6 for event in events]
    assert began <= min(times) <= max(times) <= ended
    # Pub/Sub keeps no order, but no event is held back until the flow ends.
    assert max(before - time_s for before, time_s in pairwise(times)) < 1.0
    assert summary["events_per_second"] == pytest.approx(summary["events"] / summary["seconds"], rel=0.01)
    assert summary["behind_seconds"] >= 0


class TestLiveClock:
    @pytest.fixture
    def time(self):
        """A clock that only sleeping advances."""
        return [1000.0]

    @pytest.fixture
    def live(self, time):
        return LiveClock(lambda: time[0] > 2000, lambda: time[0], lambda nap: time.__setitem__(0, time[0] + nap))

    @staticmethod
    def at(*seconds):
        return [sensor_event("a", round(second * 1_000_000), {"t": 1.0}, {}) for second in seconds]

    def test_it_waits_for_the_newest_event(self, live, time):
        """A batch leaves when its last event has happened."""
        live.wait(self.at(1003, 1005, 1004))
        assert time[0] == pytest.approx(1005)
        assert live.behind_s == pytest.approx(0, abs=1e-6)

    def test_it_does_not_wait_for_a_message_without_events(self, live, time):
        """A message without events leaves at once and counts as no delay."""
        live.wait(self.at(1005))
        live.wait([])
        assert time[0] == pytest.approx(1005)
        assert live.behind_s == pytest.approx(0, abs=1e-6)

    def test_it_notes_how_far_it_fell_behind(self, live, time):
        """An event that leaves after its time is the delay that the summary reports, if it is the longest."""
        live.wait(self.at(1001))
        time[0] = 1010
        live.wait(self.at(1002))
        live.wait(self.at(1009))
        assert live.behind_s == pytest.approx(8)

    def test_it_stops(self, live, time):
        """Ctrl-C ends a wait."""
        live.wait(self.at(9999))
        assert time[0] == pytest.approx(2000, abs=0.2)
        assert live.behind_s == 0


def test_interrupted(feed):
    """Ctrl-C stops the simulation: the summary counts what was sent, and the exit code is 130."""
    topic, pull = feed
    command = [*TIDETABLE, "simulate", "--topic", topic, "--rate", "20", "--format=json"]
    with subprocess.Popen([*command, "--malformed", "0"], stdout=subprocess.PIPE) as process:
        arrived = len(pull(3))
        process.send_signal(signal.SIGINT)
        summary = json.loads(process.communicate(timeout=30)[0])
    assert process.returncode == 130
    assert summary["interrupted"]
    assert arrived + len(pull(summary["messages"] - arrived)) == summary["messages"] < 1000


EVENTS = "projects/my-project/topics/events"


@pytest.mark.parametrize(
    ("topic", "options", "message"),
    [
        ("events", "", "projects/PROJECT/topics/TOPIC"),
        ("projects/test-project/topics/nowhere", "", "does not exist"),
        (EVENTS, "--duration=long", "is not a duration"),
        (EVENTS, "--interval=0", "must be longer than 0"),
        (EVENTS, "--end=tomorrow", "is not a time"),
        (EVENTS, "--sensor-count=99999999999", "is not in the range 1<=x<=100000"),
        (EVENTS, "--duration=36500d", "would begin before 2000-01-01T00:00:00Z"),
        (
            EVENTS,
            "--sensor-count=100000 --duration=365d --interval=1s",
            "would send 3,153,600,000,000 events, and 1,000,000,000 are allowed",
        ),
        (EVENTS, "--live --late=0.1", "--late can't be set with --live"),
        (EVENTS, "--live --end=2026-02-17", "--end can't be set with --live"),
        (EVENTS, "--live --rate=5 --interval=1s", "--interval can't be set with --live and --rate"),
    ],
)
def test_refusals(pubsub, topic, options, message):
    """Wrong arguments are an error before anything is published."""
    result = simulate("--topic", topic, *options.split())
    assert result.exit_code in (1, 2)
    assert message in result.output


MAPPING = """
message = "json"
each = "points[]"
sensor = "device"
time = { path = ".ms", unit = "ms" }
readings = { temperature = ".celsius" }
"""


def test_messages_of_another_type(feed, tmp_path):
    """With a mapping, messages are of its type and marked with it; a batch holds the events of one sensor."""
    topic, pull = feed
    (mapping := tmp_path / "m.toml").write_text(MAPPING)
    arguments = ["--sensor-count", "2", "--duration", "10m", "--interval", "60s", "--malformed", "0.5", "--batch", "4"]
    result = simulate("--topic", topic, "--message-mapping", str(mapping), *arguments, "--format=json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    messages = pull(summary["messages"])
    assert {dict(message.attributes)["message_type"] for message in messages} == {"json"}
    whole = [json.loads(message.data) for message in messages if message.data.endswith(b"}")]
    assert {document["device"] for document in whole} == {"greenhouse-0000", "orchard-0001"}
    assert sum(len(document["points"]) for document in whole) == summary["events"]
    assert summary["malformed"] == {"UNPARSEABLE": summary["messages"] - len(whole)}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ('"device"', "", "m.toml: sensor: simulate can't set it: no publisher sets its paths"),
        ('each = "points[]"', "--batch=2", "m.toml: time: a message has one time"),
        (
            '{ path = ".ms", unit = "ms" }',
            "",
            "m.toml: time: simulate can't set the path that is read for it; if it is",
        ),
    ],
)
def test_mappings_that_can_not_be_inverted(tmp_path, change, options, message):
    """An error names the key, before anything is published."""
    others = {'"device"': '"$message_id"', 'each = "points[]"': "", '{ path = ".ms", unit = "ms" }': '"$publish_time"'}
    text = MAPPING.replace(change, others[change])
    (mapping := tmp_path / "m.toml").write_text(text.replace('".', '"') if "each" in change else text)
    result = simulate("--topic", EVENTS, "--message-mapping", str(mapping), *options.split())
    assert (result.exit_code, message in result.output) == (1, True), result.output
