"""Simulates a fleet that sends messages of another type, made by inverting a mapping."""

import random
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain

from pipeline.core.decoding.mapping.authoring.inversion import Inversion
from pipeline.core.decoding.mapping.language.model import FORM, INFLUX, MappingError
from pipeline.core.decoding.message_types import MappedType, MessageTypes
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.events.message import Message, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.local.fleet import Fleet, Simulated, arrivals


def simulate(fleet: Fleet, mapped: MappedType) -> Iterator[Simulated]:
    """Returns an iterator of messages that a mapping reads, with the events that it makes of them.

    A malformed message lacks its last byte; a form and line protocol end with a byte that UTF-8 lacks.

    Raises:
        MappingError: a key of the mapping can't be set in a message.
    """
    inversion = Inversion(mapped.compile())
    if fleet.batch > 1 and not inversion.holds_several:
        raise MappingError("time", "a message has one time, so it holds no --batch of several events")
    # In a live fleet, messages are published as their events happen. Elsewhere, the publish time is another time.
    made = inversion.messages(_numbered(fleet), fleet.batch, delay=timedelta(hours=0 if fleet.prompt else 1))
    first = next(made, None)  # proves that the mapping can be inverted
    end = b"\xff" if inversion.mapping.message in (FORM, INFLUX) else b""
    return _simulated(fleet, mapped, chain([first], made), end) if first else iter(())


def _numbered(fleet: Fleet) -> Iterator[tuple[int, Event]]:
    for event in arrivals(fleet):
        time_us = event.event_time.ToMicroseconds()
        number = int(event.sensor_id.rpartition("-")[2])
        yield number, Event(event.sensor_id, time_us, dict(event.readings), dict(event.metadata))


def _simulated(
    fleet: Fleet, mapped: MappedType, messages: Iterable[tuple[Message, list[Event]]], end: bytes
) -> Iterator[Simulated]:
    types, chance = MessageTypes([mapped], default=None), random.Random(f"{fleet.seed} malformed")
    for message, events in messages:
        yield Simulated(message, [sensor_event(*event[:5]) for event in events], [])
        if chance.random() < fleet.malformed * len(events):
            broken = message._replace(data=message.data[:-1] + end)
            yield Simulated(broken, [], [_reason(types, broken)])


def _reason(types: MessageTypes, message: Message) -> Reason:
    try:
        types.of(message).decode(message, LATEST_US)
    except BadData as problem:
        return problem.reason
    raise AssertionError("a malformed message is valid")
