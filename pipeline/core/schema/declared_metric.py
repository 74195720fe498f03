"""What a schema declares of one metric: its unit, its label, and the range of valid readings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.core.notation.text import MAX_UNIT, is_label, shown

MAX_LABEL = 64  # characters


@dataclass(frozen=True)
class DeclaredMetric:
    """The declaration of a metric.

    Args:
        unit: the unit of its readings, for people; no row depends on it.
        label: the name of the metric for people; no row depends on it.
        valid: the least and the greatest valid reading; None if every number is valid.
    """

    unit: str | None = None
    label: str | None = None
    valid: tuple[float, float] | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields the keys at fault, each with the problem of its value."""
        for key, text, most in (("unit", self.unit, MAX_UNIT), ("label", self.label, MAX_LABEL)):
            if text is not None and not is_label(text, most):
                yield key, f"takes 1 to {most} printable characters, not {shown(text)}"

    def document(self) -> dict[str, Any]:
        """Returns the keys of the declaration with their values, as in TOML."""
        keys = {"unit": self.unit, "label": self.label, "valid": self.valid and list(map(_shortest, self.valid))}
        return {key: value for key, value in keys.items() if value is not None}


def _shortest(number: float) -> float:
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number
