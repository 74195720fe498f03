"""Dead letters: the original message again, with the reason beside it, within Pub/Sub's limits; and the way back.

A dead letter replays by being published again, as :func:`replay_of` has it or even as it is. What must be cut to fit
is cut in this order:

1. our own attributes never;
2. of the original attributes, those that Tidetable reads stay longest, then the others by name; whatever does not
   fit into 100 attributes, 256 bytes a key, 1024 bytes a value and 10 MB a message is left out;
3. last, and only where the payload leaves no room for our own attributes, the end of the payload.

``dead_letter_detail`` says what was cut.

Two kinds of attributes can't be published under their own names and travel renamed: ``goog…`` (Pub/Sub's own) as
``dead_letter_goog…``, and those that are names of arguments of the Python client's ``publish``, through which
Beam's DirectRunner would mistake them, as ``dead_letter_attribute_…``. :func:`original_of` undoes that.

A replayed message says in ``dead_letter_replays`` how often it was; whoever refuses it again passes that on. A dead
letter that comes back as it is was replayed by whoever published it, and counts once more. So a topic whose dead
letters find their way back into the job's input is told from a replay: see :func:`comes_back_for_ever`.
"""

import re
from collections.abc import Callable, Mapping, Set
from datetime import datetime

from pipeline.core.events import BadData
from pipeline.core.messages import ENCODING, EVENT_ID, EVENT_TIME, EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.core.outgoing import event_time_of
from pipeline.core.times import format_time, from_datetime, parse_time, to_datetime
from pipeline.proto.sensor_event_pb2 import SensorEvent

PREFIX = "dead_letter_"
REASON = f"{PREFIX}reason"
DETAIL = f"{PREFIX}detail"
STEP = f"{PREFIX}step"
TIME = f"{PREFIX}time"
MESSAGE_ID = f"{PREFIX}message_id"
PUBLISH_TIME = f"{PREFIX}publish_time"
ORDERING_KEY = f"{PREFIX}ordering_key"
REPLAYS = f"{PREFIX}replays"  # the one that a replayed message carries
_OF_A_DEATH = frozenset({REASON, DETAIL, STEP, TIME, MESSAGE_ID, PUBLISH_TIME, ORDERING_KEY})
RENAMED_ENCODING = f"{PREFIX}{ENCODING}"

MOST_RETURNS = 10
"""How many replays a dead letter that comes back as it is may have behind it, and still become one again."""

# https://cloud.google.com/pubsub/quotas#resource_limits
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
# The limit of 10 MB is for the whole publish request, the topic's name included.
MAX_MESSAGE_BYTES = 10_000_000 - 2_000
# Tags and lengths around an attribute's key and value in the message's protobuf; never more than this.
_ATTRIBUTE_OVERHEAD = 12

_PUBLISH_ARGUMENTS = frozenset({"self", "topic", "data", "ordering_key", "retry", "timeout"})
_RENAMED_ARGUMENT = f"{PREFIX}attribute_"
_COUNT = re.compile(r"[0-9]{1,9}")
_READ_BY_US = (MESSAGE_TYPE, EVENT_TIME, EVENT_ID, RENAMED_ENCODING)
_ROOM_FOR_CUTS = 300  # of the detail's 1024 bytes, where there is something to say of cuts


def dead_letter(message: Message, problem: BadData, step: str, now: datetime) -> Message:
    """The dead letter of a message that was refused.

    Args:
        message: as received, or :func:`event_alone` of a batch.
        problem: why.
        step: the label of the transform that refused it.
        now: when.

    Returns:
        A message that can be published: attributes and payload within Pub/Sub's limits, no ordering key.
    """
    own = {
        REASON: problem.reason.value,
        STEP: step,
        TIME: format_time(from_datetime(now)),
        MESSAGE_ID: message.message_id,
        PUBLISH_TIME: format_time(from_datetime(message.publish_time)) if message.publish_time else "",
    }
    # A dead letter that was published again as it is has its ordering key still in the attribute.
    if ordering_key := message.ordering_key or message.attributes.get(ORDERING_KEY):
        own[ORDERING_KEY] = ordering_key
    if replays := replays_of(message) + (REASON in message.attributes):
        own[REPLAYS] = str(replays)
    room = MAX_MESSAGE_BYTES - _size(own) - MAX_VALUE_BYTES - MAX_KEY_BYTES  # the detail is yet to come
    data = message.data[:room]
    originals = _renamed(_without(_OF_A_DEATH | {REPLAYS}, message.attributes), _dead_letter_name)
    kept, left_out = _fitting(originals, own, room - len(data))

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
    """The message that was refused, as it was received, but for what :func:`dead_letter` had to cut."""
    return Message(
        letter.data,
        _renamed(_without(_OF_A_DEATH, letter.attributes), _original_name),
        letter.attributes.get(MESSAGE_ID, ""),
        _datetime(letter.attributes.get(PUBLISH_TIME, "")),
        letter.attributes.get(ORDERING_KEY, ""),
    )


