"""Mappings as TOML: parses the text into a :class:`Mapping`, without any knowledge of the message's type.

    message = "acme.v1.Report"            # the full name of a protobuf type, or "json"
    each = "probes[]"                     # one event for each element; points of one sensor and time are one event
    sensor = "{site}/{.serial:08x}"
    time = [{ path = ".at", unit = "ms" }, "$publish_time"]     # the first that is set

    [readings]
    temperature = { path = ".centi_celsius", scale = 0.01 }
    "*" = ".values.*"                     # the star in the name is what the star in the path matched

    [metadata]
    site = "site"

The page on mappings in the documentation describes every key.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Document
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from re import Pattern
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from pipeline.core.decoding.mapping.language import model, paths
from pipeline.core.decoding.mapping.language.model import Condition, Mapping, MappingError, Source, Value
from pipeline.core.decoding.mapping.language.paths import Current, Path, PathError, Root
from pipeline.core.events.event import MAX_METADATA, MAX_READINGS, is_name
from pipeline.core.notation.documents import parse_toml

MAX_MAPPING_BYTES = 1 << 20

_SOME_TIME = datetime(2026, 2, 17, 10, 30, tzinfo=UTC)

_T = TypeVar("_T")


_KEYS = (*(field.name for field in fields(Mapping)), "invalid", "null")
_TEXT_KEYS = ("path", "name_of", "constant", "when", "null")
_TIME_KEYS = ("path", "unit", "format", "time_zone", "ambiguous", "when", "null", "invalid")
_READING_KEYS = ("path", "when", "null", "scale", "offset", "signed", "suffix", "invalid")
_ENTRY_KEYS = ("name", "except", "required")


def parse_mapping(text: str) -> Mapping:
    """Parses a mapping from TOML. Raises MappingError."""
    if len(text) > MAX_MAPPING_BYTES:
        raise MappingError("", f"a mapping has at most {MAX_MAPPING_BYTES >> 20} MiB")
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise MappingError("", f"it is not TOML: {error}") from None
    return _MappingParser(document).mapping()


class _MappingParser:
    def __init__(self, document: Document[str, Any]) -> None:
        _check_keys("", document, _KEYS)
        self._document = document
        self._invalid = self._choice("", document, "invalid", ("refuse", "null"))
        self._null = _nulls("null", document.get("null", []))

    def mapping(self) -> Mapping:
        document = self._document
        if document.get("decimal", ".") == document.get("thousands", ""):
            raise MappingError("thousands", "it is the decimal sign too, so numbers would be ambiguous")
        for key in ("message", "sensor", "time", "readings"):
            if key not in document:
                raise MappingError(key, f"it is missing{_below(key, document)}")
        found = Mapping(
            message=_text("message", document["message"]),
            sensor=self._value("sensor", document["sensor"], _TEXT_KEYS),
            time=self._value("time", document["time"], _TIME_KEYS),
            event_id=self._value("event_id", document["event_id"], _TEXT_KEYS) if "event_id" in document else (),
            readings=self._entries("readings", _READING_KEYS, MAX_READINGS),
            metadata=self._entries("metadata", _TEXT_KEYS, MAX_METADATA),
            each=self._each(),
            match=_conditions("match", document["match"]) if "match" in document else None,
            unmarked=self._flag("unmarked"),
            skip_if=_conditions("skip_if", document.get("skip_if", [])),
            skip_unless=_conditions("skip_unless", document.get("skip_unless", [])),
            types=self._types(),
            attributes=self._attributes(),
            rewrite_names=self._flag("rewrite_names"),
            inexact_integers=self._choice("", document, "inexact_integers", ("refuse", "round", "metadata")),
            shortest_floats=self._flag("shortest_floats"),
            decimal=self._choice("", document, "decimal", (".", ",")),
            thousands=self._choice("", document, "thousands", ("", ",", ".", " ", "'")),
            csv=self._csv(),
        )
        if found.by_order and found.each:
            raise MappingError("time.ambiguous", '"order" is for records of one event, and each makes several of them')
        return found

    def _flag(self, key: str) -> bool:
        return _of_type(key, self._document.get(key, False), bool, "true or false")

    def _choice(self, prefix: str, table: Document[str, Any], key: str, choices: tuple[str, ...]) -> Any:
        value = table.get(key, choices[0])
        if value not in choices:
            where = f"{prefix}.{key}" if prefix else key
            raise MappingError(where, f"it is {value!r}, none of {', '.join(map(repr, choices))}")
        return value

    def _each(self) -> tuple[Path, ...]:
        value = self._document.get("each", [])
        found = tuple(_path("each", text) for text in _list(value))
        for path in found:
            if path.root is not Root.MESSAGE or path.has_star or not isinstance(path.steps[-1], Current):
                raise MappingError("each", f"{str(path)!r} is not the path of a repeated field, like metrics[]")
        return found

    def _types(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        types = {}
        for text, value in _table("types", self._document.get("types", {})).items():
            names = tuple(value) if isinstance(value, list) else (value,)
            for name in names:
                _of_type(f"types.{text}", name, str, "the full name of a message type, or a list of names")
            path = _path(f"types.{text}", text)
            if path.root is not Root.MESSAGE or path.has_star:
                raise MappingError(f"types.{text}", "it is not the path of a field from the message, without a star")
            types[path.names] = names
        return types

    def _attributes(self) -> dict[str, Pattern[str]]:
        table = _table("attributes", self._document.get("attributes", {}))
        return {
            name: _located(f"attributes.{name}", paths.parse_attribute_pattern, text) for name, text in table.items()
        }

    def _csv(self) -> model.CsvFormat:
        table = _table("csv", self._document.get("csv", {}))
        _check_keys("csv", table, ("delimiter", "encoding"))
        delimiter = _text("csv.delimiter", table.get("delimiter", ","))
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise MappingError("csv.delimiter", f"it is {delimiter!r}, not a single character")
        encoding = _text("csv.encoding", table.get("encoding", "utf-8"))
        try:
            "".encode(encoding)
        except (LookupError, ValueError):  # also of a name with characters that no encoding has
            raise MappingError(
                "csv.encoding", f"there is no encoding {encoding!r}; common ones are utf-8 and cp1252"
            ) from None
        return model.CsvFormat(delimiter, encoding)

    def _entries(self, key: str, keys: tuple[str, ...], most: int) -> tuple[model.MappingEntry, ...]:
        table = _table(key, self._document.get(key, {}))
        if len(table) > most:
            raise MappingError(key, f"it has {len(table)} entries, more than the {most} that an event can have")
        return tuple(self._entry(f"{key}.{name}", name, value, keys) for name, value in table.items())

    def _entry(self, key: str, name: str, value: Any, keys: tuple[str, ...]) -> model.MappingEntry:
        table = value if isinstance(value, dict) else {}
        entry = model.MappingEntry(
            name,
            self._value(key, value, (*keys, *_ENTRY_KEYS)),
            self._value(f"{key}.name", table["name"], _TEXT_KEYS) if "name" in table else None,
            tuple(_of_type(f"{key}.except", glob, str, "a list of globs") for glob in _list(table.get("except", []))),
            _of_type(f"{key}.required", table.get("required", False), bool, "true or false"),
        )
        if problem := _problem_of(entry):
            raise MappingError(key, problem)
        return entry

    def _value(self, key: str, value: Any, keys: tuple[str, ...]) -> Value:
        if isinstance(value, dict):
            _check_keys(key, value, (*keys, "first"))
            items = _alternatives(key, value)
        else:
            items = _list(value)
        if not items:
            raise MappingError(key, "it names no path")
        source_keys = tuple(name for name in keys if name not in _ENTRY_KEYS)
        return tuple(self._source(key, item, source_keys) for item in items)

    def _source(self, key: str, item: Any, keys: tuple[str, ...]) -> Source:
        table = item if isinstance(item, dict) else {"path": item}
        _check_keys(key, table, keys)
        if sum(name in table for name in ("path", "name_of", "constant")) != 1:
            raise MappingError(
                key, f"it takes exactly one of {', '.join(n for n in ('path', 'name_of', 'constant') if n in keys)}"
            )
        text = table.get("path", "")
        # A path has no braces outside quotes, and only texts and times are made of several.
        is_template = ("name_of" in keys or "format" in keys) and isinstance(text, str) and "{" in text
        if "ambiguous" in table and "time_zone" not in table:
            raise MappingError(f"{key}.ambiguous", "it is for a time with a time_zone, whose clocks change")

        def optional(name: str, parse: Callable[[str, Any], _T]) -> _T | None:
            return parse(f"{key}.{name}", table[name]) if name in table else None

        own_null = _nulls(f"{key}.null", table.get("null", []))
        return Source(
            path=_path(key, text) if "path" in table and not is_template else None,
            name_of=_path(key, table["name_of"]) if "name_of" in table else None,
            template=_located(key, paths.parse_template, text) if is_template else None,
            constant=optional("constant", _text),
            when=_conditions(f"{key}.when", table.get("when", [])),
            null=self._null | own_null,
            own_null=own_null,
            scale=optional("scale", _decimal),
            offset=optional("offset", _decimal),
            signed=optional("signed", _bits),
            suffix=optional("suffix", _text) or "",
            invalid=self._choice(key, {"invalid": self._invalid} | table, "invalid", ("refuse", "null")),
            unit=optional("unit", _unit),
            time_format=optional("format", _time_format),
            time_zone=optional("time_zone", _zone),
            ambiguous=self._choice(key, table, "ambiguous", ("refuse", "first", "second", "order")),
        )


def _problem_of(entry: model.MappingEntry) -> str | None:
    """Returns what is wrong with an entry's name, or with its stars; None if nothing is."""
    name, has_star = entry.name, "*" in entry.name
    stars = sum(source.path.has_star for source in entry.value if source.path)
    rules = (
        (name.count("*") > 1, "a name has at most one star"),
        (
            has_star and not entry.label and stars < len(entry.value),
            'a name with a star takes paths that end with one, or name = "path" for what it stands for',
        ),
        (not has_star and (entry.label or entry.excluded), "only a name with a star takes name or except"),
        (
            stars and (not has_star or entry.label),
            "a path with a star needs a name with a star, and nothing else that names it",
        ),
        (not is_name(name.replace("*", "a")), f"{name!r} is not a name of a metric or of metadata"),
        (has_star and entry.required, "a name with a star can't be required"),
    )
    return next((problem for is_broken, problem in rules if is_broken), None)


