"""The message types that a job reads: the built-in ones, those of mappings, and whatever a decoder function reads.

The attribute ``message_type`` names the type of a message, unless a mapping declares other conditions.
"""

import importlib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Literal

from google.protobuf.unknown_fields import UnknownFieldSet

from pipeline.core.decoding import decoded
from pipeline.core.decoding.decoded import MAX_PROBLEMS, Check, Decoded, MessageType, refused_once, valid_events
from pipeline.core.decoding.mapped_type import MappedType
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.dead_letter import event_alone
from pipeline.core.events.event import Event, validate
from pipeline.core.events.message import BATCH_TYPE, EVENT_TYPE, MESSAGE_TYPE, Message, parse
from pipeline.core.events.reasons import BadData, Reason, RefusedMessage
from pipeline.core.notation.text import error_line, shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

_log = logging.getLogger(__name__)
_new = tuple.__new__

UnknownFields = Literal["count", "refuse"]

_Validate = Callable[[SensorEvent, int], Event]
_validate_or_metadata: _Validate = partial(validate, metadata_alone=True)


class BuiltIn:
    """Reads ``SensorEvent`` and ``SensorEventBatch``, the fast way. Counts unknown fields, or refuses the event."""

    name = EVENT_TYPE

    def __init__(self, unknown_fields: UnknownFields = "count") -> None:
        self._refuses = unknown_fields == "refuse"

    def decode(
        self, message: Message, latest_us: int, checks: Sequence[Check], *, metadata_alone: bool = False
    ) -> Decoded:
        """See :meth:`MessageType.decode`. A refused event of a batch is a message of its own.

        A batch with more than ``MAX_PROBLEMS`` of them is refused as a whole, once: a letter for each would be hundreds
        of times the size of the batch. Its other events are valid.
        """
        parsed = parse(message)
        unknown, protos = len(UnknownFieldSet(parsed)), (parsed,)
        if isinstance(parsed, SensorEventBatch):
            protos = parsed.events
            unknown += sum([len(UnknownFieldSet(proto)) for proto in protos])
        validate_one: _Validate = _validate_or_metadata if metadata_alone else validate
        if unknown and self._refuses:
            unknown, validate_one = 0, partial(_validate_known, validate_one)
            _check_known(parsed)
        events, problems = valid_events(protos, validate_one, latest_us, checks)
        if len(problems) > MAX_PROBLEMS:
            refused = refused_once(message, [problem for _, problem in problems])
        else:
            refused = [(event_alone(message, at, protos[at]), problem) for at, problem in problems] if problems else []
        return _new(Decoded, (self.name, events, refused, 0, unknown))  # a third of the time of its own constructor


def _validate_known(validate_one: _Validate, event: SensorEvent, latest_us: int) -> Event:
    _check_known(event)
    return validate_one(event, latest_us)


def _check_known(parsed: SensorEvent | SensorEventBatch) -> None:
    if fields := len(UnknownFieldSet(parsed)):
        name = parsed.DESCRIPTOR.full_name
        raise BadData(Reason.UNKNOWN_FIELDS, f"the message has {fields} fields that {name} does not have")


class _UnmarkedBatches(BuiltIn):
    """Reads messages without the attribute ``message_type`` as batches."""

    def decode(
        self, message: Message, latest_us: int, checks: Sequence[Check], *, metadata_alone: bool = False
    ) -> Decoded:
        marked = {**message.attributes, MESSAGE_TYPE: BATCH_TYPE}
        marked_message = message._replace(attributes=marked)
        return super().decode(marked_message, latest_us, checks, metadata_alone=metadata_alone)


class DecoderFunction:
    """Reads messages with a function that users write. It pickles as the function's name, ``module:function``.

    The function takes the payload and the attributes, and returns SensorEvents. Raises MappingError if there is no such
    function in this environment, or it takes other arguments.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._logged: set[str] = set()  # places whose exceptions were logged
        module, _, function = path.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), function)
        except Exception as error:  # the module's code is the user's
            raise MappingError(
                "", f"{path!r} is not a function of this environment, as module:function: {error_line(error)}"
            ) from error
        if not callable(self._function) or inspect.iscoroutinefunction(self._function):
            raise MappingError("", f"{path!r} is not a function that returns events")
        try:
            inspect.signature(self._function).bind(b"", {})
        except (TypeError, ValueError) as error:
            raise MappingError(
                "", f"{path!r} does not take a payload and attributes, as f(data, attributes): {error}"
            ) from error

    def __reduce__(self) -> tuple[type["DecoderFunction"], tuple[str]]:
        return DecoderFunction, (self.name,)

    def decode(
        self, message: Message, latest_us: int, checks: Sequence[Check], *, metadata_alone: bool = False
    ) -> Decoded:
        """See :meth:`MessageType.decode`. An exception of the function refuses its message, and no other."""
        try:
            protos = list(islice(self._function(message.data, dict(message.attributes)), decoded.MAX_ELEMENTS + 1))
            if others := [one for one in protos if not isinstance(one, SensorEvent)]:
                raise TypeError(f"it yielded a {type(others[0]).__name__}, not a SensorEvent")
        except RefusedMessage as refusal:
            raise BadData(Reason.REFUSED_BY_DECODER, str(refusal)) from refusal
        except Exception as error:
            place = _place_of(error)
            if place not in self._logged:  # once: a broken publisher may send thousands a second
                self._logged.add(place)
                _log.exception("%s failed on message %s", self.name, message.message_id or "without an id")
            raise BadData(Reason.DECODER_FAILED, f"{place}{error_line(error)}") from error
        if len(protos) > decoded.MAX_ELEMENTS:
            raise BadData(Reason.TOO_MANY_ELEMENTS, f"the function yields more than {decoded.MAX_ELEMENTS:,} events")
        validate_one = _validate_or_metadata if metadata_alone else validate
        events, problems = valid_events(protos, validate_one, latest_us, checks)
        return Decoded(self.name, events, refused_once(message, [problem for _, problem in problems]))


def _place_of(error: Exception) -> str:
    """Returns the file and line of the function at which an exception was raised; nothing if it did not get there."""
    _, *inside = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(inside[-1].filename).name}:{inside[-1].lineno}: " if inside else ""


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
