"""Gathers the newest readings of the events in the files."""

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.events.event import Event
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.retention import Retention
from pipeline.transforms.tables import now_us


@dataclass(eq=False)
class NewestOfEach(beam.PTransform):
    """Gathers the newest readings of ``Event`` elements: ``EncodedRows`` with a row for each sensor of a bundle.

    Args:
        family: the family of the rows.
        retention: the table's retention.
        metadata: whether to gather the newest metadata too.
    """

    family: str
    retention: Retention
    metadata: bool = False

    def expand(self, events: PCollection) -> PCollection:
        newest_fn = _NewestFn(self.family, self.retention, metadata=self.metadata)
        return events | "Gather" >> beam.ParDo(newest_fn).with_output_types(EncodedRows)


class _NewestFn(beam.DoFn):
    def __init__(self, family: str, retention: Retention, *, metadata: bool = False) -> None:
        self._family = family
        self._retention = retention
        self._metadata = metadata

    def start_bundle(self) -> None:
        self._newest = NewestReadings()

    def process(self, element: Event) -> None:
        self._newest.add(element.sensor_id, element.event_time_us, element.readings.items())
        if self._metadata:
            self._newest.add_metadata(element.sensor_id, element.event_time_us, element.metadata)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        stays_from_us = self._retention.cells_stay_from_us(self._family, now_us())
        rows = EncodedRows(self._newest.rows(self._family, stays_from_us))
        if rows:
            yield WindowedValue(rows, MIN_TIMESTAMP, (GlobalWindow(),))
