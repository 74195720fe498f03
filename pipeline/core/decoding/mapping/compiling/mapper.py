"""Compiles a mapping against the type of its messages, and makes events of messages with it.

A mapping without ``each`` has one level: the message. With ``each``, every ``[]`` of its path adds a level of elements.
A path without ``[]`` is read once for each message, a path with a single ``[]`` once for each of its elements, and so
on.
"""

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf import json_format

from pipeline.core.decoding.file_names import FILE_ATTRIBUTES
from pipeline.core.decoding.mapping.compiling import execution, resolve
from pipeline.core.decoding.mapping.compiling.execution import ENVELOPE, ROOT, STAR, Destination, Scope, ScopeGetter
from pipeline.core.decoding.mapping.compiling.resolve import MAX_ELEMENTS, Branch, Resolver, bounded
from pipeline.core.decoding.mapping.language import model
from pipeline.core.decoding.mapping.language.model import (
    PLAIN_TYPES,
    Condition,
    Mapping,
    MappingEntry,
    MappingError,
    Source,
    TimeSpan,
    Value,
)
from pipeline.core.decoding.mapping.language.paths import (
    SELECTORS,
    Field,
    Names,
    Path,
    PathError,
    Placeholder,
    Root,
    Star,
    Step,
)
from pipeline.core.decoding.mapping.values import conversions, in_units, nodes, times
from pipeline.core.decoding.mapping.values.conversions import NeverHolds, tester, useless_null
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Getter, Leaf, Node, Record, parse_documents, parse_plain
from pipeline.core.events.compression import unpacked
from pipeline.core.events.dead_letter import dead_letter_name
from pipeline.core.events.event import MAX_METADATA_BYTES, MAX_SENSOR_ID
from pipeline.core.events.message import Message, encoding_of
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.forms import parse_form
from pipeline.core.notation.line_protocol import parse_lines
from pipeline.core.notation.times import format_time

_new = tuple.__new__


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

    @property
    def table(self) -> str:
        """The first part of the key: ``readings`` or ``metadata``, unless it is a field of the event."""
        return self.key.partition(".")[0]


class _OfStar(NamedTuple):
    """The values that a star stands for, read at a depth of the scope if conditions hold, whose depth is ``when``."""

    depth: int
    items: resolve.Items
    convert: Getter
    when: int
    holds: list[ScopeGetter]


