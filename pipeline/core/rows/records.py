"""The records that readers return: an event, and a window of a sensor or of a group; many of them as columns."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from typing import Any, TypeVar

from pipeline.core.statistics.parts import PARTS, Course
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import DEFAULT, limited, qualifier_of, statistic
from pipeline.core.windows import Window

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One event as stored in the table. Readings and metadata are sorted by name.

    The time is exact to the microsecond if row keys are, or if the table stores serialized events; otherwise to the
    millisecond.
    """

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str] = field(default_factory=dict)
    event_id: str = ""  # empty unless the table stores it in row keys or in serialized events


def merge_parts(parts: Iterable[RawRecord], identity_of: Callable[[RawRecord], Hashable]) -> list[RawRecord]:
    """Merges the parts of each event, in the order of first parts. If two parts have the same entry, the first wins."""
    merged: dict[Hashable, RawRecord] = {}
    for part in parts:
        identity = identity_of(part)
        first = merged.get(identity)
        if first is None:
            merged[identity] = part
            continue
        merged[identity] = RawRecord(
            first.sensor_id,
            first.event_time_us,
            by_name(part.readings | first.readings),
            by_name(part.metadata | first.metadata),
            first.event_id or part.event_id,
        )
    return list(merged.values())


def by_name(values: dict[str, _Value]) -> dict[str, _Value]:
    """Returns the values sorted by name."""
    return dict(sorted(values.items())) if len(values) > 1 else values


