"""The inverses of the conversions: values of a node of which they make a text, a reading or a time."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pipeline.core.decoding.mapping.language.model import UNITS, Condition, Scalar, Source
from pipeline.core.decoding.mapping.values.nodes import Entries, Leaf, Node, Record
from pipeline.core.notation.exact_numbers import nearest_float32
from pipeline.core.notation.times import format_time, from_datetime, to_datetime


def raw_text(node: Node, text: str, number: int, spec: str = "") -> Any:
    """Returns a value of a node as text: the text itself, or in a field without text, a value by the number.

    ``spec`` is the format of its placeholder. Returns None for a node without such values.
    """
    if not isinstance(node, Leaf):
        return None
    match node.kind:
        case "json" | "string":
            return text if spec[-1:] not in tuple("dxXobf") else number if node.kind == "json" else str(number)
        case "bytes":
            return number.to_bytes(8, "big", signed=True)
        case "timestamp":
            return Timestamp(seconds=number % (1 << 31))
    return raw_number(node, float(number), Source())


def raw_number(node: Node, number: float, source: Source, decimal: str = ".") -> Any:
    """Returns the value of a node whose conversions make the nearest of a reading; None if it has no such value."""
    if not isinstance(node, Leaf):
        return None
    if source.values and (state := _raw_state(node, source.values[round(number) % len(source.values)][0])) is not None:
        return state
    least, greatest = source.valid or (number, number)
    exact = (Decimal(repr(min(max(number, least), greatest))) - (source.offset or 0)) / (source.scale or 1)
    rounded, whole = float(round(exact, 6)), round(exact)
    match node.kind:
        case "json":
            return whole if whole == rounded else rounded
        case "double":
            return rounded
        case "float":
            return nearest_float32(rounded)
        case "int":
            bits = source.signed or node.bits
            lowest = -(1 << (bits - 1)) if source.signed or not node.is_unsigned else 0
            near = max(lowest, min(whole, lowest + (1 << bits) - 1))
            return near % (1 << bits) if source.signed and node.is_unsigned else near
        case "bool":
            return whole % 2 == 1
        case "enum" if node.enum is not None:
            names = list(node.enum.values_by_number)
            return names[whole % len(names)]
        case "duration":
            return Duration(seconds=whole)
        case "string":
            return str(rounded).replace(".", decimal) + source.suffix
    return None


def _raw_state(node: Leaf, name: str) -> Any:
    """Returns the value of a node that is a state; None if it has no such value."""
    return raw_of(node, name == "true" if node.kind == "bool" and name in ("true", "false") else name)


def raw_in_unit(node: Node, number: float, source: Source, decimal: str = ".") -> Any:
    """Returns a text that is a reading with the first of its units behind it; None for a node without text."""
    if not isinstance(node, Leaf) or node.kind not in ("string", "json"):
        return None
    return f"{raw_number(Leaf('string'), number, in_first_unit(source), decimal)} {source.units[0].unit}".strip()


def in_first_unit(source: Source) -> Source:
    """Returns the source of values that have the first unit of a source."""
    first = source.units[0]
    return replace(source, units=(), unit_path=None, scale=first.scale, offset=first.offset)


def raw_time(node: Node, time_us: int, source: Source) -> Any:
    """Returns the value of a node that is a time; None if it has no such value."""
    if not isinstance(node, Leaf):
        return None
    if node.kind == "timestamp":
        return Timestamp(seconds=time_us // 1_000_000, nanos=time_us % 1_000_000 * 1000)
    if source.interval:
        later_us = time_us + timedelta(hours=1) // timedelta(microseconds=1)
        ends = (raw_time(node, each_us, replace(source, interval="")) for each_us in (time_us, later_us))
        return source.interval.join(map(str, ends))
    local = to_datetime(time_us).astimezone(ZoneInfo(source.time_zone) if source.time_zone else UTC)
    if source.unit:
        since_us = from_datetime(source.epoch) if source.epoch else 0
        if source.epoch and source.epoch.tzinfo is None:
            time_us = from_datetime(local.replace(tzinfo=None))
        number = Decimal(time_us - since_us) / UNITS[source.unit]
        if node.kind == "int" or number == int(number):
            return str(int(number)) if node.kind == "string" else int(number)
        return str(number) if node.kind == "string" else float(number)
    if source.format:
        return local.strftime(source.format)
    return local.replace(tzinfo=None).isoformat() if source.time_zone else format_time(time_us)


def raw_for(condition: Condition, node: Node, test: Callable[[Any], bool], text: str, *, holds: bool) -> Any:
    """Returns a value of a node for which a condition holds by its test, or does not; None if no such value is known.

    ``text`` takes the place of a glob's first star.
    """
    if not isinstance(node, Leaf):
        return {} if isinstance(node, (Record, Entries)) else None
    values: list[Any] = [
        _fitting(str(value), text) if condition.kind == "glob" else value for value in condition.values
    ]
    values += [text, *range(1, len(values) + 2), True, False]
    raws = (raw_of(node, value) for value in values)
    return next((raw for raw in raws if raw is not None and test(raw) == holds), None)


def raw_of(node: Node, value: Scalar) -> Any:
    """Returns the value of a node for a text, a number or a boolean as a mapping has it; None if it can't hold it."""
    if not isinstance(node, Leaf):
        return None
    is_number = isinstance(value, (int, float)) and type(value) is not bool
    match node.kind:
        case "json":
            return value
        case "string" if isinstance(value, str):
            return value
        case "bool" if type(value) is bool:
            return value
        case "float" | "double" if is_number:
            return raw_number(node, float(value), Source())
        case "int" if is_number or (isinstance(value, str) and re.fullmatch("-?[0-9]+", value)):
            return int(value) if node.has(int(value)) else None
        case "enum" if node.enum is not None:
            by_name = node.enum.values_by_name
            return by_name[value].number if value in by_name else value if type(value) is int else None
        case "bytes" if isinstance(value, str) and re.fullmatch("([0-9a-f]{2})+", value):
            return bytes.fromhex(value)
    return None


def _fitting(glob: str, text: str) -> str:
    """Returns a text that fits most globs."""
    return re.sub(r"\[(.)[^]]*\]", r"\1", glob).replace("*", text, 1).replace("*", "").replace("?", "a")
