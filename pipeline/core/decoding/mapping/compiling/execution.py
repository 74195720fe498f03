"""Makes the events of a message with a compiled mapping, level by level."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.compiling.resolve import MAX_ELEMENTS, Branch, too_many_elements
from pipeline.core.decoding.mapping.language.model import Mapping
from pipeline.core.decoding.mapping.language.paths import Current, Field, Step, Together
from pipeline.core.decoding.mapping.values.conversions import Inexact, KeptDigits
from pipeline.core.decoding.mapping.values.nodes import Getter
from pipeline.core.decoding.mapping.values.times import NO_TIME, FinalProblem
from pipeline.core.events.event import (
    EARLIEST_US,
    MAX_METADATA_BYTES,
    MAX_NAME,
    MAX_READINGS,
    is_name,
    time_out_of_range,
)
from pipeline.core.events.invalid_readings import is_left_out, not_finite
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown

Scope = list[Any]
"""The message as Pub/Sub delivered it, what its payload contains, and the current element of each level below."""

ENVELOPE, ROOT = 0, 1
"""The depths of the first two in a scope."""

ScopeGetter = Callable[[Scope], Any]


STAR = "\0"
"""Stands for the star in a text with paths: no name has this character."""

Writer = Callable[[Scope, dict[str, Any], dict[str, str]], None]
"""Takes the scope, and the readings and metadata of an event to add to. Raises BadData."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The place in an event for the values of an entry: its readings, or its metadata.

    With ``keeps_inexact``, integers that a double can't hold become metadata.
    """

    is_reading: bool
    keeps_inexact: bool = False

    def put(self, name: str, value: Any, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        """Puts a value into an event, or raises it if it is a problem."""
        is_reading = self.is_reading
        if isinstance(value, BadData):
            if not (self.keeps_inexact and isinstance(value, Inexact)):
                raise value.with_traceback(None)
            is_reading, value = False, value.text
        if len(name) > MAX_NAME:  # now, as each element would copy a long name
            reason = Reason.INVALID_METRIC_NAME if is_reading else Reason.INVALID_METADATA_NAME
            raise BadData(reason, f"the name {shown(name)} has more than {MAX_NAME} characters")
        into = readings if is_reading else metadata
        if name in into:
            if is_left_out(value):
                return
            if not is_left_out(into[name]):
                raise BadData(Reason.NAME_COLLISION, f"{shown(name)} is mapped twice in one event")
        into[name] = value

    def check_size(self, values: Sized) -> None:
        """Raises BadData for more values than an event may have: their names are checked later, this bounds memory."""
        if len(values) > MAX_READINGS:
            reason = Reason.TOO_MANY_READINGS if self.is_reading else Reason.TOO_MUCH_METADATA
            raise BadData(reason, f"a star stands for more than {MAX_READINGS:,} values")


def required(key: str, value_of: ScopeGetter) -> ScopeGetter:
    """Returns a getter that raises BadData for a value that is not set or not valid."""

    def get(scope: Scope) -> Any:
        value = value_of(scope)
        if value is None:
            raise BadData(Reason.MISSING_FIELD, f"{key} is required and not set")
        if isinstance(value, float) and (problem := not_finite({key: value})):
            raise problem.problems[key]
        return value

    return get


def fixed(name: str, value_of: ScopeGetter, destination: Destination) -> Writer:
    """Returns the writer of an entry under its own name."""
    put = destination.put

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        try:
            value = value_of(scope)
        except Inexact as inexact:
            value = inexact
        if value is not None:
            put(name, value, readings, metadata)

    return write


def labelled(
    key: str,
    value_of: ScopeGetter,
    label_of: ScopeGetter,
    name_of: Callable[[str], str | None],
    destination: Destination,
) -> Writer:
    """Returns the writer of an entry whose name the message contains."""

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        label = label_of(scope)
        name = None if label is None else name_of(label)
        if label is not None and name is None:
            return
        try:
            value = value_of(scope)
        except Inexact as inexact:
            value = inexact
        if value is None:
            return
        if name is None:
            raise BadData(Reason.MISSING_FIELD, f"{key}.name is not set, so a value has no name")
        destination.put(name, value, readings, metadata)

    return write


def below(label_of: ScopeGetter, key: str, entry_name: str, write: Writer, destination: Destination) -> Writer:
    """Returns the writer of an entry with a star whose name the message contains: a text with ``STAR`` in it.

    ``write`` writes the values of the star under its own names.
    """
    before, _, after = entry_name.partition("*")
    texts = Destination(is_reading=False)

    def write_below(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        own_readings, own_metadata = dict[str, Any](), dict[str, str]()
        write(scope, own_readings, own_metadata)
        if not own_readings and not own_metadata:
            return
        label = label_of(scope)
        if label is None:
            raise BadData(Reason.MISSING_FIELD, f"{key}.name is not set, so a value has no name")
        for into, values in ((destination, own_readings), (texts, own_metadata)):
            for name, value in values.items():
                into.put(before + label.replace(STAR, name, 1) + after, value, readings, metadata)
        destination.check_size(readings if destination.is_reading else metadata)

    return write_below


def whole(values_of: ScopeGetter, destination: Destination) -> Writer:
    """Returns the writer of a map whose entries are readings or metadata as they are."""

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        values = values_of(scope)
        if not values:
            return
        into = readings if destination.is_reading else metadata
        if into:
            for name, value in values.items():
                destination.put(name, value, readings, metadata)
        else:
            into.update(values)
        destination.check_size(into)

    return write


def taken(
    items_of: Callable[[Any], Iterable[tuple[str, Any]] | None],
    convert: Getter,
    name_of: Callable[[str], str | None],
    destination: Destination,
) -> Callable[[Any], list[tuple[str, str, Any]]]:
    """Returns the getter of what a star takes: a label, a name, and a value or its problem, for each.

    It leaves out a value for which ``convert`` returns None, and a label for which ``name_of`` does. It raises BadData
    for more values than an event may have.
    """

    def take(container: Any) -> list[tuple[str, str, Any]]:
        found: list[tuple[str, str, Any]] = []
        for label, raw in items_of(container) or ():
            name = name_of(label)
            if name is None:
                continue
            try:
                value = convert(raw)
            except BadData as problem:  # it does not count if an earlier source has the label
                value = problem
            if value is not None:
                found.append((label, name, value))
                destination.check_size(found)
        return found

    return take


def starred(sources: list[list[ScopeGetter]], destination: Destination) -> Writer:
    """Returns the writer of an entry with a star, by getters of what :func:`taken` returns, for each of its sources.

    Each name takes the first source that has it.
    """

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        earlier: set[str] = set()
        for fields in sources:
            found = [one for taken_of in fields for one in taken_of(scope) or () if one[0] not in earlier]
            for _, name, value in found:
                destination.put(name, value, readings, metadata)
            destination.check_size(readings if destination.is_reading else metadata)
            if len(sources) > 1:
                earlier.update(label for label, _, value in found if not is_left_out(value))

    return write


MAX_PROBLEMS = 1000
"""The most problems of a message that are kept: a broken one may have one in every two bytes."""
MAX_VALUES = 2_000_000
"""A message whose elements together have more values is refused. Each element has the values of the message too."""
MAX_VALUES_OF_ANY = 100_000
"""This number is never too many. Beyond it, a message may have one value for each of its bytes."""
_TEXT = 16  # characters of metadata that count as another value

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_HASH_DIGITS = 6


class MadeEvent(NamedTuple):
    """An event that a mapping made. Only the types of its values are checked."""

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str]
    event_id: str

    @property
    def identity(self) -> tuple[str, int, str]:
        """What elements of one event have in common."""
        return self.sensor_id, self.event_time_us, self.event_id


class MappedEvents(NamedTuple):
    """What a mapping makes of a message: events in the order of their first elements, and problems with positions.

    ``skipped`` is the number of messages and elements that conditions left out, of elements without readings, and of
    messages without elements. ``replaced_times`` are the problems of times for which another of their list counts.
    """

    events: list[MadeEvent]
    problems: list[BadData]
    skipped: int
    replaced_times: Sequence[BadData] = ()


class EventCollector:
    """Collects the events of one message, whose size in bytes bounds the values."""

    def __init__(self, size: int, latest_us: int, *, metadata_alone: bool = False) -> None:
        self.latest_us = latest_us
        self.metadata_alone = metadata_alone
        self._kept: set[tuple[str, int, str]] = set()  # events that are made even without readings
        self.events: dict[tuple[str, int, str], MadeEvent | None] = {}  # None for an event that was refused
        self.problems: dict[tuple[Reason, str], BadData] = {}
        # By path and position: several branches may go through the same element.
        self.skipped: set[tuple[tuple[Step, ...], tuple[int, ...]]] = set()
        # Elements that are null, or whose type in an Any is another one, in a branch.
        self.absent: Counter[tuple[tuple[Step, ...], tuple[int, ...]]] = Counter()
        self.replaced_times: list[BadData] = []
        self.without_readings = 0
        self.elements = 0
        self.where = ""  # begins the details of problems: the document, if the message has several
        self._left_out = 0  # of the documents before
        self._elements_before = 0
        self._values_left = min(MAX_VALUES, MAX_VALUES_OF_ANY + size)

    def refuse(self, problem: BadData) -> None:
        """Notes a problem. Two ways to the same element have the same."""
        if self.where:
            problem = BadData(problem.reason, f"{self.where}{problem.detail}")
        if len(self.problems) <= MAX_PROBLEMS:
            self.problems.setdefault((problem.reason, problem.detail), problem.with_traceback(None))

    def note_replaced(self, problem: BadData) -> None:
        """Notes why another time of a list counts. Those beyond ``MAX_PROBLEMS`` are only counted."""
        noted = self.replaced_times
        noted.append(problem if len(noted) < MAX_PROBLEMS else noted[-1])

    def count(self, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        """Counts the values of an element, its own and the values from above. Raises BadData for too many."""
        self._values_left -= len(readings) + len(metadata)
        if metadata:
            self._values_left -= sum(map(len, metadata.values())) // _TEXT
        if self._values_left < 0:
            raise BadData(
                Reason.TOO_MANY_ELEMENTS,
                f"the elements have more values than {MAX_VALUES_OF_ANY:,} and one for each byte of the message, or "
                f"more than {MAX_VALUES:,}",
            )

    def add(self, made: MadeEvent, *, is_kept: bool) -> None:
        """Adds an event, or adds the values of an element to the event of the same sensor, time and id.

        It is kept even if no element has a reading for it, if ``is_kept`` says so. Raises BadData if a name has two
        values, which refuses the whole event.
        """
        key = made.identity
        if is_kept:
            self._kept.add(key)
        if key not in self.events:
            self.events[key] = made
            return
        known = self.events[key]
        if known is None:
            return
        self.events[key] = None
        _merge(known.readings, made.readings, "reading")
        _merge(known.metadata, made.metadata, "metadata")
        if len(known.readings) > MAX_READINGS:  # now, as the event would grow with each element
            raise BadData(Reason.TOO_MANY_READINGS, f"an event has more than {MAX_READINGS:,} readings")
        self.events[key] = known

    def end_document(self, mapping: Mapping, branches: Counter[tuple[Step, ...]]) -> None:
        """Counts the elements that were left out of a document, by the number of branches through each path."""
        skipped = len(self.skipped) + sum(count == branches[path] for (path, _), count in self.absent.items())
        if mapping.has_elements and self.elements == self._elements_before:
            skipped = max(skipped, 1)  # the document itself: in JSON, a list under another name would go unnoticed
        self._left_out += skipped
        self._elements_before = self.elements
        self.skipped.clear()
        self.absent.clear()
        self.where = ""

    def result(self, mapping: Mapping) -> MappedEvents:
        """Returns the events. Elements without a reading are skipped."""
        events = [made for made in self.events.values() if made is not None]
        if mapping.rewrite_names:
            events = list(self._rewritten(events))
        if mapping.has_elements:
            found = [event for event in events if event.readings or event.identity in self._kept]
            self.without_readings += len(events) - len(found)
            events = found
        skipped = self._left_out + self.without_readings
        return MappedEvents(events, list(self.problems.values()), skipped, self.replaced_times)

    def _rewritten(self, events: list[MadeEvent]) -> Iterator[MadeEvent]:
        for event in events:
            try:
                yield event._replace(readings=_renamed(event.readings), metadata=_renamed(event.metadata))
            except BadData as problem:
                self.refuse(problem)


class Position:
    """The position of the current innermost element of a branch."""

    def __init__(self) -> None:
        self.at = 0

    def noting(self, elements_of: Getter) -> Getter:
        """Returns the getter of elements that note their position when a loop reaches them."""

        def get(container: Any) -> Any:
            elements = elements_of(container)
            return elements and _NotedElements(self, elements)

        return get


class _NotedElements:
    def __init__(self, position: Position, elements: Any) -> None:
        self._position = position
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[Any]:
        for at, element in enumerate(self._elements):
            self._position.at = at
            yield element


class Level(NamedTuple):
    """The conditions and the writers of a level: the message, or the elements of a repeated field."""

    skips: list[ScopeGetter]
    writers: list[Writer]


class CompiledBranch:
    """A compiled branch: what is read at each level."""

    def __init__(self, branch: Branch, path: str) -> None:
        self._elements = branch.elements
        ends = [index + 1 for index, step in enumerate(branch.path) if isinstance(step, Current)]
        self.prefixes = [branch.path[:end] for end in (0, *ends)]
        self._path = path
        self._levels = [Level([], []) for _ in branch.levels]
        self.sensor: ScopeGetter
        self.time: ScopeGetter
        self.event_id: ScopeGetter | None = None
        self._latest_us = 0
        self._replaced: BadData | None = None  # the problem of an earlier time in the list, for the current element

    def first_plausible(self, getters: Sequence[ScopeGetter]) -> ScopeGetter:
        """Returns the getter of the first time that is set and plausible.

        The getter raises BadData, the problem of the first one, if only times that are not plausible are set.
        """

        def get(scope: Scope) -> int | None:
            replaced: BadData | None = None
            for get_time in getters:
                try:
                    time_us = get_time(scope)
                except BadData as problem:
                    if problem.reason not in NO_TIME or isinstance(problem, FinalProblem):
                        raise
                    replaced = replaced or problem
                    continue
                if time_us is None:
                    continue
                if EARLIEST_US <= time_us <= self._latest_us:
                    self._replaced = replaced
                    return time_us
                replaced = replaced or time_out_of_range(time_us, self._latest_us)
            if replaced:
                raise replaced
            return None

        return get

    def at(self, depth: int) -> "Level":
        return self._levels[depth - ROOT]

    def run(self, collector: EventCollector, scope: Scope) -> None:
        """Makes the events of a message. Raises BadData for problems of the message itself."""
        self._latest_us = collector.latest_us
        readings: dict[str, float] = {}
        metadata: dict[str, str] = {}
        if self._is_left_out(self._levels[0], scope, readings, metadata):
            collector.skipped.add(((), ()))
        elif self._elements:
            self._below(collector, scope, 0, readings, metadata, ())
        else:
            if collector.where:
                collector.count(readings, metadata)
            self._add(collector, scope, readings, metadata, has_own=True)

    @staticmethod
    def _is_left_out(level: Level, scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> bool:
        """Returns whether a condition leaves an element out; otherwise adds the values that are read at its level."""
        for skip in level.skips:
            if skip(scope):
                return True
        for write in level.writers:
            write(scope, readings, metadata)
        return False

    def _below(
        self,
        collector: EventCollector,
        scope: Scope,
        above: int,
        readings: dict[str, Any],
        metadata: dict[str, str],
        at: tuple[int, ...],
    ) -> None:
        """Goes through the elements below the current one, which is at level ``above``, and below them."""
        for name, text in metadata.items():  # each element would have it
            if len(text) > MAX_METADATA_BYTES:
                raise BadData(Reason.METADATA_TOO_LONG, f"metadata {name} is longer than {MAX_METADATA_BYTES} bytes")
        elements = self._elements[above](scope[-1]) or ()
        collector.elements += len(elements)
        if collector.elements > MAX_ELEMENTS:
            raise too_many_elements(f"{self._path} goes through")
        level = self._levels[above + 1]
        prefix = self.prefixes[above + 1]
        is_last = above + 1 == len(self._elements)
        scope = [*scope, None]
        for index, element in enumerate(elements):
            if element is None:
                collector.absent[prefix, (*at, index)] += 1
                continue
            scope[-1] = element
            own, own_metadata = readings.copy(), metadata.copy()
            try:
                is_left_out = self._is_left_out(level, scope, own, own_metadata)
                collector.count(own, own_metadata)
                if is_left_out:
                    collector.skipped.add((prefix, (*at, index)))
                elif is_last:
                    self._add(collector, scope, own, own_metadata, has_own=len(own_metadata) > len(metadata))
                else:
                    self._below(collector, scope, above + 1, own, own_metadata, (*at, index))
            except BadData as problem:
                if problem.reason is Reason.TOO_MANY_ELEMENTS:
                    raise
                collector.refuse(_located(problem, self._path, (*at, index)))

    def _add(
        self,
        collector: EventCollector,
        scope: Scope,
        readings: dict[str, Any],
        metadata: dict[str, str],
        *,
        has_own: bool,
    ) -> None:
        """Adds the event of an element, which may have metadata of its own besides the metadata of the levels above."""
        sensor, time_us = self.sensor(scope), self.time(scope)
        is_kept = (collector.metadata_alone and has_own) or kept_digits(metadata) is not None
        if sensor is None or time_us is None:
            if not readings and self._elements and not is_kept:
                collector.without_readings += 1
                return
            if sensor is None:
                raise BadData(Reason.MISSING_SENSOR_ID, "the mapping finds no sensor: none of its paths is set")
            raise BadData(Reason.MISSING_EVENT_TIME, "the mapping finds no time: none of its paths is set")
        event_id = (self.event_id(scope) if self.event_id else None) or ""
        collector.count({}, {"event_id": event_id})
        if self._replaced is not None:
            collector.note_replaced(self._replaced)
        collector.add(MadeEvent(sensor, time_us, readings, metadata, event_id), is_kept=is_kept)


def kept_digits(metadata: dict[str, str]) -> BadData | None:
    """Returns why a reading is metadata instead, as the problem of an event that has no other; None if none is."""
    for name, text in metadata.items():
        if isinstance(text, KeptDigits):
            problem = f"the only reading, {shown(name)}, is {shown(text)}, which a double can't hold exactly"
            return BadData(Reason.INEXACT_INTEGER, problem)
    return None


def _merge(into: dict[str, Any], new: dict[str, Any], what: str) -> None:
    for name, value in new.items():
        if name not in into or is_left_out(into[name]):
            into[name] = value
        elif into[name] != value and not is_left_out(value):
            raise BadData(
                Reason.NAME_COLLISION,
                f"{what} {name} is {shown(str(into[name]))} and {shown(str(value))} for one sensor and time",
            )


def _located(problem: BadData, path: str, at: tuple[int, ...]) -> BadData:
    positions = iter(at)
    where = re.sub(r"\[\]", lambda _: f"[{next(positions, '')}]", path)
    return BadData(problem.reason, f"{where}: {problem.detail}")


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values under their rewritten names. Raises BadData if two names are rewritten to the same."""
    labels: dict[str, str] = {}
    for label in values:
        known = labels.setdefault(rewritten(label), label)
        if known != label:
            raise BadData(
                Reason.NAME_COLLISION, f"{shown(known)} and {shown(label)} are both rewritten to {rewritten(label)}"
            )
    return {name: values[label] for name, label in labels.items()}


def rewritten(name: str) -> str:
    """Returns the name that a mapping with ``rewrite_names`` gives; a valid name as it is.

    A slash becomes a dot, and a space ``_``. If that is not enough, any other character that a name cannot have becomes
    ``_`` too, a name that would begin with anything but a letter or ``_`` gets a ``_`` before it, and six digits of the
    original's SHA-256 follow, so that different names stay different.
    """
    plain = name.replace("/", ".").replace(" ", "_")
    if is_name(plain):
        return plain
    body = _NOT_IN_NAMES.sub("_", plain)
    body = body if body[:1].isalpha() or body[:1] == "_" else f"_{body}"
    digits = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{body[: MAX_NAME - 1 - _HASH_DIGITS]}-{digits}"


def written(steps: tuple[Step, ...]) -> str:
    """Returns the names and the ``[]`` of a path, as text."""

    def part(step: Step) -> str:
        match step:
            case Field(name):
                return f".{name}"
            case Current():
                return "[]"
            case Together(lists):
                return f".{written(lists[0])}"
        return ""

    return "".join(map(part, steps)).removeprefix(".")
