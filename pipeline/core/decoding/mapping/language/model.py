"""Mappings: what they declare, and their notation in TOML, parsed without any knowledge of the message's type.

    message = "acme.v1.Report"            # the full name of a protobuf type, "json", "form" or "influx"
    each = "probes[]"                     # one event for each element; points of one sensor and time are one event
    sensor = "{site}/{.serial:08x}"
    time = [{ path = ".at", unit = "ms" }, "$publish_time"]     # the first that is set

    [readings]
    temperature = { path = ".centi_celsius", scale = 0.01 }
    "*" = ".values.*"                     # the star in the name is what the star in the path matched

    [metadata]
    site = "site"

The page on mappings in the documentation describes every key. A new key is a field of :class:`Mapping` or
:class:`Source` with its parser in the table of keys.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from re import Pattern
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from pipeline.core.decoding.mapping.language import paths
from pipeline.core.decoding.mapping.language.paths import Current, Path, PathError, Placeholder, Root
from pipeline.core.events.event import MAX_METADATA, MAX_READINGS, is_name
from pipeline.core.notation.documents import parse_toml

JSON, FORM, INFLUX = "json", "form", "influx"
PLAIN_TYPES = (JSON, INFLUX, FORM)
"""The types of messages without descriptors: JSON, the fields of a form, and points of InfluxDB's line protocol."""

TEXT = "text"
"""The type, beside ``json`` under ``[types]``, of text that may be JSON."""

UNITS = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
"""Microseconds in a unit of time."""

MAX_MAPPING_BYTES = 1 << 20

Scalar = str | int | float | bool

_T = TypeVar("_T")
_Parse = Callable[[str, Any], Any]
"""Takes the key and the value of TOML. Raises MappingError."""