def _below(key: str, document: Document[str, Any]) -> str:
    """Returns a hint if a missing key is in one of the tables: a common slip in TOML."""
    inside = next((name for name, table in document.items() if isinstance(table, dict) and key in table), None)
    return f"; the {key} below the line [{inside}] belongs to that table, so write it above" if inside else ""


def _alternatives(key: str, table: dict[str, Any]) -> list[Any]:
    """Returns the sources of a table: itself, or those of its ``first``, for which its other keys are defaults."""
    shared = {name: part for name, part in table.items() if name not in (*_ENTRY_KEYS, "first")}
    if "first" not in table:
        return [shared]
    if own := [name for name in ("path", "name_of", "constant") if name in shared]:
        raise MappingError(key, f"first stands for its {own[0]}; put that into the list")
    items = _list(table["first"])
    return [shared | (item if isinstance(item, dict) else {"path": item}) for item in items]


def _conditions(key: str, value: Any) -> tuple[Condition, ...]:
    conditions = []
    for table in _list(value):
        _table(key, table)
        _check_keys(key, table, ("path", "is", "is_not", "set", "glob"))
        kinds = [kind for kind in table if kind != "path"]
        if "path" not in table or len(kinds) != 1:
            raise MappingError(key, "a condition is a path and one of is, is_not, set and glob")
        (kind,) = kinds
        values = tuple(_list(table[kind]))
        kinds_of = {"set": (bool,), "glob": (str,)}.get(kind, (str, int, float, bool))
        if not values or not all(isinstance(one, kinds_of) for one in values) or (kind == "set" and len(values) > 1):
            expected = {"set": "true or false", "glob": "texts"}.get(kind, "texts, numbers, true or false")
            raise MappingError(f"{key}.{kind}", f"it takes {expected}")
        path = _path(key, table["path"])
        if path.has_star:
            raise MappingError(key, f"{str(path)!r} has a star, which has no single value")
        conditions.append(Condition(path, kind, values))
    return tuple(conditions)


