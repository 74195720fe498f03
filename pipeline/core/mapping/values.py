"""Turns the values of messages into readings, times and texts."""

import math
import re
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

from pipeline.core.events import BadData, Reason, shown
from pipeline.core.mapping.model import UNITS, Mapping, MappingError, Scalar, Source
from pipeline.core.mapping.nodes import Getter, Leaf, Node, Plain, composed, itself
from pipeline.core.numbers import exact_float
from pipeline.core.times import format_time, from_datetime, parse_time

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOOR = Context(prec=60, rounding=ROUND_FLOOR)
_EXACT = Context(prec=60)
_MAX_TEXT = 400  # characters of a number
_MAX_TIME_DIGITS = 30  # before the decimal point

_NUMBERS = frozenset({"double", "float", "int", "bool", "enum", "duration", "string"})
_TEXTS = frozenset({"double", "float", "int", "bool", "enum", "string", "bytes", "timestamp", "duration"})


class Inexact(BadData):
    """Raised for an integer that a double cannot hold. ``text`` are its digits."""

    def __init__(self, key: str, value: int) -> None:
        super().__init__(Reason.INEXACT_INTEGER, f"{key} is {shown(str(value))}, which a double can't hold exactly")
        self.text = str(value)


def star_number_of(key: str, node: Node, source: Source, mapping: Mapping) -> Getter | None:
    """Returns :func:`number_of` for a value that a star leads to: a number or a boolean; None for another node."""
    if not isinstance(node, Plain) and not _is_number(node):
        return None
    return number_of(key, node, source, mapping, of_star=True)


def number_of(key: str, node: Node, source: Source, mapping: Mapping, *, of_star: bool = False) -> Getter:
    """Returns the function that turns a value of a node into a reading.

    The function returns a float, or None for a value that counts as not set. It raises BadData.

    Args:
        key: the entry, for messages.
        node: of the value.
        source: how it is converted.
        mapping: how text writes numbers, and what becomes of inexact integers.
        of_star: whether values that are no numbers are left out.

    Raises:
        MappingError: a value of this node is never a number.
    """
    if not isinstance(node, Plain) and not (isinstance(node, Leaf) and node.kind in _NUMBERS):
        raise MappingError(key, f"a reading is a number, not {node}")
    convert = _raw_number(key, node, source, mapping, of_star=of_star)
    if source.scale is not None or source.offset is not None:
        convert = _scaled(convert, Decimal(1) if source.scale is None else source.scale, source.offset or Decimal(0))
    if source.signed is not None:
        convert = _signed(key, node, source.signed, convert)
    return _or_null(_without_nulls(convert, source, node), source)


def _is_number(node: Node) -> bool:
    return isinstance(node, Leaf) and node.kind in ("double", "float", "int", "bool", "duration")


def _raw_number(key: str, node: Node, source: Source, mapping: Mapping, *, of_star: bool) -> Getter:
    rounds = mapping.inexact_integers == "round"

    def integer(value: int) -> float:
        number = exact_float(value)
        if number is None:
            if not rounds:
                raise Inexact(key, value)
            number = float(value)
        return number

    parse = _number_parser(key, mapping, integer)
    if isinstance(node, Leaf):
        match node.kind:
            case "double" | "float":
                return itself
            case "bool" | "enum":
                return float
            case "duration":
                return lambda value: (value.seconds * 1_000_000_000 + value.nanos) / 1_000_000_000
            case "int":
                small = node.bits < 64 and source.scale is None and source.offset is None
                return float if small and source.signed is None else integer
            case _:
                return composed(leaf_text(node), parse)

    def plain(value: Any) -> float | None:
        kind = type(value)
        if kind is float:
            return value
        if kind is bool:
            return float(value)
        if kind is int:
            return integer(value)
        if of_star:
            return None
        if kind is str:
            return parse(value)
        raise BadData(Reason.NOT_A_NUMBER, f"{key} is {_kind(value)}, not a number")

    return plain


def _number_parser(key: str, mapping: Mapping, integer: Callable[[int], float]) -> Callable[[str], float]:
    decimal, thousands = mapping.decimal, mapping.thousands
    grouped = re.compile(rf"[+-]?[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})*(?:{re.escape(decimal)}[0-9]*)?")

    def parse(text: str) -> float:
        number = text.strip()
        if thousands and thousands in number and grouped.fullmatch(number):
            number = number.replace(thousands, "")
        if decimal != "." and "." not in number:
            number = number.replace(decimal, ".", 1)
        elif decimal != ".":
            number = ""  # a dot is no decimal sign here
        if len(number) > _MAX_TEXT or not _NUMBER.fullmatch(number):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(text)}, not a number")
        return integer(int(number)) if number.lstrip("+-").isdecimal() else float(number)

    return parse


