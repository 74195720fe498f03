"""Tests of the states that values lead to: the definition of a rule."""

import pytest

from pipeline.core.alerts.machine import CALM, FIRING, PENDING, RESOLVED
from pipeline.core.alerts.rules import AlertCondition, Rule
from tests.support.alerts import in_order


def _rule(for_us: int = 0, clears: float | None = None, per_us: int = 0) -> Rule:
    condition = AlertCondition("above", 10, 10, None if clears is None else (clears, clears))
    return Rule("warm", metric="temperature", condition=condition, for_us=for_us, per_us=per_us)


_STILL = Rule("still", metric="temperature", unchanged_for_us=5, tolerance=1)


@pytest.mark.parametrize(
    ("rule", "values", "watermark_us", "expected"),
    [
        (_rule(), {1: 9, 2: 11, 3: 12, 4: 10}, 0, [(2, FIRING), (4, RESOLVED)]),
        (_rule(clears=8), {2: 11, 4: 9, 5: 7}, 0, [(2, FIRING), (5, RESOLVED)]),
        (_rule(for_us=5), {2: 11, 4: 9, 6: 11}, 0, [(2, PENDING), (4, CALM), (6, PENDING)]),
        (_rule(for_us=5), {2: 11, 7: 11}, 0, [(2, PENDING), (7, FIRING)]),
        (_rule(for_us=5), {2: 11, 7: 9}, 0, [(2, PENDING), (7, CALM)]),
        (_rule(for_us=5), {2: 11, 8: 9}, 0, [(2, PENDING), (7, FIRING), (8, RESOLVED)]),
        (_rule(for_us=5), {2: 11}, 7, [(2, PENDING)]),
        (_rule(for_us=5), {2: 11}, 8, [(2, PENDING), (7, FIRING)]),
        (_rule(for_us=5, clears=8), {2: 11, 4: 9, 9: 11}, 0, [(2, PENDING), (4, CALM), (9, PENDING)]),
        (_rule(per_us=2), {1: 99, 2: 5, 4: 15, 6: 26, 8: 36}, 0, [(6, FIRING), (8, RESOLVED)]),
        (_rule(per_us=2, for_us=2), {0: 0, 1: 6, 2: 12, 3: 18}, 0, [(1, PENDING), (3, FIRING)]),
        (_STILL, {1: 4, 2: 6, 4: 7, 6: 5}, 0, []),
        (_STILL, {1: 4, 2: 6, 4: 7, 7: 5, 8: 6, 9: 7.5}, 0, [(7, FIRING), (9, RESOLVED)]),
    ],
)
def test_definition(rule: Rule, values: dict[int, float], watermark_us: int, expected: list[tuple[int, str]]) -> None:
    """Each condition, limit and duration leads to these transitions."""
    assert [(each.time_us, each.kind) for each in in_order(rule, values, watermark_us)] == expected