def _path(key: str, text: Any) -> Path:
    return _located(key, paths.parse_path, text)


def _located(key: str, parse: Callable[[str], _T], text: Any) -> _T:
    try:
        return parse(_text(key, text))
    except PathError as error:
        raise MappingError(key, str(error)) from None


def _nulls(key: str, value: Any) -> frozenset[model.Scalar]:
    return frozenset(_of_type(key, one, (str, int, float), "a list of texts and numbers") for one in _list(value))


def _decimal(key: str, value: Any) -> Decimal:
    number = Decimal(str(_of_type(key, value, (int, float), "a number")))
    if not number.is_finite():
        raise MappingError(key, f"it is {value}, not a finite number")
    return number


def _time_format(key: str, value: Any) -> str:
    text = _text(key, value)
    try:
        if "%" not in text:
            raise ValueError
        if "Z" in re.findall(r"%(.)", text):  # strptime reads the name of a zone, but does not apply it
            raise MappingError(
                key, f"{text!r} has %Z, which reads no offset; use %z, or time_zone and the literal name"
            )
        datetime.strptime(_SOME_TIME.strftime(text), text)
    except (ValueError, re.error):  # the latter for a directive that appears twice
        raise MappingError(key, f"{text!r} is not a format of times, like %d.%m.%Y %H:%M:%S") from None
    return text


def _zone(key: str, value: Any) -> str:
    zone = _text(key, value)
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise MappingError(key, f"there is no time zone {zone!r}; a time zone is like Europe/Amsterdam") from None
    return zone


def _unit(key: str, value: Any) -> str:
    if value not in tuple(model.UNITS):
        raise MappingError(key, f"it is {value!r}, none of {', '.join(model.UNITS)}")
    return value


def _bits(key: str, value: Any) -> int:
    if type(value) is not int or not 2 <= value <= 64:
        raise MappingError(key, "it is not a number of bits, from 2 to 64")
    return value


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


def _check_keys(prefix: str, table: Document[str, Any], keys: Iterable[str]) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, list(keys), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(keys)}"
            raise MappingError(f"{prefix}.{key}" if prefix else key, f"there is no such key; {hint}")
