"""The levels of a mapping: the message, and the elements of the repeated fields that ``each`` goes through."""

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.core.decoding.mapping.compiling.resolve import Resolver
from pipeline.core.decoding.mapping.language.model import Mapping, MappingError
from pipeline.core.decoding.mapping.language.paths import Current, Names, Path, PathError, Root, Step
from pipeline.core.decoding.mapping.values.nodes import Getter, Node


class Branch(NamedTuple):
    """One way through the levels.

    Attributes:
        levels: the node of each level, the message first.
        elements: the getter of each lower level's elements, from an element of the level above.
        path: the path as written; empty without ``each``.
        names: the names of the fields that lead to each level.
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


def branches_of(mapping: Mapping, resolver: Resolver, root: Node) -> Iterator[Branch]:
    """Yields the ways through the levels: one without ``each``, and several if a path in it goes through a oneof.

    Raises MappingError.
    """
    if not mapping.each:
        yield Branch([root], [], ())
    for path in mapping.each:
        segments: list[list[Step]] = [[]]
        for step in path.steps:
            if isinstance(step, Current):
                segments.append([])
            else:
                segments[-1].append(step)
        branches = [Branch([root], [], path.steps)]
        try:
            for segment in segments[:-1]:
                branches = [longer for branch in branches for longer in _longer(branch, tuple(segment), resolver)]
        except PathError as error:
            raise MappingError("each", f"{path}: {error}") from None
        if not branches:
            raise MappingError("each", f"{path} is not the path of a repeated field")
        yield from branches


def _longer(branch: Branch, segment: tuple[Step, ...], resolver: Resolver) -> Iterator[Branch]:
    for found in resolver.elements(branch.levels[-1], segment, branch.names[-1]):
        yield branch._replace(
            levels=[*branch.levels, found.node],
            elements=[*branch.elements, found.get],
            names=(*branch.names, found.names),
        )
