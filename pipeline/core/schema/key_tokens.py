"""The tokens of a row key template: render them, parse them, and keep keys in order of time.

A time token has a fixed width, which makes keys sort by time byte by byte. A token without a fixed width is text that
contains no ``#`` and ends at one.
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache

from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.times import from_datetime, to_datetime

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US


class TemplateError(ValueError):
    """An invalid row key template. ``str()`` is one line: the token, the problem, and what would be valid."""


@dataclass(frozen=True)
class Token:
    """A token of a template.

    Attributes:
        text: the token in a template, with its braces.
        pattern: a regular expression, for Python and RE2, that matches the rendered token.
    """

    text: str

    @property
    def pattern(self) -> str:
        return "[^#]+"


# Text tokens


class SensorToken(Token):
    """``{sensor_id}``: the event's sensor id, printable ASCII."""

    pattern = '[!"$-~]{1,256}'


class MetricToken(Token):
    """``{metric}``: the metric, in layouts with a row per metric."""

    pattern = "[A-Za-z_][A-Za-z0-9_.-]{0,127}"


class EventIdToken(Token):
    """``{event_id}``: the publisher's id, to distinguish events with the same event time."""


@dataclass(frozen=True)
class MetadataToken(Token):
    """``{metadata.NAME}``: a metadata field."""

    name: str


TEXT_TOKENS = (SensorToken, MetricToken, EventIdToken, MetadataToken)
"""The tokens without a fixed width."""


# Tokens that spread sensors over the table


@dataclass(frozen=True)
class SaltToken(Token):
    """``{salt:N}``: the first N hexadecimal digits of the MD5 of the sensor id."""

    digits: int

    @property
    def pattern(self) -> str:
        return f"[0-9a-f]{{{self.digits}}}"

    @property
    def values(self) -> list[str]:
        return [f"{number:0{self.digits}x}" for number in range(16**self.digits)]

    def render(self, sensor_id: str) -> str:
        return _md5(sensor_id)[: self.digits]


@dataclass(frozen=True)
class ShardToken(Token):
    """``{shard:COUNT}``: the first 64 bits of the MD5 of the sensor id, modulo COUNT, zero-padded."""

    count: int

    @property
    def pattern(self) -> str:
        return f"[0-9]{{{self._width}}}"

    @property
    def values(self) -> list[str]:
        return [f"{number:0{self._width}d}" for number in range(self.count)]

    def render(self, sensor_id: str) -> str:
        return f"{int(_md5(sensor_id)[:16], 16) % self.count:0{self._width}d}"

    @property
    def _width(self) -> int:
        return len(str(self.count - 1))


SPREADING_TOKENS = (SaltToken, ShardToken)
"""The tokens with ``values``: all that they render, in the order of keys."""


@lru_cache(maxsize=1 << 17)
def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


# Time tokens


@dataclass(frozen=True)
class TimeToken(Token):
    """The event time, to a grain: all instants within one grain render alike.

    Attributes:
        grain_us: the greatest length of a grain, in microseconds; months and years vary.
        newest_first: whether a later time sorts first.
    """

    grain_us: int

    newest_first = False

    def render(self, time_us: int) -> str:
        raise NotImplementedError

    def parse(self, text: str) -> int:
        """Returns the first instant, in microseconds, that renders as the text. Raises ValueError if none does."""
        raise NotImplementedError

    def floor(self, time_us: int) -> int:
        """Returns the start of the grain that contains the instant."""
        return self.parse(self.render(time_us))

    def next(self, time_us: int) -> int:
        """Returns the start of the grain after the one that contains the instant."""
        return self.floor(self.floor(time_us) + self.grain_us)


