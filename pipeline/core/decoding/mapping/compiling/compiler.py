"""Compiles the values of a mapping against the type of its messages."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.compiling import scope as scopes
from pipeline.core.decoding.mapping.compiling.branches import Branch
from pipeline.core.decoding.mapping.compiling.execution import CompiledBranch, written
from pipeline.core.decoding.mapping.compiling.resolve import Resolver
from pipeline.core.decoding.mapping.compiling.scope import ENVELOPE, ROOT, Scope, ScopeGetter, attribute, envelope
from pipeline.core.decoding.mapping.compiling.stars import Items, bounded
from pipeline.core.decoding.mapping.compiling.writers import fixed, labelled, starred, taken, whole
from pipeline.core.decoding.mapping.language.model import Condition, Mapping, MappingEntry, MappingError, Source, Value
from pipeline.core.decoding.mapping.language.paths import (
    Extreme,
    Field,
    Index,
    Lookup,
    Names,
    Path,
    PathError,
    Root,
    Star,
    Step,
)
from pipeline.core.decoding.mapping.values import nodes
from pipeline.core.decoding.mapping.values.conditions import NeverHolds, tester
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node, Plain, Record
from pipeline.core.decoding.mapping.values.nulls import useless_null
from pipeline.core.decoding.mapping.values.numbers import number_of, star_number_of
from pipeline.core.decoding.mapping.values.text_values import formatted, star_text_of, text_of
from pipeline.core.decoding.mapping.values.times import time_of
from pipeline.core.events.event import MAX_METADATA_BYTES, MAX_SENSOR_ID
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason


class Use(NamedTuple):
    """A value that a mapping reads.

    Attributes:
        key: the key of the mapping that reads it.
        path: the path as written.
        node: the node that the path leads to.
        names: the names of the fields that lead there from the message; ``*`` stands for an element or an entry.
        of_star: whether a star leads there.
        is_claimed: whether stars leave it out. They don't if only one element of a repeated field is read, or only
            whether the value is set.
        label: the names that the star stands for; ``*`` stands for names that only messages have.
    """

    key: str
    path: Path
    node: Node
    names: Names
    of_star: bool = False
    is_claimed: bool = True
    label: Names = ()


class _OfStar(NamedTuple):
    """The values that a star stands for, read at a depth of the scope if conditions hold, whose depth is ``when``."""

    depth: int
    items: Items
    convert: Getter
    when: int
    holds: list[ScopeGetter]


class Compiler:
    """Compiles the values of a mapping for one branch.

    Attributes:
        compiled: the compiled branch.
        unresolved: the problems of the paths that the branch does not have, by key and path.
        uses: the values that it reads.
    """

    def __init__(self, mapping: Mapping, resolver: Resolver, branch: Branch, named: Iterable[Names]) -> None:
        self._mapping = mapping
        self._resolver = resolver
        self._branch = branch
        self._named = frozenset(named)
        self.unresolved: dict[tuple[str, Path], str] = {}
        self.uses: list[Use] = []
        self.compiled = CompiledBranch(branch, written(branch.path))

    def compile(self) -> None:
        """Compiles every value of the mapping of the branch. Raises MappingError."""
        mapping, compiled = self._mapping, self.compiled
        _, compiled.sensor = self._text("sensor", mapping.sensor)
        _, compiled.time = self._first("time", mapping.time, self._time)
        if mapping.event_id:
            _, compiled.event_id = self._text("event_id", mapping.event_id)
        for condition in mapping.skip_if:
            depth, holds = self._condition("skip_if", condition)
            compiled.at(depth).skips.append(holds)
        for condition in mapping.skip_unless:
            depth, holds = self._condition("skip_unless", condition)
            compiled.at(depth).skips.append(scopes.negated(holds))
        for entry in mapping.readings:
            self._add(f"readings.{entry.name}", entry, self._reading, is_reading=True)
        for entry in mapping.metadata:
            self._add(f"metadata.{entry.name}", entry, self._metadata, is_reading=False)

    def conditions_of(self, key: str, conditions: Iterable[Condition], *, strict: bool) -> list[ScopeGetter]:
        """Returns the tests of conditions. Raises MappingError; if strict, also for a path that does not exist."""
        found = [self._condition(key, condition)[1] for condition in conditions]
        for (key, path), problem in self.unresolved.items() if strict else ():
            raise MappingError(key, f"{path}: {problem}")
        return found

    def _add(self, key: str, entry: MappingEntry, compile_one: Any, *, is_reading: bool) -> None:
        if "*" in entry.name and entry.label is None:
            self._add_star(key, entry, is_reading=is_reading)
            return
        depth, value_of = self._first(key, entry.value, compile_one)
        if entry.label is not None:
            depth_of_label, label_of = self._text(f"{key}.name", entry.label)
            depth, keeps = max(depth, depth_of_label), is_reading and self._keeps
            write = labelled(key, value_of, label_of, self._namer(entry), is_reading=is_reading, keeps_inexact=keeps)
        else:
            write = fixed(key, entry, value_of, is_reading=is_reading, keeps_inexact=self._keeps)
        self.compiled.at(depth).writers.append(write)

    @property
    def _keeps(self) -> bool:
        return self._mapping.inexact_integers == "metadata"

    def _namer(self, entry: MappingEntry) -> Callable[[str], str | None]:
        """Returns the function that turns what a star stands for into a name; it returns None for what is left out."""
        before, _, after = entry.name.partition("*")
        excluded = [re.compile(fnmatch.translate(glob)) for glob in entry.excluded]

        def name_of(label: str) -> str | None:
            name = bounded(label)  # each element would copy a long one
            if excluded and any(glob.fullmatch(name) for glob in excluded):
                return None
            return f"{before}{name}{after}"

        return name_of

    def _add_star(self, key: str, entry: MappingEntry, *, is_reading: bool) -> None:
        by_source = [list(self._of_star(key, source, is_reading=is_reading)) for source in entry.value]
        found = [of_star for of_source in by_source for of_star in of_source]
        if not found:
            return
        depth = max(max(of_star.depth, of_star.when) for of_star in found)

        def read(of_star: _OfStar, get: Getter) -> ScopeGetter:
            # What is above the elements is gone through once, not once for each of them.
            at = (scopes.at_depth if of_star.depth == depth else scopes.once_at)(of_star.depth, get)
            return scopes.conditional(at, of_star.holds)

        takes_all = entry.name == "*" and not entry.excluded and len(entry.value) == 1 == len(found)
        if takes_all and found[0].convert is nodes.itself and (whole_of := found[0].items.whole):
            write = whole(read(found[0], whole_of), is_reading=is_reading)
        else:
            name_of = self._namer(entry)
            sources = [
                [read(one, taken(one.items.get, one.convert, name_of, is_reading=is_reading)) for one in of_source]
                for of_source in by_source
            ]
            write = starred(sources, is_reading=is_reading, keeps_inexact=self._keeps)
        self.compiled.at(depth).writers.append(write)

    def _of_star(self, key: str, source: Source, *, is_reading: bool) -> Iterator["_OfStar"]:
        path = source.path
        if path is None:
            return
        try:
            level, steps = self._branch.level_of(path)
            names = self._branch.names[level]
            fixed = len(names) + sum(isinstance(step, Field) for step in steps)
            left_out = frozenset(named for named in self._named if len(named) > fixed)
            found = self._resolver.resolve_star(self._branch.levels[level], steps, names, left_out)
        except PathError as error:
            self.unresolved[key, path] = str(error)
            return
        at = level + ROOT
        when, holds = self._when(f"{key}.when", source.when)
        for items in found:
            if is_reading:
                convert = star_number_of(key, items.node, source, self._mapping)
            else:
                convert = star_text_of(key, items.node, source)
            if convert is not None:
                self.uses.append(Use(key, path, items.node, items.names, True, label=_label(items, len(names), steps)))
                yield _OfStar(at, items, convert, when, holds)

    def _first(self, key: str, value: Value, compile_one: Any) -> tuple[int, ScopeGetter]:
        """Returns the deepest level that sources read, and the getter of the first one that is set."""
        depths, found = [ROOT], []
        for source in value:
            read = len(self.uses)
            ways = list(compile_one(key, source))
            problem = useless_null(source, [use.node for use in self.uses[read:] if use.path == source.path])
            if problem and source.path:
                self.unresolved[f"{key}.null", source.path] = problem
            for at, get in ways:
                depth, holds = self._when(f"{key}.when", source.when)
                depths += [at, depth]
                found.append(scopes.conditional(get, holds))
        return max(depths), scopes.first_set(found)

    def _text(self, key: str, value: Value) -> tuple[int, ScopeGetter]:
        return self._first(key, value, self._metadata)

    def _reading(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        ways = list(self._ways(key, source.path))
        for at, get, node in ways:
            try:
                convert = number_of(key, node, source, self._mapping)
            except MappingError as error:
                if len(ways) == 1:
                    raise
                hint = f"{source.path} is one of several fields; name those to read"
                raise MappingError(error.key, f"{error.problem}; {hint}") from None
            yield at, self._at(at, nodes.composed(get, convert))

    def _metadata(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        if source.constant is not None:
            yield ENVELOPE, lambda _: source.constant
        elif source.template is not None:
            yield self._template(key, source)
        elif source.name_of is not None:
            yield from self._name_of(key, source)
        else:
            yield from self._converted(key, source.path, lambda node: text_of(key, node, source))

    def _time(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        path = source.path
        if path is not None and path.root is Root.ENVELOPE and path.names == ("publish_time",):
            yield ENVELOPE, lambda scope: scopes.publish_time(scope[ENVELOPE])
            return
        if source.template is not None:
            depth, text = self._template(key, source)
            convert = time_of(key, Leaf("string"), source)
            yield depth, lambda scope: None if (found := text(scope)) is None else convert(found)
            return
        yield from self._converted(key, path, lambda node: time_of(key, node, source))

    def _template(self, key: str, source: Source) -> tuple[int, ScopeGetter]:
        depths, parts = [ROOT], list[str | ScopeGetter]()
        most = MAX_SENSOR_ID if key == "sensor" else MAX_METADATA_BYTES
        for part in source.template or ():
            if isinstance(part, str):
                parts.append(part)
                continue
            found = []
            for at, get, node in self._ways(key, part.path):
                depths.append(at)
                convert = formatted(f"{key}: {part.path}", node, part.format, source)
                found.append(self._at(at, nodes.composed(get, convert)))
            parts.append(scopes.first_set(found))

        def text(scope: Scope) -> str | None:
            texts = [part if isinstance(part, str) else part(scope) for part in parts]
            if None in texts:
                return None
            # Each element has a text of its own: its length has to be bounded here.
            if sum(map(len, texts)) > most:
                reasons = {"sensor": Reason.INVALID_SENSOR_ID, "time": Reason.INVALID_EVENT_TIME}
                reason = reasons.get(key, Reason.METADATA_TOO_LONG)
                raise BadData(reason, f"{key} has more than {most:,} characters")
            return "".join(texts)

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
                self.unresolved[key, path] = str(error)
                return
            oneofs = [way for way in ways if isinstance(way.node, Record) and last.name in way.node.type.oneofs_by_name]
            if oneofs:
                at = level + ROOT
                for way in oneofs:
                    yield at, self._at(at, nodes.composed(way.get, lambda m: m.WhichOneof(last.name)))
                return
        yield from self._converted(key, path, lambda node: text_of(key, node, source, name_of=True))

    def _converted(
        self, key: str, path: Path | None, converter: Callable[[Node], Getter]
    ) -> Iterator[tuple[int, ScopeGetter]]:
        for at, get, node in self._ways(key, path):
            yield at, self._at(at, nodes.composed(get, converter(node)))

    def _ways(self, key: str, path: Path | None, *, reads: bool = True) -> Iterator[tuple[int, Getter, Node]]:
        """Yields the ways of a path to its value: the level at which it is read, the getter from there, and the node.

        Args:
            key: the key of the mapping.
            path: a path without a star.
            reads: whether the value itself is read, and not only whether it is set.
        """
        if path is None:
            return
        match path.root:
            case Root.ATTRIBUTE:
                yield ENVELOPE, self._attribute(key, path), Leaf("string")
            case Root.ENVELOPE:
                yield ENVELOPE, envelope(path.names[0]), Leaf("string")
            case _:
                try:
                    level, steps = self._branch.level_of(path)
                    ways = self._resolver.resolve(self._branch.levels[level], steps, self._branch.names[level])
                except PathError as error:
                    self.unresolved[key, path] = str(error)
                    return
                for way in ways:
                    claims = reads and not any(isinstance(step, (Index, Extreme, Lookup)) for step in steps)
                    self.uses.append(Use(key, path, way.node, way.names, is_claimed=claims))
                    yield level + ROOT, way.get, way.node

    def _attribute(self, key: str, path: Path) -> Getter:
        name, *part = path.names
        read = attribute(name)
        if not part:
            return read
        pattern = self._mapping.attributes.get(name)
        if pattern is None or part[0] not in pattern.groupindex:
            known = f"it has {', '.join(pattern.groupindex)}" if pattern else "declare its parts under [attributes]"
            raise MappingError(key, f"{path}: attribute {name} has no part {part[0]!r}; {known}")
        group = part[0]

        def get(message: Message) -> str | None:
            found = pattern.fullmatch(read(message) or "")
            return found[group] if found else None

        return get

    def _at(self, depth: int, get: Getter) -> ScopeGetter:
        return (scopes.at_depth if depth == len(self._branch.levels) else scopes.once_at)(depth, get)

    def _when(self, key: str, conditions: Iterable[Condition]) -> tuple[int, list[ScopeGetter]]:
        found = [self._condition(key, condition) for condition in conditions]
        return max((depth for depth, _ in found), default=ROOT), [holds for _, holds in found]

    def _condition(self, key: str, condition: Condition) -> tuple[int, ScopeGetter]:
        depths, tests, never = [ROOT], [], ""
        ways = list(self._ways(key, condition.path, reads=condition.kind != "set"))
        for at, get, node in ways:
            depths.append(at)
            try:
                tests.append(self._at(at, nodes.composed(get, tester(key, condition, node))))
            except NeverHolds as error:
                never = str(error)
        # Below another field, a number is not set if the message around it is absent.
        is_own = len(condition.path.steps) == 1 == len(ways)
        if condition.kind == "set" and is_own and isinstance(node := ways[0][2], Leaf) and node.is_always_set:
            self.unresolved[key, condition.path] = f"it is {node} without presence, which is always set"
        elif never and not tests:  # an error, unless an older revision of the type has another field here
            self.unresolved[key, condition.path] = never

        def holds(scope: Scope) -> bool:
            for test in tests:
                result = test(scope)
                if result is not None:
                    return result
            return condition.kind == "is_not" or (condition.kind == "set" and condition.values == (False,))

        return max(depths), holds


def _label(items: Items, level: int, steps: tuple[Step, ...]) -> Names:
    """Returns the names that a star stands for. ``level`` is the number of names that lead to the path's start."""
    at = next(index for index, step in enumerate(steps) if isinstance(step, Star))
    before, after = (sum(isinstance(step, Field) for step in part) for part in (steps[:at], steps[at + 1 :]))
    of_fields = items.names[level + before : len(items.names) - (0 if isinstance(items.node, Plain) else after)]
    return (*of_fields, "*") if isinstance(items.node, Plain) and of_fields[-1:] != ("*",) else of_fields
