"""Gathers the readings of events by groups of sensors and windows, and tells which of them come again."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.pane import Pane
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, read_group_readings, start_of_readings
from pipeline.core.schema.rate import groups_of_batch
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows.fixed import HOURLY


class Repeated(NamedTuple):
    """What comes again in files. Events of metadata alone, and windows with too many metrics for a row, do not count.

    Attributes:
        events: the events that the table does not distinguish from another one.
        readings: the readings whose event and metric another reading has.
    """

    events: int = 0
    readings: int = 0

    @classmethod
    def total(cls, some: Iterable["Repeated"]) -> "Repeated":
        """Returns the sums."""
        return cls(*map(sum, zip(cls(), *some, strict=True)))


class GatheredWindow(NamedTuple):
    """A sensor's readings in a window.

    Attributes:
        readings: the accumulator, which has each reading once.
        gathered: the number of events and of readings that came.
    """

    readings: WindowReadings
    gathered: Repeated

    def repeated(self, pane: Pane) -> Repeated:
        """Returns what came again, by the accumulator's result."""
        if pane.too_wide:
            return Repeated()
        distinct = sum([stats.count for stats in pane.stats.metrics.values()])
        return Repeated(self.gathered.events - pane.stats.events, self.gathered.readings - distinct)


def windows_of(parts: Iterable[bytes]) -> dict[str, GatheredWindow]:
    """Returns the readings by sensor, from those of a group in one window."""
    found: dict[str, GatheredWindow] = {}
    for data in parts:
        for sensor_id, metrics, times, values, members in read_group_readings(data):
            readings, (events, count) = found.get(sensor_id) or GatheredWindow(WindowReadings(), Repeated())
            readings.extend(metrics, times, values)
            readings.note(*members)
            found[sensor_id] = GatheredWindow(readings, Repeated(events + len(times), count + len(values)))
    return found


class GatherWindows(beam.PTransform):
    """Gathers ``Event`` elements: ``((group of sensors, start of the window), parts)``, for :func:`windows_of`.

    Args:
        schema: the table's schema, whose shortest window counts; an hour without tiers.
    """

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        window = schema.tiers[0].window if schema.tiers else HOURLY
        self._gathered = GroupedReadings(
            window, schema.identity, groups_of_batch(schema.rate, window), schema.member_fields
        )

    def expand(self, events: PCollection) -> PCollection:
        return events | "Bundles" >> beam.ParDo(_GatherFn(self._gathered)) | "Group" >> beam.GroupByKey()


@beam.typehints.with_output_types(tuple[tuple[int, int], bytes])
class _GatherFn(beam.DoFn):
    """Gathers the readings of a bundle: ``((group of sensors, start of the window), readings)``."""

    def __init__(self, gathered: GroupedReadings) -> None:
        self._gathered = gathered

    def start_bundle(self) -> None:
        self._gathered.start()

    def process(self, element: Event) -> None:
        if element.readings:  # not of metadata alone
            self._gathered.add([element])

    def finish_bundle(self) -> Iterator[Any]:
        for group, _, data in self._gathered.take_groups():
            yield GlobalWindows.windowed_value(((group, start_of_readings(data)), data))


class CountRepeated(beam.PTransform):
    """Takes the output of :class:`GatherWindows`; returns a :class:`Repeated` of each group and window."""

    def expand(self, gathered: PCollection) -> PCollection:
        return gathered | "Count" >> beam.Map(_repeated_in).with_output_types(Repeated)


def _repeated_in(element: tuple[tuple[int, int], Iterable[bytes]]) -> Repeated:
    return Repeated.total(window.repeated(window.readings.pane()) for window in windows_of(element[1]).values())
