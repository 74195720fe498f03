"""Turns the values of messages into times."""

from collections.abc import Callable
from datetime import datetime
from decimal import ROUND_FLOOR, Context
from typing import Any
from zoneinfo import ZoneInfo

from pipeline.core.decoding.mapping.language.model import UNITS, MappingError, Source
from pipeline.core.decoding.mapping.values.conversions import (
    decimal_in,
    kind_of,
    or_null,
    timestamp_us,
    without_nulls,
)
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import from_datetime, parse_time

_FLOOR = Context(prec=60, rounding=ROUND_FLOOR)
_MAX_TIME_DIGITS = 30  # before the decimal point


def time_of(key: str, node: Node, source: Source) -> Getter:
    """Returns the function that turns a value of a node into microseconds since the epoch.

    It returns None for a value that counts as not set, which a number of 0 does. It raises BadData. Raises MappingError
    if a value of this node is never a time, or is a number without a unit.
    """
    unit = source.unit
    if isinstance(node, Leaf) and node.kind == "timestamp":
        return or_null(timestamp_us, source)
    if not isinstance(node, Leaf) or node.kind not in ("int", "double", "float", "string", "json"):
        raise MappingError(key, f"a time is a Timestamp, a number or text, not {node}")
    if unit is None and node.kind not in ("string", "json"):
        raise MappingError(key, f'a time that is {node} needs a unit, like {{ path = …, unit = "ms" }}')
    per_unit = UNITS[unit] if unit else None
    from_text = _text_time(key, source)

    def get(value: Any) -> int | None:
        kind = type(value)
        if kind is datetime:
            return from_datetime(value)
        if kind is str and per_unit is None:
            return from_text(value) if value.strip() else None
        if kind not in (int, float, str) or per_unit is None:
            problem = "a number, and the mapping gives no unit" if kind in (int, float) else kind_of(value)
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {problem}, not a time")
        text = value.strip() if kind is str else repr(value)
        if not text:
            return None
        number = decimal_in(text)
        # A text of a few characters may stand for a number of a million digits.
        if number is None or number.adjusted() > _MAX_TIME_DIGITS:
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(str(value))}, not a time")
        return int(_FLOOR.multiply(number, per_unit).to_integral_value(ROUND_FLOOR)) or None

    return or_null(without_nulls(get, source, node), source)


def _text_time(key: str, source: Source) -> Callable[[str], int]:
    zone = ZoneInfo(source.time_zone) if source.time_zone else None
    time_format = source.format
    if time_format is None and zone is None:

        def parse(text: str) -> int:
            try:
                return parse_time(text)
            except ValueError as error:
                raise BadData(Reason.INVALID_EVENT_TIME, f"{key}: {error}") from None

        return parse

    def parse_local(text: str) -> int:
        try:
            local = (
                datetime.strptime(text.strip(), time_format) if time_format else datetime.fromisoformat(text.strip())
            )
        except ValueError:
            expected = time_format or "ISO 8601"
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(text)}, which is not {expected}") from None
        if local.tzinfo is None and zone is not None:
            local = _in_zone(local, zone, source, f"{key} is {shown(text)}")
        return from_datetime(local)

    return parse_local


def _in_zone(local: datetime, zone: ZoneInfo, source: Source, what: str) -> datetime:
    """Returns a local time of a zone. Raises BadData if its clocks skip it, or show it twice and no rule decides."""
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    before, after = first.utcoffset(), second.utcoffset()
    if before == after or before is None or after is None:
        return first
    if before < after:
        problem = f"a time that clocks skip in {zone}; a clock that does not change has a time_zone like Etc/GMT-1"
    elif source.ambiguous == "refuse":
        problem = f'a time that clocks show twice in {zone}; ambiguous = "first" or "second" tells which one it is'
    elif source.ambiguous == "order":
        problem = f"a time that clocks show twice in {zone}, and no order of a file, oldest record first, tells which"
    else:
        return second if source.ambiguous == "second" else first
    raise BadData(Reason.INVALID_EVENT_TIME, f"{what}, {problem}")
