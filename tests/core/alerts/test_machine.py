"""Tests of the states that values lead to: the definition, and that a track comes to the same."""

import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.machine import (
    CALM,
    FIRING,
    NEVER_US,
    PENDING,
    RESOLVED,
    Track,
    Transition,
    Value,
    transitions,
)
from pipeline.core.alerts.rules import Rule

_LATENESS_US = 100


def _rule(for_us: int = 0, clears: float | None = None) -> Rule:
    condition = AlertCondition("above", 10, 10, None if clears is None else (clears, clears))
    return Rule("warm", metric="temperature", condition=condition, for_us=for_us)


def _values(*pairs: tuple[int, float]) -> list[Value]:
    return [Value(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("rule", "values", "watermark_us", "expected"),
    [
        (_rule(), [(1, 9), (2, 11), (3, 12), (4, 10)], 0, [(2, FIRING), (4, RESOLVED)]),
        (_rule(clears=8), [(2, 11), (4, 9), (5, 7)], 0, [(2, FIRING), (5, RESOLVED)]),
        (_rule(for_us=5), [(2, 11), (4, 9), (6, 11)], 0, [(2, PENDING), (4, CALM), (6, PENDING)]),
        (_rule(for_us=5), [(2, 11), (7, 11)], 0, [(2, PENDING), (7, FIRING)]),
        (_rule(for_us=5), [(2, 11), (7, 9)], 0, [(2, PENDING), (7, CALM)]),
        (_rule(for_us=5), [(2, 11), (8, 9)], 0, [(2, PENDING), (7, FIRING), (8, RESOLVED)]),
        (_rule(for_us=5), [(2, 11)], 7, [(2, PENDING)]),
        (_rule(for_us=5), [(2, 11)], 8, [(2, PENDING), (7, FIRING)]),
        (_rule(for_us=5, clears=8), [(2, 11), (4, 9), (9, 11)], 0, [(2, PENDING), (4, CALM), (9, PENDING)]),
    ],
)
def test_definition(
    rule: Rule, values: list[tuple[int, float]], watermark_us: int, expected: list[tuple[int, str]]
) -> None:
    """Each condition, limit and duration leads to these transitions."""
    found, _ = transitions(rule, _values(*values), watermark_us)
    assert [(each.time_us, each.kind) for each in found] == expected


_TIMES = st.lists(st.tuples(st.integers(0, _LATENESS_US), st.sampled_from([5.0, 9.0, 11.0])), max_size=12)
_RULES = st.builds(_rule, st.sampled_from([0, 3, 20]), st.sampled_from([None, 8.0]))


@given(_RULES, _TIMES, st.randoms(use_true_random=False), st.lists(st.integers(0, 150), max_size=12).map(sorted))
def test_any_order_leads_to_the_same(
    rule: Rule, pairs: list[tuple[int, float]], order: random.Random, watermarks: list[int]
) -> None:
    """Values in any order, some twice, with the watermark passing in between, leave the definition's transitions."""
    values = _values(*dict(pairs).items())
    arriving = [*values, *values[::3]]
    order.shuffle(arriving)
    track = Track()
    rows: set[Transition] = set()
    told = False
    for index, value in enumerate(arriving):
        watermark_us = watermarks[index] if index < len(watermarks) else NEVER_US
        changes = track.update(rule, [value], watermark_us, _LATENESS_US)
        rows = rows - set(changes.withdrawn) | set(changes.added)
        for each in changes.told:
            assert (each.kind == FIRING) is not told
            told = not told
    expected, state = transitions(rule, sorted(values), track.watermark_us)
    assert rows == set(expected)
    assert told is state.firing is track.told


@given(_RULES, st.lists(st.tuples(st.integers(1, 40), st.sampled_from([5.0, 9.0, 11.0])), min_size=1, max_size=60))
def test_values_of_the_past_are_forgotten(rule: Rule, steps: list[tuple[int, float]]) -> None:
    """However long a history is, a track keeps the values of the allowed lateness, and tells each transition once."""
    times_us = accumulate(step_us for step_us, _ in steps)
    values = [Value(time_us, number) for time_us, (_, number) in zip(times_us, steps, strict=True)]
    track, told = Track(), []
    for value in values:
        told += track.update(rule, [value], NEVER_US, _LATENESS_US).told
        assert all(each.time_us >= value.time_us - _LATENESS_US for each in track.values)
    expected, state = transitions(rule, values)
    assert told == [each for each in expected if each.kind in (FIRING, RESOLVED)]
    assert track.is_idle(rule) <= (state.firing is False)


def test_what_a_late_value_shows_to_be_over_is_not_told() -> None:
    """A late value that fired and was over before what is known goes into the history alone."""
    track = Track()
    track.know(_values((10, 5)))
    changes = track.update(_rule(), _values((7, 11)), NEVER_US, _LATENESS_US)
    assert [each.kind for each in changes.added] == [FIRING, RESOLVED]
    assert not changes.told


def test_a_late_contradiction_is_told_as_resolved() -> None:
    """A late value that contradicts what was told withdraws it."""
    rule = _rule(for_us=10)
    track = Track()
    assert [each.kind for each in track.update(rule, _values((1, 11), (12, 11)), 0, _LATENESS_US).told] == [FIRING]
    changes = track.update(rule, _values((5, 9)), 0, _LATENESS_US)
    assert [(each.time_us, each.kind) for each in changes.told] == [(11, RESOLVED)]
    assert [(each.time_us, each.kind) for each in changes.withdrawn] == [(11, FIRING)]
