"""Restores windows that began before the job from what the table stores: each is read once."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.userstate import ReadModifyWriteRuntimeState, ReadModifyWriteStateSpec
from apache_beam.typehints import KV

from pipeline.cloud.names import TableName
from pipeline.core.completion import RestoreMethod
from pipeline.core.schema.foreign import ForeignRow
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics
from pipeline.transforms.tables import CompletingFn, now_us

_STORED = "held"
_INCOMPLETE = "unsure"
_ASKED = beam.DoFn.StateParam(ReadModifyWriteStateSpec("asked", BooleanCoder()))


class RestoredWindows(NamedTuple):
    """The outputs of restoring.

    Attributes:
        stored: ``(sensor_id, what the table stores of the window)``, to be added to the window's accumulator.
        incomplete: ``(sensor_id, start in µs)`` of windows that the table may not store completely: a repair has to
            check them.
    """

    stored: PCollection
    incomplete: PCollection


class RestoreWindows(beam.PTransform):
    """Restores the windows of ``(sensor_id, anything)`` elements to :class:`RestoredWindows`.

    Reads once for each sensor and window, at its first element, and only windows that began before the job: the job
    has seen everything in later windows itself, so they cost nothing. A job that is updated in place keeps in its
    state which windows it has read.

    Args:
        table: its name, its schema, and what may be collected of it.
        restore: how the table is read.
        before_us: windows that start earlier began before the job.
    """

    def __init__(self, table: tuple[TableName, TableSchema, Retention], restore: RestoreMethod, before_us: int) -> None:
        super().__init__()
        self.before_us = before_us
        self._table = table
        self._restore = restore

    def expand(self, keyed: PCollection) -> Any:  # RestoredWindows, which Beam would take for a type hint
        # The first step reduces thousands of elements to one, so the steps behind it cost almost nothing.
        outputs = (
            keyed
            | "OnceABundle" >> beam.ParDo(_OnceABundleFn(self.before_us)).with_output_types(tuple[str, bool])
            | "Once" >> beam.ParDo(_OnceFn()).with_output_types(tuple[str, bool])
            | "Read" >> beam.ParDo(_ReadFn(*self._table, self._restore)).with_outputs(_INCOMPLETE, main=_STORED)
        )
        outputs[_STORED].element_type = KV[str, Any]
        return RestoredWindows(outputs[_STORED], outputs[_INCOMPLETE])


class _OnceABundleFn(beam.DoFn):
    def __init__(self, before_us: int) -> None:
        self._before_us = before_us

    def start_bundle(self) -> None:
        self._seen: set[tuple[str, int]] = set()

    def process(self, element: tuple[str, Any], window: Any = beam.DoFn.WindowParam) -> Iterator[tuple[str, bool]]:
        start_us = window.start.micros
        if start_us < self._before_us and (element[0], start_us) not in self._seen:
            self._seen.add((element[0], start_us))
            yield element[0], True


class _OnceFn(beam.DoFn):
    def process(
        self, element: tuple[str, bool], asked: ReadModifyWriteRuntimeState = _ASKED
    ) -> Iterator[tuple[str, bool]]:
        if not asked.read():
            asked.write(True)
            yield element


class _ReadFn(CompletingFn):
    def __init__(self, name: TableName, schema: TableSchema, retention: Retention, restore: RestoreMethod) -> None:
        super().__init__(name, schema, retention)
        self._restore = restore
        self._restored = metrics.counter(metrics.WINDOWS_RESTORED)
        self._incomplete = metrics.counter(metrics.WINDOWS_INCOMPLETE)

    def process(self, element: tuple[str, bool], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        sensor_id, start_us = element[0], window.start.micros
        try:
            stored, complete = self._restore.restore(self._completion, sensor_id, start_us, now_us())
        except ForeignRow:
            # Another program wrote this row. Reading again would find it again: the window waits for a repair.
            stored, complete = None, False
        if stored is not None:
            self._restored.inc()
            yield sensor_id, stored
        if not complete:
            self._incomplete.inc()
            yield TaggedOutput(_INCOMPLETE, (sensor_id, start_us))
