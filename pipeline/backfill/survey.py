"""Surveys the events in files for a dry run: their sensors, times and metrics, and the first of them."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.backfill.files import open_file
from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.events.event import Event
from pipeline.core.events.message import MESSAGE_TYPE, Message, message_of, sensor_event
from pipeline.formats.files import Maker, records_of
from pipeline.formats.lines import MappedRecord
from pipeline.proto.sensor_event_pb2 import SensorEvent

_SENSORS, _SURVEYS = "sensors", "surveys"
_SEARCHED = 1000  # records of a file


class Metric(NamedTuple):
    """The readings of a metric: how many there are, the least and the greatest."""

    readings: int
    least: float
    greatest: float


class Survey(NamedTuple):
    """What events contain.

    Attributes:
        sensors: the number of sensors.
        first_us: the earliest event time; 0 without events.
        last_us: the latest event time; 0 without events.
        metrics: the metrics by name.
    """

    sensors: int
    first_us: int
    last_us: int
    metrics: dict[str, Metric]

    @classmethod
    def merged(cls, surveys: Iterable["Survey"]) -> "Survey":
        """Returns the survey of all events. The surveys have no sensor in common."""
        sensors, times, found = 0, list[int](), dict[str, Metric]()
        for survey in surveys:
            sensors += survey.sensors
            times += (survey.first_us, survey.last_us) if survey.last_us else ()
            for name, metric in survey.metrics.items():
                count, least, greatest = found.get(name, metric._replace(readings=0))
                found[name] = Metric(count + metric.readings, min(least, metric.least), max(greatest, metric.greatest))
        return cls(sensors, min(times, default=0), max(times, default=0), dict(sorted(found.items())))

    @classmethod
    def of_json(cls, fields: tuple[int, int, int, dict[str, list[Any]]]) -> "Survey":
        """Returns the survey that was written as JSON."""
        return cls(*fields[:3], {name: Metric(*of_name) for name, of_name in fields[3].items()})


NOTHING = Survey(0, 0, 0, {})
"""The survey of no events."""
_ONE_SENSOR = NOTHING._replace(sensors=1)


class SurveyEvents(beam.PTransform):
    """Surveys ``Event`` elements: one :class:`Survey`."""

    def expand(self, events: PCollection) -> PCollection:
        found = events | "Survey" >> beam.ParDo(SurveyFn()).with_outputs(_SENSORS, main=_SURVEYS)
        sensors = found[_SENSORS] | "Distinct" >> beam.Distinct() | "One" >> beam.Map(lambda _: _ONE_SENSOR)
        surveys = found[_SURVEYS] | "OfNoWindow" >> beam.WindowInto(GlobalWindows())
        return (surveys, sensors) | "All" >> beam.Flatten() | "Merge" >> beam.CombineGlobally(Survey.merged)


class SurveyFn(beam.DoFn):
    """Surveys the events of a bundle: a :class:`Survey` without sensors, and the ids of the sensors in UTF-8."""

    def start_bundle(self) -> None:
        self._sensors: set[str] = set()
        self._first_us = self._last_us = 0
        self._metrics: dict[str, tuple[int, float, float]] = {}

    def process(self, element: Event) -> None:
        self._sensors.add(element.sensor_id)
        time_us, of_name = element.event_time_us, self._metrics
        self._first_us = min(self._first_us or time_us, time_us)
        self._last_us = max(self._last_us, time_us)
        for name, value in element.readings.items():
            count, least, greatest = of_name.get(name, (0, value, value))
            of_name[name] = count + 1, min(least, value), max(greatest, value)

    def finish_bundle(self) -> Iterator[Any]:
        found = {name: Metric(*of_name) for name, of_name in self._metrics.items()}
        yield _in_no_window(Survey(0, self._first_us, self._last_us, found))
        for sensor_id in self._sensors:
            yield TaggedOutput(_SENSORS, _in_no_window(sensor_id.encode()))


def _in_no_window(value: Any) -> WindowedValue:
    return WindowedValue(value, MIN_TIMESTAMP, (GlobalWindow(),))


def trials_of_events(path: str, maker: Maker, trials: Trials, latest_us: int) -> Iterator[tuple[str, Message, Trial]]:
    """Yields records of a file that become events, among its first: where each is, its message, and its events.

    Raises UnreadableFile if the file can't be read.
    """
    with closing(open_file(path)) as file, records_of(path, file, maker, sniff=True) as records:
        for number, record in enumerate(islice(records, _SEARCHED), 1):
            if isinstance(record, MappedRecord):
                where, message = f"{path}:{record.line or number}", record.message
                told = {name: text for name, text in message.attributes.items() if name != MESSAGE_TYPE}
            elif isinstance(record, SensorEvent | Event):
                event = record if isinstance(record, SensorEvent) else sensor_event(*record[:5])
                where, message, told = f"{path}: record {number}", message_of([event]), {}
            else:
                continue
            trial = trials.of(message, latest_us)
            if trial.events:
                yield where, message._replace(attributes=told), trial
