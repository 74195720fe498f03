"""Prints how long an event takes from its publication until it is readable, on the DirectRunner.

Each firing, writer and rate gets --seconds of events, at a steady flow of one event a message. The job runs as users
run it, between both emulators, with its default settings, and then with ``--early_firing=1s``. A raw row is readable
when a request for its key finds it. A row of newest readings contains an event once it has a cell of its time or a
later one. An aggregate contains an event once ``reading_count`` of its sensor includes it; by default that takes
minutes, so it is measured with the second firing alone. The oldest is the event that took longest.
"""

import tempfile
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import quantiles

from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse, RowFilter

from benchmarks.measuring import Lines, arguments, emulators
from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.rows.newest_row import latest_range
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.table_schema import TableSchema
from pipeline.local.emulators import BIGTABLE, PUBSUB
from tests.job.running import Resources, running_job
from tests.support.lasting import lasting

RATES = (50, 300)  # events per second
WRITERS = ("connector", "bulk")
FIRINGS: tuple[dict[str, str], ...] = ({}, {"early_firing": "1s"})
WARM_UP_S = 5.0  # the first panes and the first pulls take longer
SENSORS = 20
TICK_S = 0.02  # between requests to publish
RAW_POLL_S, AGGREGATE_POLL_S = 0.005, 0.05
TIMEOUT_S = 60.0
AGGREGATES = b"agg#hourly#"


@dataclass
class Sent:
    """What was published so far, with the seconds of a monotonic clock.

    Attributes:
        raw: the time of each raw row that was not found yet, by key.
        of_sensor: the time of each event, in the order of publication, by sensor.
        event_times_us: the event time of each of them.
        all_sent: set when no more events follow.
    """

    raw: dict[bytes, float] = field(default_factory=dict)
    of_sensor: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    event_times_us: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    all_sent: threading.Event = field(default_factory=threading.Event)


def main(seconds: float) -> None:
    print("milliseconds from publication until readable")
    lines = Lines("           firing", "   writer", "      rows", "events/s", "p50", "p99", "oldest")
    for firing, writer, rate in product(FIRINGS, WRITERS, RATES):
        name = " ".join(f"--{flag}={value}" for flag, value in firing.items()) or "default"
        for rows, found in measure(firing, writer, rate, seconds).items():
            figures = (_percentile(found, 50), _percentile(found, 99), max(found))
            lines.add(name, writer, rows, rate, *(f"{each:.0f}" for each in figures))


def measure(firing: dict[str, str], writer: str, rate: int, seconds: float) -> dict[str, list[float]]:
    """Runs a job. Returns the latencies in ms of the events after the warm-up: by the rows that have them."""
    resources, sent = Resources(), Sent()
    kinds = {"raw": _raw_rows, "newest": _newest} | ({"aggregates": _aggregates} if firing else {})
    try:
        name = resources.table = resources.table_of(lasting(TableSchema.for_new_table()))
        flags = [flag for flag in resources.flags(bigtable_writer=writer) if "_firing=" not in flag]
        flags += [f"--{flag}={value}" for flag, value in firing.items()]
        with (
            tempfile.TemporaryDirectory() as directory,
            running_job(flags, Path(directory) / "log"),
            bigtable_client() as client,
            ThreadPoolExecutor(len(kinds)) as readers,
        ):
            from_s = time.monotonic() + WARM_UP_S
            found = {
                kind: readers.submit(list, _until_all_found(sent, rows_of(client, name, sent)))
                for kind, rows_of in kinds.items()
            }
            _publish(resources.topic, rate, WARM_UP_S + seconds, sent)
            return {
                kind: [1000 * (at - published) for published, at in each.result() if published >= from_s]
                for kind, each in found.items()
            }
    finally:
        resources.close()


def _publish(topic: str, rate: int, seconds: float, sent: Sent) -> None:
    """Publishes events of now at a steady rate, from one sensor after the other."""
    began, number = time.monotonic(), 0
    with Publisher(topic) as publisher:
        while (now := time.monotonic()) < began + seconds:
            events = []
            while number < (now - began) * rate:
                sensor_id, time_us = f"sensor-{number % SENSORS:03}", time.time_ns() // 1000
                events.append(sensor_event(sensor_id, time_us, {"temperature": 20.0 + number % 10}, {}))
                sent.raw[f"{sensor_id}#{9_999_999_999_999_999 - time_us}".encode()] = now
                sent.event_times_us[sensor_id].append(time_us)
                sent.of_sensor[sensor_id].append(now)
                number += 1
            if events:
                publisher.send_batch([message_of([event]) for event in events])
            time.sleep(TICK_S)
    sent.all_sent.set()


