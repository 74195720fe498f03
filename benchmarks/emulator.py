"""Prints how fast the built-in emulator is, beside Google's if they are installed.

Rows have three cells, messages 100 bytes. Requests are prepared before and answers are not parsed, so that little but
the servers is measured; the client runs on the same machine. Each figure is the best of several rounds, and the floor
is what the built-in emulator has to reach. --demo also times ``tidetable demo``.
"""

import os
import platform
import queue
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.cloud.bigtable_admin_v2.types import ColumnFamily, CreateTableRequest, Table
from google.cloud.bigtable_v2 import types as data_types
from google.pubsub_v1 import types as pubsub_types

from benchmarks.measuring import Lines, arguments
from pipeline.local.emulators import BIGTABLE, PUBSUB, origins, running_emulators

ROWS, ROWS_A_REQUEST, MESSAGES, MESSAGES_A_REQUEST, ROUNDS, IN_FLIGHT = 20_000, 1000, 20_000, 500, 3, 4
FLOORS = {
    "rows written": 10_000,
    "rows read": 20_000,
    "messages published": 5_000,
    "messages pulled": 5_000,
    "messages streamed": 5_000,
    "messages streamed in order": 5_000,
}
_BIGTABLE, _ADMIN = "google.bigtable.v2.Bigtable", "google.bigtable.admin.v2.BigtableTableAdmin"
_PUBLISHER, _SUBSCRIBER = "google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber"


