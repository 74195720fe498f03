"""Compiles a mapping against the type of its messages, and makes events of messages with it.

A mapping without ``each`` has one level: the message. With ``each``, every ``[]`` of its path adds a level of elements.
A path without ``[]`` is read once for each message, one with a single ``[]`` once for each of those elements, and so
on.
"""

from collections import Counter
from typing import Any

from google.protobuf import json_format

from pipeline.core.decoding.mapping.compiling.branches import Branch, branches_of
from pipeline.core.decoding.mapping.compiling.compiler import Compiler
from pipeline.core.decoding.mapping.compiling.contents import check_contents
from pipeline.core.decoding.mapping.compiling.execution import EventCollector, MappedEvents
from pipeline.core.decoding.mapping.compiling.resolve import Resolver
from pipeline.core.decoding.mapping.compiling.scope import Scope, ScopeGetter
from pipeline.core.decoding.mapping.language.model import JSON, Mapping, MappingError
from pipeline.core.decoding.mapping.language.paths import Names, Path, Root
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import Node, Plain, Record
from pipeline.core.decoding.mapping.values.plain import parse_plain
from pipeline.core.events.message import Message, encoding_of
from pipeline.core.events.reasons import BadData, Reason


class Mapper:
    """A mapping, compiled against the type of its messages.

    Attributes:
        uses: the values that are read from messages.
        branches: the ways through the levels.
        problems: the errors of paths that the type does not have.

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
        self.message_class = None if mapping.message == JSON else types.message_class(mapping.message)
        root: Node = Record(self.message_class.DESCRIPTOR) if self.message_class else Plain()
        if strict and self.message_class:
            check_contents(mapping.types, self.message_class.DESCRIPTOR, types)
        resolver = Resolver(types, mapping.types)
        self.branches = list(branches_of(mapping, resolver, root))
        matcher = Compiler(mapping, resolver, Branch([root], [], ()), ())
        self._match = matcher.conditions_of("match", mapping.match or (), strict=strict)
        compilers = _compiled(mapping, resolver, self.branches)
        self._compiled = [compiler.compiled for compiler in compilers]
        self._through = Counter(prefix for branch in self._compiled for prefix in branch.prefixes)
        self.uses = [use for compiler in (matcher, *compilers) for use in compiler.uses]
        unresolved = matcher.unresolved | _unresolved(compilers)
        self.problems = [MappingError(key, f"{path}: {why}") for (key, path), why in unresolved.items()]
        if self.problems and strict:
            raise self.problems[0]

    def matches(self, scope: Scope) -> bool:
        """Returns whether a message fulfils the conditions of ``match``."""
        return all(holds(scope) for holds in self._match)

    def parse(self, message: Message) -> Any:
        """Returns what the payload contains: a protobuf message, or JSON as Python's values. Raises BadData."""
        if self.message_class is None:
            return parse_plain(message.data, "the message")
        parsed = self.message_class()
        try:
            if encoding_of(message) == "JSON":
                # json_format.Parse would round integers that a field of type double, or a Struct, can't hold.
                exact = self.mapping.inexact_integers != "round"
                document = parse_plain(message.data, "the message", exact=exact)
                json_format.ParseDict(document, parsed, descriptor_pool=self.pool)
            else:
                parsed.ParseFromString(message.data)
        except BadData:
            raise
        except Exception as error:  # json_format.Parse does so too: JSON may have any form
            name = parsed.DESCRIPTOR.full_name
            raise BadData(Reason.UNPARSEABLE, f"not a {name}: {' '.join(str(error).split())}") from error
        return parsed

    def map(self, message: Message, root: Any, *, metadata_alone: bool = False) -> MappedEvents:
        """Makes events of a message.

        Args:
            message: the message as Pub/Sub delivered it.
            root: the content of its payload: a protobuf message, or JSON as Python's values.
            metadata_alone: whether elements make events of their metadata alone.

        Raises:
            BadData: the message as a whole is refused.
        """
        collector = EventCollector(len(message.data), metadata_alone=metadata_alone)
        for branch in self._compiled:
            branch.run(collector, [message, root])
        return collector.result(self.mapping, self._through)


def envelope_conditions(mapping: Mapping) -> tuple[list[ScopeGetter], bool]:
    """Returns the conditions of ``match`` that need no payload, and whether ``match`` has no others."""
    conditions = [one for one in mapping.match or () if one.path.root in (Root.ATTRIBUTE, Root.ENVELOPE)]
    compiler = Compiler(mapping, Resolver(Descriptors(), {}), Branch([Plain()], [], ()), ())
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
