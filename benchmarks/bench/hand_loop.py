"""(1) A hand-written loop, the most that one process can do: no Beam, protobuf classes, four requests in flight.

No retries, lateness, dead letters or durable state: it is the yardstick, not a program for production.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse

from benchmarks.bench.by_hand import LAST_US, Hours
from pipeline.cloud.connection.names import TableName
from pipeline.core.events.message import BATCH_TYPE, MESSAGE_TYPE, Message
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

ROWS_A_REQUEST = 1000
IN_FLIGHT = 4

_Request, _Response = MutateRowsRequest.pb(), MutateRowsResponse.pb()


def prepare(messages: list[Message]) -> Callable[[TableName], None]:
    """Returns a function that writes the messages to a table, over an open channel."""
    channel = grpc.insecure_channel(os.environ["BIGTABLE_EMULATOR_HOST"])
    grpc.channel_ready_future(channel).result(10)
    send = channel.unary_stream(
        "/google.bigtable.v2.Bigtable/MutateRows",
        request_serializer=_Request.SerializeToString,
        response_deserializer=_Response.FromString,
    )
    return lambda name: _write(messages, str(name), send)


def _write(messages: list[Message], table: str, send: Callable[[Any], Any]) -> None:
    in_flight: deque[Any] = deque()
    hours = Hours()
    request = _Request(table_name=table)
    rows = 0
    for message in messages:
        if message.attributes[MESSAGE_TYPE] == BATCH_TYPE:
            events = SensorEventBatch.FromString(message.data).events
        else:
            events = (SensorEvent.FromString(message.data),)
        for event in events:
            time = event.event_time
            time_us = time.seconds * 1_000_000 + time.nanos // 1000
            timestamp_us = time_us - time_us % 1000
            sensor_id, readings = event.sensor_id, list(event.readings.items())
            entry = request.entries.add()
            entry.row_key = f"{sensor_id}#{LAST_US - time_us}".encode()
            mutations = entry.mutations
            for metric, value in readings:
                cell = mutations.add().set_cell
                cell.family_name = "raw"
                cell.column_qualifier = metric.encode()
                cell.timestamp_micros = timestamp_us
                cell.value = repr(value).removesuffix(".0").encode()
            hours.add(sensor_id, time_us, readings)
            rows += 1
            if rows == ROWS_A_REQUEST:
                _send(send, request, in_flight)
                request = _Request(table_name=table)
                rows = 0
    for key, time_us, columns in hours.rows():
        entry = request.entries.add()
        entry.row_key = key
        for column, value in columns:
            cell = entry.mutations.add().set_cell
            cell.family_name, cell.column_qualifier = "stats", column
            cell.timestamp_micros, cell.value = time_us, value
    _send(send, request, in_flight)
    while in_flight:
        _confirm(in_flight.popleft())


def _send(send: Callable[[Any], Any], request: Any, in_flight: deque[Any]) -> None:
    if len(in_flight) == IN_FLIGHT:
        _confirm(in_flight.popleft())
    in_flight.append(send(request))


def _confirm(responses: Any) -> None:
    for response in responses:
        for entry in response.entries:
            if entry.status.code:
                raise RuntimeError(f"a row was refused: {entry.status.message}")