class Client:
    """A connection that carries serialized messages.

    Args:
        address: the server's address.
    """

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])

    def call(self, service: str, name: str, request: object) -> bytes:
        """Returns the answer to a request."""
        return self.channel.unary_unary(f"/{service}/{name}")(_bytes(request), timeout=60)

    def stream(self, service: str, name: str, request: object) -> Iterator[bytes]:
        """Yields the answers to a request."""
        return self.channel.unary_stream(f"/{service}/{name}")(_bytes(request), timeout=60)

    def all(self, calls: list[Callable[[], object]]) -> float:
        """Returns the seconds that calls take, a few at a time."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            began = time.perf_counter()
            list(pool.map(lambda call: call(), calls))
            return time.perf_counter() - began


def _bytes(message: object) -> bytes:
    return message if isinstance(message, bytes) else type(message).serialize(message)


def rates(environment: dict[str, str]) -> dict[str, float]:
    """Returns how many rows and messages a second the servers of an environment carry."""
    found = dict.fromkeys(FLOORS, 0.0)
    for _ in range(ROUNDS):
        measured = bigtable_rates(environment[BIGTABLE.variable]) | pubsub_rates(environment[PUBSUB.variable])
        found = {what: max(rate, measured[what]) for what, rate in found.items()}
    return found


def bigtable_rates(address: str) -> dict[str, float]:
    """Returns how many rows a second a server writes and reads."""
    client, parent = Client(address), "projects/test-project/instances/test-instance"
    families = {"raw": ColumnFamily(), "meta": ColumnFamily()}
    create = CreateTableRequest(parent=parent, table_id=f"t-{uuid.uuid4().hex}", table=Table(column_families=families))
    name = Table.pb().FromString(client.call(_ADMIN, "CreateTable", create)).name
    cells = [("raw", b"temperature", b"23.5"), ("raw", b"humidity", b"0.5"), ("meta", b"location", b"north")]
    mutations = [
        {"set_cell": {"family_name": family, "column_qualifier": column, "timestamp_micros": 1000, "value": value}}
        for family, column, value in cells
    ]
    keys = [f"sensor-{number % 100:03}#{number:016}".encode() for number in range(ROWS)]
    requests = [
        _bytes(
            data_types.MutateRowsRequest(
                table_name=name,
                entries=[{"row_key": key, "mutations": mutations} for key in keys[begin : begin + ROWS_A_REQUEST]],
            )
        )
        for begin in range(0, ROWS, ROWS_A_REQUEST)
    ]
    writing = client.all([lambda each=each: list(client.stream(_BIGTABLE, "MutateRows", each)) for each in requests])
    began = time.perf_counter()
    answers = list(client.stream(_BIGTABLE, "ReadRows", data_types.ReadRowsRequest(table_name=name)))
    reading = time.perf_counter() - began
    read = sum(
        chunk.commit_row for answer in answers for chunk in data_types.ReadRowsResponse.pb().FromString(answer).chunks
    )
    assert read == ROWS, read
    return {"rows written": ROWS / writing, "rows read": ROWS / reading}


def pubsub_rates(address: str) -> dict[str, float]:
    """Returns how many messages a second a server publishes, and delivers by pulls and by streams."""
    client, project = Client(address), f"projects/p-{uuid.uuid4().hex}"
    topic = f"{project}/topics/topic-1"
    client.call(_PUBLISHER, "CreateTopic", pubsub_types.Topic(name=topic))
    names = [f"{project}/subscriptions/subscription-{number}" for number in range(3)]
    for name in names:
        subscription = pubsub_types.Subscription(name=name, topic=topic, enable_message_ordering=name == names[2])
        client.call(_SUBSCRIBER, "CreateSubscription", subscription)
    messages = [{"data": b"x" * 100, "ordering_key": f"sensor-{number % 100}"} for number in range(MESSAGES_A_REQUEST)]
    request = _bytes(pubsub_types.PublishRequest(topic=topic, messages=messages))
    publish = [lambda: client.call(_PUBLISHER, "Publish", request)] * (MESSAGES // MESSAGES_A_REQUEST)
    return {
        "messages published": MESSAGES / client.all(publish),
        "messages pulled": MESSAGES / client.all([lambda: _pull(client, names[0])]),
        "messages streamed": MESSAGES / client.all([lambda: _receive(client, names[1])]),
        "messages streamed in order": MESSAGES / client.all([lambda: _receive(client, names[2])]),
    }


def _pull(client: Client, subscription: str) -> None:
    pull = _bytes(pubsub_types.PullRequest(subscription=subscription, max_messages=1000))
    left = MESSAGES
    while left:
        answer = pubsub_types.PullResponse.pb().FromString(client.call(_SUBSCRIBER, "Pull", pull))
        ids = [each.ack_id for each in answer.received_messages]
        left -= len(ids)
        if ids:
            acknowledge = pubsub_types.AcknowledgeRequest(subscription=subscription, ack_ids=ids)
            client.call(_SUBSCRIBER, "Acknowledge", acknowledge)


def _receive(client: Client, subscription: str) -> None:
    """Receives all messages through a stream that acknowledges each response."""
    first = pubsub_types.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=60)
    acknowledgements: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    acknowledgements.put(_bytes(first))
    answers = client.channel.stream_stream(f"/{_SUBSCRIBER}/StreamingPull")(iter(acknowledgements.get, None))
    left = MESSAGES
    for answer in answers:
        ids = [each.ack_id for each in pubsub_types.StreamingPullResponse.pb().FromString(answer).received_messages]
        left -= len(ids)
        acknowledgements.put(_bytes(pubsub_types.StreamingPullRequest(ack_ids=ids)))
        if not left:
            acknowledgements.put(None)


def demo_seconds(*options: str) -> float:
    """Returns how long the demo takes, with starting and stopping everything."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-c", "from pipeline.cli.root import main; main()", "demo", *options]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main(*, with_demo: bool) -> None:
    both = "built-in" not in origins()
    with running_emulators(embedded=True) as environment:
        built_in = rates(environment)
    google = {}
    if both:
        with running_emulators() as environment:
            google = rates(environment)
    lines = Lines("                  a second", " floor", "built-in", "Google's", "ratio")
    for what, floor in FLOORS.items():
        other = [f"{google[what]:,.0f}", f"{built_in[what] / google[what]:.2f}"] if google else ["", ""]
        lines.add(what, f"{floor:,}", f"{built_in[what]:,.0f}", *other)
    if with_demo:
        ours, theirs = demo_seconds("--embedded"), demo_seconds() if google else 0
        other = [f"{theirs:.1f}", f"{ours / theirs:.2f}"] if theirs else ["", ""]
        lines.add("the demo, in seconds", "", f"{ours:.1f}", *other)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")
    slow = [what for what, floor in FLOORS.items() if built_in[what] < floor]
    sys.exit(f"below the floor: {', '.join(slow)}" if slow else 0)


if __name__ == "__main__":
    main(with_demo=arguments(demo=False).demo)
