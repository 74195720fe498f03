"""Reads events from NDJSON: one object per line, in one of three forms.

- A flat object: numbers are readings, strings and booleans are metadata.
- One with an object ``readings`` is a ``SensorEvent`` in protobuf's JSON mapping, as ``tidetable read`` prints it.
- One with an object ``attributes`` or an array ``events`` is a dead letter, as ``tidetable dead-letters`` exports it.

With a mapping, each line is a message of any form, or such a dead letter, with all its columns.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from pipeline.core.dead_letters import LETTER_COLUMNS, Replay, replay_of_json
from pipeline.core.events.event import Event
from pipeline.core.events.protobuf_json import parse_json
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.documents import StrictDecoder, parse_loose_json
from pipeline.formats.lines import Lines, MappedRecord, Record, Refusal, TooLong, UnreadableFile, parse_or_refuse
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.mappings import NumberText, event_of
from pipeline.formats.values import EventMaker, InvalidEvent, Malformed, check_encoding
from pipeline.proto.sensor_event_pb2 import SensorEvent


def ndjson_records(lines: Lines, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    """Returns the records, one per line. Raises UnreadableFile if there is none, or no mapping is for them."""
    if isinstance(maker, MappedMaker):
        records = _by_line(lines, _mapped_parser(maker))
    else:
        records = _by_line(lines, _parser(maker))
    first = next(records, None)
    if first is None:
        lines.raise_failure()
        raise UnreadableFile("it is empty")
    return chain([first], records)


def _parser(maker: EventMaker) -> Callable[[int, str], Record]:
    sensor, time = maker.columns.sensor, maker.columns.time
    exact = False  # set once a sensor or time is a number with decimals: a float would lose digits

    def parsed(line: str) -> SensorEvent | Event | Replay:
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
                    return event_of(record, maker)
                except (Malformed, InvalidEvent):
                    pass  # parsed again below: the message then quotes numbers as they are written
            record = _json_object(line, _EXACT)
        return event_of(record, maker)

    return lambda number, line: parse_or_refuse(number, parsed, line)


def _mapped_parser(maker: MappedMaker) -> Callable[[int, str], Record]:
    def parsed(line: str) -> MappedRecord:
        if '"replays"' in line and (letter := _letter(line)):
            return MappedRecord(0, letter.message)
        maker.check_json()
        return maker.of_json(line.strip().encode(errors="surrogateescape"))

    return lambda number, line: parse_or_refuse(number, parsed, line)


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


def _by_line(lines: Lines, parse: Callable[[int, str], Record]) -> Iterator[Record]:
    while True:
        try:
            for line in lines:
                if line.strip():
                    yield parse(lines.last, line)
                lines.begin_record()
            return
        except TooLong as problem:
            yield Refusal(lines.last, str(problem))
            lines.begin_record()


def _structured_event(line: str, maker: EventMaker) -> SensorEvent:
    try:
        event = parse_json(line.encode(), SensorEvent)
    except ValueError as error:
        raise Malformed(f"not a SensorEvent in JSON: {error}") from None
    return maker.checked(event)


def _replay(line: str, maker: EventMaker) -> Replay:
    replay = _replay_of(_json_object(line, _QUICK))
    for event in replay.events:
        maker.checked(event)
    return replay


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


_QUICK = StrictDecoder()
_EXACT = StrictDecoder(parse_float=NumberText)  # keeps numbers as text, which is slower