@dataclass(frozen=True)
class ReverseToken(TimeToken):
    """``{reverse_s}``, ``{reverse_ms}``, ``{reverse_us}``: the greatest number of that width, less the time."""

    digits: int

    newest_first = True

    @property
    def pattern(self) -> str:
        return f"[0-9]{{{self.digits}}}"

    def render(self, time_us: int) -> str:
        return self.number_format % (self.max_value - time_us // self.grain_us)

    def parse(self, text: str) -> int:
        if len(text) != self.digits or not (text.isascii() and text.isdecimal()):
            raise ValueError(f"{text!r} does not match {self.text}")
        return (self.max_value - int(text)) * self.grain_us

    @cached_property
    def max_value(self) -> int:
        return 10**self.digits - 1

    @cached_property
    def number_format(self) -> str:
        return f"%0{self.digits}d"


@dataclass(frozen=True)
class CalendarToken(TimeToken):
    """A time in UTC, rendered by a ``strftime`` format that sorts by time.

    Args:
        text: the token in the template.
        grain_us: the greatest length of a grain.
        format: directives from the coarsest to the finest, such as ``%Y-%m-%d``; ``%f`` has six digits.
        bucket_us: the length of a bucket, whose start is rendered; 0 if the format's last directive is the grain.
        cut: the number of final digits to leave out: 3 turns ``%f`` into milliseconds.
    """

    format: str
    bucket_us: int = 0
    cut: int = 0

    @cached_property
    def pattern(self) -> str:
        return "".join(self._patterns)

    def render(self, time_us: int) -> str:
        if self.bucket_us:
            # Weeks begin on a Monday, but the epoch was a Thursday. All other buckets are aligned to the epoch.
            offset_us = 3 * DAY_US if self.bucket_us == WEEK_US else 0
            time_us -= (time_us + offset_us) % self.bucket_us
        text = to_datetime(time_us).strftime(self.format)
        return text[: -self.cut] if self.cut else text

    def parse(self, text: str) -> int:
        found = self._fields.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} does not match {self.text}")
        fields = {name: int(digits) for name, digits in found.groupdict().items()}
        clock = (fields.get("H", 0), fields.get("M", 0), fields.get("S", 0), fields.get("f", 0) * 10**self.cut)
        try:
            if "G" in fields:
                day = date.fromisocalendar(fields["G"], fields.get("V", 1), fields.get("u", 1))
            else:
                day = date(fields["Y"], fields.get("m", 1), fields.get("d", 1))
                day += timedelta(days=fields.get("j", 1) - 1)
        except OverflowError as error:
            raise ValueError(f"{text!r} is after the year 9999") from error
        time_us = from_datetime(datetime(day.year, day.month, day.day, *clock))
        if self.render(time_us) != text:  # within a bucket, or day 366 of a common year
            raise ValueError(f"{text!r} is not the start of a grain of {self.text}")
        return time_us

    @cached_property
    def _patterns(self) -> list[str]:
        return [
            f"[0-9]{{{_WIDTHS[part[1]] - (self.cut if part == '%f' else 0)}}}"
            if part in _DIRECTIVE_PARTS
            else re.escape(part.replace("%%", "%"))
            for part in _parts(self.format)
        ]

    @cached_property
    def _fields(self) -> re.Pattern[str]:
        return re.compile(
            "".join(
                f"(?P<{part[1]}>{pattern})" if part in _DIRECTIVE_PARTS else pattern
                for part, pattern in zip(_parts(self.format), self._patterns, strict=True)
            )
        )


def _parts(time_format: str) -> list[str]:
    return re.findall(r"%.|[^%]+", time_format)


def _directives(time_format: str) -> str:
    return "".join(part[1] for part in _parts(time_format) if part in _DIRECTIVE_PARTS)


# The orders of directives in which text sorts by time.
_CHAINS = ("YmdHMSf", "YjHMSf", "GVuHMSf")
_SHORTHANDS = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S"}
_WIDTHS = {"Y": 4, "G": 4, "j": 3, "f": 6} | dict.fromkeys("mdHMSV", 2) | {"u": 1}
_DIRECTIVE_PARTS = frozenset(f"%{directive}" for directive in _WIDTHS)
_GRAINS_US = {
    "Y": 366 * DAY_US,
    "G": 53 * WEEK_US,
    "m": 31 * DAY_US,
    "V": WEEK_US,
    "d": DAY_US,
    "j": DAY_US,
    "u": DAY_US,
    "H": HOUR_US,
    "M": 60 * SECOND_US,
    "S": SECOND_US,
    "f": 1,
}
_NAMES = {
    "Y": "year", "G": "ISO year", "m": "month", "V": "ISO week", "d": "day", "j": "day of the year",
    "u": "day of the week", "H": "hour", "M": "minute", "S": "second", "f": "microsecond",
}  # fmt: skip


