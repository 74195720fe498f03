"""Finds every row of a sensor: raw rows, aggregate rows of all tiers, newest readings and the work list.

Reads keys alone, parses them, and compares their sensor with the id: so it finds no row of another sensor, however
similar the ids, and no row of another program.
"""

import re
from collections.abc import Iterator

from pipeline.core.queries.reads import ForeignRow, OnForeign, ReadRows, RowSelection, raw_keys
from pipeline.core.rows.newest_row import latest_range
from pipeline.core.rows.rows import KeyRange, after_prefix, prefix_range
from pipeline.core.schema.key_template import KeyBindings
from pipeline.core.schema.key_tokens import SensorToken
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema

RAW, AGGREGATES, LATEST, LISTED = "raw rows", "aggregate rows", "rows of newest readings", "listed windows"
ALERTS = "rows of alerts"
KINDS = (RAW, AGGREGATES, LATEST, LISTED, ALERTS)

_KEYS = CellSelection((), keys_only=True)
_START = re.compile(r"\d{4}-\d\d(-\d\d(T\d\d(:\d\d:\d\d)?)?)?")  # the start of a window in keys


def rows_of_sensor(
    schema: TableSchema, read: ReadRows, sensor_id: str, on_foreign: OnForeign
) -> Iterator[tuple[str, bytes]]:
    """Yields the kind and the key of every row of a sensor.

    Reads only the sensor's rows, and seeks each tier. If another field comes first in the keys of raw rows, the server
    searches all of them, and sends those of the sensor.
    """
    for key in _raw_keys(schema, read, sensor_id, on_foreign):
        yield RAW, key
    for kind, first in ((AGGREGATES, b"agg#"), (LISTED, b"repair#")):
        for key in _window_keys(read, first, sensor_id, on_foreign):
            yield kind, key
    own = latest_range(sensor_id).start
    for row in read(RowSelection(KeyRange(own, own + b"\x00"), _KEYS, page_rows=1)):
        yield LATEST, row.key
    for keys in _rules(read):
        of_rule = keys.start + sensor_id.encode()
        for row in read(RowSelection(KeyRange(of_rule, of_rule + b"\x00"), _KEYS, page_rows=1)):
            yield ALERTS, row.key


def _raw_keys(schema: TableSchema, read: ReadRows, sensor_id: str, on_foreign: OnForeign) -> Iterator[bytes]:
    known = KeyBindings(sensor_id)
    prefix = schema.key.prefix(known)
    unknown = schema.key.first_unknown(known)
    unknown_at = schema.key.index_of_first_time if unknown is None else schema.key.parts.index(unknown)
    located = schema.key.index(SensorToken) < unknown_at
    pattern = None if located else schema.key.pattern_of_sensor(sensor_id)
    ranges = [prefix_range(prefix)] if prefix else raw_keys()
    for key_range in ranges:
        for row in read(RowSelection(key_range, _KEYS, pattern)):
            try:
                found = schema.key.parse_key(row.key).sensor_id
            except ValueError as error:
                on_foreign(ForeignRow(row, error))
                continue
            if found == sensor_id:
                yield row.key


def _rules(read: ReadRows) -> Iterator[KeyRange]:
    """Yields the keys of each rule's alerts, also of rules that are no longer there."""
    rest = prefix_range(b"alert#")
    while row := next(read(RowSelection(rest, _KEYS, page_rows=1)), None):
        rule, separator, _ = row.key.removeprefix(b"alert#").partition(b"#")
        of_rule = prefix_range(b"alert#" + rule + separator)
        yield of_rule
        rest = rest._replace(start=of_rule.end)


def _window_keys(read: ReadRows, first: bytes, sensor_id: str, on_foreign: OnForeign) -> Iterator[bytes]:
    """Yields the keys of a sensor's windows of every length, also of tiers that the schema no longer has."""
    rest: KeyRange = prefix_range(first)
    while row := next(read(RowSelection(rest, _KEYS, page_rows=1)), None):
        label, separator, _ = row.key.removeprefix(first).partition(b"#")
        of_label = first + label + separator
        rest = rest._replace(start=after_prefix(of_label) if separator else row.key + b"\x00")
        if not separator:
            continue
        of_sensor = of_label + sensor_id.encode() + b"#"
        for found in read(RowSelection(prefix_range(of_sensor), _KEYS)):
            if _START.fullmatch(found.key.removeprefix(of_sensor).decode(errors="replace")):
                yield found.key
            else:
                on_foreign(ForeignRow(found, ValueError("its key does not end with the start of a window")))
