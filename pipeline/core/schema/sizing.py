"""Estimates the sizes of rows, cells and state at the declared rate. Refuses schemas that can't work, warns of others.

The estimate assumes 16 bytes for a name, 8 for a value, and 8 for a cell's timestamp.
"""

import json
import math
from collections.abc import Iterator

from pipeline.core.notation.durations import format_interval
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_tokens import DAY_US, WEEK_US
from pipeline.core.schema.rate import MAX_SHARDS, Rate
from pipeline.core.schema.table_schema import SchemaError, TableSchema

MAX_ROW_BYTES = 100_000_000  # this and the next are recommended in Bigtable's documentation
MAX_CELL_BYTES = 10_000_000
MAX_STATE_BYTES = 80_000_000  # an element of state on Dataflow

_NAME_BYTES = 16
_VALUE_BYTES = 8
_TIMESTAMP_BYTES = 8
_EVENT_COLUMN_BYTES = 43  # the qualifier of a serialized event in a bucket: its time, and 16 digits for its metrics
_TIME_BYTES = 8
_WIDE_TIME_BYTES = 16
_BUCKETS_US = [WEEK_US, DAY_US] + [
    seconds * 1_000_000 for seconds in (43200, 21600, 14400, 10800, 7200, 3600, 1800, 900, 600, 300, 60, 30, 10, 1)
]
_SENSOR_BYTES, _METRIC_BYTES, _PARTS_BYTES = 120, 65, 135  # of a contribution to roll-ups
_SKETCH_BYTES = 260  # of a metric with quantiles, in a shard's part of a group
_SHARED_GRAIN_US = 1_000_000  # with at least this grain, events of a sensor are likely to share a row


