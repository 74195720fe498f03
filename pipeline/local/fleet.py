"""Simulates a realistic fleet of sensors: its events, the order of their arrival, and malformed messages.

Every sensor measures temperature, humidity, pressure and battery voltage, each with a daily cycle, drift and noise.
It drops single readings, goes silent for a while, and, unless it is prompt, delivers some events out of order and some
late. The same fleet produces the same messages, byte for byte.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.events.dead_letter import RENAMED_ENCODING
from pipeline.core.events.event import MAX_METADATA, MAX_METADATA_BYTES, MAX_READINGS
from pipeline.core.events.message import MESSAGE_TYPE, Message, message_of, sensor_event
from pipeline.core.events.reasons import Reason
from pipeline.proto.sensor_event_pb2 import SensorEvent

MAX_SENSORS = 100_000  # each takes 5 KiB and has an event in transit

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
# The ranges of the mean temperature and of half the daily swing at each place, in °C.
_PLACES = {
    "greenhouse": ((18, 24), (5, 8)),
    "orchard": ((10, 16), (4, 7)),
    "cellar": ((10, 13), (0.8, 1.2)),
    "roof": ((12, 18), (6, 9)),
    "harbour": ((11, 15), (2, 4)),
}
_MODELS = ("TH-200", "TH-210", "WX-5")


@dataclass(frozen=True)
class Fleet:
    """The parameters of a simulation. Times and intervals are in microseconds."""

    sensors: int
    start_us: int
    end_us: int
    interval_us: int
    seed: int = 1
    batch: int = 1
    """Events per message."""
    malformed: float = 0.01
    """Share of malformed events and messages; unless it is zero, each of :data:`MALFORMED` occurs at least once."""
    late: float = 0.01
    """Share of events that arrive ten minutes to six hours late."""
    prompt: bool = False
    """Whether each event arrives when it happens; else most take up to two seconds, one in twenty up to two minutes."""

    @property
    def events(self) -> int:
        """The number of events, without drops and outages."""
        return self.sensors * ((self.end_us - self.start_us) // self.interval_us)


class Simulated(NamedTuple):
    """A message, the valid events in it, and the reasons of the dead letters it produces."""

    message: Message
    events: list[SensorEvent]
    reasons: list[Reason]


def simulate(fleet: Fleet) -> Iterator[Simulated]:
    """Yields the fleet's messages in order of arrival."""
    chance = random.Random(f"{fleet.seed} malformed")
    pending = list(MALFORMED) if fleet.malformed else []
    batch: list[SensorEvent] = []
    reasons: list[Reason] = []
    bad: list[SensorEvent] = []
    for event in arrivals(fleet):
        batch.append(event)
        if chance.random() < fleet.malformed:
            reason = pending.pop() if pending else chance.choice(MALFORMED)
            if reason in _BREAK_EVENT and fleet.batch > 1:
                bad.append(_broken_event(reason, event))
                reasons.append(reason)
            else:
                yield Simulated(_broken_message(reason, event), [], [reason])
        if len(batch) >= fleet.batch:
            yield Simulated(message_of(batch + bad), batch, reasons)
            batch, bad, reasons = [], [], []
    if batch:
        yield Simulated(message_of(batch + bad), batch, reasons)
    for reason in pending:  # too few events to draw every reason
        event = sensor_event("cellar-0000", fleet.start_us, {"temperature": 11.5}, {})
        yield Simulated(_broken_message(reason, event), [], [reason])


