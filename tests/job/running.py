"""Runs the job in a process of its own, with its own topics and table in the emulators."""

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import google.cloud.bigtable
from google.cloud import pubsub_v1
from google.cloud.bigtable.row_filters import CellsRowLimitFilter, RowFilterChain, StripValueTransformerFilter
from google.cloud.pubsub_v1.types import ReceivedMessage

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.cloud.tables import tables
from pipeline.core.events.message import Message
from pipeline.core.schema.table_schema import TableSchema
from tests.support.preloaded import JOB
from tests.support.waiting import eventually

PROJECT = "test-project"


class Resources:
    """Topics, subscriptions and a table of one test."""

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex
        self._publisher = pubsub_v1.PublisherClient(
            publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        )
        self._subscriber = subscriber_client()
        self._instance = google.cloud.bigtable.Client(project=PROJECT).instance("instance")
        self.topic, self.subscription = self.feed("events")
        self.dead_letter_topic, self.dead_letter_subscription = self.feed("dead-letters")
        self.table = self.table_of(TableSchema.default())

    def feed(self, name: str) -> tuple[str, str]:
        """Creates a topic of this test, and its subscription."""
        topic = self._publisher.topic_path(PROJECT, f"{name}-{self._run}")
        subscription = self._subscriber.subscription_path(PROJECT, f"{name}-{self._run}")
        self._publisher.create_topic(name=topic)
        self._subscriber.create_subscription(name=subscription, topic=topic)
        return topic, subscription

    def table_of(self, schema: TableSchema, *, stored: bool = True) -> TableName:
        """Creates a table with the families of the schema, and stores the schema in it unless ``stored`` is false."""
        name = TableName(PROJECT, "instance", f"t-{uuid.uuid4().hex}")
        if stored:
            tables.create(name, schema)
        else:
            tables.create_bare(name, {family: schema.policies[family] for family in schema.families})
        return name

    def close(self) -> None:
        self._publisher.stop()
        self._subscriber.close()

    def publish(self, messages: Iterable[Message], topic: str | None = None) -> None:
        """Publishes all messages, and waits until each is confirmed."""
        futures = [
            self._publisher.publish(topic or self.topic, each.data, ordering_key=each.ordering_key, **each.attributes)
            for each in messages
        ]
        for future in futures:
            future.result(30)

    def pull(self, subscription: str) -> list[ReceivedMessage]:
        """Returns the waiting messages, acknowledged."""
        received = self._subscriber.pull(
            subscription=subscription, max_messages=1000, return_immediately=True
        ).received_messages
        if received:
            self._subscriber.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in received])
        return list(received)

    def dead_letters(self, count: int) -> list:
        """Returns the next ``count`` dead letters as Pub/Sub messages, in any order."""
        found: list = []

        def enough() -> bool:
            found.extend(each.message for each in self.pull(self.dead_letter_subscription))
            return len(found) >= count

        eventually(enough)
        return found

    def rows(self, name: TableName | None = None) -> dict[str, dict[str, str]]:
        """Returns the table as text, without its schema: row key to ``family:qualifier`` to value."""
        table = self._instance.table((name or self.table).table)
        return {
            row.row_key.decode(): {
                f"{family}:{qualifier.decode()}": cells[0].value.decode(errors="backslashreplace")
                for family, columns in row.cells.items()
                for qualifier, cells in columns.items()
            }
            for row in table.read_rows()
            if not row.row_key.startswith(b"schema#")
        }

    def raw_keys(self) -> set[str]:
        """Returns the keys of raw rows, without reading their cells."""
        only_keys = RowFilterChain([CellsRowLimitFilter(1), StripValueTransformerFilter(True)])
        rows = self._instance.table(self.table.table).read_rows(filter_=only_keys)
        return {
            key
            for row in rows
            if not (key := row.row_key.decode()).startswith(("agg#", "alert#", "latest#", "repair#", "schema#"))
        }

    def flags(self, **changes: str) -> list[str]:
        parts = {
            "runner": "DirectRunner",
            "project": PROJECT,
            "input_subscription": self.subscription,
            "dead_letter_topic": self.dead_letter_topic,
            "bigtable_instance": "instance",
            "bigtable_table": self.table.table,
            "early_firing": "1s",
            "late_firing": "1s",
        }
        return [f"--{name}={value}" for name, value in (parts | changes).items()]


class Job:
    """A running ``python -m pipeline`` whose output goes to ``log``."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for_output(self, text: str, seconds: float = 45.0) -> None:
        """Waits until the job has printed the text."""
        eventually(lambda: text in self.log or self.process.poll() is not None, seconds)
        assert text in self.log, self.log

    def stop(self, signum: int = signal.SIGINT, seconds: float = 40.0) -> int:
        """Sends the signal, and returns the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(seconds)

    def counters(self) -> dict[str, int]:
        """Returns the counters that the job printed at its end."""
        return {
            name: int(value.replace(",", ""))
            for name, value in re.findall(r"^([\w.]+) +([\d,]+)$", self.log, re.MULTILINE)
        }


@contextmanager
def running_job(
    flags: list[str], log: Path, environment: Mapping[str, str] | None = None, command: Sequence[str] = JOB
) -> Iterator[Job]:
    """Starts the job and waits until it reads; kills it at the end of the block if it still runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | (environment or {}),
        )
    try:
        job = Job(process, log)
        job.wait_for_output("running, reading")
        yield job
    finally:
        process.kill()
        process.wait()
