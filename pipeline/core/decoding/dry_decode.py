"""Shows what a job would make of messages, message by message."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf import json_format, text_format
from google.protobuf.descriptor_pool import DescriptorPool

from pipeline.core.decoding.mapping.values.nodes import parse_plain
from pipeline.core.decoding.message_types import DecoderFunction, MappedType, MessageType, MessageTypes
from pipeline.core.events.compression import unpacked
from pipeline.core.events.event import Event
from pipeline.core.events.message import MESSAGE_TYPE, Message, parse
from pipeline.core.events.protobuf_json import event_json
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.text import json_value
from pipeline.core.notation.times import format_time


class Trial(NamedTuple):
    """What a job would make of a message.

    Attributes:
        type: the name of the message's type; empty if it has none.
        is_mapped: whether a mapping or a decoder reads it.
        message: the message as JSON; None if it can't be parsed.
        problems: the problems that would make the message, or events of its batch, dead letters.
        skipped: the number of messages or elements that conditions of a mapping leave out.
        dropped: the problems of readings that events lose: the first of each metric and reason.
        is_assumed: whether the type was assumed, since nothing names it.
        replaced_times: the problems of times for which a mapping takes the next of their list.
    """

    type: str
    is_mapped: bool
    message: Any
    events: list[Event]
    problems: list[BadData]
    skipped: int = 0
    dropped: Sequence[BadData] = ()
    is_assumed: bool = False
    replaced_times: Sequence[BadData] = ()

    def document(self) -> dict[str, Any]:
        """Returns the trial as a JSON object."""
        return {
            "type": self.type or None,
            "message": self.message,
            "events": [
                event_json(
                    sensor, format_time(time_us), event_id, dict(sorted(readings.items())), dict(sorted(texts.items()))
                )
                for sensor, time_us, readings, texts, event_id, _ in self.events
            ],
            "refused": [{"reason": problem.reason, "detail": problem.detail} for problem in self.problems],
            "dropped": [{"reason": problem.reason, "detail": problem.detail} for problem in self.dropped],
            "skipped": self.skipped,
            "replaced_times": len(self.replaced_times),
        }


class Trials:
    """Tries mappings, and a decoder for what no mapping takes, on messages.

    A job with mappings refuses messages without the attribute ``message_type``, unless a mapping or a flag gives their
    type. A single mapping is tried on them all the same.
    """

    def __init__(self, mapped: Sequence[MappedType], decoder: DecoderFunction | None = None) -> None:
        self._types = MessageTypes(mapped, decoder, default=None)
        self._only = mapped[0] if len(mapped) == 1 and mapped[0].mapping.match is None and not decoder else None

    def of(self, message: Message, latest_us: int) -> Trial:
        """Returns what a job would make of a message. ``latest_us`` is the latest event time allowed, inclusive."""
        only = self._only
        is_assumed = only is not None and not message.attributes.get(MESSAGE_TYPE) and not only.mapping.unmarked
        try:
            one = only if only and is_assumed else self._types.of(message)
        except BadData as problem:
            return Trial("", False, None, [], [problem])
        is_mapped = isinstance(one, (MappedType, DecoderFunction))
        tried = Trial(one.name, is_mapped, _json_of(one, message), [], [], is_assumed=is_assumed)
        try:
            decoded = one.decode(message, latest_us)
        except BadData as problem:
            return tried._replace(problems=[problem])
        problems = [problem for _, problem in decoded.refused]
        return tried._replace(
            events=decoded.events,
            problems=problems,
            skipped=decoded.skipped,
            dropped=[problem for _, lost in decoded.losses for problem in lost.values()],
            replaced_times=decoded.replaced_times,
        )


def _json_of(one: MessageType, message: Message) -> Any:
    """Returns a message as JSON; as text if protobuf's JSON can't express it; None if it can't be parsed or shown."""
    pool: DescriptorPool | None = None
    try:
        if isinstance(one, DecoderFunction):
            return parse_plain(unpacked(message.data, message.attributes), "the message")
        if isinstance(one, MappedType):
            (documents, _), mapper = one.parse(message)
            if mapper.message_class is None:
                shown = [str(document) if isinstance(document, BadData) else document for document in documents]
                return json_value(shown[0] if len(shown) == 1 else shown)
            (parsed,) = documents
            pool = mapper.pool
        else:
            parsed = parse(message)
    except BadData:
        return None
    try:
        try:
            return json_format.MessageToDict(parsed, preserving_proto_field_name=True, descriptor_pool=pool)
        except (json_format.Error, ValueError, TypeError):  # such as a Timestamp out of range, or an unknown Any
            return text_format.MessageToString(parsed)
    except RecursionError:  # an Any in an Any, and so on
        return None
