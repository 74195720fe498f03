"""Finds the shorter windows from which a table's longer windows are computed.

The shortest tier aggregates events. Each other one is computed from its source: the longest of the shorter tiers of
whose windows its own consist. So tiers form a tree: days of UTC and days of Berlin are both computed from hours.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd

from pipeline.core.notation.durations import format_interval
from pipeline.core.windows.calendars import CalendarWindow, offsets_text
from pipeline.core.windows.fixed import Window


@lru_cache(maxsize=64)
def sources(windows: tuple[Window, ...]) -> tuple[int, ...]:
    """Returns the index of each window's source; -1 for a window without one, such as the first.

    Args:
        windows: the windows of a table's tiers, shortest first.
    """
    return tuple(
        max((index for index, shorter in enumerate(windows[:place]) if shorter.is_source_of(longer)), default=-1)
        for place, longer in enumerate(windows)
    )


def chains(windows: tuple[Window, ...]) -> list[list[int]]:
    """Returns the windows by index in chains, each window in one of them; in a chain, each source divides the next.

    The chain with the first window comes first. Tables without windows of a calendar usually have a single chain. The
    last window of a chain contains whole windows of all others in it.
    """
    of_window, left, found = sources(windows), set(range(len(windows))), list[list[int]]()
    for top in reversed(range(len(windows))):
        chain, index = list[int](), top
        while index in left:
            chain.append(index)
            left.remove(index)
            index = of_window[index]
        if chain:
            found.append(chain[::-1])
    return sorted(found)


def tier_problem(windows: Sequence[Window]) -> str | None:
    """Returns why these can't be the windows of a table's tiers, and what to do; None if they can.

    Args:
        windows: the windows, shortest first.
    """
    for shorter, longer in pairwise(windows):
        if shorter.same_as(longer):
            return f"two tiers have the same window, {shorter.text}"
    for index, source in enumerate(sources(tuple(windows))):
        if source < 0 and (index or isinstance(windows[0], CalendarWindow)):
            return _why_none(windows[index], windows[:index])
    return None


def _why_none(longer: Window, shorter: Sequence[Window]) -> str:
    """Returns why a window has no source."""
    if not isinstance(longer, CalendarWindow):
        return f"{shorter[-1].text} does not divide {longer.text}, which is computed from it"
    fixed = [window for window in shorter if not isinstance(window, CalendarWindow)]
    grain_us = longer.grain_us
    fits = format_interval(gcd(grain_us, *(window.length_us for window in fixed)))
    add = f"add a tier of {fits}, or of a length that divides it"
    if not fixed:
        return f"{longer.text} is computed from shorter windows, and there is no tier of them; {add}"
    return (
        f"windows of {fixed[0].text} do not fit into {longer.text}: the offsets of {longer.zone} since 2000, "
        f"{offsets_text(longer.zone)}, are multiples of {format_interval(grain_us)}; {add}"
    )
