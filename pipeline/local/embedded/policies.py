"""Garbage-collection policies: which versions of a cell they do not keep."""

from collections.abc import Sequence
from typing import Any

from pipeline.local.embedded.refusals import invalid, not_built


def expired(rule: Any, times_us: Sequence[int], now_us: int) -> set[int]:
    """Returns the times of the versions that a policy does not keep.

    Args:
        rule: a ``GcRule`` of Bigtable's admin API.
        times_us: the times of a column's versions, newest first.
        now_us: the current time.
    """
    kind = rule.WhichOneof("rule")
    if kind is None:
        return set()
    if kind == "max_num_versions":
        return set(times_us[rule.max_num_versions :])
    if kind == "max_age":
        oldest_us = now_us - rule.max_age.ToMicroseconds()
        return {time_us for time_us in times_us if time_us < oldest_us}
    parts = [expired(part, times_us, now_us) for part in getattr(rule, kind).rules] or [set()]
    return set.union(*parts) if kind == "union" else set.intersection(*parts)


def check_policy(rule: Any) -> None:
    """Refuses a policy that is invalid or not built."""
    kind = rule.WhichOneof("rule")
    if kind == "max_num_versions" and rule.max_num_versions < 0:
        raise invalid("max_num_versions must not be negative")
    if kind not in (None, "max_num_versions", "max_age", "union", "intersection"):
        raise not_built(f"policy {kind}")
    for part in getattr(rule, kind).rules if kind in ("union", "intersection") else ():
        check_policy(part)
