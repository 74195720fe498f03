"""The message types that a job reads: built-in ones, types of mappings, and whatever a decoder function reads.

The attribute ``message_type`` names the type of a message, unless a mapping declares other conditions.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from google.protobuf.unknown_fields import UnknownFieldSet

from pipeline.core.decoding.clock_runs import CLOCK_RUN, RUNS, Run
from pipeline.core.decoding.mapping.compiling.execution import MAX_PROBLEMS, kept_digits
from pipeline.core.decoding.mapping.compiling.mapper import Content, Mapper, envelope_conditions
from pipeline.core.decoding.mapping.compiling.resolve import MAX_ELEMENTS
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.user_functions import imported_function, place_of
from pipeline.core.events.compression import unpacked
from pipeline.core.events.dead_letter import RENAMED_REVISION, event_alone
from pipeline.core.events.event import Event, valid_event, validate
from pipeline.core.events.invalid_readings import DroppedReadings, Invalid, InvalidReadings, losses_of, without_invalid
from pipeline.core.events.message import BATCH_TYPE, EVENT_TYPE, MESSAGE_TYPE, SCHEMA_REVISION, Message, parse
from pipeline.core.events.reasons import BadData, Reason, RefusedMessageError
from pipeline.core.notation.text import error_line, shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

_log = logging.getLogger(__name__)
_new = tuple.__new__
_Raw = TypeVar("_Raw")

UnknownFields = Literal["count", "refuse"]

_Validate = Callable[[SensorEvent, int], Event]
_validate_or_metadata: _Validate = partial(validate, metadata_alone=True)

Check = Callable[[Event], Any]
"""Raises BadData for an event that a table cannot store."""


class Decoded(NamedTuple):
    """What a message contains.

    Attributes:
        type: the name of its type, for counters.
        events: valid events that every table can store.
        refused: messages that must become dead letters, with the reasons.
        skipped: the number of messages or elements that conditions of a mapping left out.
        unknown_fields: the number of fields that ``SensorEvent`` does not have.
        dropped: the number of readings that events lost.
        losses: messages whose events lost readings, with the problems by metric: the first of each metric and reason.
        replaced_times: the problems of times for which a mapping takes the next of their list.
    """

    type: str
    events: list[Event]
    refused: list[tuple[Message, BadData]]
    skipped: int = 0
    unknown_fields: int = 0
    dropped: int = 0
    losses: Sequence[tuple[Message, dict[str, BadData]]] = ()
    replaced_times: Sequence[BadData] = ()


class TableRules(NamedTuple):
    """The rules by which a job's tables take events.

    Attributes:
        checks: the checks of the tables.
        metadata_alone: whether the tables keep events of metadata alone.
        invalid: the fate of events with readings that are not finite or out of their range.
    """

    checks: Sequence[Check] = ()
    metadata_alone: bool = False
    invalid: Invalid = Invalid.DROP_READING


ANY_TABLE = TableRules()
"""The rules of a table that takes every valid event."""


class MessageType(Protocol):
    """Reads messages of a type."""

    name: str

    def decode(self, message: Message, latest_us: int, rules: TableRules = ANY_TABLE) -> Decoded:
        """Returns what a message of this type contains. Raises BadData if the message as a whole is refused.

        Args:
            message: the message.
            latest_us: the latest event time allowed, inclusive.
            rules: the rules of the tables.
        """


def valid_events(
    found: Iterable[_Raw],
    validate: Callable[[_Raw, int], Event],
    latest_us: int,
    rules: TableRules = ANY_TABLE,
) -> tuple[list[Event], list[tuple[int, BadData]], DroppedReadings | None]:
    """Returns the valid events that every table can store, the positions of the others with their problems, and losses.

    Only the first ``MAX_PROBLEMS`` problems and one more are kept. ``validate`` takes an unchecked event and the latest
    event time allowed, and raises BadData for an event that is not valid.
    """
    events: list[Event] = []
    problems: list[tuple[int, BadData]] = []
    dropped: DroppedReadings | None = None
    checks = rules.checks
    for position, one in enumerate(found):
        try:
            event = validate(one, latest_us)
            for check in checks:
                check(event)
        except BadData as error:
            problem = error.with_traceback(None)
        else:
            events.append(event)
            continue
        if isinstance(problem, InvalidReadings):
            kept = without_invalid(one, problem, partial(_checked, validate, latest_us, checks), rules.invalid)
            if not isinstance(kept, BadData):
                event, lost = kept
                events.append(event)
                dropped = dropped or DroppedReadings()
                dropped.add(position, lost)
                continue
            problem = kept
        if len(problems) <= MAX_PROBLEMS:
            problems.append((position, problem))
    return events, problems, dropped


def _checked(validate: Callable[[_Raw, int], Event], latest_us: int, checks: Sequence[Check], raw: _Raw) -> Event:
    event = validate(raw, latest_us)
    for check in checks:
        check(event)
    return event


def refused_once(message: Message, problems: Sequence[BadData]) -> list[tuple[Message, BadData]]:
    """Returns a message as refused with its first problem and the number of the others; nothing without problems."""
    if not problems:
        return []
    first, others = problems[0], len(problems) - 1
    if others:
        more = f"over {MAX_PROBLEMS - 1:,}" if others >= MAX_PROBLEMS else f"{others:,}"
        first = BadData(first.reason, f"{first.detail}; and {more} more problem{'s' if others > 1 else ''}")
    return [(message, first)]


class BuiltIn:
    """Reads ``SensorEvent`` and ``SensorEventBatch``, the fast way. Counts unknown fields, or refuses the event."""

    name = EVENT_TYPE

    def __init__(self, unknown_fields: UnknownFields = "count", *, marks_batches: bool = False) -> None:
        self._refuses = unknown_fields == "refuse"
        self._marks_batches = marks_batches  # of messages without the attribute message_type

    def decode(self, message: Message, latest_us: int, rules: TableRules = ANY_TABLE) -> Decoded:
        """See :meth:`MessageType.decode`. A refused event of a batch is a message of its own.

        A batch with more than ``MAX_PROBLEMS`` of them is refused as a whole, once: a letter for each would be hundreds
        of times the size of the batch. Its other events are valid.
        """
        if self._marks_batches:
            message = message._replace(attributes={**message.attributes, MESSAGE_TYPE: BATCH_TYPE})
        parsed = parse(message)
        unknown, protos = len(UnknownFieldSet(parsed)), (parsed,)
        if isinstance(parsed, SensorEventBatch):
            protos = parsed.events
            unknown += sum([len(UnknownFieldSet(proto)) for proto in protos])
        validate_one: _Validate = _validate_or_metadata if rules.metadata_alone else validate
        if unknown and self._refuses:
            unknown, validate_one = 0, partial(_validate_known, validate_one)
            _check_known(parsed)
        events, problems, dropped = valid_events(protos, validate_one, latest_us, rules)
        if len(problems) > MAX_PROBLEMS:
            refused = refused_once(message, [problem for _, problem in problems])
        else:
            refused = [(event_alone(message, at, protos[at]), problem) for at, problem in problems] if problems else []
        losses = [(event_alone(message, at, protos[at]), lost) for at, lost in dropped.first.items()] if dropped else []
        # A third of the time of its own constructor.
        return _new(Decoded, (self.name, events, refused, 0, unknown, dropped.number if dropped else 0, losses, ()))


def _validate_known(validate_one: _Validate, event: SensorEvent, latest_us: int) -> Event:
    _check_known(event)
    return validate_one(event, latest_us)


def _check_known(parsed: SensorEvent | SensorEventBatch) -> None:
    if fields := len(UnknownFieldSet(parsed)):
        name = parsed.DESCRIPTOR.full_name
        raise BadData(Reason.UNKNOWN_FIELDS, f"the message has {fields} fields that {name} does not have")


_MAX_REVISIONS = 100  # compiled, or known not to exist


@dataclass(frozen=True)
class TopicSchema:
    """A schema that Pub/Sub holds for a topic: its full name, and descriptor sets by revision, the newest last.

    ``fetch`` returns the descriptor set of another revision; None if there is no such revision. It raises MappingError
    if the definition can't be used.
    """

    name: str
    revisions: Mapping[str, bytes]
    fetch: Callable[[str], bytes | None]


@dataclass
class MappedType:
    """Reads messages of another type through a mapping. It pickles as the mapping's text.

    Args:
        file: the name of the mapping's file, for error messages.
        text: the mapping, in TOML.
        descriptors: a serialized ``FileDescriptorSet``, or a schema; empty for JSON.
        run: the run through an hour that clocks show twice, for messages that are in it; None for all others.
    """

    file: str
    text: str
    descriptors: bytes | TopicSchema = b""
    run: Run | None = None
    _mappers: dict[str, Mapper | BadData] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        mapping = parse_mapping(self.text)
        self.mapping = mapping.in_run(self.run) if self.run else mapping
        self.name = self.mapping.message
        self._on_envelope, self._only_envelope = envelope_conditions(self.mapping)
        self._of_run: dict[str, MappedType] = {}
        if self.mapping.by_order:
            self._of_run = {run: MappedType(self.file, self.text, self.descriptors, run) for run in RUNS}
        self._last: tuple[Message, tuple[Content, Mapper]] | None = None  # is parsed once, to match and to map

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedType, (self.file, self.text, self.descriptors, self.run)

    def compile(self) -> Mapper:
        """Returns the compiled mapping, for the newest revision of a schema. Raises MappingError.

        Older revisions are compiled too. They may lack fields of later ones, but no field may have another type.
        """
        if not isinstance(self.descriptors, TopicSchema):
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
        # If all conditions are on attributes, they decide, even if the payload can't be parsed: it is then refused.
        if not all(holds([message, None]) for holds in self._on_envelope):
            return False
        if self._only_envelope:
            return True
        try:
            content, mapper = self.parse(message)
            return mapper.matches(message, content)
        except BadData:
            return False

    def decode(self, message: Message, latest_us: int, rules: TableRules = ANY_TABLE) -> Decoded:
        """See :meth:`MessageType.decode`. The message is refused as a whole, once, with the number of its problems."""
        if self._of_run and (of_run := self._of_run.get(message.attributes.get(CLOCK_RUN, ""))):
            return of_run.decode(message, latest_us, rules)
        content, mapper = self.parse(message)
        mapped = mapper.map(message, content, latest_us, metadata_alone=rules.metadata_alone)
        validate = partial(valid_event, metadata_alone=rules.metadata_alone)
        events, problems, dropped = valid_events(mapped.events, validate, latest_us, rules)
        for index, problem in problems:
            made = mapped.events[index]
            if problem.reason is Reason.NO_READINGS:
                problem = kept_digits(made.metadata) or problem
            mapped.problems.append(BadData(problem.reason, f"sensor {shown(made.sensor_id)}: {problem.detail}"))
        refused = refused_once(message, mapped.problems)
        return Decoded(
            self.name, events, refused, mapped.skipped, 0, *losses_of(dropped, message), mapped.replaced_times
        )

    def parse(self, message: Message) -> tuple[Content, Mapper]:
        """Returns the content of a message's payload, and its mapper. Raises BadData."""
        if self._last is None or self._last[0] is not message:
            mapper = self._mapper(message)
            self._last = message, (mapper.parse(message), mapper)
        return self._last[1]

    def _mapper(self, message: Message) -> Mapper:
        if not isinstance(self.descriptors, TopicSchema):
            found = self._mappers.get("") or self._compiled("", self.descriptors, strict=True)
        else:
            found = self._of_revision(self.descriptors, message)
        if isinstance(found, BadData):
            raise found
        return found

    def _of_revision(self, schema: TopicSchema, message: Message) -> Mapper | BadData:
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


