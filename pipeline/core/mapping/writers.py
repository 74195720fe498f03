"""Writers of readings and metadata: each puts the values of one entry of a mapping into an event."""

from collections.abc import Callable
from typing import Any

from pipeline.core.events import MAX_READINGS, BadData, Reason, shown
from pipeline.core.mapping.nodes import Getter
from pipeline.core.mapping.scope import Scope, ScopeGetter
from pipeline.core.mapping.values import (
    Inexact,
)

Writer = Callable[[Scope, dict[str, Any], dict[str, str]], None]
"""Takes the scope, and the readings and metadata of an event to add to. Raises BadData."""


def fixed(
    key: str, name: str, value_of: ScopeGetter, *, is_reading: bool, required: bool, keeps_inexact: bool
) -> Writer:
    """Returns the writer of an entry under its own name."""

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
) -> Writer:
    """Returns the writer of an entry whose name the message contains."""

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
        if len(into) > MAX_READINGS:
            raise BadData(Reason.TOO_MANY_READINGS, f"the event has more than {MAX_READINGS} values")

    return write


def starred(
    sources: list[tuple[ScopeGetter, Getter]],
    name_of: Callable[[str], str | None],
    *,
    is_reading: bool,
    keeps_inexact: bool,
) -> Writer:
    """Returns the writer of an entry with a star: of several sources, each name takes the first that has it."""

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
