"""``tidetable results follow``."""

import json
import threading

import pytest
from click.testing import CliRunner
from google.cloud.pubsub_v1 import PublisherClient

from pipeline.cli.root import main
from pipeline.cloud.pubsub.following import followed
from pipeline.core.results.window_results import PaneResult, batches_of, message_of, read_batch
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.pubsub import Inbox

START_US = 1_771_322_400_000_000  # 2026-02-17T10:00:00Z


def published(inbox, *sensor_ids, encoding="protobuf"):
    """Publishes a result of each sensor."""
    stats = WindowStats()
    stats.add({"t": 1.5})
    results = [PaneResult(0, sensor_id, START_US, stats, "on_time") for sensor_id in sensor_ids]
    publisher = PublisherClient()
    for batch in batches_of(results, TableSchema.default().tiers, START_US, 0):
        for message in (message_of(each, encoding) for each in read_batch(batch)):
            publisher.publish(inbox.topic, message.data, **message.attributes).result(30)


def follow(inbox, *options):
    return CliRunner().invoke(main, ["results", "follow", "--results-subscription", inbox.subscription, *options])


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_lines(pubsub, encoding):
    """It prints a line for each result, whatever the encoding, and removes those that it printed."""
    inbox = Inbox()
    published(inbox, "a", "b", encoding=encoding)
    ran = follow(inbox, "--limit", "1")
    assert (ran.exit_code, ran.stderr) == (0, "")
    (first,) = map(json.loads, ran.stdout.splitlines())
    assert first["metrics"] == {"t": {"count": 1, "sum": 1.5, "min": 1.5, "max": 1.5, "avg": 1.5, "stddev": 0.0}}
    assert (first["tier"], first["window_start"], first["kind"]) == ("1h", "2026-02-17T10:00:00Z", "on_time")
    (second,) = map(json.loads, follow(inbox, "--limit", "1").stdout.splitlines())
    assert {first["sensor_id"], second["sensor_id"]} == {"a", "b"}


def test_as_they_come(pubsub):
    """It waits for further results, and ends when it is stopped; what it did not take stays."""
    inbox, stopped = Inbox(), threading.Event()
    found = followed(inbox.subscription, None, stopped.is_set)
    timer = threading.Timer(0.5, published, (inbox, "a"))
    timer.start()
    assert len(next(found)) == 1
    published(inbox, "b", "c")
    next(found)  # acknowledges a
    found.close()
    assert {message.attributes["sensor_id"] for message in inbox.take(2)} == {"b", "c"}
    stopped.set()
    assert list(followed(inbox.subscription, None, stopped.is_set)) == []


@pytest.mark.parametrize("data", [b"hello", b'{"a":' * 100_000], ids=["text", "nested"])
def test_other_messages(pubsub, data):
    """A message that is no result ends the command, with a line that says so, and stays on the subscription."""
    inbox = Inbox()
    PublisherClient().publish(inbox.topic, data).result(30)
    ran = follow(inbox)
    assert ran.exit_code == 1
    assert ran.stderr == (
        f"Error: subscription {inbox.subscription}: the message is no tidetable.v1.WindowResult; it stays there\n"
    )
    assert [message.data for message in inbox.take(1)] == [data]


def test_no_subscription(pubsub):
    """A subscription that does not exist is one line."""
    ran = CliRunner().invoke(
        main, ["results", "follow", "--results-subscription", "projects/test-project/subscriptions/missing"]
    )
    assert ran.exit_code == 1
    assert "subscription projects/test-project/subscriptions/missing" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
