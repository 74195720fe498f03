"""Compiles a mapping against the type of its messages, and makes events of messages with it.

A mapping without ``each`` has one level: the message. With ``each``, every ``[]`` of its path adds a level of elements.
A path without ``[]`` is read once for each message, one with a single ``[]`` once for each of those elements, and so
on.
"""

from collections import Counter
from typing import Any

from pipeline.core.decoding.mapping.branches import Branch, branches_of
from pipeline.core.decoding.mapping.compiler import Compiler
from pipeline.core.decoding.mapping.contents import check_contents
from pipeline.core.decoding.mapping.descriptors import Descriptors
from pipeline.core.decoding.mapping.model import JSON, Mapping, MappingError
from pipeline.core.decoding.mapping.nodes import Node, Plain, Record
from pipeline.core.decoding.mapping.paths import Root
from pipeline.core.decoding.mapping.plan import Mapped, Run
from pipeline.core.decoding.mapping.resolve import Resolver
from pipeline.core.decoding.mapping.scope import Scope, ScopeGetter
from pipeline.core.decoding.mapping.stars import Names
from pipeline.core.events.message import Message


class Mapper:
    """A mapping, compiled against the type of its messages.

    Attributes:
        uses: what is read of the messages.
        branches: the ways through the levels.
        problems: the paths that the type does not have.

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
        if strict and self.message_class:
            check_contents(mapping.types, self.message_class.DESCRIPTOR, types)
        resolver = Resolver(types, mapping.types)
        self.branches = branches = list(branches_of(mapping, resolver, root))
        matcher = Compiler(mapping, resolver, Branch([root], [], ()), ())
        self._match = matcher.conditions_of("match", mapping.match or (), strict=strict)
        self.uses = matcher.uses
        # A star leaves out what other entries name, so those are resolved first.
        uses = [use for branch in branches for use in _compiled(mapping, resolver, branch, frozenset()).uses]
        named = frozenset(use.names for use in uses if use.is_claimed and not use.of_star)
        compilers = [_compiled(mapping, resolver, branch, named) for branch in branches]
        self.uses += [use for compiler in compilers for use in compiler.uses]
        self._plans = [compiler.plan for compiler in compilers]
        self._branches = Counter(prefix for plan in self._plans for prefix in plan.prefixes)
        # A branch may lack what another one has.
        missing = set.intersection(*(set(compiler.unresolved) for compiler in compilers))
        unresolved = matcher.unresolved | {at: why for at, why in compilers[0].unresolved.items() if at in missing}
        self.problems = [MappingError(key, f"{path}: {why}") for (key, path), why in unresolved.items()]
        if self.problems and strict:
            raise self.problems[0]

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
        run = Run()
        for plan in self._plans:
            plan.run(run, [message, root])
        return run.result(self.mapping, self._branches)


def envelope_conditions(mapping: Mapping) -> tuple[list[ScopeGetter], bool]:
    """Returns the conditions of ``match`` on what Pub/Sub adds to a message, and whether there are no others."""
    conditions = [one for one in mapping.match or () if one.path.root in (Root.ATTRIBUTE, Root.ENVELOPE)]
    compiler = Compiler(mapping, Resolver(Descriptors(), {}), Branch([Plain()], [], ()), ())
    found = compiler.conditions_of("match", conditions, strict=True)
    return found, len(conditions) == len(mapping.match or ())


def _compiled(mapping: Mapping, resolver: Resolver, branch: Branch, named: frozenset[Names]) -> Compiler:
    compiler = Compiler(mapping, resolver, branch, named)
    compiler.compile()
    return compiler
