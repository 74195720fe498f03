"""Computes the bytes of messages, raw rows and aggregate rows. Tests compare them with those that the job makes.

Stored bytes are those of key, family, qualifier and value, and eight for each timestamp; Bigtable's compression is not
known. Encoded bytes are those of an entry of a ``MutateRowsRequest``.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.core.notation.cell_values import Values
from pipeline.core.rows.aggregate_rows import READING_COUNT, aggregate_key
from pipeline.core.rows.newest_row import latest_range
from pipeline.core.rows.rollup_rows import FAMILY
from pipeline.core.schema.gc_policies import collected_after, counts_versions
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
from pipeline.core.statistics.window_stats import Statistic, qualifier_of
from pipeline.plan.workload import START_US, Workload

ID_BYTES = 16
_TIMESTAMP_BYTES = 8
_TEXT_BYTES = 4.89  # a reading from 10 to 30 with two decimals: 90 % have five characters, 9 % four, 1 % two
_DOUBLE_BYTES = 17.4  # a computed double, in shortest decimal text
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

_CellSize = tuple[str, float, float]  # a cell's family, and the bytes of its qualifier and of its value

YEARS = (1, 5)
"""The ages of a table for which its storage is estimated."""

UTILIZATION = 70
"""The percentage of a node's capacity that is used."""

_NODE_BYTES = {True: 5 * 10**12, False: 16 * 10**12}


@dataclass(frozen=True)
class RowSize:
    """The size of an event's rows, or of one aggregate row.

    Attributes:
        rows: the number of written rows.
        cells: the number of cells in all rows.
        encoded: bytes of the rows' keys and mutations.
        stored: bytes by family; a key counts for the family of the row's first cell.
    """

    rows: int
    cells: int
    encoded: float
    stored: dict[str, float]


def row_size(key: float, cells: Sequence[_CellSize], events_of_key: int = 1) -> RowSize:
    """Returns the size of one row, whose key is stored once for ``events_of_key`` events."""
    stored: dict[str, float] = defaultdict(float)
    stored[cells[0][0]] += key / events_of_key
    for family, name, value in cells:
        stored[family] += len(family) + name + value + _TIMESTAMP_BYTES
    return RowSize(1, len(cells), key + sum(map(_encoded_cell, cells)), stored)


