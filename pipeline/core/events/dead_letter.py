"""Turns refused messages into dead letters within Pub/Sub's limits, and dead letters back into messages.

A dead letter contains the original payload and attributes, and the reason. Publishing it again replays it, either
unchanged or as :func:`replay_of` returns it. What does not fit is cut by these rules:

1. Attributes that Tidetable adds are never dropped.
2. Original attributes are dropped if they exceed 100 attributes, 256 bytes per key, 1024 bytes per value or 10 MB per
   message. The attributes that Tidetable or a mapping reads are kept first, then the others by name.
3. The end of the payload is cut only if the payload leaves no room for the attributes that Tidetable adds.

``dead_letter_detail`` lists what was cut.

Two kinds of attributes cannot be published under their own names and are renamed: ``goog…`` (Pub/Sub's own) to
``dead_letter_goog…``, and names of arguments of the Python client's ``publish`` to ``dead_letter_attribute_…``, because
Beam's DirectRunner would pass them as arguments. :func:`original_of` restores the names.

``dead_letter_replays`` counts how often a message was replayed. If it is refused again, its dead letter keeps the
count. A dead letter that arrives unchanged was replayed too, so it adds one. A count that keeps growing this way
reveals a topic whose dead letters flow back into the job's input: see :func:`returns_too_often`.

``dead_letter_publish_time`` is when the message was published first: a replay keeps it, and so does another refusal.

A row that Bigtable refuses becomes a dead letter too, with the encoded entry. It is no sensor's message, and cannot be
replayed. Its ``message_type`` names the type of its payload: ``MutateRowsRequest.Entry.FromString(message.data)``.
"""

import re
from collections.abc import Callable, Mapping, Set
from datetime import datetime
from typing import NamedTuple

from pipeline.core.events.compression import CONTENT_ENCODING, is_content_encoding
from pipeline.core.events.message import (
    ENCODING,
    EVENT_ID,
    EVENT_TIME,
    EVENT_TYPE,
    MESSAGE_TYPE,
    SCHEMA_REVISION,
    Message,
    event_time_of,
)
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.times import format_time, from_datetime, parse_time, to_datetime
from pipeline.proto.sensor_event_pb2 import SensorEvent

PREFIX = "dead_letter_"
REASON = f"{PREFIX}reason"
DETAIL = f"{PREFIX}detail"
STEP = f"{PREFIX}step"
TIME = f"{PREFIX}time"
MESSAGE_ID = f"{PREFIX}message_id"
PUBLISH_TIME = f"{PREFIX}publish_time"
ORDERING_KEY = f"{PREFIX}ordering_key"
REPLAYS = f"{PREFIX}replays"  # a replayed message has this one, and PUBLISH_TIME
_DEAD_LETTER_ONLY = frozenset({REASON, DETAIL, STEP, TIME, MESSAGE_ID, PUBLISH_TIME, ORDERING_KEY})
RENAMED_ENCODING = f"{PREFIX}{ENCODING}"
RENAMED_REVISION = f"{PREFIX}{SCHEMA_REVISION}"

MAX_RETURNS = 10
"""A dead letter that arrives unchanged after this many replays is not published again."""

# https://cloud.google.com/pubsub/quotas#resource_limits
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
# The limit of 10 MB applies to the whole publish request, including the topic's name.
MAX_MESSAGE_BYTES = 10_000_000 - 2_000
# An upper bound of the tags and lengths around an attribute's key and value in the message's protobuf.
_ATTRIBUTE_OVERHEAD = 12

_PUBLISH_ARGUMENTS = frozenset({"self", "topic", "data", "ordering_key", "retry", "timeout"})
_RENAMED_ARGUMENT = f"{PREFIX}attribute_"
_COUNT = re.compile(r"[0-9]{1,9}")
_READ_BY_TIDETABLE = frozenset(
    {MESSAGE_TYPE, EVENT_TIME, EVENT_ID, RENAMED_ENCODING, RENAMED_REVISION, CONTENT_ENCODING}
)
_ROOM_FOR_CUTS = 300  # bytes of the detail's 1024 that are reserved for the list of cuts, if there are any


