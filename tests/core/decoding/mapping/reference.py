"""A slow reading of mappings that walks the JSON form of a message, with ``google.protobuf.json_format``."""

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor

from pipeline.core.events.event import EARLIEST_US, LATEST_US
from pipeline.core.events.reasons import Reason
from tests.core.decoding.mapping.generated import Drawn, Entry, Way, kind_of

LEFT_OUT = float("nan")
ENUM = {"ZERO": 0, "ONE": 1, "BIG": 77}


class Refused(Exception):
    """Raised with the reasons for which an element, or a message, may be refused."""


class Expected:
    """What a mapping makes of a message: events, the reasons of each element that is refused, and what is skipped.

    Raises Refused for a single document that is refused; one of several is like an element.
    """

    def __init__(self, drawn: Drawn, documents: Sequence[Any], published_us: int) -> None:
        self._drawn = drawn
        self._published_us = published_us
        self._events: dict[tuple[str, int], Any] = {}
        self.problems: list[set[Reason]] = []
        self.skipped = 0
        for document in documents:
            before, self._has_elements = self.skipped, False
            self._document = document
            try:
                self._go(document, 0, {}, {}, 0)
            except Refused as refused:
                if len(documents) == 1:
                    raise
                self.problems.append(refused.args[0])
            if drawn.each and not self._has_elements:
                self.skipped = max(self.skipped, before + 1)
        self.events = [(*key, *event) for key, event in self._events.items() if event is not None]
        if drawn.each:
            self.skipped += sum(not readings for _, _, readings, _ in self.events)
            self.events = [event for event in self.events if event[2]]

    def _go(self, element: Any, level: int, readings: dict[str, float], metadata: dict[str, str], at: int) -> None:
        skip = self._drawn.skip
        if skip and skip.level == level and _at(element, skip) is True:
            self.skipped += 1
            return
        self._position = at
        reasons = set()
        for entry in self._drawn.entries:
            if entry.way.level == level:
                try:
                    for name, value in self._values(entry, element):
                        into = readings if entry.is_reading else metadata
                        is_new = name not in into or _is_left_out(into[name])
                        if not is_new and not _is_left_out(value):
                            reasons.add(Reason.NAME_COLLISION)
                        into[name] = value if is_new else into[name]
                except Refused as refused:
                    reasons |= refused.args[0]
        if reasons:
            raise Refused(reasons)
        if level == len(self._drawn.each):
            self._add(element, readings, metadata, at)
            return
        for position, inner in enumerate(_elements(element, self._drawn.each[level])):
            self._has_elements = True
            if inner is None:
                self.skipped += 1
                continue
            try:
                self._go(inner, level + 1, dict(readings), dict(metadata), position)
            except Refused as refused:
                self.problems.append(refused.args[0])

    def _add(self, element: Any, readings: dict[str, float], metadata: dict[str, str], at: int) -> None:
        span_us = self._span_us(at)
        sensor, time_us = "s", self._time_us(element, span_us)
        if isinstance(self._drawn.last.node, Descriptor):
            sensor = element["id"] or "s"
        key = sensor, time_us
        if key not in self._events:
            self._events[key] = readings, metadata
        elif self._events[key] is not None:
            known = self._events[key]
            self._events[key] = None
            for old, new in zip(known, (readings, metadata), strict=True):
                if any(_differ(old[name], new[name]) for name in old.keys() & new.keys()):
                    raise Refused({Reason.NAME_COLLISION})
            kept = {name: value for name, value in known[0].items() if name not in readings or not _is_left_out(value)}
            self._events[key] = readings | kept, metadata | known[1]

    def _span_us(self, at: int) -> Fraction:
        plus = self._drawn.plus
        span_us = _span_us(plus.node, _at(self._document, plus)) if plus else Fraction(0)
        return span_us + at * self._drawn.step_us

    def _time_us(self, element: Any, span_us: Fraction) -> int:
        """Returns the time of an element; the publish time if it is 0 or not plausible, both with a span."""
        published_us = math.floor(self._published_us + span_us)
        if not isinstance(self._drawn.last.node, Descriptor):
            return published_us
        _, unit_us, epoch_us, length_us, from_us, age_us = self._drawn.clock
        earliest_us = max(EARLIEST_US, from_us, self._published_us - age_us)
        number = int(element["t"])
        time_us = math.floor(number * unit_us + epoch_us + span_us) - length_us
        if number and earliest_us <= time_us <= LATEST_US:
            return time_us
        if not EARLIEST_US <= published_us <= LATEST_US:
            raise Refused({Reason.EVENT_TIME_TOO_EARLY, Reason.EVENT_TIME_IN_FUTURE})
        return published_us

    def _values(self, entry: Entry, element: Any) -> Iterator[tuple[str, Any]]:
        for label, kind, value in self._found(entry, element):
            label = f"s.{label}" if entry.is_below else label
            if not entry.is_reading:
                yield entry.name + label, text(kind, value)
                continue
            reading = state(kind, value, entry)
            if reading is None:
                if entry.has_units and value == "7x":
                    reading = dict(entry.values).get("7", 14.0)
                elif not (kind == "enum" and entry.values):
                    reading = number(kind, value, rounds=self._drawn.rounds)
            if reading is None and not self._drawn.is_null:
                raise Refused({Reason.NOT_A_NUMBER})
            if reading is None or (entry.valid and not entry.valid[0] <= reading <= entry.valid[1]):
                reading = LEFT_OUT
            yield entry.name + label, reading

    def _found(self, entry: Entry, element: Any) -> Iterator[tuple[str, Any, Any]]:
        way = entry.way
        value = _at(element, way)
        if entry.unless_published and self._time_us(element, self._span_us(self._position)) >= self._published_us:
            return
        if entry.deep is not None:
            found = self._star(value, way.node, entry.deep, way.names)
            for item in found:
                _, kind, leaf = item
                is_state = entry.is_reading and state(kind, leaf, entry) is not None
                if is_state or (is_number if entry.is_reading else is_text)(kind, leaf):
                    yield item
        elif value is not None and not (way.node in ("text", "blob") and not value):
            yield "", way.node, value

    def _star(self, value: Any, node: Any, deep: bool, names: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
        """Yields a label, a kind and a value."""
        for label, kind, member, inner in _members(value, node, names):
            of_map = (*names, label) if isinstance(node, tuple) and node[0] == "map" else inner
            if self._drawn.claims & {inner, of_map} or member is None:
                continue
            if _is_container(kind, member):
                if deep:
                    for rest, leaf, found in self._star(member, kind, deep, inner):
                        yield f"{label}.{rest}", leaf, found
            elif not (kind in ("text", "blob") and not member):
                yield label, kind, member


def document_of(message: Any, pool: Any) -> Any:
    """Returns the JSON form."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, descriptor_pool=pool
    )


def is_number(kind: str, value: Any) -> bool:
    """Whether a star takes a value as a reading."""
    return kind in ("double", "float", "int", "bool", "duration") or (kind == "plain" and not isinstance(value, str))


def is_text(kind: str, value: Any) -> bool:
    """Whether a star takes a value as metadata."""
    if kind == "text":
        return value != ""
    return kind in ("string", "enum") or (kind == "plain" and isinstance(value, str))


def leaves(value: Any, node: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yields every single value below a value of the JSON form: the names that lead there, its kind, and itself."""
    for _, kind, member, inner in _members(value, node, names):
        if member is not None and _is_container(kind, member):
            yield from leaves(member, kind, inner)
        elif member is not None:
            yield inner, kind, member


def _members(value: Any, node: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any, Any, tuple[str, ...]]]:
    """Yields the label, the kind and the value of what is directly below a value, and the names that lead there."""
    if value is None:
        return
    if isinstance(node, Descriptor):
        for field in node.fields:
            if field.name in value:
                yield field.name, kind_of(field), value[field.name], (*names, field.name)
        return
    if isinstance(node, tuple) and node[0] == "row":
        yield from ((name, kind, value[name], inner) for name, kind, inner in node[1:])
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in pairs:
        if node == "plain":
            yield str(key), "plain", member, (*names, str(key))
        else:
            yield str(key), node[1], member, (*names, "*")


