"""(6) Bytewax, if it is installed: batches of 1,000 events, statistics by key, the data client's batcher."""

from collections.abc import Callable, Iterator
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import TestingSource, run_main
from google.cloud.bigtable.data import BigtableDataClient, RowMutationEntry

from pipeline.cloud.connection.names import TableName
from pipeline.core.events.message import Message
from pipeline.proto.sensor_event_pb2 import SensorEventBatch
from tests.benchmarks.bench.batcher import aggregate_entry, raw_entry
from tests.benchmarks.bench.by_hand import HOUR_US, Hours

_Event = tuple[str, int, dict[str, float]]


def prepare(messages: list[Message]) -> Callable[[TableName], Callable[[], None]]:
    """Returns a function that builds the flow for a table and returns the function that runs it."""
    client = BigtableDataClient(project="test-project")

    def build(name: TableName) -> Callable[[], None]:
        flow = Dataflow("bench")
        read = op.input("read", flow, TestingSource(messages, batch_size=10))
        events = op.flat_map("parse", read, _events)
        op.output("raw", op.map("raw_entry", events, lambda event: raw_entry(*event)), _Sink(client, name))
        by_hour = op.key_on("by_hour", events, lambda event: f"{event[0]}#{event[1] // HOUR_US}")
        folded = op.fold_final("statistics", by_hour, Hours, _fold)
        entries = op.flat_map("aggregate_entries", folded, lambda keyed: _aggregate_entries(keyed[1]))
        op.output("aggregates", entries, _Sink(client, name))
        return lambda: run_main(flow)

    return build


def _events(message: Message) -> Iterator[_Event]:
    for event in SensorEventBatch.FromString(message.data).events:
        yield event.sensor_id, event.event_time.ToMicroseconds(), dict(event.readings)


def _fold(hours: Hours, event: _Event) -> Hours:
    sensor_id, time_us, readings = event
    hours.add(sensor_id, time_us, readings.items())
    return hours


def _aggregate_entries(hours: Hours) -> list[RowMutationEntry]:
    return [aggregate_entry(*row) for row in hours.rows()]


class _Sink(DynamicSink):
    def __init__(self, client: BigtableDataClient, name: TableName) -> None:
        self._client, self._name = client, name

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "_Writer":
        return _Writer(self._client.get_table(self._name.instance, self._name.table))


class _Writer(StatelessSinkPartition):
    def __init__(self, table: Any) -> None:
        self._table, self._batcher = table, table.mutations_batcher()

    def write_batch(self, items: list[RowMutationEntry]) -> None:
        for entry in items:
            self._batcher.append(entry)

    def close(self) -> None:
        self._batcher.close()
        self._table.close()
