"""Parses the payloads of messages that mappings read."""

from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from pipeline.core.decoding.mapping.mapper import Mapper
from pipeline.core.decoding.mapping.plain import parse_plain
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.events.wire import encoding_of


def parse_payload(mapper: Mapper, message: Message) -> Any:
    """Returns what the payload contains: a protobuf message, or JSON as Python's values. Raises BadData."""
    if mapper.message_class is None:
        return parse_plain(message.data, "the message")
    parsed = mapper.message_class()
    if encoding_of(message) == "JSON":
        _parse_json(mapper, message.data, parsed)
        return parsed
    try:
        parsed.ParseFromString(message.data)
    except DecodeError as error:
        raise _not_a(parsed, error) from error
    return parsed


def _parse_json(mapper: Mapper, data: bytes, into: ProtobufMessage) -> None:
    # json_format.Parse would round integers that a field of type double, or a Struct, can't hold.
    exact = mapper.mapping.inexact_integers != "round"
    document = parse_plain(data, "the message", exact=exact)
    try:
        json_format.ParseDict(document, into, descriptor_pool=mapper.pool)
    except BadData:
        raise
    except Exception as error:  # json_format.Parse does so too: JSON may have any form
        raise _not_a(into, error) from error


def _not_a(message: ProtobufMessage, error: Exception) -> BadData:
    name = message.DESCRIPTOR.full_name
    return BadData(Reason.UNPARSEABLE, f"not a {name}: {' '.join(str(error).split())}")