def _is_container(kind: Any, value: Any) -> bool:
    return not isinstance(kind, str) or (kind == "plain" and isinstance(value, (dict, list)))


def _at(value: Any, way: Way) -> Any:
    for step in way.steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list):
            position = int(step) if str(step).lstrip("-").isdecimal() else len(value)
            value = value[position] if -len(value) <= position < len(value) else None
        else:
            return None
    return value


def _span_us(kind: str, value: Any) -> Fraction:
    if kind == "duration":
        return Fraction(value[:-1]) * 1_000_000 if value else Fraction(0)
    if value is None or value == "":
        return Fraction(0)
    if isinstance(value, (bool, dict, list)) or (isinstance(value, str) and not value.lstrip("-").isdecimal()):
        raise Refused({Reason.INVALID_EVENT_TIME})
    if _is_left_out(value):
        raise Refused({Reason.INVALID_EVENT_TIME})
    return Fraction(str(value))


def _rows(value: Any, kind: str, *lists: Way) -> list[dict[str, Any]]:
    """Returns the rows of lists that ``zip`` goes through together, or of all lists in a value of JSON."""
    if kind == "arrays":
        found = _at(value, lists[0])
        if not isinstance(found, (dict, list)) and found is not None:
            raise Refused({Reason.UNPARSEABLE})
        members = found.items() if isinstance(found, dict) else enumerate(found or ())
        columns = {str(name): member for name, member in members if isinstance(member, list)}
    else:
        columns = {way.steps[-1]: _at(value, way) if way.node == "plain" else _at(value, way) or None for way in lists}
    known = [column for column in columns.values() if column is not None]
    if not all(isinstance(column, list) for column in known) or len(set(map(len, known))) > 1:
        raise Refused({Reason.UNPARSEABLE})
    size = max(map(len, known), default=0)
    return [{name: column and column[at] for name, column in columns.items()} for at in range(size)]


