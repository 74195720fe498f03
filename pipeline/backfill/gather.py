"""Gathers the readings of each window in accumulators, which are shuffled instead of events."""

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.gathering import BundleReadings
from pipeline.core.events.event import Event
from pipeline.core.schema.identity import Identity
from pipeline.core.windows.fixed import Window


class PreAggregateReadings(beam.PTransform):
    """Combines the ``Event`` elements of a bundle into ``(sensor_id, WindowReadings)``, one for each window.

    The timestamp of an output is the start of its window.

    Args:
        window: the windows' length.
        identity: the rule by which the table distinguishes the events of a sensor.
    """

    def __init__(self, window: Window, identity: Identity) -> None:
        super().__init__()
        self._gathered = BundleReadings(window, identity)

    def expand(self, events: PCollection) -> PCollection:
        return events | "Gather" >> beam.ParDo(_GatherFn(self._gathered)).with_output_types(tuple[str, WindowReadings])


class _GatherFn(beam.DoFn):
    def __init__(self, gathered: BundleReadings) -> None:
        self._gathered = gathered

    def start_bundle(self) -> None:
        self._gathered.start()

    def process(self, element: Event) -> None:
        if element.readings:  # not of metadata alone
            self._gathered.add([element])

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for (sensor_id, start_us), columns in self._gathered.take().items():
            readings = WindowReadings.of(columns)
            yield WindowedValue((sensor_id, readings), Timestamp(micros=start_us), (GlobalWindow(),))
