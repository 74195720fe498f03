"""A mapping as parsed values."""

from dataclasses import dataclass, field, replace
from decimal import Decimal
from re import Pattern
from typing import Literal

from pipeline.core.decoding.mapping.language.paths import Path, Placeholder, Root

JSON = "json"

UNITS = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
"""Microseconds in a unit of time."""

Scalar = str | int | float | bool


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
        path: the path of the value.
        name_of: the path of an enum or a oneof; the value is the name of the enum's value, or of the field that is set.
        template: a text that contains the values of paths.
        constant: the value itself.
        when: conditions; unless all hold, the source counts as not set.
        null: values that count as not set.
        own_null: those that the source itself declares, not the mapping for all.
        scale, offset: a reading is value · scale + offset, computed in decimal.
        signed: the number of bits of a two's complement number in an unsigned field.
        suffix: the end of a text that is a number before it, such as a unit.
        invalid: whether a value of the wrong kind refuses the event or counts as not set.
        unit: the unit of a time that is a number: ``s``, ``ms``, ``us`` or ``ns``.
        time_format: the format of a time that is text, in the syntax of ``strptime``; None is ISO 8601.
        time_zone: the time zone of a time that is text without an offset; None is UTC.
        ambiguous: the time that counts of two that clocks show alike: ``first``, ``second``, ``order`` for what the
            order of a file tells, or ``refuse`` for neither.
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
    time_format: str | None = None
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
        label: the text for the star of the name, if the path has no star.
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
        message: the full name of the protobuf type, or ``json``.
        sensor, time, event_id: the values of these fields of an event.
        readings, metadata: the entries of an event.
        each: paths of repeated fields whose elements become events or parts of them; if empty, a message is one event.
        match: conditions that tell this type's messages; None leaves that to the attribute ``message_type``.
        unmarked: whether messages without the attribute ``message_type`` are of this type too.
        skip_if: conditions; a message or element is left out if any of them holds.
        skip_unless: conditions; a message or element is left out unless all of them hold.
        types: the message types, or ``json``, that bytes, text or an ``Any`` contain, by the names of their path.
        attributes: patterns that name parts of an attribute, by the attribute's name.
        rewrite_names: whether names from messages are rewritten to valid ones.
        inexact_integers: the treatment of integers that a double can't hold: ``refuse``, ``round`` or ``metadata``.
        shortest_floats: whether a 32-bit float is read as the shortest decimal that it stands for.
        decimal, thousands: the decimal sign and the thousands separator of numbers in text.
        csv: the notation of CSV files.
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
        """Whether times that clocks show twice are told apart by the order of a file's records."""
        return any(source.ambiguous == "order" for source in self.time)

    def in_run(self, run: Literal["first", "second"]) -> "Mapping":
        """Returns the mapping of the records that are in one of the runs through such an hour."""
        of_run = (replace(one, ambiguous=run) if one.ambiguous == "order" else one for one in self.time)
        return replace(self, time=tuple(of_run))

    @property
    def values(self) -> list[tuple[str, Value]]:
        """Every value of the mapping, with its key."""
        found = [("sensor", self.sensor), ("time", self.time), ("event_id", self.event_id)]
        for table, entries in (("readings", self.readings), ("metadata", self.metadata)):
            for entry in entries:
                found += [(f"{table}.{entry.name}", entry.value), (f"{table}.{entry.name}.name", entry.label or ())]
        return found

    @property
    def conditions(self) -> list[tuple[str, Condition]]:
        """Every condition on a message or an element, with its key."""
        found = (("match", self.match or ()), ("skip_if", self.skip_if), ("skip_unless", self.skip_unless))
        return [(key, condition) for key, conditions in found for condition in conditions]

    @property
    def paths(self) -> list[Path]:
        """Every path of the mapping."""
        of_values = [path for _, value in self.values for source in value for path in source.paths]
        return [*of_values, *(condition.path for _, condition in self.conditions), *self.each]

    @property
    def of_file(self) -> Path | None:
        """The first path to the name of a record's file, which a message on a topic does not have; None if none is."""
        return next((path for path in self.paths if path.is_of_file), None)

    @property
    def attribute_names(self) -> frozenset[str]:
        """The names of the attributes that it reads."""
        return frozenset(path.names[0] for path in self.paths if path.root is Root.ATTRIBUTE)
