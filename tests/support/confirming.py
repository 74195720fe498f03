"""Stands in for the steps that write rows and pass on what follows."""

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.rollups.due import read_written
from pipeline.core.rows.rows import EncodedRows
from pipeline.job.table_steps import TableSteps
from pipeline.transforms.confirm import Written
from pipeline.transforms.rollups import WrittenRows

ROWS = "written"
"""The tag of the rows that the step would have written."""

ROLLUP_ROWS, DUE = "rollup_rows", "rollup_due"
"""The tags of the rows that a step of roll-ups would have written, and of what is due then."""


def confirming(table: TableSteps, raw: PCollection) -> Written:
    """Passes on readings at the end of their bundle, and rows at once; instead of `TableSteps.write_raw_rows`."""
    written = raw | f"WriteRawRows{table.mark}" >> beam.ParDo(_ConfirmFn()).with_outputs(ROWS, main="readings")
    written.readings.element_type = KV[int, bytes]
    written[ROWS].element_type = EncodedRows
    return Written(written.readings)


def confirming_rollups(_: TableSteps, rows: PCollection, label: str) -> WrittenRows:
    """Passes on rows at once, and what is due at the end of their bundle; instead of `TableSteps.write_rollups`."""
    written = rows | label >> beam.ParDo(_ConfirmRollupsFn()).with_outputs(ROLLUP_ROWS, DUE)
    written[DUE].element_type = KV[int, bytes]
    written[ROLLUP_ROWS].element_type = EncodedRows
    return WrittenRows(written[DUE])


class _ConfirmFn(beam.DoFn):
    def start_bundle(self):
        self._readings = []

    def process(self, element):
        self._readings += element.readings
        yield TaggedOutput(ROWS, element.rows)

    def finish_bundle(self):
        for group, time_us, data in self._readings:
            yield WindowedValue((group, data), Timestamp(micros=time_us), (GlobalWindow(),))


class _ConfirmRollupsFn(beam.DoFn):
    def start_bundle(self):
        self._due = []

    def process(self, element):
        rows, due = read_written(element)
        self._due += due
        yield TaggedOutput(ROLLUP_ROWS, rows)

    def finish_bundle(self):
        for due in self._due:
            yield TaggedOutput(DUE, WindowedValue(due, Timestamp(0), (GlobalWindow(),)))