def _elements(value: Any, way: Way) -> list[Any]:
    if way.node[0] in ("rows", "arrays"):
        return _rows(value, *way.node)
    found = _at(value, way)
    if isinstance(found, dict):
        return [{"key": key, "value": member} for key, member in found.items()]
    if way.node == "plain" and not isinstance(found, list) and found is not None:
        raise Refused({Reason.UNPARSEABLE})
    return found or []


def state(kind: str, value: Any, entry: Entry) -> float | None:
    """Returns the number that the entry's table has for a text, a boolean or a name of an enum; None for others."""
    text = str(value).lower() if isinstance(value, bool) else value
    is_state = kind in ("bool", "enum", "string", "text", "plain") and isinstance(text, str)
    return dict(entry.values).get(text) if is_state else None


def _differ(old: Any, new: Any) -> bool:
    return old != new and not _is_left_out(old) and not _is_left_out(new)


def _is_left_out(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def number(kind: str, value: Any, *, rounds: bool) -> float | None:
    """Returns the reading of a value of the JSON form; None if it is not a number. Raises Refused."""
    match kind:
        case "double":
            return float(value)
        case "float":
            return struct.unpack("f", struct.pack("f", float(value)))[0]
        case "enum":
            return float(ENUM.get(value, value))
        case "duration":
            return float(Fraction(value[:-1]))
    if isinstance(value, (dict, list)) or (isinstance(value, str) and not value.lstrip("-").isdecimal()):
        return None
    if isinstance(value, str) and Fraction(float(value)) != int(value) and not rounds:
        raise Refused({Reason.INEXACT_INTEGER})
    return float(value)


def text(kind: str, value: Any) -> str:
    """Returns the text of a value of the JSON form. Raises Refused."""
    if kind in ("bytes", "blob"):
        return base64.b64decode(value).hex()
    if kind in ("double", "float"):  # the JSON form prints a number of 32 bits with its fewest digits
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        raise Refused({Reason.UNPARSEABLE})
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)
