"""Guesses how texts and numbers write times: the format, the unit since the epoch, and the time zone."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from pipeline.core.decoding.mapping.language.model import UNITS

_FIRST_US, _LAST_US = 946_684_800_000_000, 4_102_444_800_000_000  # the years 2000 to 2099
_TEXT = re.compile(
    r"(?P<one>[0-9]+|[A-Za-z]+)(?P<gap>[-./ ])(?P<two>[0-9]+|[A-Za-z]+)(?P<gap2>[-./ ]|, )"
    r"(?P<three>[0-9]{4}|[0-9]{1,2})"
    r"(?:(?P<between>[ ,T-]+)(?P<clock>[0-9]{1,2}(?P<sign>[:.])[0-9]{2}(?P<seconds>(?P=sign)[0-9]{2})?)"
    r"(?P<decimals>[.,][0-9]{1,6})?(?P<half> ?[AaPp][Mm])?(?P<offset> ?[+-][0-9]{2}:?[0-9]{2}| ?Z| UTC| GMT)?)?"
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_TIMES = 0.6  # the share of times in a column of times
_SWAPPED = {"%d": "%m", "%m": "%d"}


class TimeNotation(NamedTuple):
    """How times are written: a unit since the epoch, or a format of text; neither for ISO 8601.

    Attributes:
        unit: the unit of numbers.
        format: the format, as for ``strptime``.
        is_local: whether the times have no offset.
        swapped: the format that reads day and month the other way round, if it fits as well.
        is_date: whether the times are dates alone.
    """

    unit: str = ""
    format: str = ""
    is_local: bool = False
    swapped: str = ""
    is_date: bool = False


def notation_of(texts: Sequence[str]) -> TimeNotation | None:
    """Returns the notation in which texts are times, but for a few that are not; None if there is none."""
    found = [text.strip() for text in texts if looks_like_time(text.strip())]
    if not found or len(found) < _TIMES * len(texts):
        return None
    texts = found
    if all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) for text in texts):
        return _of_numbers(texts)
    times = [_iso(text) for text in texts]
    if all(times):
        is_date = all(len(text) == 10 for text in texts)
        return TimeNotation(is_local=any(time.tzinfo is None for time in times if time), is_date=is_date)
    found = [each for each in _formats(texts[0]) if _fits(each, texts)]
    if not found:
        return None
    best = min(found, key=lambda each: (_disorder(texts, each), found.index(each)))
    swapped = re.sub("%[dm]", lambda sign: _SWAPPED[sign[0]], best)
    return TimeNotation(
        format=best,
        is_local=not best.endswith(("%z", "Z", "UTC", "GMT")),
        swapped=swapped if swapped in found else "",
        is_date=not re.search("%[HI]", best),
    )


def looks_like_time(text: str) -> bool:
    """Returns whether a text may be a time, or the number of one."""
    return bool(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) or _TEXT.fullmatch(text) or _iso(text))


def clock_of(texts: Sequence[str]) -> str | None:
    """Returns the format in which all texts are times of a day; None if there is none."""
    return next((clock for clock in _CLOCKS if _fits(clock, texts)), None) if texts else None


def _of_numbers(texts: Sequence[str]) -> TimeNotation | None:
    numbers = [float(text) for text in texts]
    for unit, microseconds in UNITS.items():
        if all(_FIRST_US <= number * float(microseconds) < _LAST_US for number in numbers):
            return TimeNotation(unit)
    for compact in ("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d"):
        if _fits(compact, texts) and all(len(text) == len(texts[0]) for text in texts):
            return TimeNotation(format=compact, is_local=True, is_date=compact == "%Y%m%d")
    return None


def _formats(text: str) -> list[str]:
    """Returns the formats that a text may have."""
    found = _TEXT.fullmatch(text)
    if not found:
        return []
    one, two, three = found["one"], found["two"], found["three"]
    year = "%Y" if len(three) == 4 else "%y"
    if len(one) == 4:
        orders = [("%Y", "%m", "%d")]
    elif two.isalpha():
        orders = [("%d", "%b" if len(two) == 3 else "%B", year)]
    elif one.isalpha():
        orders = [("%b" if len(one) == 3 else "%B", "%d", year)]
    else:
        orders = [("%d", "%m", year), ("%m", "%d", year)]
        orders = orders if found["gap"] != "/" else orders[::-1]
    clock = ""
    if sign := found["sign"]:
        hour, half = ("%I", found["half"][:-2] + "%p") if found["half"] else ("%H", "")
        clock = found["between"] + hour + sign + "%M" + (f"{sign}%S" if found["seconds"] else "")
        clock += (found["decimals"][0] + "%f" if found["decimals"] else "") + half
        offset = found["offset"] or ""
        clock += re.sub(r"[+-].*", "%z", offset)
    return [f"{first}{found['gap']}{second}{found['gap2']}{third}{clock}" for first, second, third in orders]


def _fits(time_format: str, texts: Iterable[str]) -> bool:
    return all(_parsed(text, time_format) for text in texts)


def _parsed(text: str, time_format: str) -> datetime | None:
    try:
        time = datetime.strptime(text, time_format)
    except (ValueError, re.error):
        return None
    return time if time.year >= 1900 else None


def _iso(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if re.match(r"\d{4}-?\d\d-?\d\d", text) else None
    except ValueError:
        return None


def _disorder(texts: Sequence[str], time_format: str) -> float:
    """Returns how far apart times are that stand next to each other: less, if the format is the right one."""
    times = [time.replace(tzinfo=time.tzinfo or UTC) for time in _all(texts, time_format)]
    return sum(abs((after - before).total_seconds()) for before, after in pairwise(times))


def _all(texts: Sequence[str], time_format: str) -> Iterator[datetime]:
    for text in texts:
        if time := _parsed(text, time_format):
            yield time
