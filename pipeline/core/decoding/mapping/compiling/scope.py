"""Getters of what a mapping reads, from the scope: the message, its content, and the current element of each level."""

from collections.abc import Callable
from typing import Any

from pipeline.core.decoding.mapping.values.nodes import Getter
from pipeline.core.events.dead_letter import dead_letter_name, published_at
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import format_time, from_datetime

Scope = list[Any]
"""The message as Pub/Sub delivered it, what its payload contains, and the current element of each level below."""
MAX_ELEMENTS = 100_000
"""A message is refused if ``each`` or a star goes through more elements."""

ENVELOPE, ROOT = 0, 1
"""The depths of the first two in a scope."""

ScopeGetter = Callable[[Scope], Any]


def too_many_elements(what: str) -> BadData:
    """Returns the problem of a message with too many elements."""
    return BadData(Reason.TOO_MANY_ELEMENTS, f"{what} more than {MAX_ELEMENTS:,} elements of the message")


def at_depth(depth: int, get: Getter) -> ScopeGetter:
    """Returns a getter of what is at a depth of the scope."""
    return lambda scope: get(scope[depth])


def once_at(depth: int, get: Getter) -> ScopeGetter:
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


def negated(holds: ScopeGetter) -> ScopeGetter:
    """Returns the opposite of a condition."""
    return lambda scope: not holds(scope)


def conditional(get: ScopeGetter, conditions: list[ScopeGetter]) -> ScopeGetter:
    """Returns a getter whose value is not set unless all conditions hold."""
    if not conditions:
        return get
    return lambda scope: get(scope) if all(holds(scope) for holds in conditions) else None


def first_set(found: list[ScopeGetter]) -> ScopeGetter:
    """Returns a getter of the first value that is set."""
    if len(found) == 1:
        return found[0]

    def get(scope: Scope) -> Any:
        for one in found:
            value = one(scope)
            if value is not None:
                return value
        return None

    return get


def attribute(name: str) -> Getter:
    """Returns a getter of an attribute, also of a replayed message, which may have it under another name."""
    renamed = dead_letter_name(name)
    if renamed == name:
        return lambda message: message.attributes.get(name)
    return lambda message: message.attributes.get(name, message.attributes.get(renamed))


def envelope(name: str) -> Getter:
    """Returns a getter of what Pub/Sub adds to a message, as text."""
    if name == "publish_time":
        return lambda message: format_time(time_us) if (time_us := publish_time(message)) is not None else None
    return lambda message: getattr(message, name) or None


def publish_time(message: Message) -> int | None:
    """Returns when a message was published first, in microseconds since the epoch: a replay must not change it."""
    published = published_at(message)
    return None if published is None else from_datetime(published)
