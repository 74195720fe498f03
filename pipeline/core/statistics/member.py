"""What the newest event of a window tells about its sensor: the metadata that roll-ups group by."""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Member(NamedTuple):
    """The newest event of a window.

    Attributes:
        time_us: the event time in µs.
        text: the metadata that roll-ups group by, as :func:`member_text` writes it.
    """

    time_us: int
    text: str


def member_text(fields: Iterable[str], metadata: Mapping[str, str]) -> str:
    """Returns the fields that the metadata has, as compact JSON in the order of their names."""
    found = {name: metadata[name] for name in sorted(fields) if name in metadata}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def later(one: Member | None, other: Member | None) -> Member | None:
    """Returns the member with the later event. Of two at the same time, it is the second."""
    if one is None or other is None:
        return one or other
    return one if one.time_us > other.time_us else other
