"""Message types that mappings read, compiled for the revisions of a topic's schema."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.core.decoding.clock_runs import CLOCK_RUN, RUNS, Run
from pipeline.core.decoding.decoded import Check, Decoded, refused_once, valid_events
from pipeline.core.decoding.mapping.compiling.execution import kept_digits
from pipeline.core.decoding.mapping.compiling.mapper import Mapper, envelope_conditions
from pipeline.core.decoding.mapping.language.model import MappingError, parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.events.dead_letter import RENAMED_REVISION
from pipeline.core.events.event import valid_event
from pipeline.core.events.message import MESSAGE_TYPE, SCHEMA_REVISION, Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown

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
        self._last: tuple[Message, tuple[Any, Mapper]] | None = None  # is parsed once, to match and to map

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedType, (self.file, self.text, self.descriptors, self.run)

    def compile(self) -> Mapper:
        """Returns the compiled mapping, for the newest revision of a schema. Raises MappingError.

        Older revisions are compiled too. They may lack fields that came later, but no field may have another type.
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
            root, mapper = self.parse(message)
            return mapper.matches([message, root])
        except BadData:
            return False

    def decode(
        self, message: Message, latest_us: int, checks: Sequence[Check], *, metadata_alone: bool = False
    ) -> Decoded:
        """See :meth:`MessageType.decode`. The message is refused as a whole, once, whatever the number of problems."""
        if self._of_run and (of_run := self._of_run.get(message.attributes.get(CLOCK_RUN, ""))):
            return of_run.decode(message, latest_us, checks, metadata_alone=metadata_alone)
        root, mapper = self.parse(message)
        mapped = mapper.map(message, root, metadata_alone=metadata_alone)
        validate = partial(valid_event, metadata_alone=metadata_alone)
        events, problems = valid_events(mapped.events, validate, latest_us, checks)
        for index, problem in problems:
            made = mapped.events[index]
            if problem.reason is Reason.NO_READINGS:
                problem = kept_digits(made.metadata) or problem
            mapped.problems.append(BadData(problem.reason, f"sensor {shown(made.sensor_id)}: {problem.detail}"))
        return Decoded(self.name, events, refused_once(message, mapped.problems), mapped.skipped)

    def parse(self, message: Message) -> tuple[Any, Mapper]:
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
