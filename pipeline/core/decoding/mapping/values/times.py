"""Turns the values of messages into times, and these into event times.

What is unusual is looked for only in a text that does not fit: the end of a day as 24:00, a leap second, small letters.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from pipeline.core.decoding.mapping.language.model import DAY_US, UNITS, MappingError, Source
from pipeline.core.decoding.mapping.values.conversions import decimal_in, kind_of, timestamp_us, without_nulls
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node
from pipeline.core.events.dead_letter import published_at
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.durations import format_interval
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import format_time, from_datetime, shown_time, to_datetime

NO_TIME = frozenset({Reason.INVALID_EVENT_TIME, Reason.EVENT_TIME_TOO_EARLY})
"""The reasons for which the next time of a list counts."""

_FLOOR = Context(prec=60, rounding=ROUND_FLOOR)
_MAX_TIME_DIGITS = 30  # before the decimal point
_MAX_UNUSUAL = 200  # characters of a text that is tried in other ways
_MAX_TRIES = 4  # a message may be full of texts that fit in no way
_UNUSUAL = re.compile("24|60")


class FinalProblem(BadData):
    """Raised for a time that no other time of a list replaces: the mapping can decide it, or elements would collide."""


def time_of(key: str, node: Node, source: Source) -> Getter:
    """Returns the function that turns a value of a node into microseconds since the epoch.

    It returns None for a value that counts as not set, which a number of 0 does. It raises BadData. Raises MappingError
    if a value of this node is never a time, or is a number without a unit.
    """
    unit, interval = source.unit, source.interval
    kinds = ("string", "json") if interval else ("int", "double", "float", "string", "json")
    if isinstance(node, Leaf) and node.kind == "timestamp" and not interval:
        return timestamp_us
    if not isinstance(node, Leaf) or node.kind not in kinds:
        what = "an interval is text" if interval else "a time is a Timestamp, a number or text"
        raise MappingError(key, f"{what}, not {node}")
    has_digits = node.kind == "int" and source.format is not None  # such as 20260217
    if unit is None and node.kind not in ("string", "json") and not has_digits:
        raise MappingError(key, f'a time that is {node} needs a unit, like {{ path = …, unit = "ms" }}')
    per_unit = UNITS[unit] if unit else None
    from_text, from_count = _text_time(key, source), _count_time(key, source)

    def get(value: Any) -> int | None:
        kind = type(value)
        if kind is datetime:
            return from_datetime(value)
        if kind is int and source.format:
            value, kind = str(value) if value else "", str
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
        if from_count is not None and number:
            return from_count(number)
        return int(_FLOOR.multiply(number, per_unit).to_integral_value(ROUND_FLOOR)) or None

    def get_beginning(value: Any) -> int | None:
        if type(value) is not str:
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {kind_of(value)}, not the text of an interval")
        beginning, mark, _ = value.partition(interval)
        if not mark and value.strip():
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(value)}, an interval without {interval!r}")
        return get(beginning)

    return without_nulls(get_beginning if interval else get, source, node)


def _count_time(key: str, source: Source) -> Callable[[Decimal], int] | None:
    """Returns the function for numbers of days or with another epoch; None if there are none.

    A double holds a day number of today to a microsecond, and programs write fewer digits: it is rounded to a
    millisecond.
    """
    epoch, unit = source.epoch, source.unit
    if unit is None or (epoch is None and unit != "d"):
        return None
    per_unit = UNITS[unit]
    since_us = from_datetime(epoch) if epoch else 0
    zone = ZoneInfo(source.time_zone) if source.time_zone and epoch and epoch.tzinfo is None else None

    def time_since(number: Decimal) -> int:
        if unit == "d":
            time_us = int((number * (per_unit / 1000)).to_integral_value(ROUND_HALF_EVEN)) * 1000
        else:
            time_us = int(_FLOOR.multiply(number, per_unit).to_integral_value(ROUND_FLOOR))
        time_us += since_us
        if zone is None:
            return time_us
        what = f"{key} is {shown(str(number))}"
        try:
            local = to_datetime(time_us).replace(tzinfo=None)
        except OverflowError:
            raise BadData(Reason.INVALID_EVENT_TIME, f"{what}, which no calendar has") from None
        return from_datetime(_in_zone(local, zone, source, what))

    return time_since


def span_of(key: str, node: Node, unit: str | None) -> Getter:
    """Returns the function that turns a value of a node into microseconds. It raises BadData.

    Raises MappingError if a value of this node is never a span, or is a number without a unit.
    """
    if not isinstance(node, Leaf) or node.kind not in ("duration", "int", "double", "float", "string", "json"):
        raise MappingError(key, f"a span is a Duration or a number, not {node}")
    if node.kind == "duration":
        return lambda value: value.seconds * 1_000_000 + Decimal(value.nanos) / 1000
    if unit is None:
        raise MappingError(key, f'a span that is {node} needs a unit, like {{ path = …, unit = "ms" }}')

    def get(value: Any) -> Decimal | None:
        if type(value) not in (int, float, str):
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {kind_of(value)}, not a number of {unit}")
        text = value.strip() if type(value) is str else repr(value)
        if not text:
            return None
        number = decimal_in(text)
        if number is None or number.adjusted() > _MAX_TIME_DIGITS:
            raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(str(value))}, not a number of {unit}")
        return number * UNITS[unit]

    return get


def _text_time(key: str, source: Source) -> Callable[[str], int]:
    zone = ZoneInfo(source.time_zone) if source.time_zone else None
    time_format = source.format
    expected = time_format or "an ISO 8601 time, like 2026-02-17T10:30:00Z"

    def read(text: str) -> datetime:
        return datetime.strptime(text, time_format) if time_format else datetime.fromisoformat(text)

    def parse(text: str) -> int:
        text = text.strip()
        try:
            local, is_leap = read(text), False
        except ValueError:
            unusual = unusual_time(read, text)
            if unusual is None:
                raise BadData(Reason.INVALID_EVENT_TIME, f"{key} is {shown(text)}, which is not {expected}") from None
            local, is_leap = unusual
        if local.tzinfo is None and zone is not None:
            local = _in_zone(local, zone, source, f"{key} is {shown(text)}")
        time_us = from_datetime(local)
        if is_leap and (time_us + 1) % DAY_US:
            problem = f"{key} is {shown(text)}, but a leap second ends a day of UTC"
            raise BadData(Reason.INVALID_EVENT_TIME, problem)
        return time_us

    return parse


def unusual_time(read: Callable[[str], datetime], text: str) -> tuple[datetime, bool] | None:
    """Returns the time in a text that does not fit as it is, and whether it is a leap second; None if it is not a time.

    24:00 is 0:00 of the next day. A leap second, 60, is the last microsecond before the next minute.
    """
    if len(text) > _MAX_UNUSUAL:
        return None
    text = text.replace("t", "T").replace("z", "Z")
    if usual := _read(read, text):
        return usual, False
    for match in islice(_UNUSUAL.finditer(text), _MAX_TRIES):
        # Which number is the hour, or the seconds, shows the time with another one in its place.
        numbers = ("00", "01") if match[0] == "24" else ("59", "58")
        start, end = text[: match.start()], text[match.end() :]
        if not (usual := _read(read, start + numbers[0] + end)) or not (other := _read(read, start + numbers[1] + end)):
            continue
        if match[0] == "24" and usual.time() == time() and other.hour == 1:
            return (usual + timedelta(days=1), False) if usual.date() < date.max else None
        if match[0] == "60" and (usual.second, other.second) == (59, 58):
            return usual.replace(microsecond=999_999), True
    return None


def _read(read: Callable[[str], datetime], text: str) -> datetime | None:
    try:
        return read(text)
    except ValueError:
        return None


def _in_zone(local: datetime, zone: ZoneInfo, source: Source, what: str) -> datetime:
    """Returns a local time of a zone. Raises FinalProblem if clocks skip it, or show it twice and no rule decides."""
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
    raise FinalProblem(Reason.INVALID_EVENT_TIME, f"{what}, {problem}")


def publish_time_us(message: Message) -> int | None:
    """Returns when a message was published first, in microseconds since the epoch: a replay must not change it."""
    published = published_at(message)
    return None if published is None else from_datetime(published)


def settler(key: str, source: Source) -> Callable[[int, Message], int] | None:
    """Returns the function that turns a stamp, as a source reads it, into the event time of a message.

    It takes a stamp at the end of an interval back to its beginning, and raises BadData for a time that the mapping
    does not believe. Returns None if the source declares nothing of that.
    """
    if not (source.length or source.valid_from or source.max_age):
        return None
    length_us, max_age_us = (span // timedelta.resolution if span else 0 for span in (source.length, source.max_age))
    valid_from_us = from_datetime(source.valid_from) if source.valid_from else None
    zone = ZoneInfo(source.time_zone) if source.time_zone and not length_us % DAY_US else None

    def settle(time_us: int, message: Message) -> int:
        if length_us:
            time_us = _before(time_us, length_us, zone)
        if valid_from_us is not None and time_us < valid_from_us:
            problem = f"before its valid_from, {format_time(valid_from_us)}"
        elif max_age_us and (sent_us := publish_time_us(message)) is not None and time_us < sent_us - max_age_us:
            problem = f"more than its max_age of {format_interval(max_age_us)} before the publish time"
        else:
            return time_us
        raise BadData(Reason.EVENT_TIME_TOO_EARLY, f"{key} is {shown_time(time_us)}, {problem}")

    return settle


def _before(time_us: int, length_us: int, zone: ZoneInfo | None) -> int:
    """Returns the time before a length; of whole days, by the clocks of a zone, whose days differ in length."""
    if zone is not None:
        try:
            local = to_datetime(time_us).astimezone(zone).replace(tzinfo=None, fold=0)
            return from_datetime((local - timedelta(microseconds=length_us)).replace(tzinfo=zone))
        except OverflowError:  # no event has such a time
            pass
    return time_us - length_us
