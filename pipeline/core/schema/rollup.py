"""A roll-up: which sensors belong together, in which tiers, and which of their metrics are merged."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from urllib.parse import quote, unquote

from pipeline.core.events.event import is_name
from pipeline.core.notation.durations import format_interval
from pipeline.core.notation.text import shown
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, collected_after
from pipeline.core.windows import Window, parse_window

ALL = "all"
"""The value of the group of a roll-up of all sensors."""
SHARDS = "shards"
"""The key of the number of shards among the roll-ups of a schema."""

_MAX_ROLLUPS, _MAX_FIELDS = 16, 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MOST_BYTES, _KEPT_BYTES = 200, 180  # of a value; and of one that is longer, before its digest
_SHORTENED = re.compile(rf"(?P<kept>.{{{_KEPT_BYTES}}})\+[0-9a-f]{{16}}")


@dataclass(frozen=True)
class Rollup:
    """A roll-up.

    Args:
        name: the name, unique in a schema.
        by: the metadata fields whose values name a sensor's group; none for one group of all sensors.
        tiers: the texts of the windows; none for all tiers.
        metrics: globs of the metrics that are merged.
    """

    name: str
    by: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("*",)

    def with_tiers_of(self, windows: Sequence[Window]) -> "Rollup":
        """Returns the roll-up with the texts that a table's windows have for the same windows."""
        wanted = [parse_window(text) for text in self.tiers]
        texts = (window.text for window in windows if any(window.same_as(each) for each in wanted))
        return replace(self, tiers=tuple(texts))

    def value_of(self, member: Mapping[str, str | None]) -> str | None:
        """Returns the value of a sensor's group, as row keys contain it; None for a sensor without one of the fields.

        Args:
            member: the sensor's metadata, as :func:`pipeline.core.statistics.member.member_fields` returns it.
        """
        if not self.by:
            return ALL
        values = [value for field in self.by if (value := member.get(field)) is not None]
        return encoded_value(values) if len(values) == len(self.by) else None

    def merges(self, metric: str) -> bool:
        """Returns whether a metric is merged."""
        return any(glob == "*" or fnmatchcase(metric, glob) for glob in self.metrics)


def encoded_value(values: Sequence[str]) -> str:
    """Encodes the values of a group's fields for a row key.

    Each is percent-encoded except for the unreserved characters of RFC 3986, and they are joined by slashes. Of a text
    of more than 200 bytes, the first 180 are followed by ``+``, which no other value contains, and 16
    hexadecimal digits of its SHA-256.
    """
    text = "/".join(quote(value, safe="") for value in values)
    if len(text) <= _MOST_BYTES:
        return text
    return f"{text[:_KEPT_BYTES]}+{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_shortened(value: str) -> bool:
    """Returns whether a row key has only the beginning of a group's values."""
    return _SHORTENED.fullmatch(value) is not None


def decoded_values(value: str) -> list[str]:
    """Returns the values of a group's fields from a row key. Of a shortened text, the last one ends with ``…``."""
    shortened = _SHORTENED.fullmatch(value)
    text = re.sub("%.?$", "", shortened["kept"]) if shortened else value
    values = [unquote(each, errors="ignore") for each in text.split("/")]
    return [*values[:-1], values[-1] + "…"] if shortened else values


def rollup_problems(
    rollups: Sequence[Rollup], windows: Sequence[Window], metrics: FamilyRules
) -> Iterator[tuple[str, str]]:
    """Yields the key at fault and the problem of each roll-up that a table can't have.

    Args:
        rollups: the roll-ups.
        windows: the windows of the table's tiers.
        metrics: the families of readings.
    """
    if len(rollups) > _MAX_ROLLUPS:
        yield "rollups", f"{len(rollups)} roll-ups are more than {_MAX_ROLLUPS}"
    if rollups and not windows:
        yield "rollups", "are computed from aggregates, and the table has no tiers; add one, or leave them out"
    names = [rollup.name for rollup in rollups]
    for rollup in rollups:
        key = f"rollups.{rollup.name}"
        if not _NAME.fullmatch(rollup.name):
            yield key, "a name has 1 to 64 of A-Za-z0-9_.- and begins with a letter or a digit"
        if names.count(rollup.name) > 1:
            yield key, "two roll-ups have this name"
        if len(rollup.by) > _MAX_FIELDS:
            yield f"{key}.by", f"{len(rollup.by)} fields are more than {_MAX_FIELDS}"
        for name in rollup.by:
            if not is_name(name):
                yield (
                    f"{key}.by",
                    f"metadata.{shown(name)} is not a metadata field: no event can have a field of this name",
                )
        if len(set(rollup.by)) < len(rollup.by):
            yield f"{key}.by", "names the same field twice"
        yield from ((f"{key}.tiers", problem) for text in rollup.tiers if (problem := _tier_problem(text, windows)))
        for glob in rollup.metrics:
            if not metrics.may_take(glob):
                problem = f"no family of [metrics] takes {shown(glob)}; name metrics that the table stores"
                yield f"{key}.metrics", problem


def member_problem(
    name: str, family: str | None, policies: Mapping[str, Policy], of_readings: Iterable[str]
) -> str | None:
    """Returns why raw rows may lack a metadata field for late data, whose windows are computed from them; else None.

    Args:
        name: the metadata field.
        family: the family that takes it, if any.
        policies: the policies of the table's families.
        of_readings: the families of readings.
    """
    if family is None:
        return f"raw rows don't keep metadata.{name}, which late data needs: add it to a family of [metadata]"
    age, ages = collected_after(policies[family]), [collected_after(policies[each]) for each in of_readings]
    if age is None or any(other is not None and other <= age for other in ages):
        return None
    after = format_interval(age // timedelta(microseconds=1))
    return (
        f"late data needs metadata.{name} as long as there are readings, and {family} is collected before them, after "
        f"{after}: keep it as long"
    )


def _tier_problem(text: str, windows: Sequence[Window]) -> str | None:
    try:
        window = parse_window(text)
    except ValueError as error:
        return str(error)
    if any(window.same_as(each) for each in windows):
        return None
    return f"the table has no tier {text}; its tiers are {', '.join(each.text for each in windows)}"