def replay_of(letter: Message) -> Message:
    """The original message as it can be published again, with one replay more than it had.

    ``goog…`` attributes, which nobody can publish, keep their other name: ``decode`` knows the encoding by it.
    """
    original = original_of(letter)
    attributes = _renamed(original.attributes, _publishable_name)
    return Message(letter.data, attributes | {REPLAYS: str(replays_of(letter) + 1)}, ordering_key=original.ordering_key)


def replays_of(message: Message) -> int:
    """How often the message, or the one that this dead letter is of, was replayed."""
    text = message.attributes.get(REPLAYS, "")
    return int(text) if _COUNT.fullmatch(text) else 0


def returns_too_often(message: Message) -> bool:
    """Whether a message that is refused is a dead letter that was replayed so often that it must not become one again.

    Only one that was published as it is, as what copies all dead letters to the input does it. :func:`replay_of` makes
    no dead letter but a message, and whoever replays by it has a limit of his own.
    """
    return REASON in message.attributes and replays_of(message) >= MOST_RETURNS


def event_alone(message: Message, index: int, event: SensorEvent) -> Message:
    """One event of a batch as a message of its own, with attributes of its own; a single event's message as it is."""
    if not message.is_batch:
        return message
    attributes = _without({EVENT_TIME, EVENT_ID, ENCODING, RENAMED_ENCODING}, message.attributes)
    attributes[MESSAGE_TYPE] = EVENT_TYPE
    if EVENT_ID in message.attributes:
        attributes[EVENT_ID] = f"{message.attributes[EVENT_ID]}/{index}"
    if event_time := event_time_of(event):
        attributes[EVENT_TIME] = event_time
    return message._replace(data=event.SerializeToString(deterministic=True), attributes=attributes)


def _without(names: Set[str], attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if name not in names}


def _dead_letter_name(name: str) -> str:
    return f"{_RENAMED_ARGUMENT}{name}" if name in _PUBLISH_ARGUMENTS else _publishable_name(name)


def _publishable_name(name: str) -> str:
    return f"{PREFIX}{name}" if name.startswith("goog") else name


def _original_name(name: str) -> str:
    if name.startswith(f"{PREFIX}goog"):
        return name.removeprefix(PREFIX)
    argument = name.removeprefix(_RENAMED_ARGUMENT)
    return argument if argument in _PUBLISH_ARGUMENTS else name


def _renamed(attributes: Mapping[str, str], rename: Callable[[str], str]) -> dict[str, str]:
    """The attributes under their new names; where two become one, the one that was renamed wins."""
    # What comes later wins. Both names of the encoding meet where Pub/Sub sets its own on a message that was replayed
    # to a topic with a schema; decode has the same of the two in mind.
    return {rename(name): attributes[name] for name in sorted(attributes, key=lambda name: rename(name) != name)}


def _datetime(text: str) -> datetime | None:
    try:
        return to_datetime(parse_time(text))
    except (ValueError, OverflowError):
        return None


def _fitting(originals: Mapping[str, str], own: Mapping[str, str], room: int) -> tuple[dict[str, str], list[str]]:
    """Those original attributes that fit beside ours, and the names of those that don't."""
    kept: dict[str, str] = {}
    left_out = []
    places = MAX_ATTRIBUTES - len(own) - 1  # the detail
    for name in sorted(originals.keys() - own.keys(), key=lambda name: (name not in _READ_BY_US, name)):
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
    """The text, cut where its UTF-8 would be longer than so many bytes."""
    encoded = text.encode(errors="backslashreplace")  # a lone surrogate out of JSON is no UTF-8
    return encoded.decode() if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "…"
