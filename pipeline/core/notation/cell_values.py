"""Converts values of readings to bytes and back: decimal text, or eight bytes. All values are finite."""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum

from pipeline.core.notation.text import shown

_FLOAT64 = struct.Struct(">d")
_NUMERIC = b"0123456789+-.eE"
_MAX_SHOWN = 40


class Values(StrEnum):
    """How a table stores the values of readings. Aggregates are always text."""

    TEXT = "text"
    """The shortest decimal text that reads back to the same double, without a trailing ``.0``."""
    FLOAT64 = "float64"
    """IEEE 754, eight bytes, big-endian."""

    @property
    def pack(self) -> Callable[[float], bytes]:
        """The function that converts a value to bytes."""
        return format_value if self is Values.TEXT else _format_float64

    @property
    def pack_all(self) -> Callable[[Iterable[float]], list[bytes]]:
        """The function that converts values to bytes, at less cost than one by one."""
        return format_values if self is Values.TEXT else _format_float64s

    @property
    def unpack(self) -> Callable[[bytes], float]:
        """The function that parses a value. It raises ValueError for bytes that :attr:`pack` does not write."""
        return parse_value if self is Values.TEXT else _parse_float64

    @property
    def unpack_all(self) -> Callable[[Sequence[bytes]], list[float]]:
        """The function that parses values, at less cost than one by one."""
        return parse_values if self is Values.TEXT else _parse_float64s


def _format_float64(value: float) -> bytes:
    return _FLOAT64.pack(value)  # a function, because a bound method of a struct does not pickle


def _format_float64s(values: Iterable[float]) -> list[bytes]:
    return [_FLOAT64.pack(value) for value in values]


def _parse_float64(data: bytes) -> float:
    if len(data) != _FLOAT64.size:
        raise ValueError(f"{shown_bytes(data)} is not the eight bytes of a float64")
    (value,) = _FLOAT64.unpack(data)
    if value - value != 0.0:
        raise ValueError(f"{shown_bytes(data)} is {value}, which is not finite")
    return value


def _parse_float64s(data: Sequence[bytes]) -> list[float]:
    if set(map(len, data)) <= {_FLOAT64.size}:
        values = list(struct.unpack(f">{len(data)}d", b"".join(data)))
        if all(map(math.isfinite, values)):
            return values
    return [_parse_float64(each) for each in data]  # raises what is wrong


def format_value(value: float) -> bytes:
    """Returns the shortest decimal text that reads back to the same double, without a trailing ``.0``."""
    return repr(value).removesuffix(".0").encode()


def format_values(values: Iterable[float]) -> list[bytes]:
    """Returns the text of each value, as :func:`format_value` does."""
    lines = "".join([f"{value!r}\n" for value in values])
    return lines.replace(".0\n", "\n").encode().split(b"\n")[:-1]


def rounded(value: float) -> str:
    """Returns the value for people: rounded to six significant digits, or to a whole number if that is longer."""
    if value - value == 0.0 and value != int(value):
        value = round(value, max(5 - math.floor(math.log10(abs(value))), 0))
    return format_value(value).decode()


def shortest(value: float) -> float:
    """Returns the number of at most 15 significant digits next to a computed one; whole numbers stay what they are.

    So 2307.9999999999995, a sum that should be 2308, is 2308: sums depend on the order of addition by more than that.
    """
    return value if value.is_integer() else float(f"{value:.15g}")


def parse_value(text: bytes) -> float:
    """Parses decimal text as a finite number. Raises ValueError for any other text."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{shown_bytes(text)} is not a number") from None
    # float() also accepts blanks, underscores, nan and inf. A finite number minus itself is 0; inf and nan give nan.
    if text.strip(_NUMERIC) or value - value != 0.0:
        raise ValueError(f"{shown_bytes(text)} is not a finite decimal number")
    return value


def parse_values(texts: Sequence[bytes]) -> list[float]:
    """Parses texts, as :func:`parse_value` does each."""
    if not b"".join(texts).translate(None, _NUMERIC):
        with suppress(ValueError):
            values = list(map(float, texts))
            if math.isfinite(sum(values)):  # if it overflows, each value is looked at
                return values
    return [parse_value(text) for text in texts]  # raises what is wrong


def shown_bytes(data: bytes) -> str:
    """Returns the bytes as a literal of bytes, or of text beyond ASCII, truncated: safe to put into a message."""
    if not data.isascii():
        with suppress(UnicodeDecodeError):
            return shown(data.decode())
    return repr(data) if len(data) <= _MAX_SHOWN else f"{data[:_MAX_SHOWN]!r}…"