@dataclass
class _Sensor:
    """A sensor: parameters drawn once, and its random state."""

    number: int
    fleet: Fleet
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(f"{self.fleet.seed} sensor {self.number}")
        place = list(_PLACES)[self.number % len(_PLACES)]
        base, swing = _PLACES[place]
        self.sensor_id = f"{place}-{self.number:04d}"
        self.metadata = {"location": place, "model": rng.choice(_MODELS), "firmware": f"2.{rng.randrange(8)}"}
        self.phase_us = rng.randrange(self.fleet.interval_us)
        self.base = rng.uniform(*base)
        self.swing = rng.uniform(*swing)
        self.drift_a_day = rng.uniform(-0.2, 0.2)
        self.pressure = rng.uniform(94_000, 102_000)
        self.volts = rng.uniform(3.6, 4.2)
        span = self.fleet.end_us - self.fleet.start_us
        self.silent_from = self.fleet.start_us + rng.randrange(span) if rng.random() < 0.3 else self.fleet.end_us
        self.silent_until = self.silent_from + int(span * rng.uniform(0.02, 0.1))
        self.blank = SensorEvent(sensor_id=self.sensor_id, metadata=self.metadata)

    def measure(self, time_us: int) -> dict[str, float]:
        days = (time_us - self.fleet.start_us) / _DAY
        cycle = math.sin((time_us % _DAY / _DAY - 0.375) * math.tau)  # coldest at three, warmest at fifteen o'clock
        noise_1, noise_2 = _two_normal(self.rng)
        noise_3, noise_4 = _two_normal(self.rng)
        temperature = self.base + self.swing * cycle + self.drift_a_day * days + 0.15 * noise_1
        readings = {
            # Rounds whole numbers: exact decimal rounding takes three times as long.
            "temperature": round(temperature * 100) / 100,
            "humidity": round(min(100.0, max(5.0, 62 - 2.5 * (temperature - self.base) + 0.8 * noise_2)) * 10) / 10,
            "pressure": float(round(self.pressure + 300 * math.sin(days * 1.7) + 12 * noise_3)),
            "battery": round((self.volts - 0.01 * days + 0.004 * noise_4) * 1000) / 1000,
        }
        if self.rng.random() < 0.01:  # one metric could not be read
            del readings[self.rng.choice(list(readings))]
        return readings

    def event_at(self, tick_us: int) -> tuple[int, SensorEvent] | None:
        """Returns the event of one interval with its time, or None if it is dropped or the sensor is silent."""
        time_us = tick_us + self.phase_us + self._below(self.fleet.interval_us // 100 + 1)
        if self.silent_from <= time_us < self.silent_until or time_us >= self.fleet.end_us or self.rng.random() < 0.005:
            return None
        event = _copy(self.blank)  # copying the constant fields takes a third of the time of setting them
        timestamp = event.event_time
        timestamp.seconds, micros = divmod(time_us, _SECOND)
        timestamp.nanos = micros * 1000
        readings = event.readings
        for metric, value in self.measure(time_us).items():
            readings[metric] = value
        return time_us, event

    def delay_us(self) -> int:
        """Returns the delay of an event: mostly seconds, sometimes minutes, for late events hours."""
        if self.fleet.prompt:
            return 0
        draw = self.rng.random()
        if draw < self.fleet.late:
            return 10 * _MINUTE + self._below(6 * _HOUR - 10 * _MINUTE)
        if draw < self.fleet.late + 0.05:
            return self._below(2 * _MINUTE)
        return self._below(2 * _SECOND)

    def _below(self, end: int) -> int:
        return int(self.rng.random() * end)  # ``randrange`` is slower, and its smaller bias does not matter here


def _two_normal(rng: random.Random) -> tuple[float, float]:
    """Returns two standard normal draws by the Box-Muller transform, twice as fast as two calls of ``gauss``."""
    angle = rng.random() * math.tau
    radius = math.sqrt(-2 * math.log(1 - rng.random()))
    return math.cos(angle) * radius, math.sin(angle) * radius


def arrivals(fleet: Fleet) -> Iterator[SensorEvent]:
    """Yields every event once, in order of arrival. Keeps only the events in transit in memory."""
    sensors = [_Sensor(number, fleet) for number in range(fleet.sensors)]
    in_transit: list[tuple[int, int, SensorEvent]] = []
    count = 0
    for tick_us in range(fleet.start_us, fleet.end_us, fleet.interval_us):
        for sensor in sensors:
            measured = sensor.event_at(tick_us)
            if measured is not None:
                count += 1  # breaks ties between events that arrive at the same instant
                time_us, event = measured
                heapq.heappush(in_transit, (time_us + sensor.delay_us(), count, event))
        while in_transit and in_transit[0][0] < tick_us:
            yield heapq.heappop(in_transit)[2]
    while in_transit:
        yield heapq.heappop(in_transit)[2]


def _copy(event: SensorEvent) -> SensorEvent:
    copy = SensorEvent()
    copy.CopyFrom(event)
    return copy


def _broken_event(reason: Reason, event: SensorEvent) -> SensorEvent:
    broken = _copy(event)
    _BREAK_EVENT[reason](broken)
    return broken


def _broken_message(reason: Reason, event: SensorEvent) -> Message:
    if reason in _BREAK_EVENT:
        return message_of([_broken_event(reason, event)])
    message = message_of([event])
    attributes = dict(message.attributes)
    if reason is Reason.UNPARSEABLE:
        return message._replace(data=message.data[:-1])
    if reason is Reason.UNKNOWN_MESSAGE_TYPE:
        attributes[MESSAGE_TYPE] = "acme.v1.Telemetry"
    else:
        attributes[RENAMED_ENCODING] = "AVRO"  # clients can't publish the attribute under its own name
    return message._replace(attributes=attributes)


def _set_time(seconds: int, nanos: int = 0) -> Callable[[SensorEvent], None]:
    def set_time(event: SensorEvent) -> None:
        event.event_time.seconds, event.event_time.nanos = seconds, nanos

    return set_time


def _set_reading(name: str, value: float) -> Callable[[SensorEvent], None]:
    return lambda event: event.readings.update({name: value})


def _set_metadata(**entries: str) -> Callable[[SensorEvent], None]:
    return lambda event: event.metadata.update(entries)


_BREAK_EVENT: dict[Reason, Callable[[SensorEvent], None]] = {
    Reason.MISSING_SENSOR_ID: lambda event: event.ClearField("sensor_id"),
    Reason.INVALID_SENSOR_ID: lambda event: setattr(event, "sensor_id", "cellar#7"),
    Reason.MISSING_EVENT_TIME: lambda event: event.ClearField("event_time"),
    Reason.INVALID_EVENT_TIME: _set_time(1_700_000_000, nanos=-1),
    Reason.EVENT_TIME_TOO_EARLY: _set_time(12),  # a clock that was never set
    Reason.EVENT_TIME_IN_FUTURE: _set_time(10_413_792_000),  # the year 2300
    Reason.NO_READINGS: lambda event: event.readings.clear(),
    Reason.TOO_MANY_READINGS: lambda event: event.readings.update({f"m{i}": i for i in range(MAX_READINGS + 1)}),
    Reason.INVALID_METRIC_NAME: _set_reading("temp °C", 21.5),
    Reason.NON_FINITE_VALUE: lambda event: event.readings.update(dict.fromkeys(event.readings, math.nan)),
    Reason.TOO_MUCH_METADATA: _set_metadata(**{f"k{i}": "v" for i in range(MAX_METADATA + 1)}),
    Reason.INVALID_METADATA_NAME: _set_metadata(**{"serial number": "A-17"}),
    Reason.METADATA_TOO_LONG: _set_metadata(note="x" * (MAX_METADATA_BYTES + 1)),
}
_BREAK_MESSAGE = {Reason.UNKNOWN_MESSAGE_TYPE, Reason.UNKNOWN_ENCODING, Reason.UNPARSEABLE}

MALFORMED = tuple(reason for reason in Reason if reason in _BREAK_MESSAGE or reason in _BREAK_EVENT)
"""Every reason for which an event or message in protobuf is refused, whatever the table's schema and the flags."""
