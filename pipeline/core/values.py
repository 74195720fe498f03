"""Values of readings as bytes: decimal text, or eight bytes. They are finite; what is not was never written here."""

import struct
from collections.abc import Callable
from enum import StrEnum

_FLOAT64 = struct.Struct(">d")
_NUMERIC = b"0123456789+-.eE"
_MOST_SHOWN = 40


class Values(StrEnum):
    """How a table holds the values of readings. Aggregates are always text."""

    TEXT = "text"
    """The shortest decimal text that reads back to the same double, without a trailing ``.0``."""
    FLOAT64 = "float64"
    """IEEE 754, eight bytes, big-endian."""

    @property
    def pack(self) -> Callable[[float], bytes]:
        """Writes a value."""
        return format_value if self is Values.TEXT else _format_float64

    @property
    def unpack(self) -> Callable[[bytes], float]:
        """Reads a value that was written. Raises ValueError for what never is."""
        return parse_value if self is Values.TEXT else _parse_float64


def _format_float64(value: float) -> bytes:
    return _FLOAT64.pack(value)  # a bound method of a struct does not pickle


def _parse_float64(data: bytes) -> float:
    if len(data) != _FLOAT64.size:
        raise ValueError(f"{shown_bytes(data)} is not the eight bytes of a float64")
    (value,) = _FLOAT64.unpack(data)
    if value - value != 0.0:
        raise ValueError(f"{shown_bytes(data)} is {value}, which is no finite number")
    return value


def format_value(value: float) -> bytes:
    """The shortest decimal text that reads back to the same double, without a trailing ``.0``."""
    return repr(value).removesuffix(".0").encode()


def parse_value(text: bytes) -> float:
    """The finite number that decimal text says. Raises ValueError for any other text."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{shown_bytes(text)} is no number") from None
    # float() takes blanks, underscores, nan and inf too. A number less itself is 0, and of inf and nan that is nan.
    if text.strip(_NUMERIC) or value - value != 0.0:
        raise ValueError(f"{shown_bytes(text)} is no finite decimal number")
    return value


def shown_bytes(data: bytes) -> str:
    """Foreign bytes, made safe and short for a line of ours."""
    return repr(data) if len(data) <= _MOST_SHOWN else f"{data[:_MOST_SHOWN]!r}…"
