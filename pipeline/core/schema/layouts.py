"""Layouts: convert events to rows and cells, and back.

Layouts that share a name with Google's page "Schema design for time series data" (Bigtable documentation) follow it.
A cell's timestamp is the event time in every layout, which makes age-based garbage collection follow event time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import md5
from typing import Any, ClassVar, NamedTuple, TypeVar

from pipeline.core.events.event import Event, deserialized, name_of, serialized
from pipeline.core.notation.cell_values import Values
from pipeline.core.rows.records import RawRecord, by_name, merge_parts
from pipeline.core.rows.rows import Cell, ColumnBytes, EncodedRow, Row, encoded, mutations_of, timestamp_of
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_template import KeyTemplate, RawKey
from pipeline.core.schema.key_tokens import ISO_US

_MAX_COLUMNS = 1 << 14  # columns in the cache
_new = tuple.__new__  # makes a Cell in half the time of its own constructor


@dataclass(frozen=True)
class Identity:
    """The rule by which a table distinguishes the events of a sensor; aggregates count the same events.

    Two events are the same if they agree in their event time, floored to the grain, in the metadata fields of row keys,
    and, if row keys contain it, in the event_id.

    Args:
        grain_us: the grain of the event time, in microseconds.
        metadata: the names of the metadata fields in row keys.
        event_id: whether row keys contain the event_id.
    """

    grain_us: int = 1
    metadata: tuple[str, ...] = ()
    event_id: bool = False

    @cached_property
    def distinguishes_by_time_only(self) -> bool:
        """Whether only the time distinguishes the events of a sensor."""
        return not self.metadata and not self.event_id

    def of_event(self, event: Event) -> tuple[int, str]:
        """Returns the time in µs, floored to the grain, and the other distinguishing fields as one text."""
        time_us = event[1]
        return time_us - time_us % self.grain_us, self._distinguishing_text(event[3], event[4])

    def of_record(self, record: RawRecord) -> tuple[int, str]:
        """Returns the same as :meth:`of_event` for an event that was read from the table."""
        time_us = record.event_time_us
        if self.distinguishes_by_time_only:
            return time_us - time_us % self.grain_us, ""
        return time_us - time_us % self.grain_us, self._distinguishing_text(record.metadata, record.event_id)

    def order(self, record: RawRecord) -> tuple[int, str]:
        """Returns the sort key that puts the events of one sensor newest first."""
        return -record.event_time_us, self._distinguishing_text(record.metadata, record.event_id)

    def merged(self, parts: Iterable[RawRecord]) -> list[RawRecord]:
        """Merges parts into events, newest first. If two parts contain the same reading, the first wins."""
        whole = merge_parts(parts, lambda part: (part.sensor_id, *self.of_record(part)))
        return sorted(whole, key=self.order)

    def _distinguishing_text(self, metadata: Mapping[str, str], event_id: str) -> str:
        texts = [metadata.get(name, "") for name in self.metadata]
        if self.event_id:
            texts.append(event_id)
        return "#".join(texts)  # no field of a key contains '#'


BY_TIME = Identity()
"""The identity of the default schema."""


@dataclass(frozen=True)
class LayoutContext:
    """The parts of a table's schema that a layout uses."""

    key: KeyTemplate
    values: Values
    metrics: FamilyRules
    metadata: FamilyRules

    @cached_property
    def pack(self) -> Callable[[float], bytes]:
        return self.values.pack

    @cached_property
    def metric_columns(self) -> "_ColumnsByMetric[tuple[str, bytes]]":
        """Family and qualifier by metric."""
        return _ColumnsByMetric(self.metrics, _column)

    @cached_property
    def encoded_metric_columns(self) -> "_ColumnsByMetric[ColumnBytes]":
        """Encoded family and qualifier by metric."""
        return _ColumnsByMetric(self.metrics, ColumnBytes)


_Column = TypeVar("_Column")


class _ColumnsByMetric(dict[str, _Column]):
    """A bounded cache of columns by metric."""

    def __init__(self, rules: FamilyRules, column: Callable[[str, bytes], _Column]) -> None:
        super().__init__()
        self._rules = rules
        self._column = column

    def __missing__(self, metric: str) -> _Column:
        column = self._column(self._rules.family_of(metric) or "", metric.encode())
        if len(self) < _MAX_COLUMNS:
            self[metric] = column
        return column

    def __reduce__(self) -> tuple[Any, ...]:
        return _ColumnsByMetric, (self._rules, self._column)


