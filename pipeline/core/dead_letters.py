"""Parses, filters, groups and batches dead letters that were read back; converts them to JSON and back."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.events import dead_letter
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message, decode, message_of, sensor_event
from pipeline.core.events.protobuf_json import event_json, parse_json
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time, from_datetime, parse_time
from pipeline.proto.sensor_event_pb2 import SensorEvent

LETTER_COLUMNS = (
    "reason",
    "detail",
    "step",
    "time",
    "message_id",
    "publish_time",
    "ordering_key",
    "replays",
    "attributes",
    "events",
    "data",
)
"""The names in :func:`letter_json`."""


class DeadLetter(NamedTuple):
    """A message of a dead-letter topic, with its parsed attributes."""

    message: Message  # as received
    original: Message  # as it was when it was refused
    reason: str  # empty if Tidetable did not write the message
    detail: str
    step: str
    time_us: int | None
    replays: int
    events: tuple[SensorEvent, ...]  # the original's events, not validated; empty if it cannot be decoded
    trial: Trial | None = None  # what a mapping makes of the original now; events are then the mapping's

    @classmethod
    def of(cls, message: Message, trials: Trials | None = None) -> "DeadLetter":
        """Parses a message received from a dead-letter topic, and decodes it with the mapping of its type, if any."""
        original = dead_letter.original_of(message) if dead_letter.REASON in message.attributes else message
        trial = trials.of(original, LATEST_US) if trials else None
        if trial is not None and trial.is_mapped:
            events = tuple(sensor_event(*event[:5]) for event in trial.events)
        else:
            trial, (events, _) = None, _decoded(original)
        get = message.attributes.get
        return cls(
            message,
            original,
            get(dead_letter.REASON, ""),
            get(dead_letter.DETAIL, ""),
            get(dead_letter.STEP, ""),
            _time_us(get(dead_letter.TIME, "")),
            dead_letter.replays_of(message),
            events,
            trial,
        )

    @property
    def sensor_id(self) -> str:
        """The sensor that all events have in common; empty if they have none."""
        sensors = {event.sensor_id for event in self.events}
        return sensors.pop() if len(sensors) == 1 else ""


@dataclass(frozen=True)
class Selection:
    """Selects dead letters. A condition that is not set selects all."""

    reasons: frozenset[Reason] = frozenset()
    sensors: frozenset[str] = frozenset()
    since_us: int | None = None  # inclusive
    until_us: int | None = None  # exclusive

    def __contains__(self, letter: DeadLetter) -> bool:
        if self.reasons and letter.reason not in self.reasons:
            return False
        if self.sensors and self.sensors.isdisjoint(event.sensor_id for event in letter.events):
            return False
        if self.since_us is None and self.until_us is None:
            return True
        return letter.time_us is not None and (
            (self.since_us is None or self.since_us <= letter.time_us)
            and (self.until_us is None or letter.time_us < self.until_us)
        )


@dataclass
class LetterGroup:
    """The dead letters of one reason and one sensor."""

    reason: str
    sensor_id: str
    count: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None
    detail: str = ""  # of the first one added


class LetterGroups:
    """Dead letters, counted by reason and sensor."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], LetterGroup] = {}

    def add(self, letter: DeadLetter) -> None:
        """Counts a dead letter."""
        key = (letter.reason, letter.sensor_id)
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = LetterGroup(*key, detail=letter.detail)
        group.count += 1
        if letter.time_us is not None:
            group.oldest_us = min(letter.time_us, group.oldest_us if group.oldest_us is not None else letter.time_us)
            group.newest_us = max(letter.time_us, group.newest_us if group.newest_us is not None else letter.time_us)

    def by_reason(self) -> list[LetterGroup]:
        """Returns all groups, the most frequent reason first, and the largest group of a reason first."""
        counts = self.reasons()
        return sorted(
            self._groups.values(),
            key=lambda group: (-counts[group.reason], group.reason, -group.count, group.sensor_id),
        )

    def reasons(self) -> Counter[str]:
        """Returns the number of dead letters of each reason."""
        counts = Counter[str]()
        for group in self._groups.values():
            counts[group.reason] += group.count
        return counts


def replay_batches(letters: Iterable[DeadLetter], max_letters: int, max_bytes: int) -> list[list[DeadLetter]]:
    """Splits the letters into batches, each of one ordering key, that can be replayed in one request.

    Letters of an ordering key keep their order. The bytes are those of payload and attributes; a single letter may
    exceed ``max_bytes``.
    """
    batches: list[list[DeadLetter]] = []
    open_batches: dict[str, tuple[list[DeadLetter], int]] = {}
    for letter in letters:
        size = len(letter.message.data) + sum(
            len(f"{name}{value}".encode()) for name, value in letter.message.attributes.items()
        )
        batch, batch_size = open_batches.get(letter.original.ordering_key, ([], 0))
        if not batch or len(batch) == max_letters or batch_size + size > max_bytes:
            batch, batch_size = [], 0
            batches.append(batch)
        batch.append(letter)
        open_batches[letter.original.ordering_key] = (batch, batch_size + size)
    return batches


