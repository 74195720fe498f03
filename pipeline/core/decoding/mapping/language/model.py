"""What a mapping says, as parsed values."""

from dataclasses import dataclass, field
from decimal import Decimal
from re import Pattern
from typing import Literal

from pipeline.core.decoding.mapping.language.paths import Path, Placeholder, Root

JSON = "json"


UNITS = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
"""Microseconds in a unit of time."""


Scalar = str | int | float | bool


Choice = Literal["refuse", "null"]


class MappingError(ValueError):
    """Raised for a mapping that does not hold. ``str()`` is one line that begins with the key at fault."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


@dataclass(frozen=True)
class Condition:
    """What has to hold for a value. ``kind`` is ``is``, ``is_not``, ``set`` or ``glob``."""

    path: Path
    kind: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class Source:
    """Where a value comes from: exactly one of ``path``, ``name_of``, ``template`` and ``constant`` is set.

    Attributes:
        path: the value's.
        name_of: of an enum, whose value's name is taken, or of a oneof, whose set field's name is taken.
        template: text with the values of paths in it.
        constant: the value itself.
        when: conditions that have to hold, else the source counts as not set.
        null: values that count as not set.
        scale, offset: the reading is value · scale + offset, computed in decimal.
        signed: the bits of a two's complement number in an unsigned field.
        invalid: whether a value of the wrong kind refuses the event, or counts as not set.
        unit: of a time that is a number: ``s``, ``ms``, ``us`` or ``ns``.
        time_format: of a time that is text, as ``strptime`` takes it; None is ISO 8601.
        time_zone: of a time that is text without an offset; None is UTC.
    """

    path: Path | None = None
    name_of: Path | None = None
    template: tuple[str | Placeholder, ...] | None = None
    constant: str | None = None
    when: tuple[Condition, ...] = ()
    null: frozenset[Scalar] = frozenset()
    scale: Decimal | None = None
    offset: Decimal | None = None
    signed: int | None = None
    invalid: Choice = "refuse"
    unit: str | None = None
    time_format: str | None = None
    time_zone: str | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every path that it reads."""
        own = [path for path in (self.path, self.name_of) if path]
        own += [part.path for part in self.template or () if isinstance(part, Placeholder)]
        return (*own, *(condition.path for condition in self.when))


Value = tuple[Source, ...]
"""The first source that is set."""


@dataclass(frozen=True)
class MappingEntry:
    """A reading or a metadata entry, or with ``*`` in its name, any number of them.

    Attributes:
        name: as the event has it; the ``*`` in it is what the path's star matched, or ``label``.
        value: of the entry. Of several sources with a star, each name takes the first that has it.
        label: what the star of the name stands for, if the path has none.
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
    """How a CSV file is written."""

    delimiter: str = ","
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Mapping:
    """A parsed mapping.

    Attributes:
        message: the full name of the protobuf type, or ``json``.
        sensor, time, event_id: of an event.
        readings, metadata: of an event.
        each: the repeated fields whose elements become events or parts of them; empty: the message is one event.
        match: conditions on the message that decide that it is of this type; None: its attribute ``message_type``.
        unmarked: whether messages without the attribute ``message_type`` are of this type too.
        skip_if: a message or element is left out if any of these holds.
        skip_unless: or if any of these does not hold.
        types: by the names of a path, the message types that its bytes, text or ``Any`` contain, or ``json``.
        attributes: by name, patterns that name parts of an attribute.
        rewrite_names: whether names from messages are rewritten to the rule for names.
        inexact_integers: what becomes of integers that a double can't hold: ``refuse``, ``round`` or ``metadata``.
        shortest_floats: whether a field of 32 bits is read as the number with the fewest decimals that it stands for.
        decimal, thousands: how text writes numbers.
        csv: how CSV files are written.
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
    def paths(self) -> list[tuple[str, Path]]:
        """Every path of the mapping, with the key that has it."""
        values = [("sensor", self.sensor), ("time", self.time), ("event_id", self.event_id)]
        for table, entries in (("readings", self.readings), ("metadata", self.metadata)):
            for entry in entries:
                values += [(f"{table}.{entry.name}", entry.value), (f"{table}.{entry.name}", entry.label or ())]
        found = [(key, path) for key, value in values for source in value for path in source.paths]
        found += [("each", path) for path in self.each]
        for key in ("match", "skip_if", "skip_unless"):
            found += [(key, condition.path) for condition in getattr(self, key) or ()]
        return found

    @property
    def attribute_names(self) -> frozenset[str]:
        """The attributes that it reads."""
        return frozenset(path.names[0] for _, path in self.paths if path.root is Root.ATTRIBUTE)
