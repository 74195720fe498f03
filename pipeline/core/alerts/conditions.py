"""Conditions on a value: when an alert fires, and when it clears."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

FIRES, BETWEEN, CLEARS = 1, 0, -1
"""Classes of values. Between the two limits of a condition with hysteresis, an alert stays as it is."""

_CLEARS_BY = {
    "above": "clears_below",
    "below": "clears_above",
    "outside": "clears_inside",
    "inside": "clears_outside",
}
_OPPOSITES = {"above": "below", "below": "above", "outside": "inside", "inside": "outside"}
KINDS = tuple(_CLEARS_BY)
KEYS = (*KINDS, *_CLEARS_BY.values())
"""The keys of a rule that define its condition."""


@dataclass(frozen=True)
class AlertCondition:
    """A condition on a value.

    Args:
        kind: one of :data:`KINDS`.
        low: the lower limit; for ``above`` and ``below`` the only one.
        high: the upper limit; the same as the lower one if there is one only.
        clears: the limits at which the alert clears, in the same form; None for the first ones.
    """

    kind: str
    low: float
    high: float
    clears: tuple[float, float] | None = None

    def classify(self, value: float) -> int:
        """Returns the class of a value: :data:`FIRES`, :data:`BETWEEN` or :data:`CLEARS`."""
        return FIRES if self.fires(value) else CLEARS if self.cleared(value) else BETWEEN

    @cached_property
    def fires(self) -> Callable[[float], bool]:
        """Whether a value fires."""
        return _test(self.kind, self.low, self.high)

    @cached_property
    def cleared(self) -> Callable[[float], bool]:
        """Whether a value clears."""
        if self.clears is None:
            fires = self.fires
            return lambda value: not fires(value)
        return _test(_OPPOSITES[self.kind], *self.clears)

    @property
    def calm(self) -> tuple[float, float]:
        """A range in which no value fires, both ends included. An empty range, if that is not one range."""
        match self.kind:
            case "above":
                return -math.inf, self.low
            case "below":
                return self.low, math.inf
            case "outside":
                return self.low, self.high
        return math.inf, -math.inf

    def __str__(self) -> str:
        limits = f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return f"{self.kind} {limits}"


def _test(kind: str, low: float, high: float) -> Callable[[float], bool]:
    match kind:
        case "above":
            return lambda value: value > low
        case "below":
            return lambda value: value < low
        case "outside":
            return lambda value: not low <= value <= high
    return lambda value: low <= value <= high


def condition_of(rule: Mapping[str, Any]) -> AlertCondition:
    """Returns the condition that the keys of a rule define. Raises ValueError with a line that names the key."""
    kinds = [kind for kind in KINDS if kind in rule]
    if len(kinds) != 1:
        found = " and ".join(kinds) if kinds else "none"
        raise ValueError(f"needs one of {', '.join(KINDS)}, and has {found}")
    kind = kinds[0]
    clears_by = _CLEARS_BY[kind]
    if wrong := [key for key in _CLEARS_BY.values() if key in rule and key != clears_by]:
        raise ValueError(f"{wrong[0]} does not go with {kind}; {kind} clears by {clears_by}")
    pair = kind in ("outside", "inside")
    low, high = _limits(kind, rule[kind], pair)
    if clears_by not in rule:
        return AlertCondition(kind, low, high)
    clear_low, clear_high = clears = _limits(clears_by, rule[clears_by], pair)
    possible = {
        "above": clear_low <= low,
        "below": clear_low >= low,
        "outside": low <= clear_low and clear_high <= high,
        "inside": clear_low <= low and high <= clear_high,
    }[kind]
    if not possible:
        side = {"above": "at or below", "below": "at or above", "outside": "within", "inside": "around"}[kind]
        raise ValueError(f"{clears_by} has to be {side} {kind}: with these limits it could fire and clear at once")
    return AlertCondition(kind, low, high, clears)


def _limits(key: str, value: Any, pair: bool) -> tuple[float, float]:
    limits = value if pair and isinstance(value, list) else [value]
    if len(limits) != (2 if pair else 1) or not all(_is_number(limit) for limit in limits):
        expected = "two numbers, like [2, 8]" if pair else "a number, like -15"
        raise ValueError(f"{key} takes {expected}, not {written(value)}")
    low, high = float(limits[0]), float(limits[-1])
    if low > high:
        raise ValueError(f"{key} has its limits in the wrong order; write [{high:g}, {low:g}]")
    return low, high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def written(value: Any) -> str:
    """Returns the beginning of a value from TOML, safe to put into a message."""
    return f"{value!r:.80}"
