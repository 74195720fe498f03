r"""Reads InfluxDB's line protocol: https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/

    weather,station=north\ roof,unit=7 temp=21.5,count=4i,raw=9u,open=t,note="a \"b\"" 1771324200000000000

A line is a point: its measurement, tags, fields, and time, which may be missing. In names and in tags, commas, spaces
and, except in measurements, ``=`` have a backslash before them; in the text of a field, double quotes and backslashes.
Before any other character, a backslash stands for itself.

Beyond the specification, a field may be ``nan`` or ``inf``: a sensor that fails must not cost the line's other fields.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.notation.documents import BOM, text_of
from pipeline.core.notation.text import shown

MEASUREMENT, TAGS, FIELDS, TIME = "measurement", "tags", "fields", "time"

_NAME = r"(?:[^\\, =]|\\[, =]?)++"
_MEASUREMENT = re.compile(r"(?:[^\\, ]|\\[, ]?)++")
_TAG = re.compile(rf",({_NAME})=({_NAME})")
_FIELD = re.compile(rf'({_NAME})=(?:"((?:[^"\\]|\\.)*+)"|([^, "]++))', re.DOTALL)
_SPACES = re.compile(r" ++")
_END = re.compile(r"(?: ++(-?[0-9]{1,19}))? *+\Z")
_ESCAPED = re.compile(r"\\([, =])")
_ESCAPED_IN_MEASUREMENT = re.compile(r"\\([, ])")
_ESCAPED_IN_TEXT = re.compile(r'\\(["\\])')
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|nan|inf(?:inity)?)", re.IGNORECASE)
_WHOLE = re.compile(r"(-?[0-9]{1,20})([iu])")
_LIMITS = {"i": (-(1 << 63), (1 << 63) - 1), "u": (0, (1 << 64) - 1)}
_BOOLEANS = {text: text[0] in "tT" for text in ("t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE")}


def parse_lines(data: bytes) -> Iterator[dict[str, Any] | ValueError]:
    """Yields the points of a text, and an error, of one line, for each wrong line. Raises ValueError.

    Blank lines and comments are skipped. A point has the measurement's name, a table of tags, a table of fields, whose
    values are Python's, and the time as an integer, if the line has one.
    """
    lines = text_of(data).removeprefix(BOM).rstrip("\0").split("\n")
    for number, line in enumerate(lines, 1):
        if is_point(line):
            try:
                yield parse_line(line)
            except ValueError as error:
                yield ValueError(f"line {number:,}: {error}" if len(lines) > 1 else str(error))


def is_point(line: str) -> bool:
    """Returns whether a line is neither blank nor a comment."""
    return line.strip()[:1] not in ("", "#")


def parse_line(line: str) -> dict[str, Any]:
    """Returns the point of a line; see :func:`parse_lines`. Raises ValueError with a message of one line."""
    line = line.strip(" \r\n")
    measurement = _MEASUREMENT.match(line)
    if not measurement:
        raise ValueError("it begins with no measurement")
    position = measurement.end()
    tags: dict[str, str] = {}
    while tag := _TAG.match(line, position):
        _put(tags, _ESCAPED.sub(r"\1", tag[1]), _ESCAPED.sub(r"\1", tag[2]))
        position = tag.end()
    spaces = _SPACES.match(line, position)
    if not spaces:
        raise _unexpected(line, position, "a tag, like ,key=value, or a space and a field")
    fields: dict[str, Any] = {}
    position = spaces.end() - 1
    while not fields or line.startswith(",", position):
        field = _FIELD.match(line, position + 1)
        if not field:
            raise _unexpected(line, position + 1, 'a field, like key=21.5, key=4i, key=true or key="text"')
        name, text, value = _ESCAPED.sub(r"\1", field[1]), field[2], field[3]
        _put(fields, name, _value(name, value) if text is None else _ESCAPED_IN_TEXT.sub(r"\1", text))
        position = field.end()
    end = _END.match(line, position)
    if not end:
        raise _unexpected(line, position, "a time, which is an integer, and the end")
    name = _ESCAPED_IN_MEASUREMENT.sub(r"\1", measurement[0])
    point = {MEASUREMENT: name, TAGS: tags, FIELDS: fields}
    return point | {TIME: int(end[1])} if end[1] else point


def point_text(point: Mapping[str, Any]) -> str:
    """Returns the line of a point that has a field, of which :func:`parse_line` makes the point again."""
    measurement = re.sub("[, ]", r"\\\g<0>", str(point[MEASUREMENT]))
    tags = (f",{_escaped(name)}={_escaped(value)}" for name, value in point.get(TAGS, {}).items())
    fields = (f"{_escaped(name)}={_field_text(value)}" for name, value in point[FIELDS].items())
    return f"{measurement}{''.join(tags)} {','.join(fields)} {point.get(TIME, '')}".rstrip()


def _escaped(name: object) -> str:
    return re.sub("[, =]", r"\\\g<0>", str(name))


def _field_text(value: Any) -> str:
    if isinstance(value, str):
        return '"' + re.sub(r'[\\"]', r"\\\g<0>", value) + '"'
    if type(value) is int:
        return f"{value}{'u' if value >= 1 << 63 else 'i'}"
    return str(value)


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    if name in values:
        raise ValueError(f"{shown(name)} appears twice")
    values[name] = value


def _value(name: str, text: str) -> int | float | bool:
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _FLOAT.fullmatch(text):
        return float(text)
    if whole := _WHOLE.fullmatch(text):
        least, most = _LIMITS[whole[2]]
        if least <= (number := int(whole[1])) <= most:
            return number
    raise ValueError(f"the field {shown(name)} is {shown(text)}, neither a number nor a boolean nor text in quotes")


def _unexpected(line: str, position: int, expected: str) -> ValueError:
    return ValueError(f"at character {position + 1}, {shown(line[position:])} is not {expected}")