def dead_letter(message: Message, problem: BadData, step: str, now: datetime, read: Set[str] = frozenset()) -> Message:
    """Returns the dead letter of a refused message.

    Args:
        message: the message as received, or :func:`event_alone` of a batch.
        problem: the reason for the refusal.
        step: the label of the transform that refused it.
        now: the time of the refusal.
        read: the names of the attributes that mappings read.

    Returns:
        A message that can be published: attributes and payload are within Pub/Sub's limits, without an ordering key.
    """
    published = published_at(message)
    own = {
        REASON: problem.reason.value,
        STEP: step,
        TIME: format_time(from_datetime(now)),
        MESSAGE_ID: message.message_id,
        PUBLISH_TIME: format_time(from_datetime(published)) if published else "",
    }
    # A dead letter that was published again unchanged still has its ordering key in the attribute.
    if ordering_key := message.ordering_key or message.attributes.get(ORDERING_KEY):
        own[ORDERING_KEY] = ordering_key
    if replays := replays_of(message) + (REASON in message.attributes):
        own[REPLAYS] = str(replays)
    room = MAX_MESSAGE_BYTES - _size(own) - MAX_VALUE_BYTES - MAX_KEY_BYTES  # leaves room for the detail
    data = message.data[:room]
    originals = _renamed(_without(_DEAD_LETTER_ONLY | {REPLAYS}, message.attributes), dead_letter_name)
    kept, left_out = _fitting(originals, own, room - len(data), _READ_BY_TIDETABLE | set(map(dead_letter_name, read)))

    cuts = []
    if len(data) < len(message.data):
        cuts.append(f"payload cut from {len(message.data)} to {len(data)} bytes")
    if left_out:
        cuts.append(f"{len(left_out)} attributes left out: {', '.join(left_out)}")
    detail = problem.detail
    if cuts:
        detail = f"{clipped(detail, MAX_VALUE_BYTES - _ROOM_FOR_CUTS)} ({'; '.join(cuts)})"
    return Message(data, kept | own | {DETAIL: clipped(detail, MAX_VALUE_BYTES)})


def original_of(letter: Message) -> Message:
    """Returns the refused message as it was received, except for what :func:`dead_letter` had to cut."""
    return Message(
        letter.data,
        _renamed(_without(_DEAD_LETTER_ONLY, letter.attributes), _original_name),
        letter.attributes.get(MESSAGE_ID, ""),
        _datetime(letter.attributes.get(PUBLISH_TIME, "")),
        letter.attributes.get(ORDERING_KEY, ""),
    )


def replay_of(letter: Message) -> Message:
    """Returns the original message, ready to be published again, with its number of replays increased by one.

    ``goog…`` attributes cannot be published and keep their new names. ``decode`` finds the encoding under its new name.
    The time of the first publication remains as an attribute: see :func:`published_at`.
    """
    original = original_of(letter)
    attributes = _renamed(original.attributes, _publishable_name) | {REPLAYS: str(replays_of(letter) + 1)}
    if published := letter.attributes.get(PUBLISH_TIME):
        attributes[PUBLISH_TIME] = published
    return Message(letter.data, attributes, ordering_key=original.ordering_key)


def published_at(message: Message) -> datetime | None:
    """Returns when a message was first published, before any replays."""
    first = message.attributes.get(PUBLISH_TIME)
    return (_datetime(first) if first else None) or message.publish_time


def replays_of(message: Message) -> int:
    """Returns how often the message, or a dead letter's original, was replayed."""
    text = message.attributes.get(REPLAYS, "")
    return int(text) if _COUNT.fullmatch(text) else 0


def returns_too_often(message: Message) -> bool:
    """Returns whether a refused message is a dead letter that was replayed too often to become one again.

    This concerns only dead letters that were published unchanged, such as by a subscription that copies the dead-letter
    topic to the input. A message from :func:`replay_of` is not a dead letter, and its callers set their own limit.
    """
    return REASON in message.attributes and replays_of(message) >= MAX_RETURNS


def event_alone(message: Message, index: int, event: SensorEvent) -> Message:
    """Returns one event of a batch as a message with its own attributes. A single event's message stays unchanged."""
    if not message.is_batch:
        return message
    attributes = _without({EVENT_TIME, EVENT_ID}, without_encodings(message.attributes))
    attributes[MESSAGE_TYPE] = EVENT_TYPE
    if EVENT_ID in message.attributes:
        attributes[EVENT_ID] = f"{message.attributes[EVENT_ID]}/{index}"
    if event_time := event_time_of(event):
        attributes[EVENT_TIME] = event_time
    return message._replace(data=event.SerializeToString(deterministic=True), attributes=attributes)


def without_encodings(attributes: Mapping[str, str]) -> dict[str, str]:
    """Returns the attributes without the encoding and the compression of a payload, which another one replaces."""
    others = {name: text for name, text in attributes.items() if not is_content_encoding(name)}
    return _without({ENCODING, RENAMED_ENCODING}, others)


