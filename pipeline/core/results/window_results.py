"""Encodes the results of windows as ``tidetable.v1.WindowResult`` messages.

The id of a result is the key of the window's row, ``/`` and the result's number. Whoever keeps the result with the
greatest id of each window, in the order of text, has what the window's row contains:

- The number begins with the time at which the job began. It stays the same over updates, whose job continues with the
  state of the one before, and is greater for each job that is started anew.
- Then follows the number of batches of rows that the group of sensors had written before the firing. The rows of a
  group reach the table in the order of its batches (see :mod:`pipeline.core.panes.row_batches`), a firing writes a
  window's row at most once, and every result comes with a row. So of one window, no number comes twice.

Both parts are state or settings, so no clock of a worker can turn them back. A number is given out when a firing is
committed: the step that publishes gets results of committed firings only, and publishes the same ones again if it is
repeated. What a window counts would not do as a number: a reading's second value changes the sum and not the count, and
an earlier reading changes the ``increase`` of the window after it.

What a window counts is the version of its row, by which the table keeps the fuller one (see
:func:`pipeline.core.rows.aggregate_rows.version_us`). A result has it beside the id, to compare with rows that other
programs write, which have no number.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from google.protobuf.message import DecodeError

from pipeline.core.events.message import EVENT_ID, EVENT_TIME, MESSAGE_TYPE, Message
from pipeline.core.notation.documents import parse_json
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_key, named_values
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import WindowStats, coverage
from pipeline.core.windows import Window
from pipeline.proto.window_result_pb2 import WindowResult

RESULT_TYPE = "tidetable.v1.WindowResult"

Encoding = Literal["protobuf", "json"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)

Kind = Literal["early", "on_time", "late"]

SENSOR_ID, TIER, KIND = "sensor_id", "tier", "kind"
"""Attributes of a message, beside the type, the event time and the id."""

VERSION = 1

_OPTIONAL = ("coverage", "unit", "label")
_SIZE = struct.Struct("<I")
_MOST_BYTES = 2 << 20  # of the results in a batch


class ResultRules(NamedTuple):
    """The rules by which a job publishes results.

    Attributes:
        began_us: the time at which the job began, in µs since the epoch.
        early: whether early panes are published too.
    """

    began_us: int
    early: bool


class PaneResult(NamedTuple):
    """The result of one sensor's window.

    Attributes:
        tier: the index of the window's tier.
        sensor_id: the sensor.
        start_us: the window's start.
        stats: the window's statistics.
        kind: the pane's kind.
    """

    tier: int
    sensor_id: str
    start_us: int
    stats: WindowStats
    kind: Kind


def batches_of(results: Iterable[PaneResult], tiers: tuple[Tier, ...], began_us: int, firing: int) -> Iterator[bytes]:
    """Yields the results of a firing, encoded in batches of limited size.

    Args:
        results: the results.
        tiers: the table's tiers, shortest first.
        began_us: the time at which the job began.
        firing: the number of the group's firing.
    """
    number = f"/{began_us:016d}-{firing:012d}"
    parts, size = list[bytes](), 0
    for result in results:
        encoded = _result_bytes(result, tiers[result.tier], number)
        parts += (_SIZE.pack(len(encoded)), encoded)
        size += len(encoded)
        if size >= _MOST_BYTES:
            yield bytes([VERSION]) + b"".join(parts)
            parts, size = [], 0
    if parts:
        yield bytes([VERSION]) + b"".join(parts)


def read_batch(batch: bytes) -> Iterator[bytes]:
    """Yields the serialized results of a batch. Raises ValueError if another release wrote it."""
    if batch[:1] != bytes([VERSION]):
        raise ValueError("another release wrote these results; drain the job that wrote them and start a new one")
    end = 1
    while end < len(batch):
        begin = end + _SIZE.size
        end = begin + _SIZE.unpack_from(batch, end)[0]
        yield batch[begin:end]


def message_of(serialized: bytes, encoding: Encoding, declared: Mapping[str, DeclaredMetric] | None = None) -> Message:
    """Returns the message that publishes a serialized result, with the units and labels of declared metrics."""
    result = WindowResult.FromString(serialized)
    if declared:
        for metric in result.metrics:
            if found := declared.get(metric.metric):
                metric.unit, metric.label = found.unit or "", found.label or ""
        serialized = result.SerializeToString()
    data = serialized if encoding == "protobuf" else json.dumps(_mapped(result), separators=(",", ":")).encode()
    return Message(
        data,
        {
            MESSAGE_TYPE: RESULT_TYPE,
            SENSOR_ID: result.sensor_id,
            TIER: result.tier,
            KIND: result.kind,
            EVENT_TIME: result.window_start,
            EVENT_ID: result.event_id,
        },
    )


def result_json(data: bytes) -> dict[str, Any]:
    """Returns a message's result for use in JSON, with metrics and statistics by name, whatever the encoding.

    Raises ValueError with a one-line message for any other message.
    """
    try:
        # No serialized result begins with a brace: it would be a field that WindowResult does not have.
        found = parse_json(data) if data[:1] == b"{" else _mapped(WindowResult.FromString(data))
        metrics = {
            each["metric"]: {"count": int(each["count"])}
            | ({"coverage": json_number(float(each["coverage"]))} if each.get("coverage") else {})
            | {name: each[name] for name in ("unit", "label") if each.get(name)}
            | {one["name"]: json_number(float(one["value"])) for one in each["statistics"]}
            for each in found["metrics"]
        }
        named = {name: found[name] for name in ("sensor_id", "tier", "window_start", "window_end", "kind", "event_id")}
        reading_count, version = int(found["reading_count"]), int(found.get("version", 0))
        if reading_count < 1 or not all(isinstance(text, str) for text in (*named.values(), *metrics)):
            raise ValueError
    except (DecodeError, KeyError, TypeError, ValueError):
        raise ValueError(f"the message is no {RESULT_TYPE}") from None
    event_id = named.pop("event_id")
    later = {"version": version} if version else {}  # earlier releases published none
    return {**named, "reading_count": reading_count, "metrics": metrics, "event_id": event_id, **later}


def _result_bytes(result: PaneResult, tier: Tier, number: str) -> bytes:
    _, sensor_id, start_us, stats, kind = result
    window = tier.window
    start, end = _bounds(window, start_us)
    message = WindowResult(
        sensor_id=sensor_id,
        tier=window.text,
        window_start=start,
        window_end=end,
        kind=kind,
        reading_count=stats.events,
        event_id=aggregate_key(window, sensor_id, start_us).decode() + number,
        version=stats.size,
    )
    span = tier.statistics.span(window, start_us)
    for metric, named, values in named_values(window, start_us, stats, tier.statistics):
        count = stats.metrics[metric].count
        of_metric = message.metrics.add(metric=metric, count=count, coverage=coverage(count, span))
        add = of_metric.statistics.add
        for each, value in zip(named, values, strict=True):
            # What the row does not tell is None or NaN. What only serves merging is bytes.
            if each.listed and each.name != "count" and value is not None and value == value:
                add(name=each.name, value=value)
    return message.SerializeToString()


@lru_cache(maxsize=1024)
def _bounds(window: Window, start_us: int) -> tuple[str, str]:
    return format_time(start_us), format_time(window.end_of(start_us))


def _mapped(result: WindowResult) -> dict[str, Any]:
    """Returns a result in protobuf's JSON mapping, with the names of the protobuf file.

    It has every field but a metric's coverage, unit and label if these are not known.
    """
    return {
        "sensor_id": result.sensor_id,
        "tier": result.tier,
        "window_start": result.window_start,
        "window_end": result.window_end,
        "kind": result.kind,
        "reading_count": str(result.reading_count),  # as the mapping writes 64-bit integers
        "metrics": [
            {
                "metric": each.metric,
                "count": str(each.count),
                "statistics": [{"name": one.name, "value": _mapped_number(one.value)} for one in each.statistics],
                **{name: value for name in _OPTIONAL if (value := getattr(each, name))},
            }
            for each in result.metrics
        ],
        "event_id": result.event_id,
        "version": str(result.version),
    }


def _mapped_number(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
