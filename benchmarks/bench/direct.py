"""The whole job as users run it locally: ``python -m pipeline`` on the DirectRunner, from the Pub/Sub emulator.

The job is running and has written a first message when the others are handed to Pub/Sub all at once. The measured time
begins there and ends with the last raw row. Starting at the first row would flatter: this runner takes every step for
a whole bundle, and a bundle's first row appears when most of the work is done. The JSON contains that rate as well.
"""

import os
import tempfile
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from benchmarks.bench.check import check, count, difference
from benchmarks.bench.feed import Feed
from benchmarks.bench.report import Run
from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.table_schema import TableSchema
from tests.job.running import Resources, running_job
from tests.support.lasting import lasting
from tests.support.waiting import eventually

_REQUEST_BYTES = 9_000_000
_KEYS_PER_REQUEST = 50
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class DirectProgram:
    """A job, and a number of events that takes some seconds."""

    key: str
    name: str
    batch: int
    events: int
    flags: tuple[str, ...] = ()


_BULK = ("--bigtable_writer=bulk",)
DIRECT_PROGRAMS = (
    DirectProgram("direct_bulk", "DirectRunner, bulk", 100, 60_000, _BULK),
    DirectProgram("direct_connector", "DirectRunner, connector", 100, 30_000),
    DirectProgram("direct_bulk_single", "DirectRunner, bulk", 1, 60_000, _BULK),
    DirectProgram("direct_connector_single", "DirectRunner, connector", 1, 30_000),
)


def run(program: DirectProgram, start_us: int, counters: Executor) -> Run:
    """Runs one job from its start to a checked table."""
    feed = Feed(start_us, program.events)
    messages = feed.messages(program.batch)
    warm = program.batch
    keys = feed.raw_keys()
    # A message's last event is written last; if messages have one event, every tenth is enough.
    markers = keys[max(program.batch, 10) - 1 :: max(program.batch, 10)]
    resources = Resources()
    try:
        resources.table = resources.table_of(lasting(TableSchema.default()))
        # Panes as frequent as in a manual trial; with the default of a minute, the check would take that long.
        flags = resources.flags(early_firing="60s", late_firing="5s")
        with (
            tempfile.TemporaryDirectory() as directory,
            running_job([*flags, *program.flags], Path(directory) / "log") as job,
            bigtable_client() as client,
        ):
            with Publisher(resources.topic) as publisher:
                publisher.send_batch(messages[:1])
                _wait_for(client, resources.table, keys[:warm])
                rest = keys[warm : warm + 1] if program.batch == 1 else markers[1:2]
                begin, cpu_begin = time.perf_counter(), cpu_s(job.process.pid)
                for request in _requests(messages[1:]):
                    publisher.send_batch(request)
            _wait_for(client, resources.table, rest)
            first = time.perf_counter()
            _wait_for(client, resources.table, markers)
            last = time.perf_counter()
            while count(resources.table, prefix_range(b"sensor-")) < feed.events:
                last = time.perf_counter()
                if last > begin + _TIMEOUT_S:
                    break  # reported by the check
            cpu = cpu_s(job.process.pid) - cpu_begin
            eventually(
                lambda: (
                    count(resources.table, prefix_range(b"agg#")) == feed.windows()
                    and not difference(resources.table, feed)
                ),
                _TIMEOUT_S,
            )
            check(resources.table, feed, counters)
    finally:
        resources.close()
    events = feed.events - warm
    return Run(events / (last - begin), cpu * 1e6 / events, first_row_rate=events / (last - first))


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds that all threads of another process have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _requests(messages: list) -> list[list]:
    requests, size = [[]], 0
    for message in messages:
        size += len(message.data) + 200
        if len(requests[-1]) == 1000 or size > _REQUEST_BYTES:
            requests.append([])
            size = len(message.data) + 200
        requests[-1].append(message)
    return requests


def _wait_for(client: BigtableClient, name: TableName, keys: list[bytes]) -> None:
    """Waits until these rows exist; reads few of them at a time, to leave the processor to the job."""
    missing = keys[::-1]
    deadline = time.perf_counter() + _TIMEOUT_S
    while missing:
        asked = missing[-_KEYS_PER_REQUEST:]
        found = _found(client, name, asked)
        missing[-_KEYS_PER_REQUEST:] = [key for key in asked if key not in found]
        if not found:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{len(missing):,} rows of {len(keys):,} are not there after {_TIMEOUT_S:.0f} s")
            time.sleep(0.02)


def _found(client: BigtableClient, name: TableName, keys: list[bytes]) -> set[bytes]:
    request = ReadRowsRequest(table_name=str(name), rows={"row_keys": keys})
    responses = client.read_rows(request)
    return {chunk.row_key for response in responses for chunk in ReadRowsResponse.pb(response).chunks}
