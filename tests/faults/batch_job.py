"""Runs the real graph on one pulled batch at a time, and acknowledges it after it has succeeded.

What Dataflow does with bundles, small enough to be killed between any two steps: each step is printed, and the next
one waits for a line on standard input. Run as a module, with the flags of the job; ends once nothing has come for a
while.

FnApiRunner fires a timer of the clock only once the clock has passed the event time of what set it. So here aggregate
rows do not wait for a timer, but for the end of the batch.
"""

import logging
import sys
import time
from dataclasses import replace

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import ReceivedMessage

from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message
from pipeline.job.checks import read_targets
from pipeline.job.graph import build_graph, write
from pipeline.job.settings import Settings, parse_flags, settings_of
from tests.support.shuffled import shuffled

MESSAGES = 12
IDLE_S = 15.0  # longer than the subscription's acknowledgement deadline, after which messages are redelivered


def main() -> None:
    logging.disable(logging.WARNING)
    settings = settings_of(parse_flags(sys.argv[1:]))
    subscriber = subscriber_client()
    last = time.monotonic()
    while time.monotonic() < last + IDLE_S:
        response = subscriber.pull(
            subscription=settings.input_subscription, max_messages=MESSAGES, return_immediately=True
        )
        if not response.received_messages:
            time.sleep(0.2)
            continue
        step("pulled")
        run(list(response.received_messages), settings)
        step("written")
        ids = [received.ack_id for received in response.received_messages]
        subscriber.acknowledge(subscription=settings.input_subscription, ack_ids=ids)
        step("acknowledged")
        last = time.monotonic()


def run(received: list[ReceivedMessage], settings: Settings) -> None:
    """Runs the job's graph between these messages and its sinks."""
    messages = [
        PubsubMessage(each.message.data, dict(each.message.attributes), each.message.message_id) for each in received
    ]
    targets = read_targets(settings)
    with shuffled(), beam.Pipeline(FnApiRunner(), PipelineOptions([])) as pipeline:
        # Every batch is a job of its own, which saw no window begin.
        outputs = build_graph(pipeline | beam.Create(messages), targets, settings, began_us=LATEST_US)
        write(outputs, targets, replace(settings, dead_letter_topic=None))
        # Beam's own sink writes nothing in a batch job.
        _ = outputs.dead_letters | beam.Flatten() | beam.ParDo(PublishFn(settings.dead_letter_topic))


class PublishFn(beam.DoFn):
    """Publishes dead letters; the bundle succeeds once each is confirmed."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def setup(self) -> None:
        self._client = pubsub_v1.PublisherClient()

    def start_bundle(self) -> None:
        self._futures = []

    def process(self, element: Message) -> None:
        self._futures.append(self._client.publish(self._topic, element.data, **element.attributes))

    def finish_bundle(self) -> None:
        for future in self._futures:
            future.result(30)

    def teardown(self) -> None:
        self._client.stop()


def step(name: str) -> None:
    print(name, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
