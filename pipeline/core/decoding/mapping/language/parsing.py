"""Parses mappings from TOML. A new key is a field of ``Mapping`` or ``Source`` and its parser in the tables here."""

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from re import Pattern
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from pipeline.core.decoding.mapping.language import paths
from pipeline.core.decoding.mapping.language.model import (
    BLANKS,
    JSON,
    TEXT,
    UNITS,
    Condition,
    CsvFormat,
    Mapping,
    MappingEntry,
    MappingError,
    Scalar,
    Source,
    TimeSpan,
    UnitScale,
    Value,
)
from pipeline.core.decoding.mapping.language.paths import Current, Field, Path, PathError, Root, Star
from pipeline.core.events.event import MAX_METADATA, MAX_READINGS, is_name
from pipeline.core.events.invalid_readings import Invalid, parse_range
from pipeline.core.notation.documents import parse_toml
from pipeline.core.notation.durations import parse_interval
from pipeline.core.notation.text import MAX_UNIT, is_label, shown
from pipeline.core.notation.times import parse_time, to_datetime

MAX_MAPPING_BYTES = 1 << 20
_MOST_LINES = 10_000  # above and in the header of CSV
_MAX_UNITS = 100
_TIME = "$time"
"""The path of the event's time, in conditions."""

_T = TypeVar("_T")
_Parse = Callable[[str, Any], Any]
"""Takes the key and the value of TOML. Raises MappingError."""


def parse_mapping(text: str) -> Mapping:
    """Parses a mapping from TOML. Raises MappingError."""
    if len(text) > MAX_MAPPING_BYTES:
        raise MappingError("", f"a mapping has at most {MAX_MAPPING_BYTES >> 20} MiB")
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise MappingError("", f"it is not TOML: {error}") from None
    _check_keys("", document, (*(field.name for field in fields(Mapping)), *_DEFAULTS))
    defaults = _parsed("", document, _DEFAULTS)
    if document.get("decimal", ".") == document.get("thousands", ""):
        raise MappingError("thousands", "it is the decimal sign too, so numbers would be ambiguous")
    for key in ("message", "sensor", "time", "readings"):
        if key not in document:
            raise MappingError(key, f"it is missing{_below(key, document)}")
    values = _ValueParser(defaults.get("invalid", Invalid.REFUSE_EVENT), defaults.get("null", frozenset()))
    mapping = Mapping(
        sensor=values.value("sensor", document["sensor"], _TEXT_KEYS),
        time=values.value("time", document["time"], _TIME_KEYS),
        event_id=values.value("event_id", document["event_id"], _TEXT_KEYS) if "event_id" in document else (),
        readings=values.entries("readings", document["readings"], _READING_KEYS, _READING_ENTRY_KEYS, MAX_READINGS),
        metadata=values.entries("metadata", document.get("metadata", {}), _TEXT_KEYS, _ENTRY_KEYS, MAX_METADATA),
        **_parsed("", document, _MAPPING_KEYS),
    )
    if mapping.by_order and mapping.has_elements:
        several = "each" if mapping.each else "zip"
        raise MappingError(
            "time.ambiguous", f'"order" is for records of one event, and {several} makes several of them'
        )
    if any(source.step for source in mapping.time) and not mapping.has_elements:
        raise MappingError("time.step", "it is for the elements of each or zip, and the mapping has neither")
    return mapping


_TEXT_KEYS = ("path", "name_of", "constant", "when", "null")
_TIME_KEYS = (
    *("path", "unit", "epoch", "format", "interval", "time_zone", "ambiguous", "stamps", "length", "plus", "step"),
    *("valid_from", "max_age", "when", "null"),
)
_READING_KEYS = (
    *("path", "when", "null", "scale", "offset", "signed", "suffix", "units", "unit_path", "values", "valid"),
    "invalid",
)
_ENTRY_KEYS = ("name", "except", "required")
_READING_ENTRY_KEYS = (*_ENTRY_KEYS, "unit")
_KINDS = ("path", "name_of", "constant")


