"""The pages of a long answer."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

_MAX_TIES = 10_000  # records beyond a page that share the time of its last one

T = TypeVar("T")


Last = TypeVar("Last", str, int)


class Page(NamedTuple, Generic[T, Last]):
    """A part of an answer.

    Attributes:
        records: the page's records.
        last: the last time, or sensor, that the page covers; None on the last page.
    """

    records: list[T]
    last: Last | None


def page_by_time(read: Callable[..., Iterable[T]], limit: int, time_us: Callable[[T], int]) -> Page[T, int]:
    """Returns the first records, and all that share the time of the last one: the next page begins after that time.

    Args:
        read: a function that returns the records; its argument ``limit`` is the most to be taken, None if unknown.
        limit: the number of records on a page.
        time_us: a function that returns a record's time.

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
