"""Compiles a mapping against the type of its messages, and makes events of messages with it.

A mapping without ``each`` has one level: the message. With ``each``, every ``[]`` of its path adds a level of elements.
A path without ``[]`` is read once for each message, one with a single ``[]`` once for each of those elements, and so
on.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pipeline.core.events import MAX_READINGS, BadData, Reason, shown
from pipeline.core.mapping import nodes
from pipeline.core.mapping.descriptors import Descriptors
from pipeline.core.mapping.document import JSON, Condition, Entry, Mapping, MappingError, Source, Value
from pipeline.core.mapping.nodes import Getter, Leaf, Node, Plain, Record
from pipeline.core.mapping.paths import Current, Field, Path, PathError, Root, Step
from pipeline.core.mapping.resolve import Names, Resolver
from pipeline.core.mapping.values import (
    Inexact,
    formatted,
    leaf_text,
    number_of,
    star_number_of,
    star_text_of,
    text_of,
    time_of,
)
from pipeline.core.messages import Message
from pipeline.core.times import format_time, from_datetime

MAX_ELEMENTS = 100_000
"""More elements of one message refuse it."""

Scope = list[Any]
"""The message as Pub/Sub delivered it, what its payload contains, and the current element of each level below."""
_ENVELOPE, _ROOT = 0, 1

ScopeGetter = Callable[[Scope], Any]
_Writer = Callable[[Scope, dict[str, Any], dict[str, str]], None]

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


class Made(NamedTuple):
    """An event that a mapping made; nothing of it is checked yet but its kinds of values."""

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str]
    event_id: str


class Mapped(NamedTuple):
    """What a mapping makes of a message.

    Attributes:
        events: in the order of their first elements.
        problems: why elements were refused, each beginning with the element's position.
        skipped: messages or elements that conditions left out, and elements without readings.
    """

    events: list[Made]
    problems: list[BadData]
    skipped: int


class Mapper:
    """A mapping, compiled against the type of its messages.

    Args:
        mapping: the parsed mapping.
        types: the message types; not needed for JSON.
        strict: whether a path that the type does not have is an error; otherwise it counts as not set, as in an older
            revision of a schema.

    Raises:
        MappingError: a path does not fit the type, or a value is of a kind that the mapping can't use.
    """

    def __init__(self, mapping: Mapping, types: Descriptors | None = None, *, strict: bool = True) -> None:
        types = types or Descriptors()
        self.mapping = mapping
        self.pool = types.pool
        self.message_class = None if mapping.message == JSON else types.message_class(mapping.message)
        root: Node = Record(self.message_class.DESCRIPTOR) if self.message_class else Plain()
        resolver = Resolver(types, mapping.types)
        branches = list(_branches(mapping, resolver, root))
        self._match = _Compiler(mapping, resolver, _Branch([root], [], ()), ()).conditions_of(
            "match", mapping.match or ()
        )
        named = frozenset(
            names for _, path in mapping.paths if not path.has_star for names in _names_in(path, branches)
        )
        self._branches = []
        unresolved: dict[tuple[str, Path], str] | None = None
        for branch in branches:
            compiler = _Compiler(mapping, resolver, branch, named)
            self._branches.append(compiler.plan())
            problems = compiler.unresolved
            unresolved = (
                problems
                if unresolved is None
                else {key: unresolved[key] for key in unresolved.keys() & problems.keys()}
            )
        if unresolved and strict:
            (key, _), problem = min(unresolved.items(), key=lambda item: item[0][0])
            raise MappingError(key, problem)

    def matches(self, scope: Scope) -> bool:
        """Returns whether a message fulfils the conditions of ``match``."""
        return all(holds(scope) for holds in self._match)

    def map(self, message: Message, root: Any) -> Mapped:
        """Makes events of a message.

        Args:
            message: as Pub/Sub delivered it.
            root: what its payload contains: a protobuf message, or JSON as Python's values.

        Raises:
            BadData: the message as a whole is refused.
        """
        run = _Run()
        for plan in self._branches:
            plan.run(run, [message, root])
        return run.result(self.mapping)


class _Run:
    """The events of one message, while they are made."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, int], Made | None] = {}  # None for an event that was refused
        self.problems: list[BadData] = []
        self.skipped = 0
        self.elements = 0

    def add(self, made: Made) -> None:
        """Adds an event, or the values of an element to the event of its sensor and time.

        Raises BadData if a name has two values: then the event as a whole is refused.
        """
        key = made[0], made[1]
        if key not in self.events:
            self.events[key] = made
            return
        known = self.events[key]
        if known is None:
            return
        self.events[key] = None
        self.events[key] = known._replace(
            readings=_merged(known.readings, made.readings, "reading"),
            metadata=_merged(known.metadata, made.metadata, "metadata"),
            event_id=known.event_id or made.event_id,
        )

    def result(self, mapping: Mapping) -> Mapped:
        """Returns what was made. Events of elements without a reading count as skipped."""
        events = [made for made in self.events.values() if made is not None]
        if mapping.rewrite_names:
            events = list(self._rewritten(events))
        if mapping.each:
            with_readings = [event for event in events if event.readings]
            self.skipped += len(events) - len(with_readings)
            events = with_readings
        return Mapped(events, self.problems, self.skipped)

    def _rewritten(self, events: list[Made]) -> Iterator[Made]:
        for event in events:
            try:
                yield event._replace(readings=_renamed(event.readings), metadata=_renamed(event.metadata))
            except BadData as problem:
                self.problems.append(problem)


