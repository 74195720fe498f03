"""Mappings: what they declare, without any knowledge of the message's type, as in this TOML.

    message = "acme.v1.Report"            # the full name of a protobuf type, "json", "form" or "influx"
    each = "probes[]"                     # one event for each element; points of one sensor and time are one event
    sensor = "{site}/{.serial:08x}"
    time = [{ path = ".at", unit = "ms" }, "$publish_time"]     # the first that is set

    [readings]
    temperature = { path = ".centi_celsius", scale = 0.01 }
    "*" = ".values.*"                     # the star in the name is what the star in the path matched

    [metadata]
    site = "site"

The page on mappings in the documentation describes every key. ``parsing`` has their parsers.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from re import Pattern
from typing import Literal, NamedTuple

from pipeline.core.decoding.mapping.language.paths import Path, Placeholder, Root
from pipeline.core.events.invalid_readings import Invalid

JSON, FORM, INFLUX = "json", "form", "influx"
PLAIN_TYPES = (JSON, INFLUX, FORM)
"""The types of messages without descriptors: JSON, the fields of a form, and points of InfluxDB's line protocol."""

TEXT = "text"
"""The type, beside ``json`` under ``[types]``, of text that may be JSON."""

DAY_US = 86_400_000_000
UNITS = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001"), "d": Decimal(DAY_US)}
"""Microseconds in a unit of time."""

BLANKS = "blanks"
"""The delimiter of CSV whose cells are separated by runs of spaces and tabs."""

Scalar = str | int | float | bool


class MappingError(ValueError):
    """Raised for an invalid mapping. ``str()`` is one line that begins with the key at fault."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


@dataclass(frozen=True)
class Condition:
    """A condition on the value at a path. ``kind`` is ``is``, ``is_not``, ``set`` or ``glob``.

    ``within`` is a condition on the event's time: ``values`` are its first microsecond, and the one after its last.
    """

    path: Path
    kind: str
    values: tuple[Scalar, ...]


class UnitScale(NamedTuple):
    """A reading in a unit is value · scale + offset in the metric's. An empty unit stands for a value without one."""

    unit: str
    scale: Decimal
    offset: Decimal


@dataclass(frozen=True)
class TimeSpan:
    """A span of time: the number or the ``Duration`` at a path, or constant microseconds."""

    path: Path | None = None
    unit: str | None = None
    constant_us: int = 0


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
        units: the units that a reading may have, behind the number in its text or at ``unit_path``.
        values: the readings that texts, booleans and names of an enum stand for.
        valid: the least and the greatest valid reading.
        invalid: the fate of an event whose value is of the wrong kind.
        epoch: the time from which a number counts; if it has no offset, it is of the time zone. None is 1970 in UTC.
        format: the format of a time that is text, in the syntax of ``strptime``; None is ISO 8601.
        interval: the text between the beginning and the end of a time that is an interval.
        time_zone: the time zone of a time that is text without an offset; None is UTC.
        ambiguous: the choice of two times that clocks show alike; ``order``: the order of a file decides.
        stamps, length: a time at the end of an interval of this length stands for its beginning.
        valid_from, max_age: the earliest time, and the greatest age of a time when its message is published.
        plus: a span from the time to the event's time.
        step: the span between two elements: the first has the time itself.
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
    units: tuple[UnitScale, ...] = ()
    unit_path: Path | None = None
    values: tuple[tuple[str, float], ...] = ()
    valid: tuple[float, float] | None = None
    invalid: Invalid = Invalid.REFUSE_EVENT
    unit: str | None = None
    epoch: datetime | None = None
    format: str | None = None
    interval: str = ""
    time_zone: str | None = None
    ambiguous: Literal["refuse", "first", "second", "order"] = "refuse"
    stamps: Literal["end"] | None = None
    length: timedelta | None = None
    valid_from: datetime | None = None
    max_age: timedelta | None = None
    plus: TimeSpan | None = None
    step: TimeSpan | None = None

    @property
    def spans(self) -> list[tuple[str, Path]]:
        """The keys and paths of the spans that it reads."""
        return [(key, span.path) for key, span in (("plus", self.plus), ("step", self.step)) if span and span.path]

    @property
    def value_paths(self) -> list[Path]:
        """The paths whose values it takes."""
        placeholders = [part.path for part in self.template or () if isinstance(part, Placeholder)]
        return [path for path in (self.path, self.name_of, *placeholders) if path]

    @property
    def paths(self) -> list[Path]:
        """Every path that it reads."""
        others = [path for _, path in self.spans] + ([self.unit_path] if self.unit_path else [])
        return [*self.value_paths, *others, *(condition.path for condition in self.when)]


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
        unit: the unit of a metric, for people.
    """

    name: str
    value: Value
    label: Value | None = None
    excluded: tuple[str, ...] = ()
    required: bool = False
    unit: str | None = None


@dataclass(frozen=True)
class CsvFormat:
    """The notation of CSV files.

    Attributes:
        delimiter: the character between cells; ``BLANKS`` for runs of spaces and tabs.
        encoding: the encoding of a file without a byte-order mark.
        skip_lines: the number of lines above the header, or a glob of the header's first line.
        header_lines: the lines of the header, of which the first has the names.
        comment: the beginning of comments; empty if a file has no comments.
    """

    delimiter: str = ","
    encoding: str = "utf-8"
    skip_lines: int | str = 0
    header_lines: int = 1
    comment: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether a file begins with its header, unless its first line says that it is of another format."""
        return (self.delimiter, self.skip_lines, self.header_lines, self.comment) == (",", 0, 1, "")


@dataclass(frozen=True)
class Mapping:
    """A parsed mapping.

    Attributes:
        each: paths of repeated fields whose elements become events or parts of them.
        zip: paths of repeated fields that are gone through together: the elements at a position are one element.
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
    zip: tuple[Path, ...] = ()
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
    def has_elements(self) -> bool:
        """Whether elements become events, or parts of them. Otherwise a message is one event."""
        return bool(self.each or self.zip)

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
        return [*in_values, *(condition.path for _, condition in self.conditions), *self.each, *self.zip]

    @property
    def of_file(self) -> Path | None:
        """The first path to the name of a record's file, which a message on a topic does not have; None if none is."""
        return next((path for path in self.paths if path.is_of_file), None)

    @property
    def attribute_names(self) -> frozenset[str]:
        """The names of the attributes that it reads."""
        return frozenset(path.names[0] for path in self.paths if path.root is Root.ATTRIBUTE)
