"""(2) The script that a user of Google's client would write: the data client's ``mutations_batcher``."""

from collections.abc import Callable

from google.cloud.bigtable.data import BigtableDataClient, RowMutationEntry, SetCell

from benchmarks.bench.by_hand import Hours, raw_key, text
from pipeline.cloud.connection.names import TableName
from pipeline.core.events.message import Message
from pipeline.proto.sensor_event_pb2 import SensorEventBatch


def prepare(messages: list[Message]) -> Callable[[TableName], None]:
    """Returns a function that writes the messages to a table, with an open client."""
    client = BigtableDataClient(project="test-project")
    return lambda name: _write(messages, name, client)


def _write(messages: list[Message], name: TableName, client: BigtableDataClient) -> None:
    hours = Hours()
    with client.get_table(name.instance, name.table) as table, table.mutations_batcher() as batcher:
        for message in messages:
            for event in SensorEventBatch.FromString(message.data).events:
                time_us = event.event_time.ToMicroseconds()
                batcher.append(raw_entry(event.sensor_id, time_us, dict(event.readings)))
                hours.add(event.sensor_id, time_us, event.readings.items())
        for key, time_us, columns in hours.rows():
            batcher.append(aggregate_entry(key, time_us, columns))


def raw_entry(sensor_id: str, time_us: int, readings: dict[str, float]) -> RowMutationEntry:
    timestamp_us = time_us - time_us % 1000
    cells = [SetCell("raw", metric.encode(), text(value), timestamp_us) for metric, value in readings.items()]
    return RowMutationEntry(raw_key(sensor_id, time_us), cells)


def aggregate_entry(key: bytes, time_us: int, columns: list[tuple[bytes, bytes]]) -> RowMutationEntry:
    return RowMutationEntry(key, [SetCell("stats", column, value, time_us) for column, value in columns])