def _check_order(text: str, directives: str) -> None:
    in_order = max(n for n in range(len(directives) + 1) if any(chain.startswith(directives[:n]) for chain in _CHAINS))
    if in_order == 0:
        problem = "it must begin with the year"
    elif in_order < len(directives):
        before, after = directives[in_order - 1], directives[in_order]
        problem = f"%{after} ({_NAMES[after]}) can't follow %{before} ({_NAMES[before]})"
    else:
        return
    raise TemplateError(f"{text} does not sort by time: {problem}; use one like {{time:%Y-%m-%d-%H%M}}")


# Parsing


_ISO_SECOND = "%Y-%m-%dT%H:%M:%S"
ISO_US = CalendarToken("{iso_us}", 1, f"{_ISO_SECOND}.%f")
_FIXED = {
    token.text.strip("{}"): token
    for token in (
        SensorToken("{sensor_id}"),
        MetricToken("{metric}"),
        EventIdToken("{event_id}"),
        ReverseToken("{reverse_s}", SECOND_US, 10),
        ReverseToken("{reverse_ms}", 1000, 13),
        ReverseToken("{reverse_us}", 1, 16),
        CalendarToken("{iso_s}", SECOND_US, _ISO_SECOND),
        CalendarToken("{iso_ms}", 1000, f"{_ISO_SECOND}.%f", cut=3),
        ISO_US,
    )
}
_METADATA = re.compile(r"metadata\.([A-Za-z_][A-Za-z0-9_.-]{0,127})")
_KNOWN = (
    "{sensor_id}, {metric}, {metadata.NAME}, {event_id}, {salt:N}, {shard:COUNT}, {reverse_s|ms|us}, {iso_s|ms|us}, "
    "{time:FORMAT}, {bucket:DURATION}"
)
_MAX_SALT_DIGITS = 4
_MAX_SHARDS = 10_000


def parse_token(text: str) -> Token:
    """Parses a token, given without its braces. Raises TemplateError."""
    if text in _FIXED:
        return _FIXED[text]
    if metadata := _METADATA.fullmatch(text):
        return MetadataToken(f"{{{text}}}", metadata[1])
    name, colon, argument = text.partition(":")
    if colon:
        match name:
            case "salt":
                return SaltToken(f"{{{text}}}", _number(text, argument, 1, _MAX_SALT_DIGITS, "digits"))
            case "shard":
                return ShardToken(f"{{{text}}}", _number(text, argument, 2, _MAX_SHARDS, "shards"))
            case "time":
                return _calendar(argument)
            case "bucket":
                return _bucket(argument)
    raise TemplateError(f"{{{text}}} is not a token; the tokens are {_KNOWN}")


def _number(text: str, argument: str, least: int, most: int, what: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", argument) or not least <= int(argument) <= most:
        raise TemplateError(f"{{{text}}} takes {least} to {most} {what}")
    return int(argument)


def _calendar(argument: str) -> CalendarToken:
    text = f"{{time:{argument}}}"
    if "#" in argument:
        raise TemplateError(f"{text} contains '#', which separates the fields of a key; leave it out or use two times")
    expanded = re.sub("%.", lambda found: _SHORTHANDS.get(found[0], found[0]), argument)
    for part in re.findall(r"%.?|[^%]+", expanded):
        if part.startswith("%") and part not in _DIRECTIVE_PARTS and part != "%%":
            raise TemplateError(
                f"{text} contains {part}, which does not sort by time or has no fixed width; "
                f"use {', '.join(f'%{directive}' for directive in _WIDTHS)}, %F, %T or %%"
            )
    directives = _directives(expanded)
    _check_order(text, directives)
    return CalendarToken(text, _GRAINS_US[directives[-1]], expanded)


def _bucket(argument: str) -> CalendarToken:
    text = f"{{bucket:{argument}}}"
    if argument == "1w":
        return CalendarToken(text, WEEK_US, "%G-W%V", WEEK_US)
    try:
        length_us = parse_duration(argument) // timedelta(microseconds=1)
    except ValueError as error:
        raise TemplateError(f"{text}: {error}, or 1w for ISO weeks") from None
    if not length_us or DAY_US % length_us:
        raise TemplateError(f"{text} does not divide a day; use one like 15m, 1h, 6h, 1d, or 1w for ISO weeks")
    time_format = {HOUR_US: "%Y-%m-%dT%H", DAY_US: "%Y-%m-%d"}.get(length_us, _ISO_SECOND)
    return CalendarToken(text, length_us, time_format, length_us)