class DecoderFunction:
    """Reads messages with a function that users write. It pickles as the function's name, ``module:function``.

    The function takes the payload and the attributes, and returns SensorEvents. Raises MappingError if there is no such
    function in this environment, or it takes other arguments.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._logged: set[str] = set()  # places whose exceptions were logged
        self._function = imported_function(path, (b"", {}), "a payload and attributes, as f(data, attributes)")

    def __reduce__(self) -> tuple[type["DecoderFunction"], tuple[str]]:
        return DecoderFunction, (self.name,)

    def decode(self, message: Message, latest_us: int, rules: TableRules = ANY_TABLE) -> Decoded:
        """See :meth:`MessageType.decode`. An exception of the function refuses its message, and no other."""
        data = unpacked(message.data, message.attributes)
        try:
            protos = list(islice(self._function(data, dict(message.attributes)), MAX_ELEMENTS + 1))
            if others := [one for one in protos if not isinstance(one, SensorEvent)]:
                raise TypeError(f"it yielded a {type(others[0]).__name__}, not a SensorEvent")
        except RefusedMessageError as refusal:
            raise BadData(Reason.REFUSED_BY_DECODER, str(refusal)) from refusal
        except (Exception, SystemExit) as error:
            place = place_of(error)
            if place not in self._logged:  # once: a broken publisher may send thousands a second
                self._logged.add(place)
                _log.exception("%s failed on message %s", self.name, message.message_id or "without an id")
            raise BadData(Reason.DECODER_FAILED, f"{place}{error_line(error)}") from error
        if len(protos) > MAX_ELEMENTS:
            raise BadData(Reason.TOO_MANY_ELEMENTS, f"the function yields more than {MAX_ELEMENTS:,} events")
        validate_one = _validate_or_metadata if rules.metadata_alone else validate
        events, problems, dropped = valid_events(protos, validate_one, latest_us, rules)
        refused = refused_once(message, [problem for _, problem in problems])
        return Decoded(self.name, events, refused, 0, 0, *losses_of(dropped, message))


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
        mapped: Iterable[MappedType] = (),
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
                self._unmarked = BuiltIn(unknown_fields, marks_batches=True)

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
