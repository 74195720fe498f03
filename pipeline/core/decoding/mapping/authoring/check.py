"""Compares a mapping with the type of its messages: what it reads, what it reads twice, and what it leaves out."""

import fnmatch
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.decoding.mapping.authoring.places import ENTRY, MANY, Place, places
from pipeline.core.decoding.mapping.compiling.mapper import Mapper, Use
from pipeline.core.decoding.mapping.language.model import PLAIN_TYPES, Mapping
from pipeline.core.decoding.mapping.language.paths import BY_FIELD, SELECTORS, Current, Field, Names, Path, Root, Star
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import PLAIN, KeyAndValue

_MOST_ALONE = 4  # values of a field that are listed one by one if all are left out
_CONDITIONS = ("match", "skip_if", "skip_unless")


class Line(NamedTuple):
    """A value of a mapping: its key, its path, and its type there."""

    key: str
    path: str
    type: str


class Left(NamedTuple):
    """A value that a mapping leaves out, wholly or in part: its path, its type, and a note on what reads it."""

    path: str
    type: str
    note: str = ""


class Shared(NamedTuple):
    """A value that several entries take, or a name that several entries give."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class MappingReport:
    """What a mapping does with its messages.

    Attributes:
        each: the repeated fields whose elements become events.
        lines: the values that are read.
        twice: the values that several entries take.
        same_name: the names that several entries give. A message with two such values is refused.
        partly: the values that are read in part.
        unmapped: the values that are left out.
        units: the units of metrics, by their names, for the table's schema.
        problems: the reasons why the mapping does not compile, one line each. Everything else is then empty.
    """

    message: str
    each: tuple[str, ...] = ()
    lines: list[Line] = field(default_factory=list)
    twice: list[Shared] = field(default_factory=list)
    same_name: list[Shared] = field(default_factory=list)
    partly: list[Left] = field(default_factory=list)
    unmapped: list[Left] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def check(mapping: Mapping, types: Descriptors) -> MappingReport:
    """Compares a mapping with the type of its messages.

    The report has only the problems if paths do not fit the type. Raises MappingError if the mapping does not compile
    for another reason.
    """
    mapper = Mapper(mapping, types, strict=False)
    if mapper.problems:
        return MappingReport(mapping.message, problems=[str(problem) for problem in mapper.problems])
    checker = _Checker(mapping, mapper)
    fields = [Place((), PLAIN)] if mapping.message in PLAIN_TYPES else places(types, mapping.message, mapping.types)
    left = [(place, checker.left(place)) for place in fields]
    return MappingReport(
        mapping.message,
        tuple(map(str, (*mapping.each, *mapping.zip))),
        list(dict.fromkeys(checker.lines())),
        list(checker.twice()),
        list(checker.same_name()),
        [
            Left(str(place) or "the message", str(place.node), note)
            for place, (state, note) in left
            if state == "partly"
        ],
        [*_together(left), *checker.keys_left()],
        checker.units(),
    )


def _left(place: Place, note: str) -> Left:
    return Left(str(place) or "the message", str(place.node), note)


def _together(left: Sequence[tuple[Place, tuple[str, str]]]) -> Iterator[Left]:
    """Yields what is left out: a field with many values once, if all are."""
    kept = {place.steps[:end] for place, (state, _) in left if state != "unmapped" for end in range(len(place.steps))}
    sizes = Counter(place.steps[:end] for place, _ in left for end in range(1, len(place.steps)))
    listed = set()
    for place, (state, note) in left:
        if state != "unmapped":
            continue
        around = (place.steps[:end] for end in range(1, len(place.steps)) if place.steps[:end] not in kept)
        first = next(around, place.steps)
        if note or sizes[first] <= _MOST_ALONE:
            yield _left(place, note)
        elif first not in listed:
            listed.add(first)
            yield Left(str(Place(first, place.node)), f"{sizes[first]:,} values")


class _Checker:
    def __init__(self, mapping: Mapping, mapper: Mapper) -> None:
        self._mapping = mapping
        self._entries = {f"readings.{entry.name}": entry for entry in mapping.readings}
        self._entries |= {f"metadata.{entry.name}": entry for entry in mapping.metadata}
        self._uses = [use for use in mapper.uses if not self._is_excluded(use)]
        # Elements of a map have their keys and values as fields.
        levels = [level for branch in mapper.branches for level in branch.levels]
        self._maps = {level.names: level.to for level in levels if isinstance(level.to, KeyAndValue)}
        # What selectors compare, such as the key in tags[key=site].
        self._selecting = {names for use in self._uses for names in _selecting(use)}
        self._selects_elements = any(map(_selectors, mapping.each))

    def lines(self) -> Iterator[Line]:
        """Yields what is read, in the order of the mapping."""
        for key, value in self._mapping.values:
            for source in value:
                if source.constant is not None:
                    yield Line(key, repr(source.constant), "constant")
                for path in source.value_paths:
                    yield from self._lines_of(key, path)
                for name, path in source.spans:
                    yield from self._lines_of(f"{key}.{name}", path)
                if source.unit_path:
                    yield from self._lines_of(f"{key}.unit_path", source.unit_path)
                for condition in source.when:
                    yield from self._lines_of(f"{key}.when", condition.path)
        for key, condition in self._mapping.conditions:
            yield from self._lines_of(key, condition.path)

    def twice(self) -> Iterator[Shared]:
        """Yields what several entries take."""
        takers: dict[tuple, dict[str, None]] = {}
        names: dict[tuple, str] = {}
        for use in filter(_takes, self._uses):
            # Of free-form JSON, a star takes numbers as readings and text as metadata.
            kind = use.table if use.node == PLAIN and use.of_star else ""
            value = use.names, tuple(_selectors(use.path)), kind
            takers.setdefault(value, {})[self._name(use)] = None
            names.setdefault(value, ".".join(use.names) if use.of_star else str(use.path))
        return (Shared(names[value], tuple(keys)) for value, keys in takers.items() if len(keys) > 1)

    def units(self) -> dict[str, str]:
        """Returns the units of metrics whose names are not only in messages."""
        entries = {f"readings.{entry.name}": entry for entry in self._mapping.readings if entry.unit}
        names = {self._name(use): entries[use.key].unit for use in self._uses if use.key in entries}
        return {name.partition(".")[2]: str(unit) for name, unit in names.items() if "*" not in name}

    def same_name(self) -> Iterator[Shared]:
        """Yields names of readings or of metadata that several entries give."""
        givers: dict[str, dict[str, None]] = {}
        for use in self._uses:
            if use.key in self._entries and "*" not in (name := self._name(use)):
                givers.setdefault(name, {})[use.key] = None
        return (Shared(name, tuple(keys)) for name, keys in givers.items() if len(keys) > 1)

    def left(self, place: Place) -> tuple[str, str]:
        """Returns ``mapped``, ``partly`` or ``unmapped``, and a note."""
        taken, kinds, conditions = [], set(), []
        if any(self._covers(place, names) for names in self._selecting):
            return "mapped", ""
        for use in self._uses:
            covers = self._covers(place, use.names)
            if covers is None:
                continue
            if not _takes(use):
                if covers and not self._is_one_element(use.path):
                    return "mapped", ""
                conditions.append(use.key.removesuffix(".when"))
                continue
            entry = self._entries.get(use.key)
            note = f" except {', '.join(entry.excluded)}" if entry and entry.excluded and use.of_star else ""
            if place.node == PLAIN and use.of_star:
                if covers and not note and Star(deep=True) in use.path.steps:
                    kinds.add(use.table)
                taken.append(f"{_KINDS[use.table]} of {use.path}{note}")
            elif covers and not note and not self._is_one_element(use.path):
                return "mapped", ""
            else:
                taken.append(f"{use.path}{note}")
        if len(kinds) == len(_KINDS):
            return "mapped", ""
        if taken:
            return "partly", f"only {', '.join(dict.fromkeys(taken))}"
        return "unmapped", f"{', '.join(dict.fromkeys(conditions))} reads it" if conditions else ""

    def keys_left(self) -> Iterator[Left]:
        """Yields the keys of maps whose entries become events, unless they are read."""
        for names, node in self._maps.items():
            if not any(use.names == (*names, "key") for use in self._uses if _takes(use)):
                yield Left(f"{'.'.join(names)}[].key", str(node.key))

    def _lines_of(self, key: str, path: Path) -> Iterator[Line]:
        if path.root is Root.ATTRIBUTE:
            yield Line(key, str(path), "attribute")
        elif path.root is Root.ENVELOPE:
            whole = "file" if path.is_of_file else "event" if path.names == ("time",) else "message"
            yield Line(key, str(path), f"of the {whole}")
        else:
            uses = [use for use in self._uses if use.key == key and use.path == path]
            for use in uses:
                is_one_way = len(uses) == 1 and not use.of_star
                kind = _KINDS[use.table] if use.node == PLAIN and use.of_star else str(use.node)
                yield Line(self._name(use) if use.of_star else key, str(path) if is_one_way else _way(use), kind)
            if not uses and not path.has_star:
                yield Line(key, str(path), "the field that is set")

    def _name(self, use: Use) -> str:
        """Returns the key. A star in it becomes the name that the event has."""
        key = use.key.removesuffix(".name")
        return key.replace("*", ".".join(use.label)) if use.of_star else key

    def _is_excluded(self, use: Use) -> bool:
        entry = self._entries.get(use.key)
        if entry is None or not use.of_star or "*" in use.label:
            return False
        return any(fnmatch.fnmatchcase(".".join(use.label), glob) for glob in entry.excluded)

    def _is_one_element(self, path: Path) -> bool:
        in_element = path.root is Root.ELEMENT or Current() in path.steps
        return bool(_selectors(path)) or (in_element and self._selects_elements)

    def _covers(self, place: Place, names: Names) -> bool | None:
        """Returns whether a path takes all of a place, or a part; None if it leads elsewhere."""
        at, is_whole = 0, True
        for step in place.steps:
            name = names[at] if at < len(names) else None
            if step == MANY:
                at += name == "*"  # through [0] or [], no name leads to an element
                continue
            if name is None:
                return None
            if step == ENTRY and name != "*":
                if names[:at] in self._maps and name != "value":
                    return None
                is_whole = is_whole and names[:at] in self._maps
            elif step != ENTRY and name != step:
                return None
            at += 1
        return is_whole and at == len(names)


_KINDS = {"readings": "numbers and booleans", "metadata": "text"}


def _takes(use: Use) -> bool:
    return use.key not in _CONDITIONS and not use.key.endswith(".when")


def _selectors(path: Path) -> list[object]:
    return [step for step in path.steps if isinstance(step, SELECTORS)]


def _selecting(use: Use) -> Iterator[Names]:
    """Yields the names of what the selectors of a path compare."""
    after = 0
    for step in reversed(use.path.steps):
        if isinstance(step, BY_FIELD):
            yield use.names[: len(use.names) - after] + step.path.names
        after += isinstance(step, Field)


def _way(use: Use) -> str:
    """Returns the path, with what its star stands for, and with the field of a oneof for its name."""
    star = "**" if Star(deep=True) in use.path.steps else "*"
    if use.path.root is Root.MESSAGE and not _selectors(use.path) and Current() not in use.path.steps:
        is_below = use.node == PLAIN and use.label[-1:] == ("*",) and use.names[-1:] != ("*",)
        return ".".join((*use.names, star) if is_below else use.names)
    before, _, after = str(use.path).partition(star)
    return before + (star if use.label == ("*",) else ".".join(use.label)) + after
