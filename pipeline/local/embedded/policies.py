"""Garbage-collection policies: which versions of a cell they do not keep."""

from collections.abc import Sequence
from typing import Any

from pipeline.local.embedded.refusals import not_built


def collected(rule: Any, times_us: Sequence[int], now_us: int) -> set[int]:
    """Returns which of a column's cells a policy collects.

    Args:
        rule: a ``GcRule`` of Bigtable's admin API.
        times_us: the cells' times, newest first.
        now_us: the current time.
    """
    kind = rule.WhichOneof("rule")
    if kind == "max_num_versions":
        return set(times_us[rule.max_num_versions :])
    if kind == "max_age":
        oldest_us = now_us - rule.max_age.ToMicroseconds()
        return {time_us for time_us in times_us if time_us < oldest_us}
    parts = [collected(part, times_us, now_us) for part in getattr(rule, kind).rules] if kind else []
    if kind == "union":
        return set().union(*parts)
    if kind == "intersection":
        return set.intersection(*parts) if parts else set()
    if kind is None:
        return set()
    raise not_built(f"policy {kind}")