def _time_us(text: str) -> int | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """Returns the complete dead letter as a JSON object. Attributes and payload are the original's."""
    return {
        "reason": letter.reason or None,
        "detail": letter.detail,
        "step": letter.step,
        "time": None if letter.time_us is None else format_time(letter.time_us),
        "message_id": letter.original.message_id,
        "publish_time": publish_time_text(letter.original),
        "ordering_key": letter.original.ordering_key,
        "replays": letter.replays,
        "attributes": dict(letter.original.attributes),
        # A mapped message's events are under another name: publish would take these for what the message contains.
        "events": [] if letter.trial else [_event_json(event) for event in letter.events],
        **({"mapped": letter.trial.document()} if letter.trial else {}),
        "data": base64.b64encode(letter.message.data).decode(),
    }


class Replay(NamedTuple):
    """A message made of a dead letter's JSON, to be published again."""

    message: Message
    events: tuple[SensorEvent, ...]  # in the message; not validated


def replay_of_json(document: Mapping[str, Any]) -> Replay:
    """Returns the message that an object of :func:`letter_json` stands for, also if someone has edited the object.

    The payload is ``data``, unless ``events`` differ from what it contains: then it is made of the events, and so are
    the attributes that Tidetable reads. Either may be left out. All other attributes and the ordering key are the
    object's, and the number of replays is increased by one.

    Raises:
        BadData: the payload cannot be decoded, and no mapping decoded it when it was shown.
        ValueError: the object is not a dead letter, an event in it is not one, or it is a refused table row.
    """
    if document.get("reason") == dead_letter.ROW_REFUSED:
        raise ValueError("a table row that Bigtable refused, not a message")
    attributes, own = _attributes_of(document)
    original = Message(_payload(document.get("data") or ""), attributes)
    events, problem = _decoded(original)
    listed = document.get("events") or []
    if not isinstance(listed, list):
        raise ValueError("events is not a list")
    if listed and listed != [_event_json(event) for event in events]:
        events = tuple(parse_json(json.dumps(each).encode(), SensorEvent) for each in listed)
        made = message_of(events)
        original = Message(made.data, {**dead_letter.without_encodings(attributes), **made.attributes})
    elif problem is not None and not document.get("mapped"):
        raise problem
    return Replay(dead_letter.replay_of(original._replace(attributes={**original.attributes, **own})), events)


def _attributes_of(document: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the original attributes, and the dead letter's own that a replay needs. Raises ValueError."""
    attributes = document.get("attributes") or {}
    of_letter = ((dead_letter.ORDERING_KEY, "ordering_key"), (dead_letter.PUBLISH_TIME, "publish_time"))
    own = {name: document[key] for name, key in of_letter if document.get(key)}
    if not isinstance(attributes, dict) or not all(map(_is_text, (*attributes, *(attributes | own).values()))):
        raise ValueError("attributes, ordering_key and publish_time must be text")
    return attributes, own


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # JSON can contain one half of a character
        return False


def _payload(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise ValueError("data is not base64") from None


def _decoded(message: Message) -> tuple[tuple[SensorEvent, ...], BadData | None]:
    try:
        return tuple(decode(message)), None
    except BadData as problem:
        return (), problem


def event_time_text(event: SensorEvent) -> str | None:
    """Returns the event time as text, also outside RFC 3339's range; None if it is not set."""
    if not event.HasField("event_time"):
        return None
    seconds, nanos = event.event_time.seconds, event.event_time.nanos
    if 0 <= nanos < 1_000_000_000:
        try:
            return format_time(seconds * 1_000_000 + nanos // 1000)
        except OverflowError:
            pass
    return f"{seconds} s and {nanos} ns since the epoch"


def publish_time_text(message: Message) -> str | None:
    """Returns the message's publish time as text; None if it is unknown."""
    return format_time(from_datetime(message.publish_time)) if message.publish_time else None


def _event_json(event: SensorEvent) -> dict[str, Any]:
    readings = {metric: json_number(value) for metric, value in sorted(event.readings.items())}
    metadata = dict(sorted(event.metadata.items()))
    return event_json(event.sensor_id, event_time_text(event), event.event_id, readings, metadata)