def check_sizes(schema: TableSchema) -> None:
    """Raises SchemaError if, at the declared rate, rows or cells would be too large, or events would collide."""
    rate = schema.rate
    if rate is None:
        return
    grain_us, layout = schema.key.grain_us, schema.layout
    every, grain = format_interval(rate.every_us), format_interval(grain_us)
    shares_rows = layout.bucketed or layout.serializes  # columns or timestamps distinguish events with the same key
    if not shares_rows and grain_us > rate.every_us and not schema.key.distinguishes_events:
        raise SchemaError(
            "key",
            f"{schema.key} distinguishes events by {grain}, and there is one every {every}: two would share a cell; "
            "use a finer time, or a layout with buckets",
        )
    if layout.bucketed and not layout.serializes and rate.every_us < 1000:
        raise SchemaError(
            "layout",
            f"{layout.name} distinguishes events by cell timestamp, 1ms, and there is one every {every}: "
            "two would share a cell; use bucket_serialized, or a layout with a row per event",
        )
    if layout.serializes and _event_bytes(rate) > MAX_CELL_BYTES:
        raise SchemaError(
            "rate.event_bytes",
            f"an event of {_size(_event_bytes(rate))} in one cell exceeds the {_size(MAX_CELL_BYTES)} that "
            "Bigtable recommends at most; use a layout with a column per metric",
        )
    events = -(-grain_us // rate.every_us) if shares_rows and not schema.key.distinguishes_events else 1
    row_bytes = events * _bytes_per_event(schema, rate)
    if row_bytes > MAX_ROW_BYTES:
        raise SchemaError(
            "key",
            f"a row of {schema.key} would be {events:,} events × {_bytes_per_event(schema, rate):,} bytes = "
            f"{_size(row_bytes)}, over the {_size(MAX_ROW_BYTES)} that Bigtable recommends at most; "
            f"{_bucket_that_fits(schema, rate)}",
        )


def state_problem(schema: TableSchema) -> str | None:
    """Returns why a job can't store a window at the declared rate; None if no reason is known.

    The job stores the readings of a sensor's shortest window as one element. This assumes the most bytes that a reading
    can take; most take fewer.
    """
    rate = schema.rate
    if rate is None or not schema.tiers:
        return None
    window = schema.tiers[0].window
    count, event_bytes = _events_and_bytes(schema, rate, window.length_us)
    if count * event_bytes <= MAX_STATE_BYTES:
        return None
    shorter = (length for length in _BUCKETS_US if length < window.length_us)
    sizes = ((length, math.prod(_events_and_bytes(schema, rate, length))) for length in shorter)
    fits = next((each for each in sizes if each[1] <= MAX_STATE_BYTES), None)
    advice = "send less often"
    if fits is not None:
        advice = f"declare a shorter first tier ({format_interval(fits[0])} takes {_size(fits[1])})"
    return (
        f"a sensor's window of {window.text} may take {count:,} events × {event_bytes:,} bytes = "
        f"{_size(count * event_bytes)} of state, over the {_size(MAX_STATE_BYTES)} of an element on "
        f"Dataflow; {advice}"
    )


def rollup_problem(schema: TableSchema) -> str | None:
    """Returns why a row of roll-ups may be too large for Bigtable; None if no reason is known.

    One row contains what all sensors of a shard contribute to a window, another one a group's parts of all shards.
    """
    rate = schema.rate
    if rate is None or rate.sensors is None or not schema.rollups:
        return None
    of_metric, of_sketch = _METRIC_BYTES + _PARTS_BYTES * schema.statistics.has_parts, _SKETCH_BYTES
    shards = schema.shards_of_rollups
    more = f", or declare up to {MAX_SHARDS:,} shards" if shards < MAX_SHARDS else ""
    for count, what, size, advice in (
        (-(-rate.sensors // shards), "sensors", _SENSOR_BYTES + rate.metrics * of_metric, f"metrics{more}"),
        (
            min(shards, rate.sensors),
            "parts of a group",
            rate.metrics * (_METRIC_BYTES + of_sketch * schema.statistics.has_quantiles),
            "metrics, or declare fewer shards",
        ),
    ):
        if count * size > MAX_ROW_BYTES:
            return (
                f"a row may have {count:,} {what} × {size:,} bytes = {_size(count * size)}, over the "
                f"{_size(MAX_ROW_BYTES)} that Bigtable recommends at most; roll up fewer {advice}"
            )
    return None


def _events_and_bytes(schema: TableSchema, rate: Rate, length_us: int) -> tuple[int, int]:
    """Returns the number of a sensor's events in a time span, and the maximum bytes of state of one event."""
    identity = schema.identity
    by_time = identity.distinguishes_by_time_only
    every_us = max(rate.every_us, identity.grain_us) if by_time else rate.every_us
    return -(-length_us // every_us), (_TIME_BYTES if by_time else _WIDE_TIME_BYTES) + rate.metrics * _VALUE_BYTES


def warnings(schema: TableSchema) -> Iterator[str]:
    """Yields a line for each property of the schema that may cause trouble."""
    if problem := state_problem(schema):
        yield f"tiers: {problem}"
    if problem := rollup_problem(schema):
        yield f"rollups: {problem}"
    key, layout = schema.key, schema.layout
    if key.time_first:
        yield (
            f"key: {key} begins with the time: all sensors write to one tablet at a time, and reading one sensor "
            "reads the rows of all sensors; put {sensor_id} first"
        )
    if key.spread_factor > 1:
        yield f"key: {key} spreads sensors over {key.spread_factor:,} ranges: reading all sensors takes as many scans"
    if not schema.metrics.exhaustive:
        yield 'metrics: an event with a metric that no glob matches becomes a dead letter; "*" takes the others'
    if not schema.metadata.exhaustive and not layout.serializes:
        yield 'metadata: an event with a field that no glob matches becomes a dead letter; "*" takes the others'
    yield from _hidden_globs("metrics", schema.metrics)
    yield from _hidden_globs("metadata", schema.metadata)
    if schema.rate is None:
        yield from _without_rate(schema)


def _without_rate(schema: TableSchema) -> Iterator[str]:
    """Yields a line if the missing rate leaves a row's size, or the number of its events, unknown."""
    key, layout = schema.key, schema.layout
    grain, may_share_rows = format_interval(key.grain_us), not key.distinguishes_events
    if layout.bucketed or (layout.serializes and key.grain_us >= _SHARED_GRAIN_US and may_share_rows):
        yield f"rate: is not declared; the size of a row of {grain} is unknown"
    elif key.grain_us >= _SHARED_GRAIN_US and may_share_rows:
        yield (
            f"rate: is not declared; events of a sensor within {grain} share a row, distinguished only by cell "
            "timestamps, in milliseconds"
        )
    elif key.grain_us > 1 and may_share_rows and not layout.serializes:
        yield "rate: is not declared; two events of a sensor within 1ms become one event"


def _hidden_globs(key: str, rules: FamilyRules) -> Iterator[str]:
    catch_all = None
    for family, globs in rules.globs:
        if catch_all:
            for glob in globs:
                yield (
                    f"{key}.{family}: {json.dumps(glob)} never matches: "
                    f'"*" of {catch_all}, which comes first, takes everything'
                )
        elif "*" in globs:
            catch_all = family


def _bytes_per_event(schema: TableSchema, rate: Rate) -> int:
    """Returns the bytes that one event adds to a row."""
    layout = schema.layout
    if layout.serializes:
        return _event_bytes(rate) + _TIMESTAMP_BYTES + _EVENT_COLUMN_BYTES
    metadata = rate.metadata * (_NAME_BYTES + _NAME_BYTES + _TIMESTAMP_BYTES)
    if layout.row_per_metric:
        return (0 if layout.bucketed else _NAME_BYTES) + _VALUE_BYTES + _TIMESTAMP_BYTES + metadata
    return rate.metrics * (_NAME_BYTES + _VALUE_BYTES + _TIMESTAMP_BYTES) + metadata


def _event_bytes(rate: Rate) -> int:
    """Returns the size of a serialized event: 32 bytes, and the size of each map entry in protobuf."""
    if rate.event_bytes is not None:
        return rate.event_bytes
    return 32 + rate.metrics * (_NAME_BYTES + _VALUE_BYTES + 5) + rate.metadata * (2 * _NAME_BYTES + 6)


def _bucket_that_fits(schema: TableSchema, rate: Rate) -> str:
    event_bytes = _bytes_per_event(schema, rate)
    for bucket_us in _BUCKETS_US:
        row_bytes = -(-bucket_us // rate.every_us) * event_bytes
        if row_bytes <= MAX_ROW_BYTES:
            text = "1w" if bucket_us == WEEK_US else format_interval(bucket_us)
            return f"{{bucket:{text}}} would fit, with {_size(row_bytes)}"
    return "no bucket would fit; store less of each event"


def _size(count: int) -> str:
    for unit, length in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if count >= length:
            return f"{count / length:,.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count:,} bytes"