class _ValueParser:
    """Parses values, which share what the mapping says of invalid values and of null."""

    def __init__(self, invalid: Invalid, null: frozenset[Scalar]) -> None:
        self._invalid = invalid
        self._null = null

    def entries(
        self, key: str, value: Any, keys: tuple[str, ...], entry_keys: tuple[str, ...], most: int
    ) -> tuple[MappingEntry, ...]:
        table = _table(key, value)
        if len(table) > most:
            raise MappingError(key, f"it has {len(table)} entries, more than the {most} that an event can have")
        return tuple(self._entry(f"{key}.{name}", name, entry, keys, entry_keys) for name, entry in table.items())

    def _entry(
        self, key: str, name: str, value: Any, keys: tuple[str, ...], entry_keys: tuple[str, ...]
    ) -> MappingEntry:
        table = value if isinstance(value, dict) else {}
        entry = MappingEntry(
            name,
            self.value(key, value, keys, entry_keys),
            self.value(f"{key}.name", table["name"], _TEXT_KEYS) if "name" in table else None,
            tuple(_of_type(f"{key}.except", glob, str, "a list of globs") for glob in _list(table.get("except", []))),
            _flag(f"{key}.required", table.get("required", False)),
            _unit_of_metric(f"{key}.unit", table["unit"]) if "unit" in table else None,
        )
        if problem := _problem_of(entry):
            raise MappingError(key, problem)
        return entry

    def value(self, key: str, value: Any, keys: tuple[str, ...], entry_keys: tuple[str, ...] = ()) -> Value:
        if isinstance(value, dict):
            _check_keys(key, value, (*keys, *entry_keys, "first"))
            items = _alternatives(key, value, entry_keys)
        else:
            items = _list(value)
        if not items:
            raise MappingError(key, "it names no path")
        return tuple(self._source(key, item, keys) for item in items)

    def _source(self, key: str, item: Any, keys: tuple[str, ...]) -> Source:
        table = item if isinstance(item, dict) else {"path": item}
        _check_keys(key, table, keys)
        if sum(name in table for name in _KINDS) != 1:
            raise MappingError(key, f"it takes exactly one of {', '.join(name for name in _KINDS if name in keys)}")
        text = table.get("path", "")
        # A path has no braces outside quotes, and only texts and times are made of several.
        is_template = ("name_of" in keys or "format" in keys) and isinstance(text, str) and "{" in text
        _check_time(key, table)
        if problem := _problem_of_units(table):
            raise MappingError(f"{key}.{problem[0]}", problem[1])
        own = {"invalid": self._invalid} | _parsed(key, table, _SOURCE_KEYS)
        own_null = own.pop("null", frozenset())
        return Source(
            path=_path(key, text) if "path" in table and not is_template else None,
            name_of=_path(key, table["name_of"]) if "name_of" in table else None,
            template=_located(key, paths.parse_template, text) if is_template else None,
            null=self._null | own_null,
            own_null=own_null,
            **own,
        )


def _check_time(key: str, table: dict[str, Any]) -> None:
    """Raises MappingError for a key of a time without the keys that it needs."""
    rules = (
        ("ambiguous", "time_zone", "it is for a time with a time_zone, whose clocks change"),
        ("epoch", "unit", 'it is for a number with a unit, like unit = "d"'),
        ("stamps", "length", 'it needs the length of the interval, like length = "15m"'),
        ("length", "stamps", 'it is for a time with stamps = "end"'),
    )
    for name, needed, problem in rules:
        if name in table and needed not in table:
            raise MappingError(f"{key}.{name}", problem)
    if "stamps" in table and "interval" in table:
        raise MappingError(f"{key}.stamps", "it is for a time without interval, which takes the beginning itself")


def _parsed(key: str, table: dict[str, Any], parsers: dict[str, _Parse]) -> dict[str, Any]:
    """Returns the values of the keys that a table has."""
    return {
        name: parse(f"{key}.{name}" if key else name, table[name]) for name, parse in parsers.items() if name in table
    }


