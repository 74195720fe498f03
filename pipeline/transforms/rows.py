"""Formats events as rows of a table."""

from collections.abc import Iterable

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.core.events.event import Event
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics


class FormatRawRows(beam.PTransform):
    """Formats ``Event`` elements that the schema can store as ``Row`` elements, one or more each."""

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        self._schema = schema

    def expand(self, events: PCollection) -> PCollection:
        return events | "Format" >> beam.ParDo(_FormatRawRowsFn(self._schema))


class _FormatRawRowsFn(beam.DoFn):
    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._raw_rows = metrics.counter(metrics.RAW_ROWS)

    def process(self, element: Event) -> Iterable[Row]:
        rows = self._schema.rows(element)
        self._raw_rows.inc(len(rows))
        return rows