def _delimited(size: float) -> float:
    """Returns the bytes of a protobuf field of this size: a tag of one byte, the size as a varint, and the content."""
    return 1 + max(1, -(-int(size).bit_length() // 7)) + size


def event_bytes(workload: Workload) -> float:
    """Returns the bytes of a ``SensorEvent`` in protobuf's encoding (protobuf.dev/programming-guides/encoding).

    A map entry is a message of key and value. Seconds take five bytes; nanoseconds five, or four below 2^28 (27 %).
    """
    size = _delimited(ID_BYTES) + _delimited(1 + 5 + 1 + 4.73)
    size += sum(_delimited(_delimited(len(name)) + 9) for name in workload.metrics)
    size += sum(_delimited(_delimited(len(name)) + _delimited(ID_BYTES)) for name in workload.metadata)
    return size + (_delimited(ID_BYTES) if workload.schema.key.has(EventIdToken) else 0)


def message_bytes(workload: Workload, batch: int) -> float:
    """Returns the bytes of a message's data: one event, or a ``SensorEventBatch`` of several."""
    one = event_bytes(workload)
    return one if batch == 1 else batch * _delimited(one)


def key_bytes(workload: Workload, metric: str) -> int:
    """Returns the bytes of a raw row's key: the widths of the template's tokens (docs/schema-reference.md)."""
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
    """Returns the size of an event's raw rows in the schema's layout (docs/schema-reference.md).

    In a bucket, each event is written as an entry of its own, and the key is stored once for all events.
    """
    key = workload.schema.key
    events_of_key = max(1, key.grain_us // workload.every_us) if workload.schema.layout.bucketed else 1
    rows = [row_size(key_bytes(workload, metric), cells, events_of_key) for metric, cells in _raw_rows(workload)]
    stored: dict[str, float] = defaultdict(float)
    for row in rows:
        for family, size in row.stored.items():
            stored[family] += size
    return RowSize(len(rows), sum(row.cells for row in rows), sum(row.encoded for row in rows), stored)


def _raw_rows(workload: Workload) -> list[tuple[str, list[_CellSize]]]:
    """Returns the cells of each raw row of an event, and the metric in the row's key."""
    schema = workload.schema
    layout, context, rules = schema.layout, schema.layout_context, schema.metrics
    if layout.serializes:
        qualifier = 43 if layout.bucketed else 22 if layout.selected_by_key_only(context) else 26
        return [("", [(rules.families[0], qualifier, event_bytes(workload))])]
    value = _TEXT_BYTES if schema.values is Values.TEXT else 8
    readings: list[_CellSize] = [(rules.family_of(name) or "", len(name), value) for name in workload.metrics]
    in_cells = [name for name in workload.metadata if name not in schema.key.metadata_names]
    metadata: list[_CellSize] = [(schema.metadata.family_of(name) or "", len(name), ID_BYTES) for name in in_cells]
    if not layout.row_per_metric:
        return [("", [*readings, *metadata])]
    if layout.bucketed:  # the qualifier is the value
        readings = [(family, value, 0) for family, _, _ in readings]
    return [(name, [cell, *metadata]) for name, cell in zip(workload.metrics, readings, strict=True)]


def _encoded_cell(cell: _CellSize) -> float:
    """Returns the bytes of a ``Mutation`` (google/bigtable/v2/data.proto); ``core.rows.rows`` writes them."""
    family, qualifier, value = cell
    inner = _delimited(len(family)) + _delimited(qualifier) + 9 + (_delimited(value) if value else 0)
    return _delimited(_delimited(inner))


def window_events(workload: Workload, tier: Tier) -> float:
    """Returns the number of a sensor's events in one window, at least one: an empty window has no row."""
    return max(1.0, window_us(tier) / workload.every_us)


def window_us(tier: Tier) -> float:
    """Returns the mean length of the tier's windows over four years, since months vary."""
    window = tier.window
    start_us, end_us = (window.first_start(START_US + years * 126_230_400_000_000) for years in (0, 1))
    return (end_us - start_us) / window.count(start_us, end_us)


def windows_per_second(workload: Workload, tier: Tier) -> float:
    """Returns the number of windows of all sensors that begin in a second and get an event."""
    return workload.sensors * 1_000_000 / max(window_us(tier), workload.every_us)


def aggregate_size(workload: Workload, tier: Tier) -> RowSize:
    """Returns the size of one aggregate row: a cell for the number of events, and one for each metric's statistics.

    Assumes readings of two decimals. In text, a computed double has 17.4 digits on average, and a sum of decimals few
    more than its readings.
    """
    events = window_events(workload, tier)
    digits = len(str(int(events)))
    cells: list[_CellSize] = [(tier.family, len(READING_COUNT), digits)]
    for metric in workload.metrics:
        for each in tier.statistics.of(metric):
            size = statistic_bytes(each, events, digits)
            cells.append((tier.family, len(qualifier_of(each.name, metric).encode()), size))
    return row_size(len(aggregate_key(tier.window, "s" * ID_BYTES, tier.window.start_of(START_US))), cells)


def latest_size(workload: Workload, family: str) -> RowSize:
    """Returns the size of a sensor's row of newest readings: a cell for each metric."""
    cells: list[_CellSize] = [(family, len(metric), _TEXT_BYTES) for metric in workload.metrics]
    return row_size(len(latest_range("s" * ID_BYTES).start), cells)


def statistic_bytes(each: Statistic, events: float, digits: int) -> float:
    if each.name == "count":
        return digits
    if each.name == "sketch":
        return sketch_bytes(events)
    if events < 2:  # a single reading is its own average, and its deviation is 0
        return _STATISTIC_BYTES.get(each.name, 1 if each.name in ("stddev", "increase", "rate") else _TEXT_BYTES)
    if each.name == "sum":
        return min(_DOUBLE_BYTES, _TEXT_BYTES + digits)
    return _STATISTIC_BYTES.get(each.name, _DOUBLE_BYTES)


def sketch_bytes(events: float) -> float:
    """Returns the bytes of a sketch, interpolated between measured ones: they grow with the logarithm of the events."""
    for (fewer, less), (more, most) in pairwise(_SKETCH_BYTES):
        if events <= more:
            return less + (most - less) * math.log(events / fewer) / math.log(more / fewer)
    return _SKETCH_BYTES[-1][1]


def stored_per_day(workload: Workload) -> dict[str, float]:
    """Returns the bytes by family that a day's raw rows and aggregate rows add."""
    found = dict.fromkeys(workload.schema.families, 0.0)
    for family, size in raw_size(workload).stored.items():
        found[family] += size * workload.events_per_second * 86_400
    for tier in workload.schema.tiers:
        windows = windows_per_second(workload, tier) * 86_400
        for family, size in aggregate_size(workload, tier).stored.items():
            found[family] += size * windows
    return found


def kept(workload: Workload, family: str, per_day: float) -> float | None:
    """Returns the bytes that remain after collection: a day's growth, times the days of the policy's maximal age.

    Leaves out what Bigtable may collect and has not yet, for up to a week:
    cloud.google.com/bigtable/docs/garbage-collection. Ignores limits on versions: a cell of one event has one version.
    """
    if family == workload.schema.latest:
        return workload.sensors * latest_size(workload, family).stored[family]  # a row a sensor, which is overwritten
    age = collected_after(workload.schema.policies[family])
    return None if age is None and per_day else per_day * (age.total_seconds() / 86_400 if age else 0)


def storage_after(years: int, storage: Mapping[str, float | None], growth: Mapping[str, float]) -> dict[str, float]:
    """Returns the bytes by family of a table of this age: what came until then, and is not collected."""
    grown = {family: per_day * 365.25 * years for family, per_day in growth.items()}
    return {
        family: grown[family] if kept is None else min(kept, grown[family] or kept) for family, kept in storage.items()
    }


def nodes_for_storage(workload: Workload, size: float) -> int:
    """Returns the number of nodes that hold so many bytes, at 70 % of what each can."""
    return max(1, math.ceil(size * 100 / (_NODE_BYTES[workload.ssd] * UTILIZATION)))


def counts_versions_of(workload: Workload) -> list[str]:
    """Returns the families whose cells a limit on versions may collect sooner than estimated."""
    schema = workload.schema
    replaced = (schema.latest, FAMILY, *(tier.family for tier in schema.tiers))  # whose older versions nobody reads
    return [family for family, policy in schema.policies.items() if family not in replaced and counts_versions(policy)]
