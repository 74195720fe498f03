"""The bytes of messages, raw rows and aggregate rows, by arithmetic. ``--simulate`` holds them against the real code.

Stored bytes are those of key, family, qualifier and value, and eight for each timestamp. Bigtable compresses
them, by an unknown factor. Encoded bytes are those of an entry of a ``MutateRowsRequest``.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from pipeline.core.notation.cell_values import Values
from pipeline.core.rows.aggregate_rows import READING_COUNT, aggregate_key
from pipeline.core.rows.newest_row import latest_range
from pipeline.core.schema.key_tokens import (
    EventIdToken,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
    Token,
)
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.definitions import Statistic, qualifier_of
from pipeline.plan.workload import START_US, Workload

ID_BYTES = 16
_TIMESTAMP_BYTES = 8
_TEXT_BYTES = 4.89  # of a reading from 10 to 30 with two decimals: 90 % have five characters, 9 % four, 1 % two
_DOUBLE_BYTES = 17.4  # of a computed double, in shortest decimal text
_STATISTIC_BYTES = {
    "min": _TEXT_BYTES,
    "max": _TEXT_BYTES,
    "first": _TEXT_BYTES,
    "last": _TEXT_BYTES,
    "first_time": 16,
    "last_time": 16,
    "coverage": 1,
    "rises": 41,
    "held": 41,
    "sloped": 41,
}
_SKETCH_BYTES = ((1, 6), (5, 14), (20, 30), (60, 49), (600, 61), (3600, 87), (20_000, 117))  # by events of the window


@dataclass(frozen=True)
class RowSize:
    """The rows of an event, or one aggregate row.

    Attributes:
        rows: rows that are written.
        cells: cells in all of them.
        encoded: bytes of their mutations and keys.
        stored: bytes by family; keys count for the family of the first cell.
    """

    rows: int
    cells: int
    encoded: float
    stored: dict[str, float]


def varint(number: float) -> int:
    """Returns the bytes of a varint."""
    return max(1, -(-int(number).bit_length() // 7))


def _delimited(size: float) -> float:
    """Returns the bytes of a field of protobuf with a one-byte tag, a length, and so many bytes."""
    return 1 + varint(size) + size


def event_bytes(workload: Workload) -> float:
    """Returns the bytes of a ``SensorEvent``, by protobuf's encoding (protobuf.dev/programming-guides/encoding).

    A length-delimited field has a tag, a length and its bytes; a map entry is a message of key and value. Seconds take
    five bytes; nanoseconds take five, or four below 2^28, 27 % of them.
    """
    size = _delimited(ID_BYTES) + _delimited(1 + 5 + 1 + 4.73)
    size += sum(_delimited(_delimited(len(name)) + 9) for name in workload.metrics)
    size += sum(_delimited(_delimited(len(name)) + _delimited(ID_BYTES)) for name in workload.metadata)
    return size + (_delimited(ID_BYTES) if workload.has_event_id else 0)


def message_bytes(workload: Workload, batch: int) -> float:
    """Returns the bytes of a message's data: of one event, or a ``SensorEventBatch`` of several."""
    one = event_bytes(workload)
    return one if batch == 1 else batch * _delimited(one)


def key_bytes(workload: Workload, metric: str) -> int:
    """Returns the bytes of a raw row's key, by the widths of the template's tokens (docs/schema-reference.md)."""
    return sum(len(part) if isinstance(part, str) else _token_bytes(part, metric) for part in workload.schema.key.parts)


def _token_bytes(token: Token, metric: str) -> int:
    match token:
        case SensorToken() | MetadataToken() | EventIdToken():
            return ID_BYTES
        case MetricToken():
            return len(metric)
        case SaltToken() | ShardToken():
            return len(token.values[0])
        case TimeToken():
            return len(token.render(START_US))  # all texts have the same width
    raise AssertionError(token)


