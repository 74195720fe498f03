"""Reads files whose records are messages: lines of NDJSON, and length-delimited protobuf.

A line of NDJSON is an object in one of three forms:

- A flat object: numbers are readings, strings and booleans are metadata.
- One with an object ``readings`` is a ``SensorEvent`` in protobuf's JSON mapping, as ``tidetable read`` prints it.
- One with an object ``attributes`` or an array ``events`` is a dead letter, as ``tidetable dead-letters`` exports it.

With a mapping, each line is a message of any form, or such a dead letter, with all its columns.

A message of protobuf follows its length as a varint: a ``SensorEvent``, or a message that a mapping reads.
``writeDelimitedTo`` in Java, ``google.protobuf.proto.serialize_length_prefixed`` in Python and
``SerializeDelimitedToOstream`` in C++ write this format.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from pipeline.core.dead_letters import LETTER_COLUMNS, Replay, replay_of_json
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.events.protobuf_json import parse_json
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.documents import StrictDecoder, parse_loose_json
from pipeline.formats.lines import (
    UNREADABLE,
    Lines,
    MappedRecord,
    Original,
    Record,
    Refusal,
    TooLong,
    numbered_records,
    parse_or_refuse,
    read_varint,
)
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import EventMaker, InvalidEvent, Malformed, NumberText, UnreadableFile, check_encoding
from pipeline.proto.sensor_event_pb2 import SensorEvent

_Parse = Callable[[str], Event | Original | MappedRecord]
_CHUNK = 1 << 16  # bytes to skip at a time


def ndjson_records(lines: Lines, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    """Returns the records, one per line. Raises UnreadableFile if there is none, or no mapping is for them."""
    records = _by_line(lines, _mapped_parser(maker) if isinstance(maker, MappedMaker) else _parser(maker))
    first = next(records, None)
    if first is None:
        lines.raise_failure()
        raise UnreadableFile("it is empty")
    return chain([first], records)


def _parser(maker: EventMaker) -> _Parse:
    sensor, time = maker.columns.sensor, maker.columns.time
    exact = False  # set once a sensor or time is a number with decimals: a float would lose digits

    def parsed(line: str) -> Event | Original:
        nonlocal exact
        record = _json_object(line, _EXACT if exact else _QUICK)
        if isinstance(record.get("readings"), dict):
            return _structured_event(line, maker)
        if isinstance(record.get("attributes"), dict) or isinstance(record.get("events"), list):
            return _replay(line, maker)
        if not exact:
            exact = type(record.get(sensor)) is float or type(record.get(time)) is float
            if not exact:
                try:
                    return maker.of_object(record)
                except (Malformed, InvalidEvent):
                    pass  # parsed again below: the message then quotes numbers as they are written
            record = _json_object(line, _EXACT)
        return maker.of_object(record)

    return parsed


def _mapped_parser(maker: MappedMaker) -> _Parse:
    def parsed(line: str) -> MappedRecord:
        if '"replays"' in line and (letter := _letter(line)):
            return MappedRecord(0, letter.message)
        maker.check_json()
        return maker.of_json(line.strip().encode(errors="surrogateescape"))

    return parsed


def _letter(line: str) -> Replay | None:
    """Returns the message of a dead letter; None for a line that is none. Raises Malformed."""
    try:
        document = parse_loose_json(line)  # an infinite number of the message is one in its record, too
    except ValueError:
        return None
    if not isinstance(document, dict) or not document.keys() >= set(LETTER_COLUMNS):
        return None
    # Whatever its type was, a mapping may read it now.
    return _replay_of({**document, "mapped": True})


def _by_line(lines: Lines, parse: _Parse) -> Iterator[Record]:
    while True:
        try:
            for line in lines:
                if line.strip():
                    yield parse_or_refuse(lines.last, parse, line)
                lines.begin_record()
            return
        except TooLong as problem:
            yield Refusal(lines.last, str(problem))
            lines.begin_record()


def _structured_event(line: str, maker: EventMaker) -> Event:
    try:
        event = parse_json(line.encode(), SensorEvent)
    except ValueError as error:
        raise Malformed(f"not a SensorEvent in JSON: {error}") from None
    return maker.checked(event)


def _replay(line: str, maker: EventMaker) -> Original:
    replay = _replay_of(_json_object(line, _QUICK))
    try:
        return Original(replay.message, tuple(map(maker.checked, replay.events)), is_replay=True)
    except InvalidEvent as problem:
        if len(replay.events) == 1:
            raise
        raise Malformed(str(problem), problem.reason) from None  # the others must not be lost without a word


def _replay_of(document: dict[str, Any]) -> Replay:
    try:
        return replay_of_json(document)
    except BadData as problem:
        raise Malformed(f"still not readable: {problem}") from None
    except ValueError as error:
        raise Malformed(f"not a dead letter to publish again: {error}") from None


def _json_object(line: str, decoder: StrictDecoder) -> dict[str, Any]:
    check_encoding(line)
    try:
        record = decoder.decode(line)
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Malformed("not a JSON object")
    return record


def delimited_records(content: BinaryIO, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    """Returns the messages of a file of protobuf. Raises UnreadableFile if no mapping is for them."""
    limit = maker.max_record_bytes
    if isinstance(maker, MappedMaker):
        attributes = maker.protobuf_attributes()
        return numbered_records(
            _payloads(content, limit), UNREADABLE, lambda data: MappedRecord(0, Message(data, attributes)), limit
        )

    def event(data: bytes) -> Event:
        try:
            return maker.checked(SensorEvent.FromString(data))
        except DecodeError as error:
            raise InvalidEvent(BadData(Reason.UNPARSEABLE, f"not a SensorEvent: {error}"), data) from error

    return numbered_records(_payloads(content, limit), UNREADABLE, event, limit)


def _payloads(content: BinaryIO, limit: int) -> Iterator[bytes | None]:
    while (size := read_varint(content.read)) is not None:
        if size <= limit:
            yield _read_exactly(content, size)
        else:
            _skip(content, size)
            yield None


def _read_exactly(content: BinaryIO, size: int) -> bytes:
    data = content.read(size)
    if len(data) < size:
        raise EOFError(f"the next record is cut off after {len(data):,} of {size:,} bytes")
    return data


def _skip(content: BinaryIO, size: int) -> None:
    left = size
    while left:
        skipped = len(content.read(min(left, _CHUNK)))
        if not skipped:
            raise EOFError(f"the next record is cut off after {size - left:,} of {size:,} bytes")
        left -= skipped


_QUICK = StrictDecoder()
_EXACT = StrictDecoder(parse_float=NumberText)  # keeps numbers as text, which is slower