class Compiler:
    """Compiles the values of a mapping for one branch.

    ``unresolved`` has the problems of the paths that the branch does not have, by key and path.
    """

    def __init__(self, mapping: Mapping, resolver: Resolver, branch: Branch, named: Iterable[Names]) -> None:
        self._mapping = mapping
        self._resolver = resolver
        self._position = execution.Position()
        if any(source.step for source in mapping.time) and branch.elements:
            *outer, elements = branch.elements
            branch = branch._replace(elements=[*outer, self._position.noting(elements)])
        self._branch = branch
        self._named = frozenset(named)
        self.unresolved: dict[tuple[str, Path], str] = {}
        self.uses: list[Use] = []
        self.compiled = execution.CompiledBranch(branch, execution.written(branch.path))

    def compile(self) -> None:
        mapping, compiled = self._mapping, self.compiled
        choose = compiled.first_plausible if len(mapping.time) > 1 else None
        self._depth_of_time, compiled.time = self._first("time", mapping.time, self._time, choose)
        _, compiled.sensor = self._first("sensor", mapping.sensor, self._text)

        if mapping.event_id:
            _, compiled.event_id = self._first("event_id", mapping.event_id, self._text)
        for condition in mapping.skip_if:
            depth, holds = self._condition("skip_if", condition)
            compiled.at(depth).skips.append(holds)
        for condition in mapping.skip_unless:
            depth, holds = self._condition("skip_unless", condition)
            compiled.at(depth).skips.append(_negated(holds))
        readings = Destination(is_reading=True, keeps_inexact=mapping.inexact_integers == "metadata")
        for entry in mapping.readings:
            self._add(f"readings.{entry.name}", entry, readings)
        for entry in mapping.metadata:
            self._add(f"metadata.{entry.name}", entry, Destination(is_reading=False))

    def conditions_of(self, key: str, conditions: Iterable[Condition], *, strict: bool) -> list[ScopeGetter]:
        """Returns the tests of conditions. Raises MappingError; if strict, also for a path that does not exist."""
        found = [self._condition(key, condition)[1] for condition in conditions]
        for (key, path), problem in self.unresolved.items() if strict else ():
            raise MappingError(key, f"{path}: {problem}")
        return found

    def _add(self, key: str, entry: MappingEntry, destination: Destination) -> None:
        if any(source.path and source.path.has_star for source in entry.value):
            self._add_star(key, entry, destination)
            return
        depth, value_of = self._first(key, entry.value, self._reading if destination.is_reading else self._text)
        if entry.label is not None:
            depth_of_label, label_of = self._first(f"{key}.name", entry.label, self._text)
            depth = max(depth, depth_of_label)
            write = execution.labelled(key, value_of, label_of, self._namer(entry), destination)
        else:
            value_of = execution.required(key, value_of) if entry.required else value_of
            write = execution.fixed(entry.name, value_of, destination)
        self.compiled.at(depth).writers.append(write)

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

    def _add_star(self, key: str, entry: MappingEntry, destination: Destination) -> None:
        by_source = [list(self._of_star(key, source, is_reading=destination.is_reading)) for source in entry.value]
        found = [of_star for of_source in by_source for of_star in of_source]
        if not found:
            return
        depth = max(max(of_star.depth, of_star.when) for of_star in found)
        label_of: ScopeGetter | None = None
        if entry.label:
            starred = tuple(replace(source, template=_marked(source.template or ())) for source in entry.label)
            depth_of_label, label_of = self._first(f"{key}.name", starred, self._text)
            depth = max(depth, depth_of_label)

        def read(of_star: _OfStar, get: Getter) -> ScopeGetter:
            # What is above the elements is gone through once, not once for each of them.
            at = (_at_depth if of_star.depth == depth else _once_at)(of_star.depth, get)
            return _conditional(at, of_star.holds)

        takes_all = entry.name == "*" and not entry.excluded and len(entry.value) == 1 == len(found)
        if takes_all and found[0].convert is nodes.itself and (whole_of := found[0].items.whole):
            write = execution.whole(read(found[0], whole_of), destination)
        else:
            name_of = self._namer(entry if label_of is None else replace(entry, name="*"))
            sources = [
                [read(one, execution.taken(one.items.get, one.convert, name_of, destination)) for one in of_source]
                for of_source in by_source
            ]
            write = execution.starred(sources, destination)
        if label_of is not None:
            write = execution.below(label_of, key, entry.name, write, destination)
        self.compiled.at(depth).writers.append(write)

    def _of_star(self, key: str, source: Source, *, is_reading: bool) -> Iterator["_OfStar"]:
        path = source.path
        if path is None:
            return
        try:
            level, steps = self._branch.level_of(path)
            start = self._branch.levels[level]
            fixed = len(start.names) + sum(isinstance(step, Field) for step in steps)
            left_out = frozenset(named for named in self._named if len(named) > fixed)
            found = self._resolver.resolve_star(start, steps, left_out)
        except PathError as error:
            self.unresolved[key, path] = str(error)
            return
        at = level + ROOT
        when, holds = self._when(f"{key}.when", source.when)
        for items in found:
            if is_reading and source.units:
                convert = in_units.star_text_of(key, items.node, source, self._mapping)
            elif is_reading:
                convert = conversions.star_number_of(key, items.node, source, self._mapping)
            else:
                convert = conversions.star_text_of(key, items.node, source, self._mapping)
            if convert is not None:
                self.uses.append(
                    Use(key, path, items.node, items.names, True, label=_label(items, len(start.names), steps))
                )
                yield _OfStar(at, items, convert, when, holds)

    def _first(
        self, key: str, value: Value, compile_one: Any, choose: Callable[[list[ScopeGetter]], ScopeGetter] | None = None
    ) -> tuple[int, ScopeGetter]:
        """Returns the deepest level that sources read, and the getter of the first one that is set, or is chosen."""
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
                found.append(_conditional(get, holds))
        is_list = len(found) > 1 and key.startswith("readings.")
        return max(depths), (choose or (nodes.first_valid if is_list else nodes.first_set))(found)

    def _reading(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        if source.unit_path:
            return self._in_unit(key, source, source.unit_path)
        if source.units:
            return self._converted(key, source.path, lambda node: in_units.text_of(key, node, source, self._mapping))
        return self._converted(key, source.path, lambda node: conversions.number_of(key, node, source, self._mapping))

    def _in_unit(self, key: str, source: Source, unit_path: Path) -> Iterator[tuple[int, ScopeGetter]]:
        """Compiles a reading whose unit another field names."""
        where = f"{key}.unit_path"
        named = list(self._converted(where, unit_path, lambda node: conversions.text_of(where, node, Source())))
        depth, unit_of = max((at for at, _ in named), default=ROOT), nodes.first_set([get for _, get in named])
        for at, get, node in self._ways(key, source.path):
            convert = in_units.in_unit(key, node, source, self._mapping)
            yield max(at, depth), _paired(self._at(at, get), unit_of, convert)

    def _text(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        if source.constant is not None:
            yield ENVELOPE, lambda _: source.constant
        elif source.template is not None:
            yield self._template(key, source)
        elif source.name_of is not None:
            yield from self._name_of(key, source)
        else:
            yield from self._converted(key, source.path, lambda node: conversions.text_of(key, node, source))

    def _time(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        settle = times.settler(key, source)
        plus_depth, plus = self._span(f"{key}.plus", source.plus) if source.plus else (ROOT, None)
        step_depth, step = self._span(f"{key}.step", source.step) if source.step else (ROOT, None)
        for depth, get in self._stamp(key, source):
            if plus or step:
                get = _moved(get, plus, step, self._position, key)
            yield max(depth, plus_depth, step_depth), _settled(get, settle) if settle else get

    def _span(self, key: str, span: TimeSpan) -> tuple[int, ScopeGetter]:
        """Compiles a span in microseconds."""
        if span.path is None:
            return ROOT, lambda _: span.constant_us
        ways = list(self._converted(key, span.path, lambda node: times.span_of(key, node, span.unit)))
        return max((at for at, _ in ways), default=ROOT), nodes.first_set([get for _, get in ways])

    def _stamp(self, key: str, source: Source) -> Iterator[tuple[int, ScopeGetter]]:
        path = source.path
        if path is not None and path.root is Root.ENVELOPE and path.names == ("publish_time",):
            yield ENVELOPE, lambda scope: times.publish_time_us(scope[ENVELOPE])
        elif source.template is not None:
            depth, text = self._template(key, source)
            yield depth, nodes.composed(text, times.time_of(key, Leaf("string"), source))
        else:
            yield from self._converted(key, path, lambda node: times.time_of(key, node, source))

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
                convert = conversions.formatted(f"{key}: {part.path}", node, part.format, source)
                found.append(self._at(at, nodes.composed(get, convert)))
            parts.append(nodes.first_set(found))

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
            at, ways = self._resolved(key, path, tuple(parents))
            oneofs = [way for way in ways if isinstance(way.to, Record) and last.name in way.to.type.oneofs_by_name]
            for way in oneofs:
                yield at, self._at(at, nodes.composed(way.getter, lambda m: m.WhichOneof(last.name)))
            if oneofs or not ways:
                return
        yield from self._converted(key, path, lambda node: conversions.text_of(key, node, source, name_of=True))

    def _converted(
        self, key: str, path: Path | None, converter: Callable[[Node], Getter]
    ) -> Iterator[tuple[int, ScopeGetter]]:
        ways = list(self._ways(key, path))
        for at, get, node in ways:
            try:
                yield at, self._at(at, nodes.composed(get, converter(node)))
            except MappingError as error:
                if len(ways) == 1:
                    raise
                hint = f"{path} is one of several fields; name those to read"
                raise MappingError(error.key, f"{error.problem}; {hint}") from None

    def _ways(self, key: str, path: Path | None, *, reads: bool = True) -> Iterator[tuple[int, Getter, Node]]:
        """Yields the ways of a path without a star to its value: the level at which it is read, the getter, the node.

        ``reads`` is whether the value itself is read, and not only whether it is set.
        """
        if path is None:
            return
        match path.root:
            case Root.ATTRIBUTE:
                yield ENVELOPE, self._attribute(key, path), Leaf("string")
            case Root.ENVELOPE:
                yield ENVELOPE, _envelope(".".join(path.names)), Leaf("string")
            case _:
                at, ways = self._resolved(key, path, path.steps)
                for way in ways:
                    _, below = self._branch.level_of(path)
                    claims = reads and not any(isinstance(step, SELECTORS) for step in below)
                    self.uses.append(Use(key, path, way.to, way.names, is_claimed=claims))
                    yield at, way.getter, way.to

    def _resolved(self, key: str, path: Path, steps: tuple[Step, ...]) -> tuple[int, list[nodes.Steps]]:
        """Returns the depth at which steps of a path are read, and their ways; no ways for a path that is not there."""
        try:
            level, below = self._branch.level_of(Path(path.root, steps, path.text))
            return level + ROOT, self._resolver.resolve(self._branch.levels[level], below)
        except PathError as error:
            self.unresolved[key, path] = str(error)
            return ROOT, []

    def _attribute(self, key: str, path: Path) -> Getter:
        name, *part = path.names
        read = _attribute(name)
        if not part:
            return read
        (group,) = part
        pattern = self._mapping.attributes.get(name)
        if pattern is None or group not in pattern.groupindex:
            known = f"it has {', '.join(pattern.groupindex)}" if pattern else "declare its parts under [attributes]"
            raise MappingError(key, f"{path}: attribute {name} has no part {group!r}; {known}")

        def get(message: Message) -> str | None:
            found = pattern.fullmatch(read(message) or "")
            return found[group] if found else None

        return get

    def _at(self, depth: int, get: Getter) -> ScopeGetter:
        return (_at_depth if depth == len(self._branch.levels) else _once_at)(depth, get)

    def _when(self, key: str, conditions: Iterable[Condition]) -> tuple[int, list[ScopeGetter]]:
        found = [self._condition(key, condition) for condition in conditions]
        return max((depth for depth, _ in found), default=ROOT), [holds for _, holds in found]

    def _condition(self, key: str, condition: Condition) -> tuple[int, ScopeGetter]:
        if condition.kind == "within":
            return self._depth_of_time, _within(self.compiled.time, *condition.values)
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


def _marked(template: tuple[str | Placeholder, ...]) -> tuple[str | Placeholder, ...]:
    """Returns a text with paths, with ``STAR`` in place of its star."""
    return tuple(part.replace("*", STAR) if isinstance(part, str) else part for part in template)


def _label(items: resolve.Items, level: int, steps: tuple[Step, ...]) -> Names:
    """Returns the names that a star stands for. ``level`` is the number of names that lead to the path's start."""
    at = next(index for index, step in enumerate(steps) if isinstance(step, Star))
    before, after = (sum(isinstance(step, Field) for step in part) for part in (steps[:at], steps[at + 1 :]))
    of_fields = items.names[level + before : len(items.names) - (0 if items.node == PLAIN else after)]
    return (*of_fields, "*") if items.node == PLAIN and of_fields[-1:] != ("*",) else of_fields


class Content(NamedTuple):
    """The documents in a payload, and its size in bytes without compression.

    A document is a protobuf message or Python's values, or a BadData for a wrong line.
    """

    documents: list[Any]
    size: int


class Mapper:
    """A mapping, compiled against the type of its messages.

    Attributes:
        uses: the values that are read from messages.
        branches: the ways through the levels.
        problems: the errors of paths that the type does not have.
        root: the node of the message.
        resolver: the resolver of the type's paths.

    Args:
        mapping: the parsed mapping.
        types: the message types; not needed for JSON.
        strict: whether a path that the type does not have is an error. Otherwise it counts as not set, as in an older
            revision of a schema.

    Raises:
        MappingError: a path does not fit the type, or a value is of a kind that the mapping can't use.
    """

    def __init__(self, mapping: Mapping, types: Descriptors | None = None, *, strict: bool = True) -> None:
        types = types or Descriptors()
        self.mapping = mapping
        self.pool = types.pool
        self.message_class = None if mapping.message in PLAIN_TYPES else types.message_class(mapping.message)
        self.root: Node = Record(self.message_class.DESCRIPTOR) if self.message_class else PLAIN
        self.resolver = resolver = Resolver(types, mapping.types)
        if strict and self.message_class:
            resolver.check_contents(self.root)
        self.branches = list(resolve.branches_of(mapping, resolver, self.root))
        matcher = Compiler(mapping, resolver, Branch([nodes.Steps(self.root)], [], ()), ())
        self._match = matcher.conditions_of("match", mapping.match or (), strict=strict)
        compilers = _compiled(mapping, resolver, self.branches)
        self._compiled = [compiler.compiled for compiler in compilers]
        self._through = Counter(prefix for branch in self._compiled for prefix in branch.prefixes)
        self.uses = [use for compiler in (matcher, *compilers) for use in compiler.uses]
        unresolved = matcher.unresolved | _unresolved(compilers)
        self.problems = [MappingError(key, f"{path}: {why}") for (key, path), why in unresolved.items()]
        if self.problems and strict:
            raise self.problems[0]

    def matches(self, message: Message, content: Content) -> bool:
        """Returns whether all documents of a message fulfil the conditions of ``match``."""
        scopes = [[message, document] for document in content.documents if type(document) is not BadData]
        return bool(scopes) and all(holds(scope) for scope in scopes for holds in self._match)

    def parse(self, message: Message) -> Content:
        """Returns the documents of the payload, without its compression. Raises BadData."""
        data = unpacked(message.data, message.attributes, self.mapping.compression)
        if self.message_class is not None:
            return Content([self._protobuf(self.message_class(), message, data)], len(data))
        if (kind := self.mapping.message) == model.JSON:
            documents = parse_documents(data, "the message", MAX_ELEMENTS + 1)
        else:
            documents = documents_of_text(data, kind)
        if len(documents) > MAX_ELEMENTS:
            raise BadData(Reason.TOO_MANY_ELEMENTS, f"the message has more than {MAX_ELEMENTS:,} documents")
        return _new(Content, (documents, len(data)))  # a third of the time of its own constructor

    def _protobuf(self, parsed: Any, message: Message, data: bytes) -> Any:
        try:
            if encoding_of(message) == "JSON":
                # json_format.Parse would round integers that a field of type double, or a Struct, can't hold.
                exact = self.mapping.inexact_integers != "round"
                document = parse_plain(data, "the message", exact=exact)
                json_format.ParseDict(document, parsed, descriptor_pool=self.pool)
            else:
                parsed.ParseFromString(data)
        except BadData:
            raise
        except Exception as error:  # json_format.Parse does so too: JSON may have any form
            name = parsed.DESCRIPTOR.full_name
            raise BadData(Reason.UNPARSEABLE, f"not a {name}: {' '.join(str(error).split())}") from error
        return parsed

    def map(
        self, message: Message, content: Content, latest_us: int, *, metadata_alone: bool = False
    ) -> execution.MappedEvents:
        """Makes events of a message by the content of its payload, which :meth:`parse` returns.

        Documents are like elements: they make one event if sensor and time are equal, and a document with a problem
        costs no event of the others. Raises BadData if the message as a whole is refused. With ``metadata_alone``,
        elements make events of their metadata alone. A time after ``latest_us`` is replaced by the next of a list.
        """
        documents, size = content
        collector = execution.EventCollector(size, latest_us, metadata_alone=metadata_alone)
        if len(documents) == 1 and type(documents[0]) is not BadData:
            for branch in self._compiled:
                branch.run(collector, [message, documents[0]])
            if self.mapping.has_elements or collector.skipped:
                collector.end_document(self.mapping, self._through)
        else:
            for number, document in enumerate(documents, 1):
                self._add(collector, message, number, document)
        return collector.result(self.mapping)

    def _add(self, collector: execution.EventCollector, message: Message, number: int, document: Any) -> None:
        """Adds the events of one document of several."""
        if type(document) is BadData:
            collector.refuse(document)
            return
        collector.where = f"document {number:,}: "
        try:
            for branch in self._compiled:
                branch.run(collector, [message, document])
        except BadData as problem:
            if problem.reason is Reason.TOO_MANY_ELEMENTS:
                raise
            collector.refuse(problem)
        collector.end_document(self.mapping, self._through)


def documents_of_text(data: bytes, kind: str) -> list[Any]:
    """Returns the fields of a form, or the points of line protocol, a BadData for a wrong line.

    Raises BadData.
    """
    try:
        if kind == model.FORM:
            return [parse_form(data)]
        points = list(islice(parse_lines(data), MAX_ELEMENTS + 1))
    except ValueError as error:
        raise BadData(Reason.UNPARSEABLE, f"the message can't be read as {kind}: {error}") from None
    return [BadData(Reason.UNPARSEABLE, str(point)) if isinstance(point, ValueError) else point for point in points]


def envelope_conditions(mapping: Mapping) -> tuple[list[ScopeGetter], bool]:
    """Returns the conditions of ``match`` that need no payload, and whether ``match`` has no others."""
    conditions = [one for one in mapping.match or () if one.path.root in (Root.ATTRIBUTE, Root.ENVELOPE)]
    compiler = Compiler(mapping, Resolver(Descriptors(), {}), Branch([nodes.Steps(PLAIN)], [], ()), ())
    found = compiler.conditions_of("match", conditions, strict=True)
    return found, len(conditions) == len(mapping.match or ())


def _compiled(mapping: Mapping, resolver: Resolver, branches: list[Branch]) -> list[Compiler]:
    """Compiles a mapping for each branch: twice, since a star leaves out what other entries name."""
    named: frozenset[Names] = frozenset()
    for _ in range(2):
        compilers = [Compiler(mapping, resolver, branch, named) for branch in branches]
        for compiler in compilers:
            compiler.compile()
        uses = [use for compiler in compilers for use in compiler.uses]
        named = frozenset(use.names for use in uses if use.is_claimed and not use.of_star)
    return compilers


def _unresolved(compilers: list[Compiler]) -> dict[tuple[str, Path], str]:
    """Returns the paths that no branch has: a branch may lack what another one has."""
    first, *others = [compiler.unresolved for compiler in compilers]
    return {at: why for at, why in first.items() if all(at in other for other in others)}


def _at_depth(depth: int, get: Getter) -> ScopeGetter:
    return lambda scope: get(scope[depth])


def _once_at(depth: int, get: Getter) -> ScopeGetter:
    """Returns a getter of what is at a depth of the scope, above elements: each of them gets the same result.

    Without it, a search through a long list, or a copy of a long text, is repeated for every element of a message.
    """
    last: list[Any] = [object(), None, None]

    def get_once(scope: Scope) -> Any:
        value = scope[depth]
        if value is not last[0]:
            problem = result = None
            try:
                result = get(value)
            except BadData as error:
                problem = error
            last[:] = value, result, problem
        if last[2] is not None:
            raise last[2].with_traceback(None)
        return last[1]

    return get_once


def _moved(
    get: ScopeGetter, plus: ScopeGetter | None, step: ScopeGetter | None, position: execution.Position, key: str
) -> ScopeGetter:
    """Returns a getter of a time, and a span after it, and of one more step for each element before the current one."""

    def moved(scope: Scope) -> int | None:
        time_us = get(scope)
        if time_us is None:
            return None
        try:
            after_us = (plus(scope) if plus else None) or 0
        except BadData as problem:
            raise times.FinalProblem(problem.reason, problem.detail) from None
        if step and position.at:
            step_us = step(scope)
            if step_us is None:
                raise BadData(Reason.MISSING_EVENT_TIME, f"{key}.step is not set, and the time of an element needs it")
            after_us += position.at * step_us
        return math.floor(time_us + after_us)

    return moved


def _within(time_of: ScopeGetter, first: Any, end: Any) -> ScopeGetter:
    return lambda scope: (time_us := time_of(scope)) is not None and first <= time_us < end


def _paired(value_of: ScopeGetter, unit_of: ScopeGetter, convert: Callable[[Any, str | None], Any]) -> ScopeGetter:
    return lambda scope: None if (value := value_of(scope)) is None else convert(value, unit_of(scope))


def _negated(holds: ScopeGetter) -> ScopeGetter:
    return lambda scope: not holds(scope)


def _conditional(get: ScopeGetter, conditions: list[ScopeGetter]) -> ScopeGetter:
    """Returns a getter whose value is not set unless all conditions hold."""
    if not conditions:
        return get
    return lambda scope: get(scope) if all(holds(scope) for holds in conditions) else None


def _settled(get: ScopeGetter, settle: Callable[[int, Message], int]) -> ScopeGetter:
    return lambda scope: None if (stamp := get(scope)) is None else settle(stamp, scope[ENVELOPE])


def _attribute(name: str) -> Getter:
    """Returns a getter of an attribute, also of a replayed message, which may have it under another name."""
    renamed = dead_letter_name(name)
    if renamed == name:
        return lambda message: message.attributes.get(name)
    return lambda message: message.attributes.get(name, message.attributes.get(renamed))


def _envelope(name: str) -> Getter:
    """Returns a getter of what Pub/Sub adds to a message, or of its file's name, as text."""
    if name in FILE_ATTRIBUTES:
        return lambda message: message.attributes.get(FILE_ATTRIBUTES[name]) or None
    if name == "publish_time":
        return lambda message: format_time(time_us) if (time_us := times.publish_time_us(message)) is not None else None
    return lambda message: getattr(message, name) or None
