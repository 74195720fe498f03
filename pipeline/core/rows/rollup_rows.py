"""Writes and parses the rows of roll-ups, all in one family:

    rollup#{window}#{name}#{value}#{start}         what a group's sensors have in a window, merged
    rollup_parts#{window}#{name}#{value}#{start}   what it is merged from: a cell for each shard of sensors
    rollup_members#{window}#{shard}#{start}        a cell for each sensor of a shard: what it has in the window

Windows and starts are written as in the keys of aggregate rows, and so are the columns of the first kind, besides
``sensors``, the number of sensors, and ``expected``, the number that the schema declares.

A cell's timestamp is the window's start plus a millisecond for each version, and its version is how much it counts:
that of a sensor's cell is the number of its events and readings, that of a shard's part the sum of the versions of all
cells of the row of members, and that of a group's row the sum of the versions of its parts. So whatever is written
twice, late or in another order, the cell that counts most is the newest. Writing a row deletes the versions before its
cells, every eighth time or so: that halves the mutations, and a cell has few versions even where it is written each
minute of a month. Of a group's row, the cells count that have the version of ``sensors``: others are of metrics that it
no longer has.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

from pipeline.core.notation.cell_values import format_values, parse_value, shown_bytes
from pipeline.core.rows.aggregate_rows import READING_COUNT, parse_statistic
from pipeline.core.rows.records import GroupRecord, SensorGroup, summary_of
from pipeline.core.rows.rows import EncodedRow, KeyRange, Row, delete_column, prefix_range, replacing
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import (
    MetricStats,
    Statistic,
    Statistics,
    Value,
    WindowSpan,
    WindowStats,
    qualifier_of,
    split_qualifier,
)
from pipeline.core.windows import Window

FAMILY = "rollup"
"""The family of all rows of roll-ups."""

ROLLUP, PARTS, MEMBERS = "rollup", "rollup_parts", "rollup_members"
"""What the keys begin with."""

SENSORS, EXPECTED = "sensors", "expected"
"""Columns beside those of aggregate rows."""

LEFT = b"#left"
"""A column of rows of members. Its version is how much was counted that no cell counts any more: versions of the row's
parts only grow. Its value is the metadata of sensors that counted it, a line for each."""

_VERSION_US = 1000
DELETES_EVERY = 8
"""Of so many times that a row is written, one deletes the versions before, on average."""
_VALUE = re.compile(r"[A-Za-z0-9_.~%/+-]{0,200}")
_RISEN = ("increase", "rate")
_LEFT_OUT = ("rises", "first", "last", "held", "sloped")  # parts, or cells that only serve merging


class RollupKey(NamedTuple):
    """The parts of a key of a group's row."""

    name: str
    value: str
    start_us: int


class Versioned(NamedTuple):
    """A cell's version, from 1, and its value."""

    version: int
    value: bytes


def rollup_key(window: Window, name: str, value: str, start_us: int, kind: str = ROLLUP) -> bytes:
    """Returns the key of a group's row, or with :data:`PARTS` that of its parts."""
    return f"{kind}#{window.label}#{name}#{value}#{window.start_text(start_us)}".encode()


def members_key(window: Window, shard: int, start_us: int) -> bytes:
    """Returns the key of what the sensors of a shard have in a window."""
    return f"{MEMBERS}#{window.label}#{shard}#{window.start_text(start_us)}".encode()


def rollup_range(window: Window, name: str, value: str, start_us: int, end_us: int) -> KeyRange:
    """Returns the keys of a group's windows that start in [``start_us``, ``end_us``), oldest first."""
    first, end = window.first_start(start_us), window.first_start(end_us)
    return KeyRange(rollup_key(window, name, value, first), rollup_key(window, name, value, end))


def members_range(window: Window, shard: int, start_us: int, end_us: int) -> KeyRange:
    """Returns the keys of what a shard's sensors have in windows that start in [``start_us``, ``end_us``)."""
    first, end = window.first_start(start_us), window.first_start(end_us)
    return KeyRange(members_key(window, shard, first), members_key(window, shard, end))


def groups_range(window: Window, name: str, kind: str = ROLLUP) -> KeyRange:
    """Returns the keys of all groups of a roll-up."""
    return prefix_range(f"{kind}#{window.label}#{name}#".encode())


def parse_rollup_key(window: Window, key: bytes, kind: str = ROLLUP) -> RollupKey:
    """Parses the key of a group's row. Raises ValueError for another key."""
    parts = key.decode("ascii", errors="replace").split("#")
    if len(parts) != 5 or parts[:2] != [kind, window.label] or not _VALUE.fullmatch(parts[3]):
        raise ValueError(f"it is not the key of a roll-up's window of {window.text}")
    return RollupKey(parts[2], parts[3], _start(window, parts[4]))


def parse_members_key(window: Window, key: bytes) -> tuple[int, int]:
    """Returns the shard and the start in µs that a key names. Raises ValueError for another key."""
    parts = key.decode("ascii", errors="replace").split("#")
    if len(parts) != 4 or parts[:2] != [MEMBERS, window.label] or not parts[2].isdigit():
        raise ValueError(f"it is not the key of what sensors have in a window of {window.text}")
    return int(parts[2]), _start(window, parts[3])


def is_sensor(column: bytes) -> bool:
    """Returns whether a column of a row of members is that of a sensor, whose id can't begin so."""
    return not column.startswith(b"#")


