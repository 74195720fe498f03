"""Writers of readings and metadata: each puts the values of one entry of a mapping into an event."""

from collections.abc import Callable
from typing import Any

from pipeline.core.decoding.mapping.compiling.scope import Scope, ScopeGetter
from pipeline.core.decoding.mapping.language.model import MappingEntry
from pipeline.core.decoding.mapping.values.nodes import Getter
from pipeline.core.decoding.mapping.values.texts import Inexact
from pipeline.core.events.event import MAX_READINGS
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown

Writer = Callable[[Scope, dict[str, Any], dict[str, str]], None]
"""Takes the scope, and the readings and metadata of an event to add to. Raises BadData."""


def fixed(key: str, entry: MappingEntry, value_of: ScopeGetter, *, is_reading: bool, keeps_inexact: bool) -> Writer:
    """Returns the writer of an entry under its own name."""
    name, required = entry.name, entry.required

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        value = value_of(scope)
        if value is not None:
            into = readings if is_reading else metadata
            if name in into:
                raise _collision(name)
            into[name] = value
        elif required:
            raise BadData(Reason.MISSING_FIELD, f"{key} is required and not set")

    if not keeps_inexact:
        return write

    def write_or_keep(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        try:
            write(scope, readings, metadata)
        except Inexact as inexact:
            _put(metadata, name, inexact.text)

    return write_or_keep


def _collision(name: str) -> BadData:
    return BadData(Reason.NAME_COLLISION, f"{shown(name)} is mapped twice in one event")


def _put(into: dict[str, Any], name: str, value: Any) -> None:
    if name in into:
        raise _collision(name)
    into[name] = value


def labelled(
    key: str,
    value_of: ScopeGetter,
    label_of: ScopeGetter,
    name_of: Callable[[str], str | None],
    *,
    is_reading: bool,
    keeps_inexact: bool,
) -> Writer:
    """Returns the writer of an entry whose name the message contains."""

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        label = label_of(scope)
        name = None if label is None else name_of(label)
        if label is not None and name is None:
            return
        into, value = _converted(value_of, scope, readings if is_reading else metadata, metadata, keeps_inexact)
        if value is None:
            return
        if name is None:
            raise BadData(Reason.MISSING_FIELD, f"{key}.name is not set, so a value has no name")
        _put(into, name, value)

    return write


def _converted(
    convert: Callable[[Any], Any], raw: Any, into: dict[str, Any], metadata: dict[str, str], keeps_inexact: bool
) -> tuple[dict[str, Any], Any]:
    """Returns where a value goes, and the value: an inexact integer goes to the metadata if ``keeps_inexact``."""
    try:
        return into, convert(raw)
    except Inexact as inexact:
        if not keeps_inexact:
            raise
        return metadata, inexact.text


def whole(values_of: ScopeGetter, *, is_reading: bool) -> Writer:
    """Returns the writer of a map whose entries are readings or metadata as they are."""

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        values = values_of(scope)
        if not values:
            return
        into = readings if is_reading else metadata
        if into:
            for name, value in values.items():
                _put(into, name, value)
        else:
            into.update(values)
        _check_size(into, is_reading)

    return write


def _check_size(into: dict[str, Any], is_reading: bool) -> None:
    # This bounds memory. How many a valid event may have is checked later.
    if len(into) > MAX_READINGS:
        reason = Reason.TOO_MANY_READINGS if is_reading else Reason.TOO_MUCH_METADATA
        raise BadData(reason, f"a star stands for more than {MAX_READINGS:,} values")


def starred(
    sources: list[list[tuple[ScopeGetter, Getter]]],
    name_of: Callable[[str], str | None],
    *,
    is_reading: bool,
    keeps_inexact: bool,
) -> Writer:
    """Returns the writer of an entry with a star. If it has several sources, each name takes the first that has it.

    Args:
        sources: each source's getters, which yield labels and values, with the functions that convert the values.
        name_of: returns the name for a label; None if it is left out.
        is_reading: whether it writes readings, not metadata.
        keeps_inexact: whether integers that a double can't hold become metadata.
    """

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        into = readings if is_reading else metadata
        earlier: frozenset[str] = frozenset()
        for fields in sources:
            own = []
            for items_of, convert in fields:
                for label, raw in items_of(scope) or ():
                    name = name_of(label)
                    if name is None or label in earlier:
                        continue
                    into_of_value, value = _converted(convert, raw, into, metadata, keeps_inexact)
                    if value is None:
                        continue
                    _check_size(into, is_reading)
                    own.append(label)
                    _put(into_of_value, name, value)
            earlier = earlier.union(own)

    return write
