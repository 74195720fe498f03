"""Merges the accumulators of a window in a batch pipeline."""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.coders import Coder

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.transforms.coders import AccumulatorCoder


class MergeReadingsFn(beam.CombineFn):
    """Merges accumulators into one, which counts each reading once. The output is an accumulator too."""

    def create_accumulator(self) -> WindowReadings:
        return WindowReadings()

    def add_input(self, mutable_accumulator: WindowReadings, element: WindowReadings) -> WindowReadings:
        mutable_accumulator.merge(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[WindowReadings], *_: Any) -> WindowReadings:
        merged = WindowReadings()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: WindowReadings) -> WindowReadings:
        return accumulator

    def get_accumulator_coder(self) -> Coder:
        return AccumulatorCoder(WindowReadings)