def _column(family: str, qualifier: bytes) -> tuple[str, bytes]:
    return family, qualifier


class CellSelection(NamedTuple):
    """The cells that a query needs; the server filters out the others."""

    families: tuple[str, ...]
    qualifiers: tuple[bytes, ...] | None = None  # None: all
    qualifier_range: tuple[bytes, bytes] | None = None  # the end exclusive
    times_us: tuple[int, int] | None = None  # range of cell timestamps, in whole milliseconds, the end exclusive
    versions: int | None = None  # the number of newest cells per column; None: all
    keys_only: bool = False  # one cell of each row, without its value
    times_only: bool = False  # cells without their values
    none_since_us: int | None = None  # rows with a selected cell of this time, in whole milliseconds, or later are left
    # out, as far as the server can tell
    without: tuple[bytes, ...] = ()  # the starts of columns that are left out


class Layout:
    """A layout. Stateless; :data:`LAYOUTS` contains all six.

    Attributes:
        name: the layout's name in a schema.
        row_per_metric: whether each metric has a row of its own, whose key needs ``{metric}``.
        bucketed: whether a row contains the events of a span of time, which its key alone does not distinguish.
        serializes: whether events are stored as protobuf, in one family.
    """

    name: ClassVar[str]
    row_per_metric: ClassVar[bool] = False
    bucketed: ClassVar[bool] = False
    serializes: ClassVar[bool] = False

    def rows(self, context: LayoutContext, event: Event) -> list[Row]:
        """Returns the rows of an event that has passed the schema's check."""
        raise NotImplementedError

    def encoded_rows(self, context: LayoutContext, events: Iterable[Event]) -> list[EncodedRow]:
        return [encoded(row) for event in events for row in self.rows(context, event)]

    def records(self, context: LayoutContext, key: RawKey, cells: Iterable[Cell]) -> list[RawRecord]:
        """Returns the events, or parts of events, in a row: each once, in no order.

        If two cells contain the same reading, the first wins. Raises ValueError for cells of another layout.
        """
        raise NotImplementedError

    def selection(
        self, context: LayoutContext, metrics: Iterable[str] | None, start_us: int, end_us: int, limit: int | None
    ) -> CellSelection:
        """Selects the cells of events from ``start_us`` to ``end_us``, exclusive: the ``limit`` newest of each column.

        With ``metrics``, selects only the cells of these, and no metadata.
        """
        families = context.metrics.families + (context.metadata.families if metrics is None else ())
        qualifiers = None if metrics is None else tuple(metric.encode() for metric in metrics)
        if self.selected_by_key_only(context):
            return CellSelection(families, qualifiers, versions=1)
        return CellSelection(families, qualifiers, times_us=(_up_to_ms(start_us), _up_to_ms(end_us)), versions=limit)

    def selected_by_key_only(self, context: LayoutContext) -> bool:
        """Whether row keys contain the event time to the microsecond, and cell timestamps need no filter."""
        return not self.bucketed and context.key.grain_us == 1

    def grain_us(self, context: LayoutContext) -> int:
        """Returns the time in microseconds by which two events of a sensor must differ to be stored separately."""
        return 1 if self.selected_by_key_only(context) else 1000

    def identity(self, context: LayoutContext) -> Identity:
        """Returns the rule by which rows and cells distinguish the events of a sensor."""
        key = context.key
        return Identity(self.grain_us(context), tuple(sorted(key.metadata_names)), key.distinguishes_events)

    def versions_are_events(self, context: LayoutContext) -> bool:
        """Whether the versions of one cell may belong to different events."""
        return context.key.grain_us > 1000

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_named, (self.name,)

    def __repr__(self) -> str:
        return self.name


