"""The pages of a long answer."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

_MAX_TIES = 10_000  # records that share the time of a page's last one, beyond the page

T = TypeVar("T")


Last = TypeVar("Last", str, int)


class Page(NamedTuple, Generic[T, Last]):
    """A part of an answer.

    Attributes:
        records: of the page.
        last: the last time, or sensor, that the page covers; None if nothing follows.
    """

    records: list[T]
    last: Last | None


def page_by_time(read: Callable[..., Iterable[T]], limit: int, time_us: Callable[[T], int]) -> Page[T, int]:
    """Returns the first records, with all those that share the time of the last one: the next page begins behind it.

    Args:
        read: returns the records; its argument ``limit`` is the most that will be taken, None if that is not known.
        limit: of the page.
        time_us: returns the time of a record.

    Raises:
        ValueError: more than 10,000 records beyond the limit share a time.
    """
    found: list[T] = list(islice(read(limit=limit + 1), limit + 1))
    if len(found) <= limit:
        return Page(found, None)
    last_us = time_us(found[limit - 1])
    if time_us(found[limit]) != last_us:
        return Page(found[:limit], last_us)
    for count, record in enumerate(read(limit=None)):
        if count == limit + _MAX_TIES:
            raise ValueError("more records share a time than an answer can contain; ask for fewer sensors")
        if count >= limit and time_us(record) != last_us:
            return Page(found, last_us)
        if count > limit:
            found.append(record)
    return Page(found, None)


def searched_page(
    records: Iterable[T], limit: int, sensor_id: Callable[[T], str], text: str, most: int
) -> Page[T, str]:
    """Returns the first records of sensors whose ids contain the text, in any case.

    Looks through at most ``most`` records, so a page may have fewer than ``limit``, and still be followed by another.
    """
    wanted = text.lower()
    found: list[T] = []
    last = ""
    for count, record in enumerate(records):
        if len(found) == limit or count == most:
            return Page(found, last)
        last = sensor_id(record)
        if wanted in last.lower():
            found.append(record)
    return Page(found, None)
