"""The message types that a job reads: the built-in ones, those of mappings, and whatever a decoder function reads.

The attribute ``message_type`` names the type of a message, unless a mapping declares other conditions.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from google.protobuf.unknown_fields import UnknownFieldSet

from pipeline.core.decoding.mapping.descriptors import Descriptors
from pipeline.core.decoding.mapping.document import parse_mapping
from pipeline.core.decoding.mapping.mapper import Mapper, envelope_conditions
from pipeline.core.decoding.mapping.model import MappingError
from pipeline.core.decoding.mapping.payloads import parse_payload
from pipeline.core.events.dead_letter import RENAMED_REVISION, event_alone
from pipeline.core.events.event import Event, valid_event, validate
from pipeline.core.events.message import BATCH_TYPE, EVENT_TYPE, MESSAGE_TYPE, SCHEMA_REVISION, Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.events.refusals import RefusedMessage
from pipeline.core.events.wire import parse
from pipeline.core.notation.text import shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

_MAX_REVISIONS = 100  # compiled, or known not to exist

_new = tuple.__new__

Check = Callable[[Event], Any]
"""Raises BadData for an event that a table cannot store."""

UnknownFields = Literal["count", "refuse"]


class Decoded(NamedTuple):
    """What a message contains.

    Attributes:
        type: the name of its type, for counters.
        events: valid events that every table has a place for.
        refused: messages that must become dead letters, with the reasons.
        skipped: messages or elements that conditions of a mapping left out.
        unknown_fields: fields that ``SensorEvent`` does not have.
    """

    type: str
    events: list[Event]
    refused: list[tuple[Message, BadData]]
    skipped: int = 0
    unknown_fields: int = 0


class MessageType(Protocol):
    """Reads messages of a type."""

    name: str

    def decode(self, message: Message, latest_us: int, checks: Sequence[Check]) -> Decoded:
        """Returns what a message contains.

        Args:
            message: of the type.
            latest_us: the latest event time allowed, inclusive.
            checks: of the tables.

        Raises:
            BadData: the message as a whole is refused.
        """


class BuiltIn:
    """Reads ``SensorEvent`` and ``SensorEventBatch``, the fast way.

    Args:
        unknown_fields: whether fields that the types do not have are counted or refuse the event.
    """

    name = EVENT_TYPE

    def __init__(self, unknown_fields: UnknownFields = "count") -> None:
        self._refuses = unknown_fields == "refuse"

    def decode(self, message: Message, latest_us: int, checks: Sequence[Check]) -> Decoded:
        """See :meth:`MessageType.decode`. A refused event of a batch is a message of its own."""
        parsed = parse(message)
        of_batch = isinstance(parsed, SensorEventBatch)
        unknown = self._unknown_fields(parsed) if of_batch else 0
        events: list[Event] = []
        refused = []
        for index, proto in enumerate(parsed.events if of_batch else (parsed,)):
            try:
                if len(UnknownFieldSet(proto)):
                    unknown += self._unknown_fields(proto)
                event = validate(proto, latest_us)
                for check in checks:
                    check(event)
            except BadData as problem:
                refused.append((event_alone(message, index, proto), problem))
            else:
                events.append(event)
        return _new(Decoded, (self.name, events, refused, 0, unknown))  # a third of the time of its own constructor

    def _unknown_fields(self, parsed: SensorEvent | SensorEventBatch) -> int:
        fields = len(UnknownFieldSet(parsed))
        if fields and self._refuses:
            name = parsed.DESCRIPTOR.full_name
            raise BadData(Reason.UNKNOWN_FIELDS, f"the message has {fields} fields that {name} does not have")
        return fields


class _UnmarkedBatches(BuiltIn):
    """Reads messages without the attribute ``message_type`` as batches."""

    def decode(self, message: Message, latest_us: int, checks: Sequence[Check]) -> Decoded:
        marked = {**message.attributes, MESSAGE_TYPE: BATCH_TYPE}
        return super().decode(message._replace(attributes=marked), latest_us, checks)


@dataclass(frozen=True)
class Schema:
    """The revisions of a schema that Pub/Sub holds for a topic, as descriptors.

    Attributes:
        name: the full path of the schema.
        revisions: serialized descriptor sets by revision; the last one is the newest.
        fetch: returns the descriptor set of another revision; None if there is no such revision. Raises MappingError
            if its definition can't be used.
    """

    name: str
    revisions: Mapping[str, bytes]
    fetch: Callable[[str], bytes | None]


@dataclass
class Mapped:
    """Reads messages of another type through a mapping. It pickles as the mapping's text.

    Args:
        file: the name of the mapping's file, for messages.
        text: of the mapping, in TOML.
        descriptors: a serialized ``FileDescriptorSet``, or a schema; neither for JSON.
    """

    file: str
    text: str
    descriptors: bytes | Schema = b""
    _mappers: dict[str, Mapper | BadData] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.mapping = parse_mapping(self.text)
        self.name = self.mapping.message
        self._on_envelope, self._only_envelope = envelope_conditions(self.mapping)
        self._last: tuple[Message, tuple[Any, Mapper]] | None = (
            None  # what a message was parsed to, to match and to map
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped, (self.file, self.text, self.descriptors)

    def compile(self) -> Mapper:
        """Returns the compiled mapping; of a schema, for its newest revision. Raises MappingError.

        Older revisions are compiled too. They may lack fields that came later, but must not have them retyped.
        """
        if not isinstance(self.descriptors, Schema):
            return self._compiled("", self.descriptors, strict=True)
        *older, newest = self.descriptors.revisions.items()
        for revision, descriptors in older:
            self._compiled(revision, descriptors, strict=False)
        return self._compiled(newest[0], newest[1], strict=True)

    def matches(self, message: Message) -> bool:
        """Returns whether a message is of this type."""
        if self.mapping.match is None:
            message_type = message.attributes.get(MESSAGE_TYPE)
            return message_type == self.name or (self.mapping.unmarked and not message_type)
        # What its attributes say it is, it is, even if it can't be parsed: then it is refused as such.
        if not all(holds([message, None]) for holds in self._on_envelope):
            return False
        if self._only_envelope:
            return True
        try:
            root, mapper = self.parse(message)
            return mapper.matches([message, root])
        except BadData:
            return False

    def decode(self, message: Message, latest_us: int, checks: Sequence[Check]) -> Decoded:
        """See :meth:`MessageType.decode`. The message is refused as a whole, once, whatever the number of problems."""
        root, mapper = self.parse(message)
        mapped = mapper.map(message, root)
        events: list[Event] = []
        problems = mapped.problems
        for made in mapped.events:
            try:
                event = valid_event(*made, latest_us)
                for check in checks:
                    check(event)
            except BadData as problem:
                problems.append(BadData(problem.reason, f"sensor {shown(made.sensor_id)}: {problem.detail}"))
            else:
                events.append(event)
        refused = [(message, _first_of(problems))] if problems else []
        return Decoded(self.name, events, refused, mapped.skipped)

    def parse(self, message: Message) -> tuple[Any, Mapper]:
        """Returns what the payload of a message contains, and what maps it. Raises BadData."""
        if self._last is None or self._last[0] is not message:
            mapper = self._mapper(message)
            self._last = message, (parse_payload(mapper, message), mapper)
        return self._last[1]

    def _mapper(self, message: Message) -> Mapper:
        if not isinstance(self.descriptors, Schema):
            found = self._mappers.get("") or self._compiled("", self.descriptors, strict=True)
        else:
            found = self._of_revision(self.descriptors, message)
        if isinstance(found, BadData):
            raise found
        return found

    def _of_revision(self, schema: Schema, message: Message) -> Mapper | BadData:
        attributes = message.attributes
        revision = attributes.get(SCHEMA_REVISION) or attributes.get(RENAMED_REVISION)
        revision = revision or list(schema.revisions)[-1]
        if revision in self._mappers:
            return self._mappers[revision]
        if len(self._mappers) >= _MAX_REVISIONS:
            self._mappers.clear()
        try:
            descriptors = schema.revisions.get(revision) or schema.fetch(revision)
            if descriptors is not None:
                return self._compiled(revision, descriptors, strict=False)
            problem = f"schema {schema.name} has no revision {shown(revision)}"
        except MappingError as error:
            problem = f"revision {shown(revision)} does not fit {self.file}: {error}"
        self._mappers[revision] = BadData(Reason.UNKNOWN_REVISION, problem)
        return self._mappers[revision]

    def _compiled(self, revision: str, descriptors: bytes, *, strict: bool) -> Mapper:
        mapper = Mapper(self.mapping, Descriptors(descriptors), strict=strict)
        self._mappers[revision] = mapper
        return mapper


def _first_of(problems: Sequence[BadData]) -> BadData:
    first, others = problems[0], len(problems) - 1
    if not others:
        return first
    return BadData(first.reason, f"{first.detail}; and {others:,} more problem{'s' if others > 1 else ''}")


class DecoderFunction:
    """Reads messages with a function that users write. It pickles as the function's name.

    Args:
        path: ``module:function``; the function takes the payload and the attributes, and returns ``SensorEvent``s.

    Raises:
        MappingError: there is no such function in this environment.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        module, _, function = path.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise MappingError(
                "", f"{path!r} is not a function of this environment, as module:function: {error}"
            ) from error
        if not callable(self._function):
            raise MappingError("", f"{path!r} is not a function")

    def __reduce__(self) -> tuple[type["DecoderFunction"], tuple[str]]:
        return DecoderFunction, (self.name,)

    def decode(self, message: Message, latest_us: int, checks: Sequence[Check]) -> Decoded:
        """See :meth:`MessageType.decode`. Exceptions but RefusedMessage are bugs: they end the bundle."""
        try:
            protos = list(self._function(message.data, dict(message.attributes)))
        except RefusedMessage as refusal:
            raise BadData(Reason.REFUSED_BY_DECODER, str(refusal)) from refusal
        events, problems = [], []
        for proto in protos:
            try:
                event = validate(proto, latest_us)
                for check in checks:
                    check(event)
            except BadData as problem:
                problems.append(problem)
            else:
                events.append(event)
        return Decoded(self.name, events, [(message, _first_of(problems))] if problems else [])


