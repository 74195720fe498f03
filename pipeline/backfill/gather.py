"""Gathers the readings of events by groups of sensors and windows, and tells which of them come again."""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, product
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.reading_columns import time_of_key
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, Kind, read_group_readings, start_of_readings
from pipeline.core.schema.rate import groups_of_batch, span_of_batch
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import HOURLY

_EXAMPLES = 3


class LostReading(NamedTuple):
    """A sensor's time and metric for which files have several values, of which the table keeps one.

    Attributes:
        time_us: the event time.
        sensor_id: the sensor.
        metric: the metric.
        values: two of the values, the least and the greatest.
    """

    time_us: int
    sensor_id: str
    metric: str
    values: tuple[float, float]

    @classmethod
    def of_json(cls, found: Any) -> "LostReading":
        """Returns what JSON tells of one."""
        time_us, sensor_id, metric, values = found
        return cls(time_us, sensor_id, metric, tuple(values))


class Repeated(NamedTuple):
    """What comes again in files. Events of metadata alone, and windows with too many metrics for a row, do not count.

    Attributes:
        events: the events that the table does not distinguish from another one.
        readings: the readings whose event, metric and value another reading has: nothing is lost with them.
        lost: the further values of an event and a metric.
        examples: the first of these.
    """

    events: int = 0
    readings: int = 0
    lost: int = 0
    examples: tuple[LostReading, ...] = ()

    @classmethod
    def total(cls, some: Iterable["Repeated"]) -> "Repeated":
        """Returns the sums."""
        events, readings, lost, examples = zip(cls(), *some, strict=True)
        return cls(sum(events), sum(readings), sum(lost), tuple(heapq.nsmallest(_EXAMPLES, chain(*examples))))

    @classmethod
    def of_json(cls, found: Any) -> "Repeated":
        """Returns what JSON tells of one."""
        events, readings, lost, examples = found
        return cls(events, readings, lost, tuple(map(LostReading.of_json, examples)))


class GatheredWindow(NamedTuple):
    """A sensor's readings in a window.

    Attributes:
        readings: the accumulator, which has each reading once.
        events: the number of events that came.
        values: the number of readings that came.
    """

    readings: WindowReadings
    events: int = 0
    values: int = 0

    def repeated(self) -> Repeated:
        """Returns what came again, whatever its value."""
        events, values = self.readings.distinct()
        return Repeated(self.events - events, self.values - values) if events else Repeated()


def by_window(parts: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Returns the readings of a group in a span by the start of their window, oldest first."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for data in parts:
        found[start_of_readings(data)].append(data)
    return dict(sorted(found.items()))


def windows_of(parts: Iterable[bytes]) -> dict[str, GatheredWindow]:
    """Returns the readings by sensor, from those of a group in one window."""
    found: dict[str, GatheredWindow] = {}
    for data in parts:
        for sensor_id, metrics, times, values, members in read_group_readings(data):
            readings, events, count = found.get(sensor_id) or GatheredWindow(WindowReadings())
            readings.extend(metrics, times, values)
            readings.note(*members)
            found[sensor_id] = GatheredWindow(readings, events + len(times), count + len(values))
    return found


def repeated_of(found: dict[str, Repeated], parts: Iterable[bytes]) -> Repeated:
    """Returns what came again in a window of a group, and tells apart what came with another value.

    Args:
        found: the repetitions by sensor, whatever their values.
        parts: the readings of the group; read only if some came again.
    """
    total = Repeated.total(found.values())
    if not total.readings:
        return total
    lost, examples = _lost(parts, {sensor_id for sensor_id, of_sensor in found.items() if of_sensor.readings})
    return total._replace(readings=total.readings - lost, lost=lost, examples=tuple(examples))


def _lost(parts: Iterable[bytes], sensors: Collection[str]) -> tuple[int, list[LostReading]]:
    """Returns the number of further values that readings of these sensors have, and the first examples."""
    first: dict[tuple[int, str, str], float] = {}
    several: dict[tuple[int, str, str], set[float]] = defaultdict(set)
    for data in parts:
        for sensor_id, metrics, times, values, _ in read_group_readings(data):
            if sensor_id not in sensors:
                continue
            for (time, metric), value in zip(product(times, metrics), values, strict=True):
                of_reading = time, sensor_id, metric
                if first.setdefault(of_reading, value) != value:
                    several[of_reading].add(value)
    examples = heapq.nsmallest(_EXAMPLES, several.items(), key=lambda each: (time_of_key(each[0][0]), each[0]))
    return sum(map(len, several.values())), [
        LostReading(time_of_key(key), sensor_id, metric, (min(first[of], *others), max(first[of], *others)))
        for of, others in examples
        for key, sensor_id, metric in [of]
    ]


def kind_of_batch(schema: TableSchema) -> Kind:
    """Returns how a batch job gathers the readings of a table: in its shortest windows; in hours without tiers."""
    window = schema.tiers[0].window if schema.tiers else HOURLY
    return window, schema.identity, groups_of_batch(schema.rate, window), schema.member_fields


class GatherSpans(beam.PTransform):
    """Gathers ``(group of sensors, readings)`` of windows: ``((group, number of the span), parts)``.

    Args:
        schema: the table's schema.
    """

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        self._span_us = span_of_batch(schema.rate, kind_of_batch(schema)[0])

    def expand(self, readings: PCollection) -> PCollection:
        of_type = tuple[tuple[int, int], bytes]
        spans = readings | "OfSpans" >> beam.Map(_of_span, self._span_us).with_output_types(of_type)
        return spans | "Group" >> beam.GroupByKey()


def _of_span(element: tuple[int, bytes], span_us: int) -> tuple[tuple[int, int], bytes]:
    group, data = element
    return (group, start_of_readings(data) // span_us), data


@beam.typehints.with_output_types(tuple[int, bytes])
class GatherFn(beam.DoFn):
    """Gathers the readings of a bundle's ``Event`` elements: ``(group of sensors, readings)`` of each window."""

    def __init__(self, schema: TableSchema) -> None:
        self._gathered = GroupedReadings(*kind_of_batch(schema))

    def start_bundle(self) -> None:
        self._gathered.start()

    def process(self, element: Event) -> None:
        if element.readings:  # not of metadata alone
            self._gathered.add([element])

    def finish_bundle(self) -> Iterator[Any]:
        for group, _, data in self._gathered.take_groups():
            yield GlobalWindows.windowed_value((group, data))


class CountRepeated(beam.PTransform):
    """Takes the output of :class:`GatherSpans`; returns a :class:`Repeated` of each group and span."""

    def expand(self, gathered: PCollection) -> PCollection:
        return gathered | "Count" >> beam.Map(repeated_in).with_output_types(Repeated)


def repeated_in(element: tuple[tuple[int, int], Iterable[bytes]]) -> Repeated:
    """Returns what comes again in the readings of a span."""
    total = list[Repeated]()
    for parts in by_window(element[1]).values():
        repeated = {name: window.repeated() for name, window in windows_of(parts).items()}
        total.append(repeated_of(repeated, parts))
    return Repeated.total(total)
