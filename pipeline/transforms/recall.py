"""What the table holds of windows that began before the job did: read once, and counted along."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.pvalue import PCollection
from apache_beam.transforms.userstate import ReadModifyWriteRuntimeState, ReadModifyWriteStateSpec

from pipeline.cloud.recall import Holdings
from pipeline.transforms import metrics
from pipeline.transforms.reading import ReadingFn

_ASKED = beam.DoFn.StateParam(ReadModifyWriteStateSpec("asked", BooleanCoder()))


class RecallWindows(beam.PTransform):
    """``(sensor_id, anything)`` in windows to ``(sensor_id, what the table holds of that window)``.

    Once for each sensor and window, when the first element comes, and only of windows that began before the job: what
    lies in others the job has seen itself, so that they cost nothing. A job that is updated in place remembers what
    it has asked for.

    Args:
        holdings: what is asked of which table.
        before_us: windows that start earlier began before the job.
    """

    def __init__(self, holdings: Holdings, before_us: int) -> None:
        super().__init__()
        self.before_us = before_us
        self._holdings = holdings

    def expand(self, keyed: PCollection) -> PCollection:
        # The first step makes one of thousands of events: what comes behind it costs next to nothing.
        return (
            keyed
            | "OnceABundle" >> beam.ParDo(_OnceABundleFn(self.before_us)).with_output_types(tuple[str, bool])
            | "Once" >> beam.ParDo(_OnceFn()).with_output_types(tuple[str, bool])
            | "Read" >> beam.ParDo(_ReadFn(self._holdings)).with_output_types(tuple[str, Any])
        )


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


class _ReadFn(ReadingFn):
    def __init__(self, holdings: Holdings) -> None:
        super().__init__(holdings.name, holdings.schema)
        self._holdings = holdings
        self._recalled = metrics.counter(metrics.WINDOWS_RECALLED)

    def process(self, element: tuple[str, bool], window: Any = beam.DoFn.WindowParam) -> Iterator[tuple[str, Any]]:
        self._recalled.inc()
        yield element[0], self._holdings.recall(self._table, element[0], window.start.micros)
