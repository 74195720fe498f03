"""Values of readings as bytes: decimal text, or eight bytes."""

import struct
from collections.abc import Callable
from enum import StrEnum

_FLOAT64 = struct.Struct(">d")


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
    try:
        return _FLOAT64.unpack(data)[0]
    except struct.error as error:
        raise ValueError(f"{data!r} is not the eight bytes of a float64") from error


def format_value(value: float) -> bytes:
    """The shortest decimal text that reads back to the same double, without a trailing ``.0``."""
    return repr(value).removesuffix(".0").encode()


def parse_value(text: bytes) -> float:
    """The number that the text says. Raises ValueError where it says none."""
    return float(text)