_Found = Iterator[tuple[float, float]]
"""When an event was published, and when it was found."""


def _until_all_found(sent: Sent, poll: Callable[[], tuple[_Found, bool]]) -> _Found:
    """Yields what each poll finds, until it says that nothing is missing and nothing follows."""
    deadline = None
    while True:
        last = sent.all_sent.is_set()  # before the poll: an event may be published during it
        found, complete = poll()
        yield from found
        if last and complete:
            return
        deadline = deadline or (time.monotonic() + TIMEOUT_S if last else None)
        if deadline and time.monotonic() > deadline:
            raise TimeoutError(f"events are missing {TIMEOUT_S:.0f} s after the last was published")


def _raw_rows(client: BigtableClient, name: TableName, sent: Sent) -> Callable[[], tuple[_Found, bool]]:
    def poll() -> tuple[_Found, bool]:
        time.sleep(RAW_POLL_S)
        keys = list(sent.raw)
        request = ReadRowsRequest(table_name=str(name), rows={"row_keys": keys})
        found = {chunk.row_key for chunk in _chunks(client, request)} if keys else set()
        now = time.monotonic()
        return ((sent.raw.pop(key), now) for key in found), len(found) == len(keys)

    return poll


def _newest(client: BigtableClient, name: TableName, sent: Sent) -> Callable[[], tuple[_Found, bool]]:
    request = ReadRowsRequest(table_name=str(name), filter=RowFilter(cells_per_column_limit_filter=1))
    keys = latest_range()
    request.rows.row_ranges.append({"start_key_closed": keys.start, "end_key_open": keys.end})
    seen: dict[str, int] = defaultdict(int)

    def poll() -> tuple[_Found, bool]:
        time.sleep(AGGREGATE_POLL_S)
        newest = {chunk.row_key.decode().split("#")[1]: chunk.timestamp_micros for chunk in _chunks(client, request)}
        now = time.monotonic()
        found = []
        for sensor_id, time_us in newest.items():
            until = bisect_right(sent.event_times_us[sensor_id], time_us + 999)
            found += [(published, now) for published in sent.of_sensor[sensor_id][seen[sensor_id] : until]]
            seen[sensor_id] = max(seen[sensor_id], until)
        return iter(found), all(seen[sensor_id] == len(events) for sensor_id, events in [*sent.of_sensor.items()])

    return poll


def _aggregates(client: BigtableClient, name: TableName, sent: Sent) -> Callable[[], tuple[_Found, bool]]:
    keys = prefix_range(AGGREGATES)
    only_counts = RowFilter(
        chain={"filters": [{"column_qualifier_regex_filter": b"reading_count"}, {"cells_per_column_limit_filter": 1}]}
    )
    request = ReadRowsRequest(table_name=str(name), filter=only_counts)
    request.rows.row_ranges.append({"start_key_closed": keys.start, "end_key_open": keys.end})
    counted: dict[str, int] = defaultdict(int)

    def poll() -> tuple[_Found, bool]:
        time.sleep(AGGREGATE_POLL_S)
        counts: dict[str, int] = defaultdict(int)  # of all hours of a sensor
        for chunk in _chunks(client, request):
            counts[chunk.row_key.decode().split("#")[2]] += int(chunk.value)
        now = time.monotonic()
        found = []
        for sensor_id, count in counts.items():
            found += [(published, now) for published in sent.of_sensor[sensor_id][counted[sensor_id] : count]]
            counted[sensor_id] = count
        return iter(found), all(counted[sensor_id] == len(events) for sensor_id, events in [*sent.of_sensor.items()])

    return poll


def _chunks(client: BigtableClient, request: ReadRowsRequest) -> Iterator[ReadRowsResponse.CellChunk]:
    for response in client.read_rows(request):
        yield from ReadRowsResponse.pb(response).chunks


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    options = arguments(seconds=20.0)
    with emulators(PUBSUB, BIGTABLE):
        main(options.seconds)