def _merged(known: dict[str, Any], new: dict[str, Any], what: str) -> dict[str, Any]:
    for name in known.keys() & new.keys():
        if known[name] != new[name]:
            raise BadData(
                Reason.NAME_COLLISION,
                f"{what} {name} is {shown(str(known[name]))} and {shown(str(new[name]))} for one sensor and time",
            )
    return known | new


class _Branch(NamedTuple):
    """One way through the levels.

    Attributes:
        levels: the node of each level, the message first.
        elements: for each level below the message, the getter of its elements from the element above.
        path: as written; empty without ``each``.
        names: for each level, of the fields that lead to it.
    """

    levels: list[Node]
    elements: list[Getter]
    path: tuple[Step, ...]
    names: tuple[Names, ...] = ((),)

    def level_of(self, path: Path) -> tuple[int, tuple[Step, ...]]:
        """Returns the level at which a path is read, and its steps from there. Raises PathError."""
        if path.root is Root.ELEMENT:
            return len(self.levels) - 1, path.steps
        at = max((index for index, step in enumerate(path.steps) if isinstance(step, Current)), default=-1) + 1
        if path.steps[:at] != self.path[:at]:
            raise PathError("it has [] after a field that each does not go through")
        return sum(isinstance(step, Current) for step in path.steps[:at]), path.steps[at:]


def _branches(mapping: Mapping, resolver: Resolver, root: Node) -> Iterator[_Branch]:
    if not mapping.each:
        yield _Branch([root], [], ())
    for path in mapping.each:
        segments: list[list[Step]] = [[]]
        for step in path.steps:
            if isinstance(step, Current):
                segments.append([])
            else:
                segments[-1].append(step)
        branches = [_Branch([root], [], path.steps)]
        try:
            for segment in segments[:-1]:
                branches = [longer for branch in branches for longer in _longer(branch, tuple(segment), resolver)]
        except PathError as error:
            raise MappingError("each", f"{path}: {error}") from None
        if not branches:
            raise MappingError("each", f"{path} is not the path of a repeated field")
        yield from branches


def _longer(branch: _Branch, segment: tuple[Step, ...], resolver: Resolver) -> Iterator[_Branch]:
    names = branch.names[-1]
    inner = (*names, *(step.name for step in segment if isinstance(step, Field)))
    for found in resolver.elements(branch.levels[-1], segment, names):
        yield branch._replace(
            levels=[*branch.levels, found.node],
            elements=[*branch.elements, found.get],
            names=(*branch.names, inner),
        )


def _names_in(path: Path, branches: list[_Branch]) -> Iterator[Names]:
    """Yields the names that lead to a path's value."""
    if path.root is Root.MESSAGE:
        yield path.names
    elif path.root is Root.ELEMENT:
        for branch in branches:
            yield (*branch.names[-1], *path.names)


class _Level(NamedTuple):
    """What is done with the message, or with an element of a level."""

    skips: list[ScopeGetter]
    writers: list[_Writer]


