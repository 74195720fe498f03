"""Simulates a fleet that sends messages of another type, made by inverting a mapping."""

import random
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain

from pipeline.core.decoding.mapping.authoring.inversion import Inversion
from pipeline.core.decoding.mapping.compiling.execution import MadeEvent
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.message_types import MappedType, MessageTypes
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.events.message import Message, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import to_datetime
from pipeline.local.fleet import Fleet, Simulated, arrivals


def simulate(fleet: Fleet, mapped: MappedType) -> Iterator[Simulated]:
    """Returns an iterator of the messages that a mapping reads, with the events that it makes of them.

    A malformed message lacks its last byte.

    Raises:
        MappingError: no message has what a key of the mapping reads.
    """
    inversion = Inversion(mapped.compile())
    if fleet.batch > 1 and not inversion.holds_several:
        raise MappingError(
            "time", "a message has one time, so simulate can't put several events into it: use --batch 1"
        )
    events = (
        (int(event.sensor_id.rpartition("-")[2]), Event(event.sensor_id, time_us, dict(event.readings), metadata))
        for event in arrivals(fleet)
        for time_us, metadata in [(event.event_time.ToMicroseconds(), dict(event.metadata))]
    )
    made = inversion.messages(events, fleet.batch)
    first = next(made, None)
    if first is None:  # a fleet without events
        return iter(())
    _check(mapped, *first, is_live=fleet.prompt)
    return _simulated(fleet, mapped, chain([first], made))


def _simulated(
    fleet: Fleet, mapped: MappedType, messages: Iterable[tuple[Message, list[MadeEvent]]]
) -> Iterator[Simulated]:
    types, chance = MessageTypes([mapped], default=None), random.Random(f"{fleet.seed} malformed")
    for message, made in messages:
        yield Simulated(message, [sensor_event(*event) for event in made], [])
        if chance.random() < fleet.malformed * len(made):
            broken = message._replace(data=message.data[:-1])
            yield Simulated(broken, [], [_reason(types, broken)])


def _reason(types: MessageTypes, message: Message) -> Reason:
    try:
        types.of(message).decode(message, LATEST_US, [])
    except BadData as problem:
        return problem.reason
    raise AssertionError("a message without its last byte is valid")


def _check(mapped: MappedType, message: Message, made: list[MadeEvent], *, is_live: bool) -> None:
    """Raises MappingError if the mapping makes other events of a message than were meant: other values got in the way.

    The message is published after its events, except in a live fleet.
    """
    published = to_datetime(made[0].event_time_us) + timedelta(hours=0 if is_live else 1)
    message = message._replace(publish_time=published)
    if not mapped.matches(message):
        raise MappingError("match", "simulate can't make a message that fulfils it")
    decoded = mapped.decode(message, LATEST_US, [], metadata_alone=True)
    for _, problem in decoded.refused:
        raise MappingError("", f"simulate makes messages that the mapping refuses: {problem}")
    found = {(event.sensor_id, event.event_time_us): event for event in decoded.events}
    for event in made:
        if event.identity[:2] not in found:
            hint = "" if is_live else "; if it is the publish time, use --live"
            raise MappingError("time", f"simulate can't set what the mapping takes for it{hint}")
        same = found[event.identity[:2]]
        for table, wanted, got in (
            ("readings", event.readings, same.readings),
            ("metadata", event.metadata, same.metadata),
        ):
            for name, value in wanted.items():
                if got.get(name) != value:
                    raise MappingError(
                        f"{table}.{name}", f"simulate can't set it: the mapping makes {got.get(name)!r} of {value!r}"
                    )
