"""The comparison's events, the messages that contain them, and the expected rows.

Expected aggregates are computed from the events with the standard library's statistics.
"""

import random
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from apache_beam.io.gcp.pubsub import PubsubMessage

from pipeline.core.events.message import Message, message_of
from pipeline.proto.sensor_event_pb2 import SensorEvent

HOUR_US = 3_600_000_000
HOURS = 3
METRICS = {"temperature": (18.0, 3.0), "humidity": (55.0, 10.0), "pressure": (101_325.0, 400.0)}


@dataclass(frozen=True)
class Feed:
    """Some hours of a fleet, every sensor in turn.

    Args:
        start_us: start of the events, a whole hour.
        events: number of events, a multiple of the sensors.
        sensors: number of sensors.
        metrics: readings per event.
        hours: length in hours.
    """

    start_us: int
    events: int
    sensors: int = 100
    metrics: int = len(METRICS)
    hours: int = HOURS

    @cached_property
    def each(self) -> list[SensorEvent]:
        """Returns the events, ordered by time."""
        chance = random.Random(1)
        names = list(METRICS)[: self.metrics] + [f"metric_{number}" for number in range(3, self.metrics)]
        shapes = [(name, *METRICS.get(name, (20.0, 5.0))) for name in names]
        step_us = self.hours * HOUR_US * self.sensors // self.events
        events = []
        for index in range(self.events):
            round_, sensor = divmod(index, self.sensors)
            time_us = self.start_us + round_ * step_us + step_us * sensor // self.sensors
            event = SensorEvent(sensor_id=f"sensor-{sensor:03d}")
            event.event_time.seconds, micros = divmod(time_us, 1_000_000)
            event.event_time.nanos = micros * 1000
            for name, mean, spread in shapes:
                event.readings[name] = round(chance.gauss(mean, spread), 2)
            events.append(event)
        return events

    def messages(self, batch: int, first: int | None = None) -> list[Message]:
        """Returns the first events, or all of them, in messages of ``batch``."""
        events = self.each[:first]
        return [message_of(events[i : i + batch]) for i in range(0, len(events), batch)]

    def pubsub_messages(self, batch: int, first: int | None = None) -> list[PubsubMessage]:
        """Returns the same messages as Beam's Pub/Sub source would."""
        return [PubsubMessage(each.data, dict(each.attributes)) for each in self.messages(batch, first)]

    def raw_keys(self, first: int | None = None) -> list[bytes]:
        """Returns the keys of the raw rows, event by event."""
        return [f"{each.sensor_id}#{9_999_999_999_999_999 - _time_us(each)}".encode() for each in self.each[:first]]

    def windows(self, first: int | None = None) -> int:
        """Returns the number of aggregate rows."""
        return len({(event.sensor_id, _time_us(event) // HOUR_US) for event in self.each[:first]})

    def aggregates(self, sensor_id: str, first: int | None = None) -> dict[str, dict[str, float]]:
        """Returns a sensor's aggregate rows: key to column to value."""
        hours: dict[int, list[SensorEvent]] = {}
        for event in self.each[:first]:
            if event.sensor_id == sensor_id:
                hours.setdefault(event.event_time.seconds // 3600, []).append(event)
        return {
            f"agg#hourly#{sensor_id}#{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H}": _statistics(events)
            for hour, events in hours.items()
        }


def _statistics(events: list[SensorEvent]) -> dict[str, float]:
    columns: dict[str, float] = {"reading_count": len(events)}
    for metric in events[0].readings:
        values = [event.readings[metric] for event in events]
        columns |= {
            f"count_{metric}": len(values),
            f"sum_{metric}": sum(values),
            f"min_{metric}": min(values),
            f"max_{metric}": max(values),
            f"avg_{metric}": statistics.fmean(values),
            f"stddev_{metric}": statistics.pstdev(values),
        }
    return columns


def _time_us(event: SensorEvent) -> int:
    return event.event_time.seconds * 1_000_000 + event.event_time.nanos // 1000