def _without(names: Set[str], attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if name not in names}


def dead_letter_name(name: str) -> str:
    """Returns the name under which a dead letter has an attribute of the original."""
    return f"{_RENAMED_ARGUMENT}{name}" if name in _PUBLISH_ARGUMENTS else _publishable_name(name)


def _publishable_name(name: str) -> str:
    return f"{PREFIX}{name}" if name.startswith("goog") else name


def _original_name(name: str) -> str:
    if name.startswith(f"{PREFIX}goog"):
        return name.removeprefix(PREFIX)
    argument = name.removeprefix(_RENAMED_ARGUMENT)
    return argument if argument in _PUBLISH_ARGUMENTS else name


def _renamed(attributes: Mapping[str, str], rename: Callable[[str], str]) -> dict[str, str]:
    """Renames the attributes. If two attributes end up with one name, the one that was renamed wins."""
    # Later items win, so renamed ones come last. Both names of the encoding occur if Pub/Sub sets its own on a message
    # that was replayed to a topic with a schema.
    return {rename(name): attributes[name] for name in sorted(attributes, key=lambda name: rename(name) != name)}


def _datetime(text: str) -> datetime | None:
    try:
        return to_datetime(parse_time(text))
    except (ValueError, OverflowError):
        return None


def _fitting(
    originals: Mapping[str, str], own: Mapping[str, str], room: int, read: Set[str]
) -> tuple[dict[str, str], list[str]]:
    """Returns the original attributes that fit next to Tidetable's own, and the names of the others.

    Those in ``read`` are kept first.
    """
    kept: dict[str, str] = {}
    left_out = []
    places = MAX_ATTRIBUTES - len(own) - 1  # one is for the detail
    for name in sorted(originals.keys() - own.keys(), key=lambda name: (name not in read, name)):
        size = _size({name: originals[name]})
        fits = len(name.encode()) <= MAX_KEY_BYTES and len(originals[name].encode()) <= MAX_VALUE_BYTES
        if fits and places and size <= room:
            kept[name] = originals[name]
            places -= 1
            room -= size
        else:
            left_out.append(name)
    return kept, left_out


def _size(attributes: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) + _ATTRIBUTE_OVERHEAD for name, value in attributes.items())


def clipped(text: str, max_bytes: int) -> str:
    """Returns the text, truncated to ``max_bytes`` of UTF-8."""
    encoded = text.encode(errors="backslashreplace")  # a lone surrogate from JSON cannot be encoded
    return encoded.decode() if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "…"


ROW_REFUSED = "ROW_REFUSED"
"""The dead letter's reason."""
ENTRY_TYPE = "google.bigtable.v2.MutateRowsRequest.Entry"
"""The dead letter's message type."""
ROW_KEY = "row_key"
"""The attribute with the row key as text. Bytes that are not UTF-8 are written like ``\\xff``."""

_ATTRIBUTES_BYTES = 8 * MAX_VALUE_BYTES  # more than the six attributes take
_ROOM_FOR_NOTE = 100  # bytes of the detail that are reserved for the note on a cut


class RefusedRow(NamedTuple):
    """A row that the server permanently refuses."""

    key: bytes
    code: str
    """The status code, such as ``INVALID_ARGUMENT``."""
    message: str
    """The server's error message."""
    entry: bytes
    """The encoded ``MutateRowsRequest.Entry``."""


def refused_row_letter(row: RefusedRow, table: str, step: str, now: datetime) -> Message:
    """Returns the dead letter of a row. What does not fit is truncated; if that is the entry, the detail notes it.

    ``table`` is the full name of the table that refused the row, ``step`` the label of the transform that writes rows.
    """
    key = row.key.decode(errors="backslashreplace")
    data = row.entry[: MAX_MESSAGE_BYTES - _ATTRIBUTES_BYTES]
    cut = f" (entry cut from {len(row.entry)} to {len(data)} bytes)" if len(data) < len(row.entry) else ""
    message = " ".join(row.message.split())
    detail = clipped(f"table {table}: row {clipped(key, 256)}: {row.code}: {message}", MAX_VALUE_BYTES - _ROOM_FOR_NOTE)
    return Message(
        data,
        {
            MESSAGE_TYPE: ENTRY_TYPE,
            ROW_KEY: clipped(key, MAX_VALUE_BYTES),
            REASON: ROW_REFUSED,
            DETAIL: detail + cut,
            STEP: step,
            TIME: format_time(from_datetime(now)),
        },
    )