def versioned_row(
    key: bytes,
    start_us: int,
    cells: Iterable[tuple[bytes, Versioned]],
    gone: Mapping[bytes, int] = MappingProxyType({}),
) -> EncodedRow:
    """Returns a row that writes cells, by their columns.

    Some versions of a row, which differ from row to row, delete the versions before their cells.

    Args:
        key: the key.
        start_us: the window's start.
        cells: the cells.
        gone: versions to delete with all versions before them, by column.
    """
    found = [(column, start_us + version * _VERSION_US, value) for column, (version, value) in cells]
    deleted = [delete_column(FAMILY, column, start_us + (gone[column] + 1) * _VERSION_US) for column in gone]
    newest_us = max([at_us for _, at_us, _ in found], default=0)
    deletes = crc32(key, newest_us & 0xFFFFFFFF) % DELETES_EVERY == 0
    mutations = b"".join((*deleted, replacing(FAMILY, found, delete=deletes)))
    return EncodedRow(key, mutations, len(deleted) + len(found) * (1 + deletes))


def versions_in(row: Row, start_us: int) -> dict[bytes, Versioned]:
    """Returns the newest version of each cell, by its column."""
    found: dict[bytes, Versioned] = {}
    for _, column, timestamp_us, value in row.cells:
        version = (timestamp_us - start_us) // _VERSION_US
        if column not in found or found[column].version < version:
            found[column] = Versioned(version, value)
    return found


def unreadable(row: Row, column: bytes) -> ValueError:
    """Returns the error for a cell that a job can't read. Without it, a group's row would have less than was known."""
    key, name = (text.decode(errors="backslashreplace") for text in (row.key, column))
    return ValueError(
        f"another program wrote column {name} of row {key}, which roll-ups need; run 'tidetable repair --rollups'"
    )


def rollup_texts(
    window: Window,
    start_us: int,
    stats: WindowStats,
    sensors: int,
    statistics: Statistics,
    expected: int | None = None,
) -> dict[str, bytes]:
    """Returns the values of the row of a group's window by column. Without sensors, it shows only that."""
    texts: dict[str, bytes] = {SENSORS: b"%d" % sensors}
    if sensors:
        if expected is not None:
            texts[EXPECTED] = b"%d" % expected
        texts[READING_COUNT] = b"%d" % stats.events
        span = statistics.span(window, start_us)
        of_all = span._replace(expected=span.expected and span.expected * sensors)
        numbers: dict[str, float] = {}
        for metric, of_metric in stats.metrics.items():
            for column, statistic in _columns_of(statistics.of(metric), metric):
                value = _value(statistic, of_metric, of_all)
                if isinstance(value, Sketch):
                    texts[column] = value.to_bytes()
                elif value is not None:
                    numbers[column] = value
        texts.update(zip(numbers, format_values(numbers.values()), strict=True))
    return texts


def parse_rollup_row(window: Window, row: Row) -> GroupRecord | None:
    """Parses the row of a group's window, without the group's fields; None if the group has no sensor in it any more.

    The row has to contain the column ``sensors``, whichever others were read.

    Raises:
        ValueError: it has no columns of :func:`rollup_texts`.
    """
    name, value, start_us = parse_rollup_key(window, row.key)
    cells = versions_in(row, start_us)
    counted = cells.get(SENSORS.encode())
    if counted is None:
        raise ValueError(f"it has no {SENSORS}")
    numbers: dict[str, int] = {SENSORS: 0, READING_COUNT: 0}
    found: dict[str, dict[str, Value]] = defaultdict(dict)
    for column, (version, text) in cells.items():
        if version != counted.version:
            continue  # of a metric that the group had before
        try:
            if column in (SENSORS.encode(), EXPECTED.encode(), READING_COUNT.encode()):
                numbers[column.decode()] = _whole(text)
            else:
                statistic, metric = split_qualifier(column.decode())
                found[metric][statistic.name] = parse_statistic(column, text)
        except ValueError as error:
            raise ValueError(f"{shown_bytes(column)}: {error}") from error
    if not numbers[SENSORS]:
        return None
    metrics = {}
    for metric in sorted(found):
        if "count" not in found[metric]:
            raise ValueError(f"metric {metric} has no count")
        metrics[metric] = summary_of(found[metric])
    group, counts = SensorGroup(name, value, {}), (numbers[SENSORS], numbers.get(EXPECTED), numbers[READING_COUNT])
    return GroupRecord(group, start_us, window, *counts, metrics)


@lru_cache(maxsize=1024)
def merged_statistics(named: tuple[Statistic, ...]) -> tuple[Statistic, ...]:
    """Returns the statistics of a metric that roll-ups have: the others depend on one sensor's readings in time."""
    return tuple(
        each for each in named if each.name in _RISEN or (each.part not in _LEFT_OUT and each.name not in _LEFT_OUT)
    )


@lru_cache(maxsize=4096)
def _columns_of(named: tuple[Statistic, ...], metric: str) -> list[tuple[str, Statistic]]:
    return [(qualifier_of(each.name, metric), each) for each in merged_statistics(named)]


def _value(statistic: Statistic, stats: MetricStats, span: WindowSpan) -> float | Sketch | None:
    if statistic.name in _RISEN:
        risen = (stats.parts or {}).get("risen")
        return risen and getattr(risen, statistic.name)
    value = statistic.value(stats, span)
    return value if value is None or isinstance(value, Sketch) else float(value)  # type: ignore[arg-type]  # no course


def _whole(text: bytes) -> int:
    number = parse_value(text)
    if number < 0 or not number.is_integer():
        raise ValueError(f"{shown_bytes(text)} is not a number of sensors or events")
    return int(number)


def _start(window: Window, text: str) -> int:
    try:
        return window.parse_start(text)
    except ValueError:
        raise ValueError(f"it is not the key of a window of {window.text}") from None
