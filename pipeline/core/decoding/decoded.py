"""What a message contains once it is decoded, and what all types of messages have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason

_Raw = TypeVar("_Raw")

MAX_PROBLEMS = 1000
"""The most problems of a message that are kept: a broken one may have one in every two bytes."""

MAX_ELEMENTS = 100_000
"""A message is refused if ``each`` or a star goes through more elements."""

Check = Callable[[Event], Any]
"""Raises BadData for an event that a table cannot store."""


class Decoded(NamedTuple):
    """What a message contains.

    Attributes:
        type: the name of its type, for counters.
        events: valid events that every table can store.
        refused: messages that must become dead letters, with the reasons.
        skipped: the number of messages or elements that conditions of a mapping left out.
        unknown_fields: the number of fields that ``SensorEvent`` does not have.
    """

    type: str
    events: list[Event]
    refused: list[tuple[Message, BadData]]
    skipped: int = 0
    unknown_fields: int = 0


class MessageType(Protocol):
    """Reads messages of a type."""

    name: str

    def decode(
        self, message: Message, latest_us: int, checks: Sequence[Check], *, metadata_alone: bool = False
    ) -> Decoded:
        """Returns what a message of this type contains. Raises BadData if the message as a whole is refused.

        Args:
            message: the message.
            latest_us: the latest event time allowed, inclusive.
            checks: the checks of the tables.
            metadata_alone: whether the tables keep events of metadata alone.
        """


def valid_events(
    found: Iterable[_Raw], validate: Callable[[_Raw, int], Event], latest_us: int, checks: Sequence[Check]
) -> tuple[list[Event], list[tuple[int, BadData]]]:
    """Returns the valid events that every table can store, and the positions of the others with their problems.

    Only the first ``MAX_PROBLEMS`` problems and one more are kept. ``validate`` takes an unchecked event and the latest
    event time allowed, and raises BadData for an event that is not valid.
    """
    events: list[Event] = []
    problems: list[tuple[int, BadData]] = []
    for position, one in enumerate(found):
        try:
            event = validate(one, latest_us)
            for check in checks:
                check(event)
        except BadData as problem:
            if len(problems) <= MAX_PROBLEMS:
                problems.append((position, problem.with_traceback(None)))
        else:
            events.append(event)
    return events, problems


def refused_once(message: Message, problems: Sequence[BadData]) -> list[tuple[Message, BadData]]:
    """Returns a message as refused with its first problem and the number of the others; nothing without problems."""
    if not problems:
        return []
    first, others = problems[0], len(problems) - 1
    if others:
        more = f"over {MAX_PROBLEMS - 1:,}" if others >= MAX_PROBLEMS else f"{others:,}"
        first = BadData(first.reason, f"{first.detail}; and {more} more problem{'s' if others > 1 else ''}")
    return [(message, first)]


def too_many_elements(what: str) -> BadData:
    """Returns the problem of a message with too many elements."""
    return BadData(Reason.TOO_MANY_ELEMENTS, f"{what} more than {MAX_ELEMENTS:,} elements of the message")
