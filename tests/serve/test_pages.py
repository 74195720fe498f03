"""Pages of a long answer."""

import pytest

from pipeline.serve.reads import page_by_time, searched_page


def reading(records):
    asked = []

    def read(limit):
        asked.append(limit)
        return iter(records)

    return read, asked


@pytest.mark.parametrize(
    ("times", "limit", "page", "last", "asked"),
    [
        ([], 2, 0, None, [3]),
        ([9, 8], 2, 2, None, [3]),
        ([9, 8, 7], 2, 2, 8, [3]),
        ([9, 8, 8, 8, 7], 2, 4, 8, [3, None]),  # all that share the last time, read on without a limit
        ([9, 8, 8], 2, 3, None, [3, None]),
    ],
)
def test_pages_by_time(times, limit, page, last, asked):
    """A page ends at a change of time, so that the next one continues there."""
    read, seen = reading(times)
    assert page_by_time(read, limit, lambda time_us: time_us) == (times[:page], last)
    assert seen == asked


def test_too_many_of_one_time():
    """More records of one time than a page may have are refused."""
    with pytest.raises(ValueError, match="more records share a time"):
        page_by_time(reading([1] * 20_000)[0], 5, lambda time_us: time_us)


@pytest.mark.parametrize(
    ("limit", "text", "most", "found", "last"),
    [
        (2, "", 100, ["Aa", "b"], "b"),
        (9, "A", 100, ["Aa", "ca"], None),
        (1, "a", 100, ["Aa"], "Aa"),
        (9, "a", 2, ["Aa"], "b"),
        (3, "", 100, ["Aa", "b", "ca"], None),
    ],
)
def test_searched_pages(limit, text, most, found, last):
    """A search stops after a number of names, and the next page continues there."""
    assert searched_page(["Aa", "b", "ca"], limit, str, text, most) == (found, last)
