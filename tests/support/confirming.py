"""Stands in for the steps that write rows and pass on what follows."""

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.rows.rows import EncodedRows
from pipeline.job.table_steps import TableSteps
from pipeline.transforms.write import Written

ROWS = "written"
"""The tag of the rows that the step would have written."""


def confirming(table: TableSteps, raw: PCollection) -> Written:
    """Passes on readings at the end of their bundle, and rows at once; instead of `TableSteps.write_raw_rows`."""
    written = raw | f"WriteRawRows{table.mark}" >> beam.ParDo(_ConfirmFn()).with_outputs(ROWS, main="readings")
    written.readings.element_type = KV[int, bytes]
    written[ROWS].element_type = EncodedRows
    return Written(written.readings)


class _ConfirmFn(beam.DoFn):
    def start_bundle(self):
        self._readings = []

    def process(self, element):
        self._readings += element.readings
        yield TaggedOutput(ROWS, element.rows)

    def finish_bundle(self):
        for group, time_us, data in self._readings:
            yield WindowedValue((group, data), Timestamp(micros=time_us), (GlobalWindow(),))


def dropping(*_) -> beam.DoFn:
    """Returns a writer that drops aggregate rows, and refuses none; instead of `TableSteps.aggregate_writer`."""
    return _DropFn()


class _DropFn(beam.DoFn):
    guard = None

    def process(self, _):
        return ()

    def finish_bundle(self):
        return ()