class MappingError(ValueError):
    """Raised for an invalid mapping. ``str()`` is one line that begins with the key at fault."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


@dataclass(frozen=True)
class Condition:
    """A condition on the value at a path. ``kind`` is ``is``, ``is_not``, ``set`` or ``glob``."""

    path: Path
    kind: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class Source:
    """The source of a value: exactly one of ``path``, ``name_of``, ``template`` and ``constant`` is set.

    Attributes:
        name_of: the path of an enum or a oneof; the value is the name of the enum's value, or of the field that is set.
        template: a text that contains the values of paths.
        when: conditions; unless all hold, the source counts as not set.
        null: values that count as not set.
        own_null: the null values that the source itself declares, not the mapping for all.
        scale, offset: a reading is value · scale + offset, computed in decimal.
        signed: the number of bits of a two's complement number in an unsigned field.
        suffix: the end of a text that is a number before it, such as a unit.
        invalid: whether a value of the wrong kind refuses the event or counts as not set.
        format: the format of a time that is text, in the syntax of ``strptime``; None is ISO 8601.
        time_zone: the time zone of a time that is text without an offset; None is UTC.
        ambiguous: the choice of two times that clocks show alike; ``order``: the order of a file decides.
    """

    path: Path | None = None
    name_of: Path | None = None
    template: tuple[str | Placeholder, ...] | None = None
    constant: str | None = None
    when: tuple[Condition, ...] = ()
    null: frozenset[Scalar] = frozenset()
    own_null: frozenset[Scalar] = frozenset()
    scale: Decimal | None = None
    offset: Decimal | None = None
    signed: int | None = None
    suffix: str = ""
    invalid: Literal["refuse", "null"] = "refuse"
    unit: str | None = None
    format: str | None = None
    time_zone: str | None = None
    ambiguous: Literal["refuse", "first", "second", "order"] = "refuse"

    @property
    def value_paths(self) -> list[Path]:
        """The paths whose values it takes."""
        placeholders = [part.path for part in self.template or () if isinstance(part, Placeholder)]
        return [path for path in (self.path, self.name_of, *placeholders) if path]

    @property
    def paths(self) -> list[Path]:
        """Every path that it reads."""
        return [*self.value_paths, *(condition.path for condition in self.when)]


Value = tuple[Source, ...]
"""Sources, of which the first that is set gives the value."""


@dataclass(frozen=True)
class MappingEntry:
    """A reading or a metadata entry; with ``*`` in its name, any number of them.

    Attributes:
        name: the name in the event; its ``*`` stands for what the path's star matches, or for ``label``.
        value: the value. If several sources have a star, each name takes the first source that has it.
        label: the text for the star of the name; if the path has a star too, that stands where the text has one.
        excluded: globs of the names that the star leaves out.
        required: whether an event without it is refused.
    """

    name: str
    value: Value
    label: Value | None = None
    excluded: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class CsvFormat:
    """The notation of CSV files."""

    delimiter: str = ","
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Mapping:
    """A parsed mapping.

    Attributes:
        each: paths of repeated fields whose elements become events or parts of them; if empty, a message is one event.
        match: conditions of this type's messages; None leaves that to the attribute ``message_type``.
        unmarked: whether messages without the attribute ``message_type`` are of this type too.
        compression: the compression of payloads whose attribute names none; empty for none.
        types: the message types, or ``json``, that bytes, text or an ``Any`` contain, by the names of their path;
            ``json`` and ``text`` for text that may be JSON.
        attributes: patterns that name parts of an attribute, by the attribute's name.
        rewrite_names: whether names from messages are rewritten to valid ones.
        shortest_floats: whether a 32-bit float is read as the shortest decimal that it stands for.
        decimal, thousands: the decimal sign and the thousands separator of numbers in text.
    """

    message: str
    sensor: Value
    time: Value
    event_id: Value = ()
    readings: tuple[MappingEntry, ...] = ()
    metadata: tuple[MappingEntry, ...] = ()
    each: tuple[Path, ...] = ()
    match: tuple[Condition, ...] | None = None
    unmarked: bool = False
    compression: Literal["", "gzip", "zlib", "auto"] = ""
    skip_if: tuple[Condition, ...] = ()
    skip_unless: tuple[Condition, ...] = ()
    types: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    attributes: dict[str, Pattern[str]] = field(default_factory=dict)
    rewrite_names: bool = False
    inexact_integers: Literal["refuse", "round", "metadata"] = "refuse"
    shortest_floats: bool = False
    decimal: str = "."
    thousands: str = ""
    csv: CsvFormat = CsvFormat()

    @property
    def by_order(self) -> bool:
        """Whether times that clocks show twice are distinguished by the order of a file's records."""
        return any(source.ambiguous == "order" for source in self.time)

    def in_run(self, run: Literal["first", "second"]) -> "Mapping":
        """Returns the mapping of the records that are in one of the runs through such an hour."""
        sources = (replace(source, ambiguous=run) if source.ambiguous == "order" else source for source in self.time)
        return replace(self, time=tuple(sources))

    @property
    def values(self) -> list[tuple[str, Value]]:
        """Every value of the mapping, with its key."""
        values = [("sensor", self.sensor), ("time", self.time), ("event_id", self.event_id)]
        for table, entries in (("readings", self.readings), ("metadata", self.metadata)):
            for entry in entries:
                values += [(f"{table}.{entry.name}", entry.value), (f"{table}.{entry.name}.name", entry.label or ())]
        return values

    @property
    def conditions(self) -> list[tuple[str, Condition]]:
        """Every condition on a message or an element, with its key."""
        by_key = (("match", self.match or ()), ("skip_if", self.skip_if), ("skip_unless", self.skip_unless))
        return [(key, condition) for key, conditions in by_key for condition in conditions]

    @property
    def paths(self) -> list[Path]:
        """Every path of the mapping."""
        in_values = [path for _, value in self.values for source in value for path in source.paths]
        return [*in_values, *(condition.path for _, condition in self.conditions), *self.each]

    @property
    def of_file(self) -> Path | None:
        """The first path to the name of a record's file, which a message on a topic does not have; None if none is."""
        return next((path for path in self.paths if path.is_of_file), None)

    @property
    def attribute_names(self) -> frozenset[str]:
        """The names of the attributes that it reads."""
        return frozenset(path.names[0] for path in self.paths if path.root is Root.ATTRIBUTE)


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
    values = _ValueParser(defaults.get("invalid", "refuse"), defaults.get("null", frozenset()))
    mapping = Mapping(
        sensor=values.value("sensor", document["sensor"], _TEXT_KEYS),
        time=values.value("time", document["time"], _TIME_KEYS),
        event_id=values.value("event_id", document["event_id"], _TEXT_KEYS) if "event_id" in document else (),
        readings=values.entries("readings", document["readings"], _READING_KEYS, MAX_READINGS),
        metadata=values.entries("metadata", document.get("metadata", {}), _TEXT_KEYS, MAX_METADATA),
        **_parsed("", document, _MAPPING_KEYS),
    )
    if mapping.by_order and mapping.each:
        raise MappingError("time.ambiguous", '"order" is for records of one event, and each makes several of them')
    return mapping


_TEXT_KEYS = ("path", "name_of", "constant", "when", "null")
_TIME_KEYS = ("path", "unit", "format", "time_zone", "ambiguous", "when", "null", "invalid")
_READING_KEYS = ("path", "when", "null", "scale", "offset", "signed", "suffix", "invalid")
_ENTRY_KEYS = ("name", "except", "required")
_KINDS = ("path", "name_of", "constant")