class Wide(Layout):
    """A row per event, a column per metric ("single-timestamp rows, unserialised")."""

    name = "wide"

    def rows(self, context: LayoutContext, event: Event) -> list[Row]:
        timestamp_us = _to_ms(event.event_time_us)
        cells = self._cells(context, event, timestamp_us)
        if event.metadata:
            cells += _metadata_cells(context, event, timestamp_us)
        return [_new(Row, (context.key.render(event), cells))]

    def encoded_rows(self, context: LayoutContext, events: Iterable[Event]) -> list[EncodedRow]:
        # Skips Row and Cell, which halves the time. Appending one part at a time is faster than extending by four.
        events = list(events)
        column_of, keys = context.encoded_metric_columns, context.key.render_all(events)
        values = iter(context.values.pack_all([value for event in events for value in event[2].values()]))
        rows: list[EncodedRow] = []
        for event, key in zip(events, keys, strict=True):
            readings, timestamp_us = event[2], event[1] - event[1] % 1000
            time = timestamp_of(timestamp_us)
            parts: list[bytes] = []
            append = parts.append
            for name in readings:
                value = next(values)
                before, between = column_of[name][len(value)]
                append(before)
                append(time)
                append(between)
                append(value)
            cells = len(readings)
            if event[3]:
                metadata = _metadata_cells(context, event, timestamp_us)
                append(mutations_of(metadata))
                cells += len(metadata)
            rows.append(_new(EncodedRow, (key, b"".join(parts), cells)))
        return rows

    def records(self, context: LayoutContext, key: RawKey, cells: Iterable[Cell]) -> list[RawRecord]:
        parts = {key.time_us: cells} if self.selected_by_key_only(context) else _by_timestamp(cells)
        return [_record(context, key, time_us, of_event) for time_us, of_event in parts.items()]

    def _cells(self, context: LayoutContext, event: Event, timestamp_us: int) -> list[Cell]:
        """Returns a cell for each reading."""
        pack, column_of = context.pack, context.metric_columns
        return [_new(Cell, (*column_of[name], timestamp_us, pack(x))) for name, x in event.readings.items()]


class Tall(Wide):
    """A row per event and metric, with one reading."""

    name = "tall"
    row_per_metric = True

    encoded_rows = Layout.encoded_rows

    def rows(self, context: LayoutContext, event: Event) -> list[Row]:
        timestamp_us = _to_ms(event.event_time_us)
        cells, metadata = self._cells(context, event, timestamp_us), _metadata_cells(context, event, timestamp_us)
        return [
            Row(context.key.render(event, metric), [cell, *metadata])
            for metric, cell in zip(event.readings, cells, strict=True)
        ]


class Serialized(Layout):
    """A row per event, with the ``SensorEvent`` in one column ("single-timestamp rows, serialised").

    Each set of metrics has a column of its own: if an event's metrics arrive in several messages, no message replaces
    another. So has each set of names of metadata without readings. Column and timestamp together contain the event time
    to the microsecond. Columns of earlier releases, whose names lack the metrics, can be read as well.
    """

    name = "serialized"
    serializes = True

    def rows(self, context: LayoutContext, event: Event) -> list[Row]:
        digest = _digest(tuple(event.readings) or ("", *event.metadata))  # no metric has an empty name
        qualifier = f"{self._qualifier_start(context, event.event_time_us)}#{digest}".encode()
        timestamp_us = _to_ms(event.event_time_us)
        cell = Cell(context.metrics.families[0], qualifier, timestamp_us, serialized(event))
        return [Row(context.key.render(event), [cell])]

    def records(self, context: LayoutContext, key: RawKey, cells: Iterable[Cell]) -> list[RawRecord]:  # noqa: ARG002
        return merge_parts(
            (_deserialized_record(cell.value) for cell in cells),
            lambda part: (part.sensor_id, part.event_time_us),  # one row has at most one event at any time
        )

    def selection(
        self, context: LayoutContext, metrics: Iterable[str] | None, start_us: int, end_us: int, limit: int | None
    ) -> CellSelection:
        selection = super().selection(context, metrics, start_us, end_us, limit)
        # Events keep their microseconds but cell timestamps do not: the range starts at the millisecond that contains
        # start_us, and the cells at the end may include an event that is too late. Metrics are known after decoding.
        times_us = selection.times_us and (_to_ms(start_us), selection.times_us[1])
        versions = selection.versions if self.selected_by_key_only(context) else limit and metrics is None and limit + 1
        return selection._replace(qualifiers=None, times_us=times_us, versions=versions or None)

    def grain_us(self, context: LayoutContext) -> int:  # noqa: ARG002
        return 1

    def _qualifier_start(self, context: LayoutContext, time_us: int) -> str:
        """Returns the start of a column's qualifier: the digits of the time that key and timestamp do not contain."""
        return "event" if self.selected_by_key_only(context) else f"event.{time_us % 1000:03}"


class BucketCells(Wide):
    """A row per sensor and bucket, a column per metric, a cell per event ("new cells for new events")."""

    name = "bucket_cells"
    bucketed = True


