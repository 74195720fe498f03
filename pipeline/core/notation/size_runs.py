"""Writes how much of each shorter window a longer one counts, as one number of decimal digits.

Three numbers for each run of windows: the time in µs from the window before, or from 1970 for the first; the size of
each window, which is its number of events and readings; and how many windows follow each other in this way. They are
written to base nine, each followed by a 9. So the text is short if sensors send regularly, and reads as a number like
every other value of an aggregate row.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, pairwise

MOST_SIZES = 10_000
"""The most windows that are listed: a day has 1,440 minutes."""

_END = "9"


def sizes_text(sizes: Mapping[int, int]) -> bytes:
    """Returns the text of windows' sizes by start in µs, which must not be negative; nothing for too many windows."""
    if len(sizes) > MOST_SIZES:
        return b""
    steps = ((start_us - before_us, sizes[start_us]) for before_us, start_us in pairwise([0, *sorted(sizes)]))
    runs = ((*step, sum(1 for _ in run)) for step, run in groupby(steps))
    return "".join(map(_number, [number for run in runs for number in run])).encode()


def parse_sizes(text: bytes) -> dict[int, int]:
    """Parses what :func:`sizes_text` wrote. Raises ValueError for any other text, and for too many windows."""
    numbers = text.decode("ascii").split(_END)
    if (text and not text.isdigit()) or numbers.pop() or len(numbers) % 3:
        raise ValueError("these are not the sizes of windows")
    found, start_us = dict[int, int](), 0
    values = iter([int(number, 9) for number in numbers])
    for step_us, size, count in zip(values, values, values, strict=True):
        if len(found) + count > MOST_SIZES:
            raise ValueError(f"more than {MOST_SIZES:,} windows have a size")
        for _ in range(count):
            start_us += step_us
            found[start_us] = size
    return found


@lru_cache(maxsize=4096)
def _number(value: int) -> str:
    digits = _END
    while True:
        value, digit = divmod(value, 9)
        digits = f"{digit}{digits}"
        if not value:
            return digits