def _problem_of(entry: MappingEntry) -> str | None:
    """Returns what is wrong with an entry's name, or with its stars; None if nothing is."""
    name, has_star = entry.name, "*" in entry.name
    stars = sum(source.path.has_star for source in entry.value if source.path)
    rules = (
        (name.count("*") > 1, "a name has at most one star"),
        (
            has_star and (stars or not entry.label) and stars < len(entry.value),
            'a name with a star takes paths that end with one, or name = "path" for what it stands for',
        ),
        (not has_star and (entry.label or entry.excluded), "only a name with a star takes name or except"),
        (
            stars and not has_star,
            "a path with a star needs a name with a star",
        ),
        (
            entry.label and {_stars_in(source) for source in entry.label} != {1 if stars else 0},
            f"its path has {'a' if stars else 'no'} star, so each text of its name has "
            + ("one too, like {measurement}.*" if stars else "none either"),
        ),
        (not is_name(name.replace("*", "a")), f"{name!r} is not a name of a metric or of metadata"),
        (has_star and entry.required, "a name with a star can't be required"),
    )
    return next((problem for is_broken, problem in rules if is_broken), None)


def _stars_in(source: Source) -> int:
    return sum(part.count("*") for part in source.template or () if isinstance(part, str))


def _below(key: str, document: dict[str, Any]) -> str:
    """Returns a hint if a missing key is in one of the tables: a common slip in TOML."""
    inside = next((name for name, table in document.items() if isinstance(table, dict) and key in table), None)
    return f"; the {key} below the line [{inside}] belongs to that table, so write it above" if inside else ""


def _problem_of_units(table: dict[str, Any]) -> tuple[str, str] | None:
    """Returns a key that does not go with the units of a reading, and why; None if all do."""
    if "units" not in table:
        return ("unit_path", "it needs units, like units = { kWh = 1, Wh = 0.001 }") if "unit_path" in table else None
    for name in ("scale", "offset", "suffix"):
        if name in table:
            return name, "units has it for each unit, like units = { C = 1, F = { scale = 0.5556, offset = -17.78 } }"
    path = table.get("path")
    if "unit_path" in table and isinstance(path, str) and "*" in path:
        return "unit_path", "a star has values of several units; go through them with each"
    return None


def _alternatives(key: str, table: dict[str, Any], entry_keys: tuple[str, ...]) -> list[Any]:
    """Returns the sources of a table: itself, or the sources of ``first``, for which its other keys are defaults."""
    shared = {name: part for name, part in table.items() if name not in (*entry_keys, "first")}
    if "first" not in table:
        return [shared]
    if own := [name for name in _KINDS if name in shared]:
        raise MappingError(key, f"first stands for its {own[0]}; put that into the list")
    items = _list(table["first"])
    return [shared | (item if isinstance(item, dict) else {"path": item}) for item in items]


def _conditions(key: str, value: Any) -> tuple[Condition, ...]:
    conditions = []
    for table in _list(value):
        if _table(key, table).get("path") == _TIME:
            conditions.append(_time_condition(key, table))
            continue
        _check_keys(key, table, ("path", "is", "is_not", "set", "glob"))
        kinds = [kind for kind in table if kind != "path"]
        if "path" not in table or len(kinds) != 1:
            raise MappingError(key, "a condition is a path and one of is, is_not, set and glob")
        (kind,) = kinds
        values = tuple(_list(table[kind]))
        types, expected = {"set": ((bool,), "true or false"), "glob": ((str,), "texts")}.get(
            kind, ((str, int, float, bool), "texts, numbers, true or false")
        )
        if not values or not all(isinstance(one, types) for one in values) or (kind == "set" and len(values) > 1):
            raise MappingError(f"{key}.{kind}", f"it takes {expected}")
        conditions.append(Condition(_single_path(key, table["path"]), kind, values))
    return tuple(conditions)


def _time_condition(key: str, table: dict[str, Any]) -> Condition:
    if not key.endswith(".when") or key == "time.when":
        raise MappingError(key, f"{_TIME} is the event's time, for the when of a sensor, a reading or metadata")
    _check_keys(key, table, ("path", "from", "before"))
    bounds = _parsed(key, table, {"from": _time_us, "before": _time_us})
    first, end = bounds.get("from", -math.inf), bounds.get("before", math.inf)
    if not bounds or first >= end:
        raise MappingError(key, f"a condition on {_TIME} has from, before, or both, the earlier one first")
    return Condition(Path(Root.ENVELOPE, (paths.Field(_TIME[1:]),), _TIME), "within", (first, end))


