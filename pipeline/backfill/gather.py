"""Gathers the readings of each window in accumulators, which are shuffled instead of events."""

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.pre_aggregation import BundlePreAggregator
from pipeline.core.events.event import Event
from pipeline.core.schema.identity import Identity
from pipeline.core.windows.fixed import Window
from pipeline.transforms.coders import AccumulatorCoder


class PreAggregateReadings(beam.PTransform):
    """Combines the ``Event`` elements of a bundle into ``(sensor_id, WindowReadings)``, one for each window.

    The timestamp of an output is a time within its window.

    Args:
        window: of the tier.
        identity: how the table distinguishes the events of a sensor.
    """

    def __init__(self, window: Window, identity: Identity) -> None:
        super().__init__()
        self._pre_aggregator = BundlePreAggregator(window, identity)

    def expand(self, events: PCollection) -> PCollection:
        return events | "Gather" >> beam.ParDo(_GatherFn(self._pre_aggregator)).with_output_types(
            tuple[str, WindowReadings]
        )


class _GatherFn(beam.DoFn):
    def __init__(self, pre_aggregator: BundlePreAggregator) -> None:
        self._pre_aggregator = pre_aggregator

    def start_bundle(self) -> None:
        self._pre_aggregator.start()

    def process(self, element: Event) -> None:
        self._pre_aggregator.add([element])

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for sensor_id, time_us, readings in self._pre_aggregator.take():
            yield WindowedValue((sensor_id, readings), Timestamp(micros=time_us), (GlobalWindow(),))


class MergeReadingsFn(beam.CombineFn):
    """Merges the accumulators of a window. The output is an accumulator too: the table's raw rows are still to come."""

    def create_accumulator(self) -> WindowReadings:
        return WindowReadings()

    def add_input(self, mutable_accumulator: WindowReadings, element: WindowReadings) -> WindowReadings:
        mutable_accumulator.merge(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[WindowReadings]) -> WindowReadings:
        merged = WindowReadings()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: WindowReadings) -> WindowReadings:
        return accumulator

    def get_accumulator_coder(self) -> Coder:
        return AccumulatorCoder(WindowReadings)
