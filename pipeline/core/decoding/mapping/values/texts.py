"""Turns the values of messages into texts."""

from typing import Any

from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, itself
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.exact_numbers import shortest_float32
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import format_time


def leaf_text(leaf: Leaf) -> Getter:
    """Returns the function that turns a leaf's value into text: a value of an enum into its name. It raises BadData."""
    match leaf.kind:
        case "string":
            return itself if leaf.is_checked else checked_text
        case "bool":
            return lambda value: "true" if value else "false"
        case "enum":
            names = leaf.enum.values_by_number  # type: ignore[union-attr]
            return lambda value: names[value].name if value in names else str(value)
        case "bytes":
            return bytes.hex
        case "timestamp":
            return timestamp_text
        case "duration":
            return lambda value: float_text((value.seconds * 1_000_000_000 + value.nanos) / 1_000_000_000)
        case "int":
            return str
        case "float":
            return lambda value: float_text(shortest_float32(value))
        case _:
            return float_text


def checked_text(value: str | bytes) -> str:
    """Returns text unchanged. Raises BadData for bytes, which are text of proto2 that is not UTF-8."""
    if type(value) is bytes:
        raise BadData(Reason.UNPARSEABLE, f"a text is not UTF-8: {shown(value.hex())} in hexadecimal")
    return value  # type: ignore[return-value]


def timestamp_text(timestamp: Any) -> str:
    """Returns a Timestamp as RFC 3339 text. Raises BadData if it is outside the years 1 to 9999."""
    time_us = timestamp_us(timestamp)
    try:
        return format_time(time_us)
    except OverflowError:
        raise BadData(
            Reason.INVALID_EVENT_TIME, f"a time is {time_us} µs since the epoch, which no calendar has"
        ) from None


def float_text(value: float) -> str:
    """Returns the shortest text of a number, without a trailing ``.0``."""
    return repr(value).removesuffix(".0")


def plainly(value: Any) -> str | None:
    """Returns the text of a value of JSON or a Struct; None for arrays and objects."""
    kind = type(value)
    if kind is str:
        return value
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return float_text(value)
    return None if kind in (list, dict) else str(value)


def timestamp_us(timestamp: Any) -> int:
    """Returns a Timestamp in microseconds since the epoch. Raises BadData if its nanoseconds are out of range."""
    nanos = timestamp.nanos
    if not 0 <= nanos < 1_000_000_000:
        raise BadData(Reason.INVALID_EVENT_TIME, f"the time has {nanos} nanoseconds, not 0 to 999,999,999")
    return timestamp.seconds * 1_000_000 + nanos // 1000


def kind_of(value: Any) -> str:
    """Returns the kind of a value, for error messages."""
    kinds = {dict: "an object", list: "an array", str: f"the text {shown(str(value))}", bool: "a boolean"}
    return kinds.get(type(value), "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}")


class KeptDigits(str):
    """The digits of a reading that became metadata, since a double can't hold them."""

    __slots__ = ()


class Inexact(BadData):
    """Raised for an integer that a double cannot hold exactly. ``text`` contains its digits."""

    def __init__(self, key: str, value: int) -> None:
        super().__init__(Reason.INEXACT_INTEGER, f"{key} is {shown(str(value))}, which a double can't hold exactly")
        self.text = KeptDigits(value)
