"""Writers of readings and metadata: each puts the values of one entry of a mapping into an event."""

from collections.abc import Callable, Iterable, Sized
from typing import Any

from pipeline.core.decoding.mapping.compiling.scope import Scope, ScopeGetter
from pipeline.core.decoding.mapping.language.model import MappingEntry
from pipeline.core.decoding.mapping.values.nodes import Getter
from pipeline.core.decoding.mapping.values.texts import Inexact
from pipeline.core.events.event import MAX_NAME, MAX_READINGS
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
            _put(metadata, name, inexact.text, is_reading=False)

    return write_or_keep


def _collision(name: str) -> BadData:
    return BadData(Reason.NAME_COLLISION, f"{shown(name)} is mapped twice in one event")


def _put(into: dict[str, Any], name: str, value: Any, *, is_reading: bool) -> None:
    if len(name) > MAX_NAME:  # now, as each element would copy a long name
        reason = Reason.INVALID_METRIC_NAME if is_reading else Reason.INVALID_METADATA_NAME
        raise BadData(reason, f"the name {shown(name)} has more than {MAX_NAME} characters")
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
        try:
            value = value_of(scope)
        except Inexact as inexact:
            value = inexact
        if value is None:
            return
        if name is None:
            raise BadData(Reason.MISSING_FIELD, f"{key}.name is not set, so a value has no name")
        _put_converted(name, value, readings, metadata, is_reading=is_reading, keeps_inexact=keeps_inexact)

    return write


def _put_converted(
    name: str,
    value: Any,
    readings: dict[str, Any],
    metadata: dict[str, str],
    *,
    is_reading: bool,
    keeps_inexact: bool,
) -> None:
    """Puts a value into an event, or raises it if it is a problem. An inexact integer becomes metadata if so chosen."""
    if isinstance(value, Inexact) and keeps_inexact:
        is_reading, value = False, value.text
    elif isinstance(value, BadData):
        raise value.with_traceback(None)
    _put(readings if is_reading else metadata, name, value, is_reading=is_reading)


def whole(values_of: ScopeGetter, *, is_reading: bool) -> Writer:
    """Returns the writer of a map whose entries are readings or metadata as they are."""

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        values = values_of(scope)
        if not values:
            return
        into = readings if is_reading else metadata
        if into:
            for name, value in values.items():
                _put(into, name, value, is_reading=is_reading)
        else:
            into.update(values)
        _check_size(into, is_reading)

    return write


def _check_size(into: Sized, is_reading: bool) -> None:
    # This bounds memory. How many a valid event may have is checked later.
    if len(into) > MAX_READINGS:
        reason = Reason.TOO_MANY_READINGS if is_reading else Reason.TOO_MUCH_METADATA
        raise BadData(reason, f"a star stands for more than {MAX_READINGS:,} values")


def taken(
    items_of: Callable[[Any], Iterable[tuple[str, Any]]],
    convert: Getter,
    name_of: Callable[[str], str | None],
    *,
    is_reading: bool,
) -> Callable[[Any], list[tuple[str, str, Any]]]:
    """Returns the getter of what a star takes: a label, a name, and a value or its problem, for each.

    It raises BadData for more values than an event may have.

    Args:
        items_of: yields labels and values.
        convert: converts a value; returns None for one that the star leaves out.
        name_of: returns the name for a label; None if it is left out.
        is_reading: whether the values are readings, not metadata.
    """

    def take(container: Any) -> list[tuple[str, str, Any]]:
        found: list[tuple[str, str, Any]] = []
        for label, raw in items_of(container):
            name = name_of(label)
            if name is None:
                continue
            try:
                value = convert(raw)
            except BadData as problem:  # it does not count if an earlier source has the label
                value = problem
            if value is not None:
                found.append((label, name, value))
                _check_size(found, is_reading)
        return found

    return take


def starred(sources: list[list[ScopeGetter]], *, is_reading: bool, keeps_inexact: bool) -> Writer:
    """Returns the writer of an entry with a star. If it has several sources, each name takes the first that has it.

    Args:
        sources: getters of each source, of what :func:`taken` returns.
        is_reading: whether it writes readings, not metadata.
        keeps_inexact: whether integers that a double can't hold become metadata.
    """

    def write(scope: Scope, readings: dict[str, Any], metadata: dict[str, str]) -> None:
        earlier: set[str] = set()
        for fields in sources:
            found = [one for taken_of in fields for one in taken_of(scope) or () if one[0] not in earlier]
            for _, name, value in found:
                _put_converted(name, value, readings, metadata, is_reading=is_reading, keeps_inexact=keeps_inexact)
            _check_size(readings if is_reading else metadata, is_reading)
            earlier.update(label for label, _, _ in found)

    return write