class _ValueParser:
    """Parses values, which share what the mapping says of invalid values and of null."""

    def __init__(self, invalid: str, null: frozenset[Scalar]) -> None:
        self._invalid = invalid
        self._null = null

    def entries(self, key: str, value: Any, keys: tuple[str, ...], most: int) -> tuple[MappingEntry, ...]:
        table = _table(key, value)
        if len(table) > most:
            raise MappingError(key, f"it has {len(table)} entries, more than the {most} that an event can have")
        return tuple(self._entry(f"{key}.{name}", name, entry, keys) for name, entry in table.items())

    def _entry(self, key: str, name: str, value: Any, keys: tuple[str, ...]) -> MappingEntry:
        table = value if isinstance(value, dict) else {}
        entry = MappingEntry(
            name,
            self.value(key, value, (*keys, *_ENTRY_KEYS)),
            self.value(f"{key}.name", table["name"], _TEXT_KEYS) if "name" in table else None,
            tuple(_of_type(f"{key}.except", glob, str, "a list of globs") for glob in _list(table.get("except", []))),
            _flag(f"{key}.required", table.get("required", False)),
        )
        if problem := _problem_of(entry):
            raise MappingError(key, problem)
        return entry

    def value(self, key: str, value: Any, keys: tuple[str, ...]) -> Value:
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
        if sum(name in table for name in _KINDS) != 1:
            raise MappingError(key, f"it takes exactly one of {', '.join(name for name in _KINDS if name in keys)}")
        text = table.get("path", "")
        # A path has no braces outside quotes, and only texts and times are made of several.
        is_template = ("name_of" in keys or "format" in keys) and isinstance(text, str) and "{" in text
        if "ambiguous" in table and "time_zone" not in table:
            raise MappingError(f"{key}.ambiguous", "it is for a time with a time_zone, whose clocks change")
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


def _alternatives(key: str, table: dict[str, Any]) -> list[Any]:
    """Returns the sources of a table: itself, or the sources of ``first``, for which its other keys are defaults."""
    shared = {name: part for name, part in table.items() if name not in (*_ENTRY_KEYS, "first")}
    if "first" not in table:
        return [shared]
    if own := [name for name in _KINDS if name in shared]:
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
        types, expected = {"set": ((bool,), "true or false"), "glob": ((str,), "texts")}.get(
            kind, ((str, int, float, bool), "texts, numbers, true or false")
        )
        if not values or not all(isinstance(one, types) for one in values) or (kind == "set" and len(values) > 1):
            raise MappingError(f"{key}.{kind}", f"it takes {expected}")
        path = _path(key, table["path"])
        if path.has_star:
            raise MappingError(key, f"{str(path)!r} has a star, which has no single value")
        conditions.append(Condition(path, kind, values))
    return tuple(conditions)


def _each(key: str, value: Any) -> tuple[Path, ...]:
    each = tuple(_path(key, text) for text in _list(value))
    for path in each:
        if path.root is not Root.MESSAGE or path.has_star or not isinstance(path.steps[-1], Current):
            raise MappingError(key, f"{str(path)!r} is not the path of a repeated field, like metrics[]")
    return each


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
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise MappingError(key, f"it is {delimiter!r}, not a single character")
    return delimiter


def _encoding(key: str, value: Any) -> str:
    encoding = _text(key, value)
    try:
        "".encode(encoding)
    except (LookupError, ValueError):  # also of a name with characters that no encoding has
        raise MappingError(key, f"there is no encoding {encoding!r}; common ones are utf-8 and cp1252") from None
    return encoding


def _path(key: str, text: Any) -> Path:
    return _located(key, paths.parse_path, text)


def _located(key: str, parse: Callable[[str], _T], text: Any) -> _T:
    try:
        return parse(_text(key, text))
    except PathError as error:
        raise MappingError(key, str(error)) from None


def _nulls(key: str, value: Any) -> frozenset[Scalar]:
    return frozenset(_of_type(key, one, (str, int, float), "a list of texts and numbers") for one in _list(value))


def _decimal(key: str, value: Any) -> Decimal:
    number = Decimal(str(_of_type(key, value, (int, float), "a number")))
    if not number.is_finite():
        raise MappingError(key, f"it is {value}, not a finite number")
    return number


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


_DEFAULTS: dict[str, _Parse] = {"invalid": _choice("refuse", "null"), "null": _nulls}
"""Keys of a mapping that hold for all its values."""

_MAPPING_KEYS: dict[str, _Parse] = {
    "message": _text,
    "each": _each,
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
_CSV_KEYS: dict[str, _Parse] = {"delimiter": _delimiter, "encoding": _encoding}
_SOURCE_KEYS: dict[str, _Parse] = {
    "constant": _text,
    "when": _conditions,
    "scale": _decimal,
    "offset": _decimal,
    "signed": _bits,
    "suffix": _text,
    "unit": _choice(*UNITS),
    "format": _time_format,
    "time_zone": _zone,
    "ambiguous": _choice("refuse", "first", "second", "order"),
    **_DEFAULTS,
}