def _signed(key: str, node: Node, bits: int, convert: Getter) -> Getter:
    if not isinstance(node, Plain) and not (isinstance(node, Leaf) and node.kind == "int"):
        raise MappingError(f"{key}.signed", f"it is for integers, not for {node}")
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    # Above the bits of a negative number, there are zeros, or ones up to the 32 or 64 bits of the field.
    wraps = (0, 1 << bits, 1 << 32, 1 << 64)

    def signed(value: Any) -> float | None:
        value = _whole_number(value)
        if type(value) is not int:
            return convert(value)
        number = ((value & mask) ^ top) - top
        if value != number and not (number < 0 and value - number in wraps):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(str(value))}, which is no number of {bits} bits")
        return convert(number)

    return signed


def _whole_number(value: Any) -> Any:
    """Returns the integer that text, or a float of a Struct, stands for; any other value unchanged."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) <= _MAX_TEXT and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return value


def _scaled(convert: Getter, scale: Decimal, offset: Decimal) -> Getter:
    def scaled(value: Any) -> float | None:
        number = value if type(value) is int else convert(value)
        if number is None or not math.isfinite(number):
            return number
        # In decimal, 2150 · 0.01 is 21.5; and an integer of any size is scaled before it becomes a double.
        return float(_EXACT.add(_EXACT.multiply(Decimal(repr(number)), scale), offset))

    return scaled


def _without_nulls(convert: Getter, source: Source, node: Node) -> Getter:
    null = as_in(node, source.null)
    if not null:
        return convert

    def get(value: Any) -> Any:
        try:
            if value in null:
                return None
        except TypeError:  # an array or an object
            pass
        return convert(value)

    return get


def as_in(node: Node, values: Iterable[Scalar]) -> frozenset[Scalar]:
    """Returns the values as a node holds them: a field of type float holds no 0.1, but the float that is next to it."""
    if node == Leaf("float"):
        return frozenset(_nearest_float(value) if isinstance(value, float) else value for value in values)
    return frozenset(values)


def _nearest_float(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return value


def _or_null(convert: Getter, source: Source) -> Getter:
    if source.invalid == "refuse":
        return convert

    def get(value: Any) -> Any:
        try:
            return convert(value)
        except Inexact:
            raise
        except BadData:
            return None

    return get


def star_text_of(key: str, node: Node, source: Source) -> Getter | None:
    """Returns the function that turns a value that a star leads to into text; None unless it is text or an enum."""
    if isinstance(node, Plain):
        return _without_nulls(_plain_text(key, of_star=True), source, node)
    is_text = isinstance(node, Leaf) and node.kind in ("string", "enum")
    return text_of(key, node, source) if is_text else None


def text_of(key: str, node: Node, source: Source, *, name_of: bool = False) -> Getter:
    """Returns the function that turns a value of a node into text.

    Args:
        key: the entry, for messages.
        node: of the value.
        source: how it is converted.
        name_of: whether the name of an enum's value is taken.

    Raises:
        MappingError: a value of this node is never text.
    """
    if isinstance(node, Plain):
        return _without_nulls(_plain_text(key, of_star=False), source, node)
    if not isinstance(node, Leaf) or node.kind not in _TEXTS:
        raise MappingError(key, f"a text is made of a single value, not of {node}")
    if name_of and node.enum is None:
        raise MappingError(key, f"name_of is for an enum or a oneof, not for {node}")
    return _without_nulls(leaf_text(node), source, node)


def leaf_text(leaf: Leaf) -> Getter:
    """Returns the function that returns the text of a leaf's value; of an enum's, the name. It raises BadData."""
    match leaf.kind:
        case "string":
            return itself if leaf.is_checked else _checked_text
        case "bool":
            return lambda value: "true" if value else "false"
        case "enum":
            names = leaf.enum.values_by_number  # type: ignore[union-attr]
            return lambda value: names[value].name if value in names else str(value)
        case "bytes":
            return bytes.hex
        case "timestamp":
            return _timestamp_text
        case "duration":
            return lambda value: _float_text((value.seconds * 1_000_000_000 + value.nanos) / 1_000_000_000)
        case "int":
            return str
        case _:
            return _float_text


def _checked_text(value: str | bytes) -> str:
    if type(value) is bytes:
        raise BadData(Reason.UNPARSEABLE, f"a text is not UTF-8: {shown(value.hex())} in hexadecimal")
    return value  # type: ignore[return-value]


def _timestamp_text(timestamp: Any) -> str:
    time_us = _timestamp_us(timestamp)
    try:
        return format_time(time_us)
    except OverflowError:
        raise BadData(
            Reason.INVALID_EVENT_TIME, f"a time is {time_us} µs since the epoch, which no calendar has"
        ) from None


def _float_text(value: float) -> str:
    return repr(value).removesuffix(".0")


def _plain_text(key: str, *, of_star: bool) -> Getter:
    def text(value: Any) -> str | None:
        if type(value) is str:
            return value
        if of_star:
            return None
        single = plainly(value)
        if single is None:
            raise BadData(Reason.UNPARSEABLE, f"{key} is {_kind(value)}, not a single value")
        return single

    return text


def plainly(value: Any) -> str | None:
    """Returns the text of a value of JSON or a Struct; None for arrays and objects."""
    kind = type(value)
    if kind is str:
        return value
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return _float_text(value)
    return None if kind in (list, dict) else str(value)


def formatted(key: str, node: Node, spec: str) -> Getter:
    """Returns the function that formats a value as a placeholder asks. Raises MappingError, the function BadData."""
    if not spec:
        return text_of(key, node, Source())
    is_plain = isinstance(node, Plain)
    kinds = {"hex": ("bytes",), "upper": ("string", "bytes", "enum"), "lower": ("string", "bytes", "enum")}.get(spec)
    if kinds:
        is_text = is_plain and spec != "hex"  # JSON has no bytes
        if not is_text and not (isinstance(node, Leaf) and node.kind in kinds):
            raise MappingError(key, f"the format {spec} is for {' and '.join(kinds)}, not for {node}")
        return composed(text_of(key, node, Source()), str.upper if spec == "upper" else str.lower)
    integral = spec[-1] in "dxXob"
    if not is_plain and not (
        isinstance(node, Leaf) and node.kind in (("int", "enum") if integral else ("int", "float", "double"))
    ):
        raise MappingError(key, f"the format {spec} is for {'integers' if integral else 'numbers'}, not for {node}")

    def get_formatted(value: Any) -> str:
        if type(value) is float and integral and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int if integral else (int, float)):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {_kind(value)}, which the format {spec} is not for")
        try:
            return format(value, spec)
        except OverflowError:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} exceeds the range of a double") from None

    return get_formatted


def time_of(key: str, node: Node, source: Source) -> Getter:
    """Returns the function that turns a value of a node into microseconds since the epoch.

    It returns None for a value that counts as not set, which a number of 0 does. It raises BadData.

    Raises:
        MappingError: a value of this node is never a time, or is a number without a unit.
    """
    unit = source.unit
    if isinstance(node, Leaf) and node.kind == "timestamp":
        return _or_null(_timestamp_us, source)
    if not isinstance(node, Plain) and not (
        isinstance(node, Leaf) and node.kind in ("int", "double", "float", "string")
    ):
        raise MappingError(key, f"a time is a Timestamp, a number or text, not {node}")
    if unit is None and isinstance(node, Leaf) and node.kind != "string":
        raise MappingError(key, f'a time that is {node} needs a unit, like {{ path = …, unit = "ms" }}')
    per_unit = UNITS[unit] if unit else None
    from_text = _text_time(key, source)

    def get(value: Any) -> int | None:
        kind = type(value)
        if kind is datetime:
            return from_datetime(value)
        if kind is str and per_unit is None:
            return from_text(value) if value.strip() else None
        if kind not in (int, float, str) or per_unit is None:
            problem = "a number, and the mapping gives no unit" if kind in (int, float) else _kind(value)
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {problem}, not a time")
        text = value.strip() if kind is str else repr(value)
        if not text:
            return None
        try:
            number = Decimal(text) if len(text) <= _MAX_TEXT and _NUMBER.fullmatch(text) else None
        except InvalidOperation:  # an exponent of twenty digits
            number = None
        # A text of a few characters may stand for a number of a million digits.
        if number is None or number.adjusted() > _MAX_TIME_DIGITS:
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(str(value))}, not a time")
        return int(_FLOOR.multiply(number, per_unit).to_integral_value(ROUND_FLOOR)) or None

    return _or_null(_without_nulls(get, source, node), source)


def _timestamp_us(timestamp: Any) -> int:
    nanos = timestamp.nanos
    if not 0 <= nanos < 1_000_000_000:
        raise BadData(Reason.INVALID_EVENT_TIME, f"the time has {nanos} nanoseconds, not 0 to 999,999,999")
    return timestamp.seconds * 1_000_000 + nanos // 1000


def _text_time(key: str, source: Source) -> Callable[[str], int]:
    zone = ZoneInfo(source.time_zone) if source.time_zone else None
    time_format = source.time_format
    if time_format is None and zone is None:

        def parse(text: str) -> int:
            try:
                return parse_time(text)
            except ValueError as error:
                raise BadData(Reason.INVALID_EVENT_TIME, f"{key}: {error}") from None

        return parse

    def parse_local(text: str) -> int:
        try:
            local = (
                datetime.strptime(text.strip(), time_format) if time_format else datetime.fromisoformat(text.strip())
            )
        except ValueError:
            expected = time_format or "ISO 8601"
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(text)}, which is not {expected}") from None
        if local.tzinfo is None and zone is not None:
            local = local.replace(tzinfo=zone)
            if not _exists(local, zone):
                raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(text)}, a time that clocks skip in {zone}")
        return from_datetime(local)

    return parse_local


def _exists(local: datetime, zone: ZoneInfo) -> bool:
    try:
        return local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
    except OverflowError:  # in the years 1 and 9999
        return True


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: f"the text {shown(str(value))}", bool: "a boolean"}
    return kinds.get(type(value), "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}")
