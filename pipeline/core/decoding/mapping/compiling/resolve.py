"""Resolves the paths of a mapping, by the type of its messages, to getters of their values."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from pipeline.core.decoding.mapping.language import paths
from pipeline.core.decoding.mapping.language.model import JSON, TEXT, Mapping, MappingError
from pipeline.core.decoding.mapping.language.paths import Current, Field, Names, PathError, Star, Step, Together
from pipeline.core.decoding.mapping.values import nodes
from pipeline.core.decoding.mapping.values.conversions import leaf_text, lookup_text_of, order_of
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Entries, Getter, Leaf, Many, Node, Record, Steps
from pipeline.core.events.event import MAX_READINGS
from pipeline.core.events.reasons import BadData, Reason

MAX_ELEMENTS = 100_000
"""A message is refused if ``each`` or a star goes through more elements."""
MAX_WAYS = 1000
"""A path through more members of oneofs is refused, and so is a star that stands for more fields."""
MAX_DEPTH = 100  # of messages that ** goes through
_TOO_MANY_WAYS = f"it leads through more than {MAX_WAYS:,} members of oneofs; name one of them"
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_MAX_LABEL = 1000  # characters; a valid name has fewer

_T = TypeVar("_T")


def too_many_elements(what: str) -> BadData:
    """Returns the problem of a message with too many elements."""
    return BadData(Reason.TOO_MANY_ELEMENTS, f"{what} more than {MAX_ELEMENTS:,} elements of the message")


class _UnboundedError(PathError):
    """Raised for a path or a star that goes through too many types to be followed."""


class Items(NamedTuple):
    """Values that a star stands for: ``get`` returns pairs of a dotted name and a value of the kind of ``node``.

    It returns None if what contains them is not set. ``names`` lead to the values from the message; ``*`` stands for an
    element of a repeated field or an entry of a map. ``whole`` returns all values by name together, where that is
    faster, and is None elsewhere.
    """

    get: Callable[[Any], Iterable[tuple[str, Any]] | None]
    node: Node
    names: Names
    whole: Callable[[Any], dict[str, Any]] | None = None

    def after(self, get: Getter) -> "Items":
        """Returns the same, after the steps that lead to it."""
        return self._replace(get=nodes.composed(get, self.get), whole=self.whole and nodes.composed(get, self.whole))


class _AtStar(NamedTuple):
    """A star on its way through a type.

    Attributes:
        deep: whether it goes through all levels.
        after: the steps that follow it.
        left_out: the fields that it leaves out, by the names that lead there from the message.
        names: the names of the fields that lead here from the message.
        label: the dotted last of these names, since the star or an element began; None where the star begins.
        within: the types of the messages that it went through.
    """

    deep: bool
    after: tuple[Step, ...]
    left_out: frozenset[Names]
    names: Names
    label: str | None = None
    within: tuple[str, ...] = ()

    @property
    def before(self) -> str:
        return f"{self.label}." if self.label else ""

    def into(self, at: "Steps") -> "_AtStar":
        """Returns the star in a value. Raises PathError for a message of a type that it went through already."""
        if not isinstance(at.to, Record):
            return self._replace(names=at.names)
        if len(self.within) >= MAX_DEPTH:
            raise _UnboundedError(f"** goes through more than {MAX_DEPTH} levels of messages; name their fields")
        if at.to.type.full_name in self.within:
            raise _UnboundedError(f"** goes through {at.to}, which contains itself; name its fields")
        return self._replace(names=at.names, within=(*self.within, at.to.type.full_name))


def _whole_map(node: Node, star: _AtStar) -> Callable[[Any], dict[str, Any]] | None:
    """Returns the getter of all entries of a map by name together; None if some are left out or need more steps."""
    if star.label is not None or star.after or star.left_out or not isinstance(node, Entries):
        return None
    if node.key != Leaf("string") or not isinstance(node.value, Leaf) or node.content is not nodes.itself:
        return None
    # A comprehension costs half as much as dict() or items() of a protobuf map.
    # More than an event may have are not needed to refuse them.
    return lambda container: {name: container[name] for name in islice(container, MAX_READINGS + 1)}


def bounded(label: str) -> str:
    """Returns a label, cut if it is longer than any name: a long key would be copied for each value below it."""
    return label if len(label) <= _MAX_LABEL else f"{label[:_MAX_LABEL]}…"


def _contents_of(content: Getter) -> Getter:
    """Returns the getter of what each element of a list stands for."""
    return nodes.itself if content is nodes.itself else lambda items: [content(item) for item in items]


def _each_named(
    pairs: Callable[[Any], Iterable[tuple[str, Any]]], content: Getter, of_item: Items, star: _AtStar
) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Returns the getter of what a star stands for in each element, under the names of the elements."""
    before, names, left_out, items_of = star.before, star.names, star.left_out, of_item.get

    def items(container: Any) -> Iterator[tuple[str, Any]]:
        if len(container) > MAX_ELEMENTS:
            raise too_many_elements("a star stands for")
        for name, value in pairs(container):
            value = None if left_out and (*names, name) in left_out else content(value)
            if value is not None:
                for rest, item in items_of(value) or ():
                    yield bounded(f"{before}{name[:_MAX_LABEL]}.{rest}" if rest else before + name), item

    return items