class MessageTypes:
    """All types that a job reads. It pickles.

    Args:
        mapped: types with mappings; the first that matches a message reads it.
        decoder: reads the messages that no other type matches.
        default: the name of the type of messages without the attribute ``message_type``; None: such messages are
            refused, unless a mapping or the decoder takes them.
        unknown_fields: see :class:`BuiltIn`.

    Raises:
        MappingError: no type has the name ``default``, or a mapping takes the same messages.
    """

    def __init__(
        self,
        mapped: Iterable[Mapped] = (),
        decoder: DecoderFunction | None = None,
        default: str | None = EVENT_TYPE,
        unknown_fields: UnknownFields = "count",
    ) -> None:
        self._mapped = list(mapped)
        self._decoder = decoder
        built_in = BuiltIn(unknown_fields)
        self._by_name: dict[str, MessageType] = {EVENT_TYPE: built_in, BATCH_TYPE: built_in}
        self._by_conditions = [one for one in self._mapped if one.mapping.match is not None]
        for one in reversed(self._mapped):
            if one.mapping.match is None:
                self._by_name[one.name] = one
        self._unmarked: MessageType | None = next((one for one in self._mapped if one.mapping.unmarked), None)
        if default and self._unmarked:
            raise MappingError("", f"{default} can't be the default type: {self._unmarked.name} has unmarked = true")
        if default:
            if default not in self._by_name:
                raise MappingError("", f"{default} can't be the default type: it is none of {', '.join(self._by_name)}")
            self._unmarked = self._by_name[default]
            if default == BATCH_TYPE and self._unmarked is built_in:
                self._unmarked = _UnmarkedBatches(unknown_fields)

    @property
    def names(self) -> list[str]:
        """The names of the types beyond the built-in ones."""
        return [one.name for one in self._mapped] + ([self._decoder.name] if self._decoder else [])

    @property
    def attribute_names(self) -> frozenset[str]:
        """The attributes that mappings read."""
        return frozenset[str]().union(*(one.mapping.attribute_names for one in self._mapped))

    def of(self, message: Message) -> MessageType:
        """Returns the type of a message. Raises BadData if it is of no known type."""
        for one in self._by_conditions:
            if one.matches(message):
                return one
        name = message.attributes.get(MESSAGE_TYPE)
        found = (self._by_name.get(name) if name else self._unmarked) or self._decoder
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str | None) -> BadData:
        known = ", ".join(self._by_name)
        if not name:
            return BadData(
                Reason.UNKNOWN_MESSAGE_TYPE,
                f"the attribute message_type is missing, and no type is the default: {known}",
            )
        return BadData(Reason.UNKNOWN_MESSAGE_TYPE, f"message_type is {shown(name)}, none of {known}")