class BucketColumns(Tall):
    """A row per sensor, metric and bucket. Qualifiers are values, cells are empty ("new columns for new events")."""

    name = "bucket_columns"
    bucketed = True

    def _cells(self, context: LayoutContext, event: Event, timestamp_us: int) -> list[Cell]:
        pack, column_of = context.pack, context.metric_columns
        return [Cell(column_of[name][0], pack(x), timestamp_us, b"") for name, x in event.readings.items()]

    def records(self, context: LayoutContext, key: RawKey, cells: Iterable[Cell]) -> list[RawRecord]:
        metric, in_metadata = key.metric.encode(), context.metadata.families
        named = (
            cell if cell.family in in_metadata else cell._replace(qualifier=metric, value=cell.qualifier)
            for cell in cells
        )
        return [_record(context, key, time_us, of_event) for time_us, of_event in _by_timestamp(named).items()]

    def selection(
        self, context: LayoutContext, metrics: Iterable[str] | None, start_us: int, end_us: int, limit: int | None
    ) -> CellSelection:
        return super().selection(context, metrics, start_us, end_us, limit)._replace(qualifiers=None)


class BucketSerialized(Serialized):
    """A row per sensor and bucket; a column per event, named by its time, with the ``SensorEvent``."""

    name = "bucket_serialized"
    bucketed = True

    def versions_are_events(self, context: LayoutContext) -> bool:  # noqa: ARG002
        return False  # each event has a column of its own

    def selection(
        self, context: LayoutContext, metrics: Iterable[str] | None, start_us: int, end_us: int, limit: int | None
    ) -> CellSelection:
        start, end = (ISO_US.render(time_us).encode() for time_us in (start_us, end_us))
        selection = super().selection(context, metrics, start_us, end_us, limit)
        return selection._replace(qualifier_range=(start, end), times_us=None, versions=1)

    def _qualifier_start(self, context: LayoutContext, time_us: int) -> str:  # noqa: ARG002
        return ISO_US.render(time_us)


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout for layout in (Wide(), Tall(), Serialized(), BucketCells(), BucketColumns(), BucketSerialized())
}


def layout_named(name: str) -> Layout:
    """Returns the layout of that name. Raises KeyError if it is unknown."""
    return LAYOUTS[name]


def _record(context: LayoutContext, key: RawKey, time_us: int, cells: Iterable[Cell]) -> RawRecord:
    readings, metadata = {}, dict(key.metadata)
    in_metadata, unpack = context.metadata.families, context.values.unpack
    families: dict[str, str] = {}  # the readings' families, by metric
    for family, qualifier, _, value in cells:
        if family in in_metadata:
            metadata.setdefault(name_of(qualifier), value.decode())
        else:
            name, reading = name_of(qualifier), unpack(value)  # checks each cell, also one that does not count
            first = families.get(name)
            # A metric may be in two families if the rules have changed: the family that takes it now has precedence.
            if first is None or (first != family and context.metrics.family_of(name) == family):
                families[name] = family
                readings[name] = reading
    return RawRecord(key.sensor_id, time_us, by_name(readings), by_name(metadata), key.event_id)


def _deserialized_record(data: bytes) -> RawRecord:
    event = deserialized(data)
    return RawRecord(
        event.sensor_id, event.event_time_us, by_name(event.readings), by_name(event.metadata), event.event_id
    )


def _metadata_cells(context: LayoutContext, event: Event, timestamp_us: int) -> list[Cell]:
    """Returns a cell per metadata field, except for those in the key."""
    return [
        Cell(context.metadata.family_of(name) or "", name.encode(), timestamp_us, text.encode())
        for name, text in event.metadata.items()
        if name not in context.key.metadata_names
    ]


def _by_timestamp(cells: Iterable[Cell]) -> dict[int, list[Cell]]:
    by_timestamp = defaultdict(list)
    for cell in cells:
        by_timestamp[cell.timestamp_us].append(cell)
    return by_timestamp


@lru_cache(maxsize=128)  # most fleets have few sets of metrics
def _digest(names: tuple[str, ...]) -> str:
    """Returns 16 hexadecimal digits that identify a set of names, in any order."""
    return md5("#".join(sorted(names)).encode(), usedforsecurity=False).hexdigest()[:16]


def _to_ms(time_us: int) -> int:
    return time_us - time_us % 1000


def _up_to_ms(time_us: int) -> int:
    return time_us + -time_us % 1000