def _plain_items(star: _AtStar, rest_of: Getter | None) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Returns the getter of what a star and the steps after it stand for in JSON. It raises BadData for too many.

    Below its beginning, the star stands for the value itself if that is neither an array nor an object.
    """
    before, names, left_out, deep = star.before, star.names, star.left_out, star.deep
    deepest = max(map(len, left_out), default=0)

    def items(value: Any) -> Iterator[tuple[str, Any]]:
        if star.label is not None and type(value) not in (dict, list):
            yield before[:-1], value
            return
        visited = 0
        # One entry a level, not one for each array that waits: a message has an array in three bytes.
        todo = [(before, names, _members(value))]
        while todo:
            name, at, members = todo[-1]
            for key, member in members:
                visited += 1
                if visited > MAX_ELEMENTS:
                    raise too_many_elements("a star stands for")
                inner = (*at, str(key)) if len(at) < deepest else at
                if member is None or (inner is not at and inner in left_out):
                    continue
                if type(member) in (dict, list) and deep:
                    todo.append((bounded(f"{name}{key}."), inner, _members(member)))
                    break
                if rest_of:
                    if (end := rest_of(member)) is not None:
                        yield bounded(f"{name}{key}"), end
                elif type(member) not in (dict, list):
                    yield bounded(f"{name}{key}"), member
            else:
                todo.pop()

    return items


def _members(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if type(value) is dict else enumerate(value) if type(value) is list else ())


class Resolver:
    """Resolves paths from the nodes of one message type.

    ``contents`` are the types that bytes, text or an ``Any`` contain, by the names of their path.
    """

    def __init__(self, types: Descriptors, contents: dict[Names, Names]) -> None:
        self.types = types
        self._contents = contents
        # Getters of converted content, by the names that lead there: they keep what they converted last, so paths
        # through the same value share them.
        self._fields_at: dict[Names, tuple[Node, Getter]] = {}
        self._inside: dict[Names, list[tuple[Getter, Node]]] = {}

    def resolve(self, at: Steps, steps: tuple[Step, ...]) -> list[Steps]:
        """Resolves a path without a star. One through a oneof has several ways, of which at most one is set.

        Raises PathError if the type has no such path; the message names the nearest field.
        """
        if not steps:
            return [at]
        return _all_that_follow(self._step(at, steps[0]), lambda middle: self.resolve(middle, steps[1:]))

    def resolve_star(self, start: Steps, steps: tuple[Step, ...], left_out: frozenset[Names]) -> list[Items]:
        """Resolves a path with a star, which leaves out fields by the names that lead there from the message.

        Raises PathError if the type has no such path, or its star goes through a type that contains itself.
        """
        at = next(index for index, step in enumerate(steps) if isinstance(step, Star))
        star = _AtStar(steps[at] == Star(deep=True), steps[at + 1 :], left_out, ())
        items = _all_that_follow(
            self.resolve(start, steps[:at]),
            lambda end: (items.after(end.getter) for items in self._all(end.to, star._replace(names=end.names))),
            f"its star stands for more than {MAX_WAYS:,} fields; name some of them",
        )
        if not items:
            raise PathError("its star stands for nothing")
        return items

    def check_contents(self, root: Node) -> None:
        """Checks that every path under the mapping's ``[types]`` leads to a field, and that the types there exist.

        Nothing else would notice a misspelled path. Raises MappingError, with the nearest name.
        """
        for names in self._contents:
            try:
                self.ends(Steps(root), names)
            except (PathError, MappingError) as error:
                problem = error.problem if isinstance(error, MappingError) else str(error)
                raise MappingError(f"types.{'.'.join(names)}", problem) from None

    def ends(self, at: Steps, names: Names) -> list[Steps]:
        """Returns the ends of names that lead through fields, and through any element of lists. Raises PathError."""
        if not names or isinstance(at.to, Entries):  # in a map, any name may exist
            return [at]
        ends = self._step(replace(at, to=_single(at.to)), Field(names[0]))
        return _all_that_follow(ends, lambda end: self.ends(end, names[1:]))

    def _step(self, at: Steps, step: Step) -> list[Steps]:
        match at.to, step:
            case Record(), Field():
                return self._fields(at, at.to, step.name)
            case nodes.ZipRow() as row, Field():
                return [self._member(at, row, step.name)]
            case Entries() as entries, Field():
                return [at.then(nodes.entry(_key(entries.key, step.name), entries.content), entries.value, step.name)]
            case nodes.KeyAndValue() as entry, Field(name="key"):
                return [at.then(nodes.KEY, entry.key, "key")]
            case nodes.KeyAndValue() as entry, Field(name="value"):
                return [at.then(lambda pair: entry.content(pair[1]), entry.value, "value")]
            case Leaf(kind="json"), Field():
                return self._opened(at.then(nodes.member(step.name), PLAIN, step.name))
            case Many() as many, paths.Index():
                return [at.then(nodes.element(step.position, many.content), many.item)]
            case Leaf(kind="json"), paths.Index():
                return [at.then(nodes.plain_element(step.position), PLAIN)]
            case Many() | Leaf(kind="json"), paths.Extreme():
                return [self._extreme(at, step)]
            case Many() | Leaf(kind="json"), paths.Lookup():
                return [self._lookup(at, step)]
        raise PathError(_no_step(at.to, step))

    def _fields(self, at: Steps, record: Record, name: str) -> list[Steps]:
        if field := record.type.fields_by_name.get(name):
            return self._opened(self._field(at, field))
        if oneof := record.type.oneofs_by_name.get(name):
            return [opened for field in oneof.fields for opened in self._opened(self._field(at, field))]
        fields = [field.name for field in record.type.fields]
        raise PathError(f"{record} has no field {name!r}; {_hint(name, fields, record.type.oneofs_by_name)}")

    @staticmethod
    def _member(at: Steps, row: nodes.ZipRow, name: str) -> Steps:
        members = [member for member, *_ in row.members]
        if name not in members:
            raise PathError(f"zip has no list {name!r}; {_hint(name, members)}")
        to = row.member(name)
        return replace(to, get=nodes.composed(at.get, to.getter))

    def _opened(self, at: Steps) -> list[Steps]:
        """Continues into the content of bytes, text or an ``Any``, if the mapping declares its type."""
        names = at.names
        contents = self._contents.get(tuple(name for name in names if name != "*"))
        if contents is None:
            return [at]
        if names not in self._inside:
            self._inside[names] = list(self._contained(_single(at.to), contents, ".".join(names)))
        return [self._open(at, get, inside) for get, inside in self._inside[names]]

    def _field(self, at: Steps, field: FieldDescriptor) -> Steps:
        names = (*at.names, field.name)
        if names not in self._fields_at:
            self._fields_at[names] = nodes.node_of(field), nodes.content_of(field.message_type)
        return at.field(field, *self._fields_at[names])

    def _contained(self, node: Node, contents: Names, where: str) -> Iterator[tuple[Getter, Node]]:
        """Yields a getter and a node for each type that a value may contain; the getter returns None for another."""
        if contents == (JSON,):
            yield nodes.embedded_json(where), PLAIN
            return
        if contents == (JSON, TEXT):
            if node not in (PLAIN, Leaf("string")):
                raise PathError(f"{where} is {node}; only text can be text that may be JSON")
            yield nodes.embedded_json_or_text(where), PLAIN
            return
        classes = [self.types.message_class(name) for name in contents]
        is_any = isinstance(node, Record) and node.type.full_name == "google.protobuf.Any"
        if not is_any and (len(classes) > 1 or node != Leaf("bytes")):
            raise PathError(f"{where} is {node}; only bytes contain a message, and only an Any one of several types")
        for one in classes:
            yield (nodes.packed if is_any else nodes.embedded)(one, where), Record(one.DESCRIPTOR)

    @staticmethod
    def _open(at: Steps, get: Getter, inside: Node) -> Steps:
        match at.to:
            case Many(content=content):
                return replace(at, to=Many(inside, nodes.composed(content, get)))
            case Entries(key=key, content=content):
                return replace(at, to=Entries(key, inside, nodes.composed(content, get)))
        return at.then(get, inside)

    def _item(self, node: Node) -> tuple[Node, Callable[[Any], Iterable[Any]]]:
        """Returns the node of an element, and what returns the elements of a value of the node."""
        if isinstance(node, Many):
            content = node.content
            return node.item, (lambda items: items) if content is nodes.itself else lambda items: map(content, items)
        return PLAIN, nodes.plain_elements

    def _extreme(self, at: Steps, step: paths.Extreme) -> Steps:
        item, items_of = self._item(at.to)
        value_of = _first(self.resolve(Steps(item, names=at.names), step.path.steps), order_of, str(step.path))
        better = max if step.greatest else min

        def get(items: Any) -> Any:
            known = (
                (value, item) for item in items_of(items) if item is not None and (value := value_of(item)) is not None
            )
            return better(known, key=lambda pair: pair[0], default=(None, None))[1]

        return at.then(get, item)

    def _lookup(self, at: Steps, step: paths.Lookup) -> Steps:
        item, items_of = self._item(at.to)
        ways = self.resolve(Steps(item, names=at.names), step.path.steps)
        text_of, text = _first(ways, lookup_text_of, str(step.path)), step.text

        def get(items: Any) -> Any:
            return next((item for item in items_of(items) if item is not None and text_of(item) == text), None)

        return at.then(get, item)

    def elements(self, start: Steps, steps: tuple[Step, ...]) -> list[Steps]:
        """Resolves the path of a repeated field or a map, without its final ``[]``, to getters of the elements.

        The steps lead to the node of an element. Raises PathError.
        """
        match steps:
            case (Together(lists),):
                return [self._together(start, lists)]
        found = []
        for way in self.resolve(start, steps):
            match way.to:
                case Many(item=item, content=content):
                    found.append(way.then(_contents_of(content), item))
                case Entries() as entries:
                    node = nodes.KeyAndValue(entries.key, entries.value, entries.content)
                    found.append(way.then(nodes.entries, node))
                case Leaf(kind="json"):
                    found.append(way.then(nodes.plain_elements, PLAIN))
        if not found:
            raise PathError("it is not a repeated field")
        return found

    def _together(self, start: Steps, lists: tuple[tuple[Step, ...], ...]) -> Steps:
        """Resolves the lists of ``zip`` to the getter of their rows."""
        if isinstance(lists[0][-1], Star):
            around = self._only_way(start, lists[0][:-1])
            if around.to == PLAIN:
                return around.then(nodes.rows_of_arrays, PLAIN)
            fields = around.to.type.fields if isinstance(around.to, Record) else ()
            many = [member.name for member in fields if isinstance(nodes.node_of(member), Many)]
            lists = tuple((*lists[0][:-1], Field(name)) for name in many)
            if not lists:
                raise PathError(f"{around.to} has no repeated field")
        names = [step.name for *_, step in lists if isinstance(step, Field)]
        ways = [self._only_way(start, steps) for steps in lists]
        texts = [".".join(step.name for step in steps if isinstance(step, Field)) for steps in lists]
        found = [self._list(way, text) for way, text in zip(ways, texts, strict=True)]
        members = tuple((name, way.to, way.names) for way, name in zip(found, names, strict=True))
        row = start.then(nodes.rows_of(texts, [way.getter for way in found]), nodes.ZipRow(members))
        names_around, *others = {way.names[:-1] for way in ways}
        return replace(row, names=start.names if others else names_around)

    def _only_way(self, start: Steps, steps: tuple[Step, ...]) -> Steps:
        way, *others = self.resolve(Steps(start.to, names=start.names), steps)
        if others:
            raise PathError(f"it leads through {len(others) + 1} members of a oneof; name one of them")
        return way

    @staticmethod
    def _list(way: Steps, name: str) -> Steps:
        """Returns the steps to a list of ``zip``; None is one that is not set, which an empty repeated field is."""
        match way.to:
            case Many(item=item, content=content):
                return way.then(_contents_of(content), item).then(lambda items: items or None, item)
            case Leaf(kind="json"):
                return way.then(nodes.plain_array(name), PLAIN)
        raise PathError(f"{name} is {way.to}, which is not a repeated field")

    def _all(self, node: Node, star: _AtStar) -> Iterator[Items]:
        """Yields the values that a star at a node stands for."""
        if node == PLAIN:
            rest_of = self.resolve(Steps(node, names=star.names), star.after)[0].getter if star.after else None
            yield Items(_plain_items(star, rest_of), PLAIN, star.names)
            return
        if isinstance(node, Record):
            for field in node.type.fields:
                if (*star.names, field.name) not in star.left_out:
                    ways = self._opened(self._field(Steps(node, names=star.names), field))
                    yield from self._of_fields(ways, star._replace(label=star.before + field.name))
            return
        if isinstance(node, nodes.ZipRow):
            for name, _, names in node.members:
                if names not in star.left_out:
                    yield from self._of_fields([node.member(name)], star._replace(label=star.before + name))
            return
        if isinstance(node, Entries):
            key_text = leaf_text(node.key)
            pairs: Callable[[Any], Iterable[tuple[str, Any]]] = lambda container: (  # noqa: E731
                (key_text(key), value) for key, value in nodes.entries(container)
            )
            item = node.value
        elif isinstance(node, Many):
            pairs = lambda items: ((str(index), item) for index, item in enumerate(items))  # noqa: E731
            item = node.item
        else:
            raise PathError(f"a star stands for nothing in {node}")
        for of_item in self._inside_star(Steps(item, names=(*star.names, "*")), star._replace(label="")):
            get = _each_named(pairs, node.content, of_item, star)
            yield Items(get, of_item.node, of_item.names, _whole_map(node, star))

    def _of_fields(self, ways: Iterable[Steps], star: _AtStar) -> Iterator[Items]:
        for at in ways:
            try:
                yield from self._inside_star(at, star)
            except _UnboundedError:
                raise
            except PathError:  # another field of the message may have what follows the star
                continue

    def _inside_star(self, at: Steps, star: _AtStar) -> Iterator[Items]:
        """Yields what a field, an element of a repeated field, or a value of a map, contributes to a star."""
        label = star.label or ""
        if star.after:
            for end in self.resolve(at, star.after):
                yield Items(lambda found: ((label, found),), end.to, end.names).after(end.getter)
        elif isinstance(at.to, Leaf) and not (star.deep and at.to == PLAIN):
            yield Items(lambda found: ((label, found),), at.to, at.names).after(at.getter)
        elif star.deep:
            yield from (items.after(at.getter) for items in self._all(at.to, star.into(at)))


def _all_that_follow(
    starts: Iterable[Steps], follow: Callable[[Steps], Iterable[_T]], too_many: str = _TOO_MANY_WAYS
) -> list[_T]:
    """Returns what follows any of the starts. Raises the first PathError if nothing does.

    Where one member of a oneof, or one type in an ``Any``, has nothing that follows, another one may have it.
    """
    found: list[_T] = []
    problem = None
    for start in starts:
        try:
            found += list(islice(follow(start), MAX_WAYS + 1))
        except _UnboundedError:
            raise
        except PathError as error:
            problem = problem or error
        if len(found) > MAX_WAYS:
            raise _UnboundedError(too_many)
    if problem and not found:
        raise problem
    return found


def _single(node: Node) -> Node:
    return node.item if isinstance(node, Many) else node.value if isinstance(node, Entries) else node


def _first(ways: list[Steps], converter: Callable[[Node, str], Getter], path: str) -> Getter:
    """Returns the getter of the first value that is set, converted by what suits its node."""
    return nodes.first_set([nodes.composed(way.getter, converter(way.to, path)) for way in ways])


def _key(kind: Leaf, name: str) -> Any:
    if kind.kind == "string":
        return name
    if kind.kind == "bool" and name in ("true", "false"):
        return name == "true"
    if kind.kind == "int" and _INTEGER.fullmatch(name) and kind.has(int(name)):
        return int(name)
    raise PathError(f"{name!r} is not a key of a map whose keys are {kind}")


def _hint(name: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    near = difflib.get_close_matches(name, [*names, *others], n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(names) or 'none'}"


def _no_step(node: Node, step: Step) -> str:
    match step:
        case Field(name=name):
            if isinstance(node, Many):
                return f"{name!r} follows a repeated field; name one of its elements, like [0] or [max rssi]"
            return f"{name!r} follows {node}, which has no fields"
        case Current():
            return "[] stands for the current element of a repeated field in each, and each has no such path"
        case _:
            return f"a selector in brackets follows {node}, which is not a repeated field"


class Branch(NamedTuple):
    """One way through the levels: each with its node and the names of the fields that lead there, the message first.

    ``elements`` are the getters of each lower level's elements, from an element of the level above. ``path`` is the
    path as written; empty without ``each``.
    """

    levels: list[Steps]
    elements: list[Getter]
    path: tuple[Step, ...]

    def level_of(self, path: paths.Path) -> tuple[int, tuple[Step, ...]]:
        """Returns the level at which a path is read, and its steps from there. Raises PathError."""
        if path.root is paths.Root.ELEMENT:
            return len(self.levels) - 1, path.steps
        at = max((index for index, step in enumerate(path.steps) if isinstance(step, Current)), default=-1) + 1
        if path.steps[:at] != self.path[:at]:
            raise PathError("it has [] after a field that each does not go through")
        return sum(isinstance(step, Current) for step in path.steps[:at]), path.steps[at:]


def branches_of(mapping: Mapping, resolver: Resolver, root: Node) -> Iterator[Branch]:
    """Yields the ways through the levels: one without ``each``, and several if a path in it goes through a oneof.

    Raises MappingError.
    """
    if not mapping.has_elements:
        yield Branch([Steps(root)], [], ())
    ways = [("each", f"{path}: ", path.steps) for path in mapping.each]
    if mapping.zip:
        levels, _ = mapping.zip[0].of_last_level
        lists = Together(tuple(path.of_last_level[1] for path in mapping.zip))
        ways.append(("zip", "", (*levels, lists, Current())))
    for key, where, steps in ways:
        branches, segment = [Branch([Steps(root)], [], steps)], tuple[Step, ...]()
        try:
            for step in steps:
                if isinstance(step, Current):
                    branches = [longer for branch in branches for longer in _longer(branch, segment, resolver)]
                    segment = ()
                else:
                    segment += (step,)
        except PathError as error:
            raise MappingError(key, f"{where}{error}") from None
        yield from branches


def _longer(branch: Branch, segment: tuple[Step, ...], resolver: Resolver) -> Iterator[Branch]:
    for way in resolver.elements(branch.levels[-1], segment):
        level = Steps(way.to, names=way.names)
        yield branch._replace(levels=[*branch.levels, level], elements=[*branch.elements, way.getter])