def _time_us(key: str, value: Any) -> int:
    try:
        return parse_time(_text(key, value))
    except ValueError as error:
        raise MappingError(key, str(error)) from None


def _each(key: str, value: Any) -> tuple[Path, ...]:
    each = tuple(_path(key, text) for text in _list(value))
    for path in each:
        if path.root is not Root.MESSAGE or path.has_star or not isinstance(path.steps[-1], Current):
            raise MappingError(key, f"{str(path)!r} is not the path of a repeated field, like metrics[]")
    return each


def _zip(key: str, value: Any) -> tuple[Path, ...]:
    zipped = tuple(_path(key, text) for text in _list(value))
    names = []
    for path in zipped:
        levels, steps = path.of_last_level
        if (
            path.root is not Root.MESSAGE
            or path.steps[-1] != Current()
            or not steps
            or not isinstance(steps[-1], (Field, Star))
        ):
            raise MappingError(key, f"{str(path)!r} is not the path of a named list, like hourly.time[]")
        if path.has_star and (len(zipped) > 1 or steps[-1] != Star(deep=False)):
            raise MappingError(
                key, f"{str(path)!r} takes all lists of an object, so it ends with .*[] and stands alone"
            )
        if levels != zipped[0].of_last_level[0]:
            raise MappingError(key, f"{zipped[0]} and {path} are not lists of one element")
        names.append(path.names[-1])
    if len(names) == 1 and not zipped[0].has_star:
        raise MappingError(key, f"a single list is in each: each = {str(zipped[0])!r}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise MappingError(key, f"it has two lists named {twice[0]}, and their elements are members of that name")
    return zipped


def _types(key: str, value: Any) -> dict[tuple[str, ...], tuple[str, ...]]:
    types = {}
    for text, listed in _table(key, value).items():
        where, names = f"{key}.{text}", tuple(_list(listed))
        for name in names:
            _of_type(where, name, str, "the full name of a message type, or a list of names")
        path = _path(where, text)
        if path.root is not Root.MESSAGE or path.has_star:
            raise MappingError(where, "it is not the path of a field from the message, without a star")
        if TEXT in names and names != (JSON, TEXT):
            raise MappingError(where, 'text that may be JSON is ["json", "text"]')
        types[path.names] = names
    return types


def _attributes(key: str, value: Any) -> dict[str, Pattern[str]]:
    table = _table(key, value)
    return {name: _located(f"{key}.{name}", paths.parse_attribute_pattern, text) for name, text in table.items()}


def _csv(key: str, value: Any) -> CsvFormat:
    _check_keys(key, _table(key, value), _CSV_KEYS)
    return CsvFormat(**_parsed(key, value, _CSV_KEYS))


def _delimiter(key: str, value: Any) -> str:
    delimiter = _text(key, value)
    if delimiter != BLANKS and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise MappingError(key, f'it is {delimiter!r}, neither a single character nor "{BLANKS}"')
    return delimiter


def _skip_lines(key: str, value: Any) -> int | str:
    return value if isinstance(value, str) and value else _line_count(0, "a glob of the header")(key, value)


def _line_count(least: int, other: str = "") -> _Parse:
    def parse(key: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= _MOST_LINES:
            or_other = f", or {other}" if other else ""
            raise MappingError(key, f"it is {value!r}, not a number of lines from {least} to {_MOST_LINES:,}{or_other}")
        return value

    return parse


def _comment(key: str, value: Any) -> str:
    comment = _text(key, value)
    if not comment or comment.startswith('"'):
        raise MappingError(key, f'it is {comment!r}, not the beginning of a line, like "#"')
    return comment


def _encoding(key: str, value: Any) -> str:
    encoding = _text(key, value)
    try:
        "".encode(encoding)
    except (LookupError, ValueError):  # also of a name with characters that no encoding has
        raise MappingError(key, f"there is no encoding {encoding!r}; common ones are utf-8 and cp1252") from None
    return encoding


def _path(key: str, text: Any) -> Path:
    return _located(key, paths.parse_path, text)


def _single_path(key: str, text: Any) -> Path:
    path = _path(key, text)
    if path.has_star:
        raise MappingError(key, f"{str(path)!r} has a star, which has no single value")
    return path


def _located(key: str, parse: Callable[[str], _T], text: Any) -> _T:
    try:
        return parse(_text(key, text))
    except PathError as error:
        raise MappingError(key, str(error)) from None


def _nulls(key: str, value: Any) -> frozenset[Scalar]:
    return frozenset(_of_type(key, one, (str, int, float), "a list of texts and numbers") for one in _list(value))


def _invalid(key: str, value: Any) -> Invalid:
    try:
        return Invalid(value)
    except ValueError:
        raise MappingError(
            key, f'it takes "{Invalid.DROP_READING}" or "{Invalid.REFUSE_EVENT}", not {value!r:.80}'
        ) from None


def _valid(key: str, value: Any) -> tuple[float, float]:
    try:
        return parse_range(value)
    except ValueError as error:
        raise MappingError(key, f"it {error}") from None


def _values(key: str, value: Any) -> tuple[tuple[str, float], ...]:
    table = _table(key, value)
    for text, number in table.items():
        if type(number) not in (int, float) or not math.isfinite(number):
            raise MappingError(f"{key}.{text}", "it is not a number, like ON = 1")
    if not table:
        raise MappingError(key, "it is empty; it takes texts and their numbers, like { ON = 1, OFF = 0 }")
    return tuple((text, float(number)) for text, number in table.items())


def _span(key: str, value: Any) -> TimeSpan:
    if isinstance(value, str):
        try:
            return TimeSpan(constant_us=parse_interval(value))
        except ValueError as error:
            raise MappingError(
                key, f'{error}; a path stands in a table, like {{ path = "step", unit = "s" }}'
            ) from None
    table = _table(key, value)
    _check_keys(key, table, ("path", "unit"))
    path = _path(key, table.get("path", ""))
    if path.has_star:
        raise MappingError(key, f"{str(path)!r} has a star, which has no single value")
    return TimeSpan(path, _choice(*UNITS)(f"{key}.unit", table["unit"]) if "unit" in table else None)


def _decimal(key: str, value: Any) -> Decimal:
    number = Decimal(str(_of_type(key, value, (int, float), "a number")))
    if not number.is_finite():
        raise MappingError(key, f"it is {value}, not a finite number")
    return number


def _unit_of_metric(key: str, value: Any) -> str:
    if not is_label(_text(key, value), MAX_UNIT):
        raise MappingError(key, f"it is {shown(value)}, not 1 to {MAX_UNIT} printable characters")
    return value


def _units(key: str, value: Any) -> tuple[UnitScale, ...]:
    scales = []
    for unit, written in _table(key, value).items():
        where = f"{key}.{unit}"
        table = written if isinstance(written, dict) else {"scale": written}
        _check_keys(where, table, ("scale", "offset"))
        own = _parsed(where, table, {"scale": _decimal, "offset": _decimal})
        scales.append(UnitScale(unit.strip(), own.get("scale", Decimal(1)), own.get("offset", Decimal(0))))
    if not 0 < len(scales) <= _MAX_UNITS:
        raise MappingError(key, f"it takes 1 to {_MAX_UNITS} units, like {{ kWh = 1, Wh = 0.001 }}")
    by_unit: dict[str, UnitScale] = {}
    for scale in scales:
        if len(scale.unit) > MAX_UNIT:
            raise MappingError(f"{key}.{scale.unit:.80}", f"a unit has at most {MAX_UNIT} characters")
        if not scale.scale:
            raise MappingError(f"{key}.{scale.unit}", "a factor of 0 makes every reading the same")
        same = by_unit.setdefault(unicodedata.normalize("NFKC", scale.unit), scale)
        if same[1:] != scale[1:]:
            raise MappingError(f"{key}.{scale.unit}", f"it is the same unit as {same.unit}, with another factor")
    return tuple(scales)


def _time_format(key: str, value: Any) -> str:
    text = _text(key, value)
    some_time = datetime(2026, 2, 17, 10, 30, tzinfo=UTC)
    try:
        if "%" not in text:
            raise ValueError
        if "Z" in re.findall(r"%(.)", text):  # strptime reads the name of a zone, but does not apply it
            raise MappingError(
                key, f"{text!r} has %Z, which reads no offset; use %z, or time_zone and the literal name"
            )
        datetime.strptime(some_time.strftime(text), text)
    except (ValueError, re.error):  # the latter for a directive that appears twice
        raise MappingError(key, f"{text!r} is not a format of times, like %d.%m.%Y %H:%M:%S") from None
    return text


def _epoch(key: str, value: Any) -> datetime:
    text = _text(key, value)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise MappingError(key, f"{text!r} is not a date, like 1899-12-30") from None


def _time(key: str, value: Any) -> datetime:
    try:
        return to_datetime(parse_time(_text(key, value)))
    except ValueError as error:
        raise MappingError(key, str(error)) from None


def _duration(key: str, value: Any) -> timedelta:
    try:
        return timedelta(microseconds=parse_interval(_text(key, value)))
    except ValueError as error:
        raise MappingError(key, str(error)) from None


def _interval(key: str, value: Any) -> str:
    if not _text(key, value):
        raise MappingError(key, 'it is the text between two times, like " - "')
    return value


def _zone(key: str, value: Any) -> str:
    zone = _text(key, value)
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise MappingError(key, f"there is no time zone {zone!r}; a time zone is like Europe/Amsterdam") from None
    return zone


def _bits(key: str, value: Any) -> int:
    if type(value) is not int or not 2 <= value <= 64:
        raise MappingError(key, "it is not a number of bits, from 2 to 64")
    return value


def _choice(*choices: str) -> _Parse:
    def parse(key: str, value: Any) -> Any:
        if value not in choices:
            raise MappingError(key, f"it is {value!r}, none of {', '.join(map(repr, choices))}")
        return value

    return parse


def _flag(key: str, value: Any) -> bool:
    return _of_type(key, value, bool, "true or false")


def _text(key: str, value: Any) -> str:
    return _of_type(key, value, str, "a text")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _table(key: str, value: Any) -> dict[str, Any]:
    return _of_type(key, value, dict, "a table")


def _of_type(key: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool and bool not in _list(kind)):
        raise MappingError(key, f"it is not {expected}")
    return value


def _check_keys(prefix: str, table: dict[str, Any], keys: Iterable[str]) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, list(keys), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(keys)}"
            raise MappingError(f"{prefix}.{key}" if prefix else key, f"there is no such key; {hint}")


_DEFAULTS: dict[str, _Parse] = {"invalid": _invalid, "null": _nulls}
"""Keys of a mapping that hold for all its values."""

_MAPPING_KEYS: dict[str, _Parse] = {
    "message": _text,
    "each": _each,
    "zip": _zip,
    "match": _conditions,
    "unmarked": _flag,
    "compression": _choice("gzip", "zlib", "auto"),
    "skip_if": _conditions,
    "skip_unless": _conditions,
    "types": _types,
    "attributes": _attributes,
    "rewrite_names": _flag,
    "inexact_integers": _choice("refuse", "round", "metadata"),
    "shortest_floats": _flag,
    "decimal": _choice(".", ","),
    "thousands": _choice("", ",", ".", " ", "'"),
    "csv": _csv,
}
_CSV_KEYS: dict[str, _Parse] = {
    "delimiter": _delimiter,
    "encoding": _encoding,
    "skip_lines": _skip_lines,
    "header_lines": _line_count(1),
    "comment": _comment,
}
_SOURCE_KEYS: dict[str, _Parse] = {
    "constant": _text,
    "when": _conditions,
    "scale": _decimal,
    "offset": _decimal,
    "signed": _bits,
    "suffix": _text,
    "values": _values,
    "valid": _valid,
    "units": _units,
    "unit_path": _single_path,
    "unit": _choice(*UNITS),
    "epoch": _epoch,
    "format": _time_format,
    "interval": _interval,
    "time_zone": _zone,
    "ambiguous": _choice("refuse", "first", "second", "order"),
    "stamps": _choice("end"),
    "length": _duration,
    "valid_from": _time,
    "max_age": _duration,
    "plus": _span,
    "step": _span,
    **_DEFAULTS,
}
