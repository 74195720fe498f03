"""Brings the rows of newest readings in line with the raw rows that a repair reads."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PCollection
from apache_beam.typehints import KV

from pipeline.cloud.connection.names import TableName
from pipeline.core.completion.newest_audit import NewestAudit, WrongCell
from pipeline.core.queries.reads import RowSelection, in_batches
from pipeline.core.queries.sweeps import Span
from pipeline.core.rows.newest_row import NewestCell, latest_key, latest_range
from pipeline.core.rows.rows import Cell, KeyRange, split_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics
from pipeline.transforms.tables import RETRY_S, TableReadingFn, now_us

_FOUND, _STORED = "found", "stored"
_MOST_ROWS = 10_000  # in memory together
_GROUPS = 1024  # of sensors, which are compared together
_MOST_TIMES = 3  # that the readings of a row are looked up, if a job keeps writing it

NewestOfSensors = tuple[int, list[tuple[str, list[NewestCell]]]]
"""A group of sensors, and the newest readings of each, as far as they were read together."""


K = TypeVar("K")
V = TypeVar("V")


def gathered(pairs: Iterable[tuple[K, V]], most: int) -> Iterator[tuple[K, list[V]]]:
    """Yields keys with their values, of at most so many pairs at a time: a key may come again."""
    pairs = iter(pairs)
    while some := list(islice(pairs, most)):
        found: dict[K, list[V]] = defaultdict(list)
        for key, value in some:
            found[key].append(value)
        yield from found.items()


def by_group(cells: Iterable[tuple[str, list[NewestCell]]]) -> Iterable[NewestOfSensors]:
    """Returns newest readings by the sensors' group."""
    found: dict[int, list[tuple[str, list[NewestCell]]]] = defaultdict(list)
    for sensor_id, of_sensor in cells:
        found[group_of(sensor_id.encode(), _GROUPS)].append((sensor_id, of_sensor))
    return found.items()


def newest_keys(spans: Sequence[Span], at: list[bytes]) -> list[tuple[KeyRange, ...]]:
    """Returns the keys of the rows of the spans' sensors, in parts that workers can read in parallel."""
    if any(span.sensors is None for span in spans):
        return [(keys,) for keys in split_range(latest_range(), at)]
    keys = map(latest_key, sorted({sensor_id for span in spans for sensor_id in span.sensors or ()}))
    return list(in_batches(KeyRange(key, key + b"\x00") for key in keys))


@dataclass(eq=False)
class AuditNewest(beam.PTransform):
    """Compares rows of newest readings with raw rows and, unless it is a dry run, rewrites those that differ.

    Takes the :data:`NewestOfSensors` of all raw rows in the spans, and any collection that is complete once the windows
    around these are right. Has no output.

    Args:
        schema: the table's schema, with a family of newest readings.
        spans: the spans whose raw rows are read, of windows that no job writes any longer.
        keys: the keys of the rows to compare, in parts.
    """

    table: TableName
    schema: TableSchema
    retention: Retention
    spans: Sequence[Span]
    keys: Sequence[tuple[KeyRange, ...]]
    dry_run: bool

    def expand(self, given: Any) -> PCollection:  # two collections; Beam takes the annotation for a type hint and warns
        found, repaired = given
        stored = (
            found.pipeline
            | "NewestParts" >> beam.Create(self.keys)
            | "SpreadNewestParts" >> beam.Reshuffle()
            | "ReadNewest" >> beam.ParDo(_ReadNewestFn(self.table, self.schema))
        )
        compare_fn = _CompareNewestFn(self.table, self.schema, self.retention, self.spans, dry_run=self.dry_run)
        return (
            {_FOUND: found, _STORED: stored}
            | "JoinNewest" >> beam.CoGroupByKey()
            | "CompareNewest" >> beam.ParDo(compare_fn, AsSingleton(repaired | "Repaired" >> beam.CombineGlobally(_no)))
        )


def _no(_windows: Iterable[object]) -> int:
    return 0


@beam.typehints.with_output_types(KV[int, Any])
class _ReadNewestFn(TableReadingFn):
    """Reads rows of newest readings by groups of sensors: the sensor and the cells of each."""

    def __init__(self, table: TableName, schema: TableSchema) -> None:
        super().__init__(table)
        self._cells = CellSelection((schema.latest or "",), versions=1)

    def process(self, element: tuple[KeyRange, ...]) -> Iterator[tuple[int, list[tuple[str, list[Cell]]]]]:
        return gathered(self._found(element), _MOST_ROWS)

    def _found(self, keys: tuple[KeyRange, ...]) -> Iterator[tuple[int, tuple[str, list[Cell]]]]:
        for ranges in in_batches(iter(keys)):
            for row in self._read(RowSelection(ranges, self._cells)):
                sensor = row.key.removeprefix(latest_key(""))
                yield group_of(sensor, _GROUPS), (sensor.decode(errors="replace"), row.cells)


class _CompareNewestFn(TableReadingFn):
    def __init__(
        self, table: TableName, schema: TableSchema, retention: Retention, spans: Sequence[Span], *, dry_run: bool
    ) -> None:
        super().__init__(table, RETRY_S)
        self._schema, self._retention, self._spans, self._dry_run = schema, retention, spans, dry_run
        self._wrong = metrics.counter(metrics.REPAIR_NEWEST_WRONG)

    def start_bundle(self) -> None:
        self._audit = NewestAudit(self._schema, self._retention, self._read, self._spans, now_us())

    def process(self, element: tuple[int, Mapping[str, Iterable[Any]]], _repaired: int) -> None:
        _, given = element
        found: dict[str, list[NewestCell]] = defaultdict(list)
        for sensor_id, cells in chain.from_iterable(given[_FOUND]):
            found[sensor_id] += cells
        stored: dict[str, list[Cell]] = dict(chain.from_iterable(given[_STORED]))
        wrong = {
            sensor_id: cells
            for sensor_id in stored.keys() | found.keys()
            if (cells := self._audit.wrong_cells(sensor_id, stored.get(sensor_id, ()), found.get(sensor_id, ())))
        }
        self._wrong.inc(len(wrong))
        if not self._dry_run:
            self._rewrite(wrong)

    def _rewrite(self, wrong: Mapping[str, Sequence[WrongCell]]) -> None:
        """Writes rows, and looks again for readings that a job has written beside stale ones."""
        written: dict[bytes, bytes] = {}
        for _ in range(_MOST_TIMES):
            rows = [row for sensor_id, cells in wrong.items() if (row := self._audit.row(sensor_id, cells)) is not None]
            new = [row for row in rows if written.get(row.key) != row.mutations]
            if new:
                self._writer.write(new)
                written |= {row.key: row.mutations for row in new}
            stale = {each: [cell for cell in cells if cell.stale_us is not None] for each, cells in wrong.items()}
            wrong = {each: cells for each, cells in stale.items() if cells}
