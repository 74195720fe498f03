"""Messages under construction: values at places, which the steps of a mapping's paths lead to."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.language.paths import Field, Index, Lookup, Step
from pipeline.core.decoding.mapping.values.nodes import Leaf, Node

_OTHER_KIND = "another path needs a value of another kind there"


class ImpossibleError(Exception):
    """Raised for a value that a message can't be given. ``str()`` is the reason."""


class LeftOutError(ImpossibleError):
    """Raised for a value that messages may lack: another field of its oneof is set, or Pub/Sub adds it."""


class Spot(NamedTuple):
    """A place in a message: steps from an element of a level, or the names of an attribute and its part.

    Attributes:
        rivals: the other fields of the oneof of each step that is such a field.
        inner: the place in an element, and its value there, by which a step selects the element.
    """

    level: int
    steps: tuple[Step, ...]
    node: Node
    rivals: dict[int, set[str]] = {}  # noqa: RUF012 (never changed)
    inner: dict[int, tuple["Spot", Any]] = {}  # noqa: RUF012
    attribute: tuple[str, ...] = ()

    @property
    def at(self) -> tuple[Any, ...]:
        """Its identity: the same for the same place."""
        return self.level, self.steps, self.attribute


class Array(list[Any]):
    """An array that is being filled. Its length is final once a position from its end was taken."""

    is_final = False

    def at(self, position: int) -> int:
        """Returns a position from the beginning, at which there is an element then, perhaps None."""
        missing = (-position if position < 0 else position + 1) - len(self)
        if missing > 0 and self.is_final:
            raise ImpossibleError(f"a list can't have an element [{position}] besides those of other paths")
        self.extend([None] * missing)
        self.is_final = self.is_final or position < 0
        return position % len(self)


class Elements(Array):
    """The elements that ``each`` goes through; with ``is_map``, the entries of a map."""

    is_map = False


class MessageRow:
    """A message with one element of each level.

    Attributes:
        levels: the content of the message, and of an element of each level below, under the key ``""``.
        attributes: the attributes, or parts of them, by their names.
        unset: the places that stay without a value.
    """

    def __init__(self, levels: int) -> None:
        self.levels: list[dict[str, Any]] = [{} for _ in range(levels)]
        self.attributes: dict[tuple[str, ...], str] = {}
        self.unset: set[tuple[Any, ...]] = set()

    def copy(self) -> "MessageRow":
        """Returns a copy, which does not change with the row."""
        return copy.deepcopy(self)

    def put(self, place: Spot, make: Callable[[], Any]) -> Any:
        """Returns the value at a place, made if it has no value yet. Raises ImpossibleError."""
        if place.at in self.unset:
            raise ImpossibleError("a condition needs it unset")
        if place.attribute:
            return self.attributes.setdefault(place.attribute, str(make()))
        container, key = slot(self.levels[place.level], place)
        if value_at(container, key) is None:
            container[key] = make()
        if isinstance(place.node, Leaf) and isinstance(container[key], (dict, Array)):
            raise ImpossibleError(_OTHER_KIND)
        return container[key]


def value_at(container: Any, key: Any) -> Any:
    """Returns the value of a key of an object, or of a position of an array; None without a value."""
    return container.get(key) if isinstance(container, dict) else container[key]


def slot(content: dict[str, Any], place: Spot) -> tuple[Any, Any]:
    """Returns the container of a place, and its key or position there, after making all containers on the way."""
    container: Any = content
    key: Any = ""
    for index, step in enumerate(place.steps):
        kind: Any = dict if isinstance(step, Field) else Array
        if value_at(container, key) is None:
            container[key] = kind()
        container = container[key]  # an object, or an Array
        if not isinstance(container, kind):
            raise ImpossibleError(_OTHER_KIND)
        match step:
            case Field():
                if not place.rivals.get(index, set()).isdisjoint(container):
                    raise LeftOutError("another field of its oneof is set")
                key = step.name
            case Index():
                key = container.at(step.position)
            case _:
                key = _selected(container, *place.inner[index], is_lookup=isinstance(step, Lookup))
    return container, key


def _selected(elements: Array, inner: Spot, value: Any, *, is_lookup: bool) -> int:
    """Returns the position of the element with a value, or of the only one, which has the greatest and the least."""
    for position, element in enumerate(elements):
        if not is_lookup or (element is not None and value_at(*slot({"": element}, inner)) == value):
            return position
    content: dict[str, Any] = {}
    container, key = slot(content, inner)
    if is_lookup:
        container[key] = value
    position = elements.at(len(elements))
    elements[position] = content[""]
    return position