def raw_size(workload: Workload) -> RowSize:
    """Returns what an event writes to raw rows, by the layouts of docs/schema-reference.md.

    A wide row has a cell for each reading and each metadata field; a tall event repeats key and metadata for each
    reading; a serialized one is one cell. In a bucket each event is written as its own entry, and the key is stored
    once for all its events.
    """
    schema = workload.schema
    layout, context = schema.layout, schema.layout_context
    per_key = max(1, schema.key.grain_us // workload.every_us) if layout.bucketed else 1
    if layout.serializes:
        qualifier = 43 if layout.bucketed else 22 if layout.selected_by_key_only(context) else 26
        rows: list[tuple[str, list[tuple[str, float, float]]]]
        rows = [("", [(schema.metrics.families[0], qualifier, event_bytes(workload))])]
    else:
        value = _TEXT_BYTES if schema.values is Values.TEXT else 8
        readings: list[tuple[str, float, float]] = [
            (schema.metrics.family_of(name) or "", len(name), value) for name in workload.metrics
        ]
        if layout.row_per_metric and layout.bucketed:
            readings = [(family, value, 0) for family, _, value in readings]
        kept = [name for name in workload.metadata if name not in schema.key.metadata_names]
        metadata: list[tuple[str, float, float]] = [
            (schema.metadata.family_of(name) or "", len(name), ID_BYTES) for name in kept
        ]
        rows = (
            [(name, [cell, *metadata]) for name, cell in zip(workload.metrics, readings, strict=True)]
            if layout.row_per_metric
            else [("", [*readings, *metadata])]
        )
    stored: dict[str, float] = defaultdict(float)
    encoded = 0.0
    for metric, cells in rows:
        of_key = key_bytes(workload, metric)
        encoded += of_key + sum(map(_encoded_cell, cells))
        stored[cells[0][0]] += of_key / per_key
        for family, name_size, value_size in cells:
            stored[family] += len(family) + name_size + value_size + _TIMESTAMP_BYTES
    return RowSize(len(rows), sum(len(cells) for _, cells in rows), encoded, stored)


def _encoded_cell(cell: tuple[str, float, float]) -> float:
    """Returns the bytes of a ``Mutation``: a ``SetCell`` of family, qualifier, timestamp and value.

    From google/bigtable/v2/data.proto, as ``pipeline.core.rows.mutation_bytes`` writes it.
    """
    family, qualifier, value = cell
    inner = _delimited(len(family)) + _delimited(qualifier) + 9 + (_delimited(value) if value else 0)
    return _delimited(_delimited(inner))


def window_events(workload: Workload, tier: Tier) -> float:
    """Returns the events of a sensor in one window: at least one, or there would be no row."""
    return max(1.0, window_us(tier) / workload.every_us)


def window_us(tier: Tier) -> float:
    """Returns the mean length of the tier's windows over four years, so that months count right."""
    window = tier.window
    start_us, end_us = (window.first_start(START_US + years * 126_230_400_000_000) for years in (0, 1))
    return (end_us - start_us) / window.count(start_us, end_us)


def aggregate_size(workload: Workload, tier: Tier) -> RowSize:
    """Returns one aggregate row: a cell with the number of events, and one for each statistic of each metric.

    What statistics take in text is measured with readings of two decimals: a computed double has 17.4 digits on
    average, a sum of decimals few more than its readings.
    """
    events = window_events(workload, tier)
    digits = len(str(int(events)))
    cells: list[tuple[str, float, float]] = [(tier.family, len(READING_COUNT), digits)]
    for metric in workload.metrics:
        for each in tier.statistics.of(metric):
            size = _statistic_bytes(each, events, digits)
            cells.append((tier.family, len(qualifier_of(each.name, metric).encode()), size))
    key = len(aggregate_key(tier.window, "s" * ID_BYTES, tier.window.start_of(START_US)))
    stored = key + sum(len(family) + name + value + _TIMESTAMP_BYTES for family, name, value in cells)
    return RowSize(1, len(cells), key + sum(map(_encoded_cell, cells)), {tier.family: stored})


def latest_size(workload: Workload, family: str) -> RowSize:
    """Returns a sensor's row of newest readings: a cell for each metric."""
    cells = [(family, len(metric), _TEXT_BYTES) for metric in workload.metrics]
    key = len(latest_range("s" * ID_BYTES).start)
    stored = key + sum(len(family) + name + value + _TIMESTAMP_BYTES for family, name, value in cells)
    return RowSize(1, len(cells), key + sum(map(_encoded_cell, cells)), {family: stored})


def _statistic_bytes(each: Statistic, events: float, digits: int) -> float:
    if each.name == "count":
        return digits
    if each.name == "sketch":
        return _sketch_bytes(events)
    if events < 2:  # the average of one reading is the reading, and its deviation is 0
        return _STATISTIC_BYTES.get(each.name, 1 if each.name in ("stddev", "increase", "rate") else _TEXT_BYTES)
    if each.name == "sum":
        return min(_DOUBLE_BYTES, _TEXT_BYTES + digits)
    return _STATISTIC_BYTES.get(each.name, _DOUBLE_BYTES)


def _sketch_bytes(events: float) -> float:
    """Returns the bytes of a sketch, between those measured. They grow with the logarithm of the number of events."""
    for (fewer, less), (more, most) in pairwise(_SKETCH_BYTES):
        if events <= more:
            return less + (most - less) * math.log(events / fewer) / math.log(more / fewer)
    return _SKETCH_BYTES[-1][1]
