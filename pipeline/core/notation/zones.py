"""Time zones by name.

Zone data is that of the package ``tzdata``, never that of the system: workers, the launcher and readers agree.
"""

import difflib
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

UTC_ZONE = "UTC"


@cache
def zone_names() -> frozenset[str]:
    """Returns the names of all time zones."""
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


@cache
def zone_of(name: str) -> ZoneInfo:
    """Returns a time zone by its name, which is one of :func:`zone_names`."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def checked_zone(name: str) -> str:
    """Returns the name of a time zone. Raises ValueError for any other text."""
    if name not in zone_names():
        raise ValueError(f"{name!r} is not a time zone{_nearest(name)}")
    return name


def _nearest(zone: str) -> str:
    lower = {name.lower(): name for name in zone_names()}
    last = {name.rpartition("/")[2]: name for name in lower}
    near = difflib.get_close_matches(zone.lower(), lower, 1, 0.7)
    near = near or [last[each] for each in difflib.get_close_matches(zone.lower().rpartition("/")[2], last, 1, 0.7)]
    return f"; did you mean {lower[near[0]]}?" if near else ", like Europe/Berlin"