class _Plan:
    """A compiled branch: what is read at each level."""

    def __init__(self, branch: _Branch, path: str) -> None:
        self._elements = branch.elements
        self._path = path
        self._levels = [_Level([], []) for _ in branch.levels]
        self.sensor: ScopeGetter
        self.time: ScopeGetter
        self.event_id: ScopeGetter | None = None

    def at(self, depth: int) -> "_Level":
        """Returns the level whose values are read at a depth of the scope."""
        return self._levels[depth - _ROOT]

    def run(self, run: _Run, scope: Scope) -> None:
        """Makes the events of a message. Raises BadData for problems of the message itself."""
        self._level(run, scope, 0, {}, {}, ())

    def _level(
        self,
        run: _Run,
        scope: Scope,
        level: int,
        readings: dict[str, Any],
        metadata: dict[str, str],
        at: tuple[int, ...],
    ) -> None:
        of_level = self._levels[level]
        for skip in of_level.skips:
            if skip(scope):
                run.skipped += 1
                return
        for write in of_level.writers:
            write(scope, readings, metadata)
        if level == len(self._elements):
            self._add(run, scope, readings, metadata)
            return
        elements = self._elements[level](scope[-1]) or ()
        run.elements += len(elements)
        if run.elements > MAX_ELEMENTS:
            raise BadData(
                Reason.TOO_MANY_ELEMENTS, f"the message has more than {MAX_ELEMENTS:,} elements at {self._path}"
            )
        for index, element in enumerate(elements):
            inner = (*at, index)
            try:
                self._level(run, [*scope, element], level + 1, dict(readings), dict(metadata), inner)
            except BadData as problem:
                if problem.reason is Reason.TOO_MANY_ELEMENTS:
                    raise
                run.problems.append(_located(problem, self._path, inner))

    def _add(self, run: _Run, scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        sensor, time_us = self.sensor(scope), self.time(scope)
        if sensor is None or time_us is None:
            if not readings and self._elements:
                run.skipped += 1
                return
            if sensor is None:
                raise BadData(Reason.MISSING_SENSOR_ID, "the mapping finds no sensor: none of its paths is set")
            raise BadData(Reason.MISSING_EVENT_TIME, "the mapping finds no time: none of its paths is set")
        event_id = self.event_id(scope) if self.event_id else None
        run.add(Made(sensor, time_us, readings, metadata, event_id or ""))


def _located(problem: BadData, path: str, at: tuple[int, ...]) -> BadData:
    positions = iter(at)
    where = re.sub(r"\[\]", lambda _: f"[{next(positions, '')}]", path)
    return BadData(problem.reason, f"{where}: {problem.detail}")


class _Compiler:
    """Compiles the values of a mapping for one branch.

    Attributes:
        unresolved: the paths that the branch does not have, by the key that has them, with the problem.
    """

    def __init__(self, mapping: Mapping, resolver: Resolver, branch: _Branch, named: Iterable[Names]) -> None:
        self._mapping = mapping
        self._resolver = resolver
        self._branch = branch
        self._named = frozenset(named)
        self.unresolved: dict[tuple[str, Path], str] = {}

    def plan(self) -> _Plan:
        """Returns the compiled branch. Raises MappingError."""
        mapping = self._mapping
        plan = _Plan(self._branch, _written(self._branch.path))
        _, plan.sensor = self._text("sensor", mapping.sensor)
        _, plan.time = self._first("time", mapping.time, self._time)
        if mapping.event_id:
            _, plan.event_id = self._text("event_id", mapping.event_id)
        for condition in mapping.skip_if:
            depth, holds = self._condition("skip_if", condition)
            plan.at(depth).skips.append(holds)
        for condition in mapping.skip_unless:
            depth, holds = self._condition("skip_unless", condition)
            plan.at(depth).skips.append(_not(holds))
        for entry in mapping.readings:
            self._add(plan, f"readings.{entry.name}", entry, self._reading, is_reading=True)
        for entry in mapping.metadata:
            self._add(plan, f"metadata.{entry.name}", entry, self._metadata, is_reading=False)
        return plan

    def conditions_of(self, key: str, conditions: Iterable[Condition]) -> list[ScopeGetter]:
        """Returns functions that return whether the conditions hold."""
        found = [self._condition(key, condition)[1] for condition in conditions]
        for (key, _), problem in self.unresolved.items():
            raise MappingError(key, problem)
        return found

    def _add(self, plan: _Plan, key: str, entry: Entry, compile_one: Any, *, is_reading: bool) -> None:
        if "*" in entry.name and entry.label is None:
            self._add_star(plan, key, entry, is_reading=is_reading)
            return
        depth, value_of = self._first(key, entry.value, compile_one)
        if entry.label is not None:
            depth_of_label, label_of = self._text(f"{key}.name", entry.label)
            name_of = self._namer(entry)
            plan.at(max(depth, depth_of_label)).writers.append(
                _labelled(key, value_of, label_of, name_of, is_reading=is_reading)
            )
        else:
            plan.at(depth).writers.append(
                _fixed(
                    key, entry.name, value_of, is_reading=is_reading, required=entry.required, keeps_inexact=self._keeps
                )
            )

    @property
    def _keeps(self) -> bool:
        return self._mapping.inexact_integers == "metadata"

    def _namer(self, entry: Entry) -> Callable[[str], str | None]:
        """Returns the function that returns the name of what a star stands for; None if it is left out."""
        before, _, after = entry.name.partition("*")
        excluded = [re.compile(fnmatch.translate(glob)) for glob in entry.excluded]

        def name_of(name: str) -> str | None:
            if excluded and any(glob.fullmatch(name) for glob in excluded):
                return None
            return f"{before}{name}{after}"

        return name_of

    def _add_star(self, plan: _Plan, key: str, entry: Entry, *, is_reading: bool) -> None:
        of_depth: dict[int, list[tuple[ScopeGetter, Getter]]] = {}
        for source in entry.value:
            path = source.path
            if path is None:
                continue
            try:
                level, steps = self._branch.level_of(path)
                base = self._branch.names[level]
                fixed = len(base) + len([s for s in steps if isinstance(s, Field)])
                leaves_out = self._leaves_out(fixed)
                found = self._resolver.resolve_star(self._branch.levels[level], steps, base, leaves_out)
            except PathError as error:
                self.unresolved[key, path] = f"{path}: {error}"
                continue
            for items in found:
                if is_reading:
                    convert = star_number_of(key, items.node, source, self._mapping)
                else:
                    convert = star_text_of(key, items.node, source)
                if convert is not None:
                    get, (_, holds) = items.get, self._when(f"{key}.when", source.when)
                    of_depth.setdefault(level + _ROOT, []).append(
                        (_conditional(_at(level + _ROOT, get), holds), convert)
                    )
        name_of = self._namer(entry)
        # Of several sources, each name takes the first that has it; across levels, the message's own comes first.
        for depth, sources in of_depth.items():
            plan.at(depth).writers.append(
                _starred(key, sources, name_of, is_reading=is_reading, keeps_inexact=self._keeps)
            )

    def _leaves_out(self, fixed: int) -> Callable[[Names], bool]:
        named = frozenset(names for names in self._named if len(names) >= fixed)
        return named.__contains__ if named else (lambda _: False)

    def _first(self, key: str, value: Value, compile_one: Any) -> tuple[int, ScopeGetter]:
        """Compiles the first source that is set. Returns the deepest level that it reads, and the function."""
        depths, found = [_ROOT], []
        for source in value:
            for at, get in compile_one(key, source):
                depth, holds = self._when(f"{key}.when", source.when)
                depths += [at, depth]
                found.append(_conditional(get, holds))
        return max(depths), _first_set(found)

    def _text(self, key: str, value: Value) -> tuple[int, ScopeGetter]:
        return self._first(key, value, self._metadata)

    def _reading(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        for at, get, node in self._ways(key, source.path):
            convert = number_of(key, node, source, self._mapping)
            yield at, _at(at, nodes.composed(get, convert))

    def _metadata(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        if source.constant is not None:
            yield _ENVELOPE, _constant(source.constant)
        elif source.template is not None:
            yield self._template(key, source)
        elif source.name_of is not None:
            yield from self._name_of(key, source)
        else:
            for at, get, node in self._ways(key, source.path):
                convert = text_of(key, node, source)
                yield at, _at(at, nodes.composed(get, convert))

    def _time(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        path = source.path
        if path is not None and path.root is Root.ENVELOPE and path.names == ("publish_time",):
            yield _ENVELOPE, lambda scope: _publish_time(scope[_ENVELOPE])
            return
        for at, get, node in self._ways(key, path):
            yield at, _at(at, nodes.composed(get, time_of(key, node, source)))

    def _template(self, key: str, source: Source) -> tuple[int, ScopeGetter]:
        depths, parts = [_ROOT], list[ScopeGetter]()
        for part in source.template or ():
            if isinstance(part, str):
                parts.append(_constant(part))
                continue
            found = []
            for at, get, node in self._ways(key, part.path):
                depths.append(at)
                found.append(_at(at, nodes.composed(get, formatted(f"{key}: {part.path}", node, part.format))))
            parts.append(_first_set(found))

        def text(scope: Scope) -> str | None:
            texts = [part(scope) for part in parts]
            return None if None in texts else "".join(texts)

        return max(depths), text

    def _name_of(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        """Compiles the name of an enum's value, or of the field of a oneof that is set."""
        path = source.name_of
        if path is None:
            return
        *parents, last = path.steps
        if isinstance(last, Field) and path.root in (Root.MESSAGE, Root.ELEMENT):
            try:
                level, steps = (
                    self._branch.level_of(Path(path.root, tuple(parents), path.text))
                    if parents
                    else (len(self._branch.levels) - 1 if path.root is Root.ELEMENT else 0, ())
                )
                ways = self._resolver.resolve(self._branch.levels[level], steps, self._branch.names[level])
            except PathError as error:
                self.unresolved[key, path] = f"{path}: {error}"
                return
            oneofs = [way for way in ways if isinstance(way.node, Record) and last.name in way.node.type.oneofs_by_name]
            if oneofs:
                at = level + _ROOT
                for way in oneofs:
                    yield at, _at(at, nodes.composed(way.get, lambda m: m.WhichOneof(last.name)))
                return
        for at, get, node in self._ways(key, path):
            convert = text_of(key, node, source, name_of=True)
            yield at, _at(at, nodes.composed(get, convert))

    def _ways(self, key: str, path: Path | None) -> Iterator[tuple[int, Getter, Node]]:
        """Yields how a path leads to its value: the level it is read at, the getter from there, and the node."""
        if path is None:
            return
        match path.root:
            case Root.ATTRIBUTE:
                yield _ENVELOPE, self._attribute(key, path), Leaf("string")
            case Root.ENVELOPE:
                yield _ENVELOPE, _envelope(path.names[0]), Leaf("string")
            case _:
                try:
                    level, steps = self._branch.level_of(path)
                    start, names = self._branch.levels[level], self._branch.names[level]
                    ways = self._resolver.resolve(start, steps, names)
                except PathError as error:
                    self.unresolved[key, path] = f"{path}: {error}"
                    return
                for way in ways:
                    yield level + _ROOT, way.get, way.node

    def _attribute(self, key: str, path: Path) -> Getter:
        name, *part = path.names
        if not part:
            return lambda message: message.attributes.get(name)
        pattern = self._mapping.attributes.get(name)
        if pattern is None or part[0] not in pattern.groupindex:
            known = ", ".join(pattern.groupindex) if pattern else "none; declare them under [attributes]"
            raise MappingError(key, f"{path}: attribute {name} has no part {part[0]!r}; there are {known}")
        group = part[0]

        def get(message: Message) -> str | None:
            found = pattern.fullmatch(message.attributes.get(name, ""))
            return found[group] if found else None

        return get

    def _when(self, key: str, conditions: Iterable[Condition]) -> tuple[int, list[ScopeGetter]]:
        found = [self._condition(key, condition) for condition in conditions]
        return max((depth for depth, _ in found), default=_ROOT), [holds for _, holds in found]

    def _condition(self, key: str, condition: Condition) -> tuple[int, ScopeGetter]:
        depths, tests = [_ROOT], []
        for at, get, node in self._ways(key, condition.path):
            depths.append(at)
            tests.append((_at(at, get), _tester(key, condition, node)))

        def holds(scope: Scope) -> bool:
            for get, test in tests:
                value = get(scope)
                if value is not None:
                    return test(value)
            return condition.kind == "is_not" or (condition.kind == "set" and condition.values == (False,))

        return max(depths), holds


def _at(depth: int, get: Getter) -> ScopeGetter:
    return lambda scope: get(scope[depth])


def _constant(text: str) -> ScopeGetter:
    return lambda _: text


def _not(holds: ScopeGetter) -> ScopeGetter:
    return lambda scope: not holds(scope)


def _conditional(get: ScopeGetter, conditions: list[ScopeGetter]) -> ScopeGetter:
    if not conditions:
        return get
    return lambda scope: get(scope) if all(holds(scope) for holds in conditions) else None


def _first_set(found: list[ScopeGetter]) -> ScopeGetter:
    if len(found) == 1:
        return found[0]

    def get(scope: Scope) -> Any:
        for one in found:
            value = one(scope)
            if value is not None:
                return value
        return None

    return get


def _envelope(name: str) -> Getter:
    if name == "publish_time":
        return lambda message: format_time(time_us) if (time_us := _publish_time(message)) is not None else None
    return lambda message: getattr(message, name) or None


def _publish_time(message: Message) -> int | None:
    return None if message.publish_time is None else from_datetime(message.publish_time)


def _fixed(
    key: str, name: str, value_of: ScopeGetter, *, is_reading: bool, required: bool, keeps_inexact: bool
) -> _Writer:
    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        try:
            value = value_of(scope)
        except Inexact as inexact:
            if not keeps_inexact:
                raise
            _put(metadata, name, inexact.text)
            return
        if value is not None:
            _put(readings if is_reading else metadata, name, value)
        elif required:
            raise BadData(Reason.MISSING_FIELD, f"{key} is required and not set")

    return write


def _put(into: dict[str, Any], name: str, value: Any) -> None:
    if name in into:
        raise BadData(Reason.NAME_COLLISION, f"{shown(name)} is mapped twice in one event")
    into[name] = value


def _labelled(
    key: str,
    value_of: ScopeGetter,
    label_of: ScopeGetter,
    name_of: Callable[[str], str | None],
    *,
    is_reading: bool,
) -> _Writer:
    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        value = value_of(scope)
        if value is None:
            return
        label = label_of(scope)
        if label is None:
            raise BadData(Reason.MISSING_FIELD, f"{key}.name is not set, so a value has no name")
        name = name_of(label)
        if name is not None:
            _put(readings if is_reading else metadata, name, value)

    return write


def _starred(
    key: str,
    sources: list[tuple[ScopeGetter, Getter]],
    name_of: Callable[[str], str | None],
    *,
    is_reading: bool,
    keeps_inexact: bool,
) -> _Writer:
    del key

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        into = readings if is_reading else metadata
        own: set[str] = set()
        for index, (items_of, convert) in enumerate(sources):
            for label, raw in items_of(scope) or ():
                try:
                    value = convert(raw)
                except Inexact as inexact:
                    if not keeps_inexact:
                        raise
                    if name := name_of(label):
                        _put(metadata, name, inexact.text)
                    continue
                if value is None:
                    continue
                name = name_of(label)
                if name is None or (index and label in own):
                    continue
                if len(into) > MAX_READINGS:
                    raise BadData(Reason.TOO_MANY_READINGS, f"the event has more than {MAX_READINGS} values")
                own.add(label)
                _put(into, name, value)

    return write


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
    """Returns the name that a mapping with ``rewrite_names`` gives.

    A slash becomes a dot, any other character that a name cannot have becomes ``_``, and a name that would begin with
    anything but a letter or ``_`` gets a ``_`` before it.
    """
    name = _NOT_IN_NAMES.sub("_", name.replace("/", "."))
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def _tester(key: str, condition: Condition, node: Node) -> Callable[[Any], bool]:
    """Returns the function that returns whether a value that is set fulfils a condition."""
    kind, values = condition.kind, condition.values
    if kind == "set":
        return lambda _: values == (True,)
    if not isinstance(node, (Leaf, Plain)):
        raise MappingError(key, f"{condition.path} is {node}; a condition on it can only be set = true or set = false")
    if isinstance(node, Leaf) and node.kind == "enum":
        numbers = {value for value in values if isinstance(value, int)}
        names = {value for value in values if isinstance(value, str)}
        known = node.enum.values_by_name  # type: ignore[union-attr]
        for name in names if kind != "glob" else ():
            if name not in known:
                raise MappingError(key, f"{node} has no value {name!r}; it has {', '.join(list(known)[:20])}")
        numbers |= {known[name].number for name in names if name in known}
        if kind != "glob":
            return lambda value: (value in numbers) == (kind == "is")
    text = leaf_text(node) if isinstance(node, Leaf) else _plain_value_text
    if kind == "glob":
        globs = [re.compile(fnmatch.translate(str(value))) for value in values]
        return lambda value: any(glob.fullmatch(text(value)) for glob in globs)
    if isinstance(node, Leaf) and node.kind in ("string", "bytes", "timestamp"):
        if not all(isinstance(value, str) for value in values):
            raise MappingError(key, f"{condition.path} is {node}; compare it with text")
        return lambda value: (text(value) in values) == (kind == "is")
    # True equals 1 in Python.
    pairs = {(isinstance(value, bool), value) for value in values}
    return lambda value: ((_hashable(value)) in pairs) == (kind == "is")


def _hashable(value: Any) -> tuple[bool, Any]:
    return isinstance(value, bool), str(value) if isinstance(value, (list, dict)) else value


def _plain_value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _written(steps: tuple[Step, ...]) -> str:
    parts = [
        f".{step.name}" if isinstance(step, Field) else "[]" for step in steps if isinstance(step, (Field, Current))
    ]
    return "".join(parts).removeprefix(".")