def newest_first(record: RawRecord) -> int:
    """Returns a sort key that puts the newest event first, across sensors."""
    return -record.event_time_us


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The statistics of one metric in one window. A sum that overflowed is infinite; nothing is NaN.

    Attributes:
        count, sum, min, max, avg, stddev: None if the row does not contain it.
        more: the other statistics by name, like ``p95`` and ``last``; times are in µs.
        sketch: the sketch of all values, which gives any quantile and merges with others; None without one.
        courses: the courses, which merge statistics that depend on time, by the name of their cell.
    """

    count: int
    sum: float | None = None
    min: float | None = None
    max: float | None = None
    avg: float | None = None
    stddev: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)
    sketch: Sketch | None = None
    courses: Mapping[str, Course] = field(default_factory=dict)

    def statistics(self) -> dict[str, float]:
        """Returns the statistics by name, in the order of their cells."""
        return {name: getattr(self, name) for name in DEFAULT if getattr(self, name) is not None} | dict(self.more)

    def value(self, name: str) -> float | None:
        """Returns a statistic; a quantile also from the sketch. None if it is not known. Raises ValueError."""
        if statistic(name).part == "sketch" and name not in self.more:
            if self.sketch is None:
                return None
            least, most = (nan if value is None else value for value in (self.min, self.max))
            return limited(self.sketch.quantile(float(name[1:]) / 100), least, most)
        return self.statistics().get(statistic(name).name)

    @property
    def parts(self) -> dict[str, Any] | None:
        """The parts that can be merged; see :mod:`pipeline.core.statistics.parts`."""
        known = {**self.more, **self.courses} | ({"sketch": self.sketch} if self.sketch else {})
        return {
            name: part.of_cells(*(known[cell] for cell in part.cells))
            for name, part in PARTS.items()
            if all(cell in known for cell in part.cells)
        } or None


def statistic_names(summaries: Iterable[Iterable[MetricSummary]]) -> list[str]:
    """Returns the names of all statistics in these summaries, in the order of their cells."""
    found = {name for of_record in summaries for summary in of_record for name in summary.statistics()}
    return sorted(found, key=lambda name: statistic(name).rank)


def summary_of(found: Mapping[str, Any]) -> MetricSummary:
    """Returns the summary with these statistics, by name; the count is one of them.

    An average or a quantile outside the range of readings is limited to it: earlier releases wrote such values.
    """
    least, most = found.get("min", nan), found.get("max", nan)
    found = {name: limited(value, least, most) if statistic(name).limited else value for name, value in found.items()}
    named = {name: found[name] for name in DEFAULT if name in found} | {"count": int(found["count"])}
    others = sorted((statistic(name) for name in found if name not in DEFAULT), key=lambda each: each.rank)
    more = {each.name: found[each.name] for each in others if each.listed}
    courses = {name: value for name, value in found.items() if isinstance(value, Course)}
    return MetricSummary(**named, more=more, sketch=found.get("sketch"), courses=courses)


@dataclass(frozen=True, slots=True)
class AggregateRecord:
    """One window of one sensor, as stored in its aggregate row. Metrics are sorted by name.

    A filled record is of a window without a row: it counts nothing.
    """

    sensor_id: str
    start_us: int
    window: Window
    reading_count: int
    metrics: dict[str, MetricSummary]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class SensorGroup:
    """A group of sensors in a roll-up.

    Attributes:
        rollup: the roll-up's name.
        text: the values of its fields as row keys contain them.
        fields: the values by metadata field. If the text is shortened, its last value ends with ``…``.
    """

    rollup: str
    text: str
    fields: Mapping[str, str] = field(compare=False)

    @property
    def label(self) -> str:
        """The values as people read them, quoted if they are blank; the roll-up's name if it has one group."""
        values = (value if value.strip() else f"'{value}'" for value in self.fields.values())
        return " / ".join(values) or self.rollup


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One window of one group of sensors, or what its windows in a range of time amount to. Metrics are sorted by name.

    Attributes:
        group: the group.
        start_us: the window's start; of several windows, that of the first.
        window: the length of windows.
        sensors: the number of sensors that contributed; of several windows, the most.
        expected: the number of sensors that the schema declares for the group; None if it declares none.
        reading_count: the number of events.
        metrics: the statistics of each metric.
        filled: whether the window has no row: it counts nothing.
        windows: the number of windows.
    """

    group: SensorGroup
    start_us: int
    window: Window
    sensors: int
    expected: int | None
    reading_count: int
    metrics: dict[str, MetricSummary]
    filled: bool = False
    windows: int = 1


def statistics_of(record: AggregateRecord | GroupRecord) -> dict[str, float]:
    """Returns the statistics of a window by column."""
    return {
        qualifier_of(name, metric): float(value)
        for metric, summary in record.metrics.items()
        for name, value in summary.statistics().items()
    }


class EventBlock:
    """Events of any sensors, column by column; or windows, each as an event whose readings are its statistics.

    Attributes:
        sensor_ids: the sensor of each event.
        times_us: the time of each event.
        event_ids: the id of each event; empty for an event without one.
        readings: the values of each metric, event by event; None where an event lacks the metric.
        metadata: the texts of each name of metadata, in the same way.
    """

    def __init__(self) -> None:
        self.sensor_ids: list[str] = []
        self.times_us: list[int] = []
        self.event_ids: list[str] = []
        self.readings: dict[str, list[float | None]] = {}
        self.metadata: dict[str, list[str | None]] = {}

    def __len__(self) -> int:
        return len(self.times_us)

    def add(self, record: RawRecord) -> None:
        """Adds an event."""
        _extend(self.readings, {metric: (value,) for metric, value in record.readings.items()}, len(self), 1)
        _extend(self.metadata, {name: (text,) for name, text in record.metadata.items()}, len(self), 1)
        self.sensor_ids.append(record.sensor_id)
        self.times_us.append(record.event_time_us)
        self.event_ids.append(record.event_id)

    def extend(
        self,
        sensor_ids: Sequence[str],
        times_us: Sequence[int],
        readings: Mapping[str, Sequence[float | None]],
        metadata: Mapping[str, Sequence[str | None]],
    ) -> None:
        """Adds events without ids; the sequences have an item for each event."""
        _extend(self.readings, readings, len(self), len(times_us))
        _extend(self.metadata, metadata, len(self), len(times_us))
        self.sensor_ids.extend(sensor_ids)
        self.times_us.extend(times_us)
        self.event_ids.extend([""] * len(times_us))

    def first(self, count: int) -> "EventBlock":
        """Returns the first events."""
        found = EventBlock()
        for record in islice(self.records(), count):
            found.add(record)
        return found

    def records(self) -> Iterator[RawRecord]:
        """Yields the events one by one."""
        readings, metadata = sorted(self.readings.items()), sorted(self.metadata.items())
        for n, (sensor_id, time_us, event_id) in enumerate(
            zip(self.sensor_ids, self.times_us, self.event_ids, strict=True)
        ):
            values = {metric: value for metric, column in readings if (value := column[n]) is not None}
            texts = {name: text for name, column in metadata if (text := column[n]) is not None}
            yield RawRecord(sensor_id, time_us, values, texts, event_id)


def _extend(
    columns: dict[str, list[_Value | None]], more: Mapping[str, Sequence[_Value | None]], length: int, count: int
) -> None:
    """Extends columns of a length by others of ``count`` items; a name that either lacks has None there."""
    for name, column in more.items():
        known = columns.get(name)
        if known is None:
            known = columns[name] = [None] * length
        known.extend(column)
    if len(more) < len(columns):
        for name, known in columns.items():
            if name not in more:
                known.extend([None] * count)
