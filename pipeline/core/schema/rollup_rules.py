"""The rules for the roll-ups of a table: what can be computed, and how many there may be."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from pipeline.core.events.event import is_name
from pipeline.core.notation.durations import format_interval
from pipeline.core.notation.text import shown
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, collected_after
from pipeline.core.schema.rollup import Rollup
from pipeline.core.windows import Window, parse_window

SHARDS = "shards"
"""The key of the number of shards among the roll-ups of a schema."""

MAX_ROLLUPS = 16
MAX_FIELDS = 4

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def rollup_problems(
    rollups: Sequence[Rollup], windows: Sequence[Window], metrics: FamilyRules
) -> Iterator[tuple[str, str]]:
    """Yields the key at fault and the problem of each roll-up that a table can't have.

    Args:
        rollups: the roll-ups.
        windows: the windows of the table's tiers.
        metrics: the families of readings.
    """
    if len(rollups) > MAX_ROLLUPS:
        yield "rollups", f"{len(rollups)} roll-ups are more than {MAX_ROLLUPS}"
    if rollups and not windows:
        yield "rollups", "are computed from aggregates, and the table has no tiers; add one, or leave them out"
    names = [rollup.name for rollup in rollups]
    for rollup in rollups:
        key = f"rollups.{rollup.name}"
        if not _NAME.fullmatch(rollup.name):
            yield (
                key,
                "a name has 1 to 64 of A-Za-z0-9_.- and begins with a letter or a digit",
            )
        if names.count(rollup.name) > 1:
            yield key, "two roll-ups have this name"
        yield from ((f"{key}.by", problem) for problem in _field_problems(rollup))
        yield from ((f"{key}.tiers", problem) for text in rollup.tiers if (problem := _tier_problem(text, windows)))
        for glob in rollup.metrics:
            if not metrics.may_take(glob):
                yield (
                    f"{key}.metrics",
                    f"no family of [metrics] takes {shown(glob)}; name metrics that the table stores",
                )


def member_problem(
    name: str, family: str | None, policies: Mapping[str, Policy], of_readings: Iterable[str]
) -> str | None:
    """Returns why raw rows can't tell a field for late data, whose windows are computed from them; None if they can.

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


def _field_problems(rollup: Rollup) -> Iterator[str]:
    if len(rollup.by) > MAX_FIELDS:
        yield f"{len(rollup.by)} fields are more than {MAX_FIELDS}"
    for name in rollup.by:
        if not is_name(name):
            yield f"metadata.{shown(name)} is not a metadata field: no event can have a field of this name"
    if len(set(rollup.by)) < len(rollup.by):
        yield "names the same field twice"


def _tier_problem(text: str, windows: Sequence[Window]) -> str | None:
    try:
        window = parse_window(text)
    except ValueError as error:
        return str(error)
    if any(window.same_as(each) for each in windows):
        return None
    return f"the table has no tier {text}; its tiers are {', '.join(each.text for each in windows)}"
