"""The metadata of a window's events that roll-ups group by."""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from pipeline.core.notation.documents import parse_json

_WIDE = 1 << 64
_NOTHING = "{}"  # the text of an event that tells no field
_MOST_BEFORE_BYTES = 1 << 14  # of other texts: each pane of the window repeats them
_TEXTS = json.JSONDecoder()


class Member(NamedTuple):
    """The newest event of a window. Two of the same event with the same text are equal, whatever was before.

    Attributes:
        time_us: the event time in µs; a wide one if more than the time identifies the event.
        text: the metadata that roll-ups group by, as :func:`member_text` writes it.
        before: the other texts of the window's events: the groups that the sensor has left. Of very many, the last.
    """

    time_us: int
    text: str
    before: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and self[:2] == other[:2]

    def __hash__(self) -> int:
        return hash(self[:2])

    @property
    def event_time_us(self) -> int:
        """The event time alone."""
        return self.time_us >> 64 or self.time_us


def member_text(fields: tuple[str, ...], metadata: Mapping[str, str]) -> str:
    """Returns the fields as compact JSON, with null for one that the metadata lacks.

    So a text shows which fields it has: another roll-up may need others.

    Args:
        fields: the names of the fields, sorted.
        metadata: the metadata of an event.
    """
    return _text(fields, tuple(map(metadata.get, fields)))


@lru_cache(maxsize=4096)  # sensors of a group have the same text
def member_fields(text: str) -> Mapping[str, str | None]:
    """Returns the fields of what :func:`member_text` wrote. Raises ValueError for another text."""
    fields = parse_json(text)
    if not isinstance(fields, dict) or not all(value is None or isinstance(value, str) for value in fields.values()):
        raise ValueError("the metadata of roll-ups is not an object of texts")
    return fields


def tells(member: Member | None, fields: Collection[str]) -> bool:
    """Returns whether these fields of an event are known: a row may have been written before a roll-up needed them."""
    return not fields or (member is not None and member_fields(member.text).keys() >= set(fields))


def of_fields(member: Member | None, fields: Collection[str]) -> Member | None:
    """Returns an event with only these fields; None if it has none of them."""
    if member is None or not fields:
        return None
    if member_fields(member.text).keys() <= set(fields) and not member.before:
        return member
    text, *before = (_of_fields(each, fields) for each in (member.text, *member.before))
    return None if text == _NOTHING else _after(Member(member.time_us, text), before)


def later(one: Member | None, other: Member | None) -> Member | None:
    """Returns the member of the later event, in whatever order they come.

    Parts of the same event are merged, as its raw row merges them: of two values of a field, it is the second.
    """
    if one is None or other is None:
        return one or other
    newest = _newest(one, other)
    if one.text == other.text and not one.before and not other.before:
        return newest
    older, last = (one, other) if newest is other else (other, one)
    return _after(newest, (*older.before, *last.before, older.text, last.text))


def after(member: Member, earlier: Member) -> Member:
    """Returns a member whose sensor has left the groups of its window's earlier metadata, also of the same event."""
    if member.text == earlier.text and not earlier.before:
        return member
    return _after(member, (*earlier.before, earlier.text, *member.before))


def noted(known: Member | None, members: Iterable[Member]) -> tuple[Member | None, bool, bool]:
    """Returns the newest event; whether a known one has other metadata now; and whether it had another value before.

    Args:
        known: the newest event so far.
        members: more events.
    """
    changed = contradicted = False
    for member in members:
        follows = known is not None and known.time_us < member.time_us < _WIDE and not member.before
        if known is not None and follows and known.text == member.text:  # nearly always
            known = Member(member.time_us, member.text, known.before) if known.before else member
            continue
        whole = later(known, member)
        if known is not None and known.time_us == member.time_us and known != whole:
            changed, contradicted = True, contradicted or contradict(known, member)
        known = whole
    return known, changed, contradicted


def contradict(one: Member | None, other: Member | None) -> bool:
    """Returns whether the same event has two values of a field."""
    if one is None or other is None or one.time_us != other.time_us or one.text == other.text:
        return False
    first, second = member_fields(one.text), member_fields(other.text)
    return any(None is not value != second.get(name) is not None for name, value in first.items())


def member_bytes(member: Member) -> bytes:
    """Serializes a member as a JSON array: the time, the text, and the texts before."""
    return f"[{member.time_us},{','.join((member.text, *member.before))}]".encode()


def member_of(data: bytes) -> Member:
    """Returns the member that :func:`member_bytes` wrote, in bytes that nobody else writes: they are not checked."""
    time, _, rest = data.decode()[1:-1].partition(",")
    if rest.count("{") == 1:
        return Member(int(time), rest)
    texts, begin = list[str](), 0
    while begin < len(rest):
        _, end = _TEXTS.raw_decode(rest, begin)
        texts.append(rest[begin:end])
        begin = end + 1
    return Member(int(time), texts[0], tuple(texts[1:]))


def parse_member(data: bytes) -> Member:
    """Parses what :func:`member_bytes` wrote. Raises ValueError for other bytes."""
    try:
        member = member_of(data)
    except (IndexError, RecursionError) as error:
        raise ValueError("it is not the newest event of a window") from error
    for text in (member.text, *member.before):
        member_fields(text)
    if member_bytes(member) != data:
        raise ValueError("it is not the newest event of a window")
    return member


def _newest(one: Member, other: Member) -> Member:
    """Returns the newest event; which texts before it has is undefined."""
    if one.time_us != other.time_us:
        if one.time_us < _WIDE and other.time_us < _WIDE:
            return one if one.time_us > other.time_us else other
        return max(one, other, key=_order)
    if one.text == other.text:
        return other
    first, second = member_fields(one.text), member_fields(other.text)
    named = {name: value for name, value in second.items() if value is not None}
    merged = sorted({**second, **first, **named}.items())
    return Member(other.time_us, _text(*zip(*merged, strict=True)))


def _after(member: Member, texts: Iterable[str]) -> Member:
    """Returns a member after events with these texts, in order: each once, and not its own."""
    found = dict.fromkeys(reversed([text for text in texts if text not in (member.text, _NOTHING)]))
    sizes = accumulate(len(text) + 1 for text in found)
    kept = [text for text, size in zip(found, sizes, strict=True) if size <= _MOST_BEFORE_BYTES]
    return Member(member.time_us, member.text, tuple(reversed(kept)))


def _of_fields(text: str, fields: Collection[str]) -> str:
    kept = {name: value for name, value in member_fields(text).items() if name in fields}
    return _text(tuple(kept), tuple(kept.values()))


def _order(member: Member) -> tuple[int, int]:
    return member.event_time_us, member.time_us


@lru_cache(maxsize=4096)
def _text(names: tuple[str, ...], values: tuple[str | None, ...]) -> str:
    return json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":"), ensure_ascii=False)
