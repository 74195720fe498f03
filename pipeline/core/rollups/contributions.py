"""What one sensor contributes to the roll-ups of a window: its metadata, and its statistics in a form that merges.

A contribution is encoded as the :mod:`~pipeline.core.rollups.sums` of one sensor, with its metadata as the text: that
of its newest event in the first line, and others that it had before. An empty one tells that the sensor has nothing in
the window any more.
"""

import struct
from typing import Any, NamedTuple

from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.sums import is_sums, parts_of_metrics_bytes, prefix_of, text_in
from pipeline.core.rows.aggregate_rows import parse_window_stats
from pipeline.core.rows.rollup_rows import Versioned
from pipeline.core.rows.rows import Row
from pipeline.core.statistics.member import member_fields
from pipeline.core.statistics.parts import Risen, increase, rate
from pipeline.core.statistics.window_stats import WindowStats

NOTHING = b""
"""The contribution of a sensor that has nothing in the window any more."""

_NO_FIELDS = "{}"
_MOST_COUNTED = 1 << 40  # by a version: another program's row may claim any count, and a sum of versions is a timestamp
_MOST_SHAPES = 1 << 16  # of sensors' metadata and metrics, which a worker keeps for as long as it lives


class Contribution(NamedTuple):
    """What a sensor contributes.

    Attributes:
        texts: the metadata of the window's events: the groups of each have to be merged again.
    """

    cell: Versioned
    texts: tuple[bytes, ...]


class Contributions:
    """Encodes what sensors contribute to the roll-ups of a tier.

    Attributes:
        fields: the metadata that the roll-ups group by.
    """

    def __init__(self, rules: GroupRules, tier: int) -> None:
        self._of = rules, tier
        self._tier = rules.tiers[tier]
        self._rollups = rules.rollups_of(tier)
        self.fields = frozenset(field for rollup in self._rollups for field in rollup.by)
        self._shapes: dict[tuple[str, ...], tuple[Any, ...]] = {}

    def __reduce__(self) -> Any:
        return Contributions, self._of

    def of(self, start_us: int, stats: WindowStats) -> Contribution:
        """Returns what a sensor contributes to the window that starts then."""
        member = stats.member
        texts = (_NO_FIELDS,) if member is None else (member.text, *member.before)
        cell = Versioned(min(stats.size, _MOST_COUNTED), self._encoded(start_us, stats, "\n".join(texts)))
        return Contribution(cell, tuple([text.encode() for text in texts]))

    def stats_of(self, row: Row) -> tuple[int, WindowStats] | None:
        """Returns the start and the statistics of a sensor's aggregate row; None for another program's row."""
        try:
            return parse_window_stats(self._tier.window, row, self._tier.statistics)
        except ValueError:
            return None

    def _encoded(self, start_us: int, stats: WindowStats, text: str) -> bytes:
        metrics = stats.metrics
        key = text, *metrics
        prefix, pack, kept = self._shapes.get(key) or self._shape(key)
        moments: list[float] = []
        has_parts = False
        for of in metrics.values() if kept is None else [metrics[name] for name in kept]:
            moments += (of.count, of.total, of.minimum, of.maximum, of.average, of.deviation)
            if of.parts:
                has_parts = True
        data: bytes = prefix + pack(1, stats.events, *moments)
        return data + self._parts(start_us, stats, key[1:] if kept is None else kept) if has_parts else data

    def _shape(self, key: tuple[str, ...]) -> tuple[Any, ...]:
        text, *names = key
        kept = tuple(name for name in names if any(rollup.merges(name) for rollup in self._rollups))
        prefix, layout = prefix_of(text, kept)
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes[key] = found = prefix, layout.pack, None if len(kept) == len(names) else kept
        return found

    def _parts(self, start_us: int, stats: WindowStats, names: tuple[str, ...]) -> bytes:
        """Encodes the parts that merge with those of other sensors."""
        end_us = self._tier.window.end_of(start_us)
        found = {}
        for name in names:
            parts = stats.metrics[name].parts or {}
            found[name] = {"sketch": parts["sketch"]} if "sketch" in parts else {}
            if course := parts.get("rises"):
                found[name]["risen"] = Risen(increase(course), rate(course, start_us, end_us))
        return parts_of_metrics_bytes(names, found) if any(found.values()) else b""


def is_contribution(data: bytes) -> bool:
    """Returns whether bytes are a contribution or :data:`NOTHING`: another program may have written a cell."""
    if not data:
        return True
    try:
        for text in texts_in(data):
            member_fields(text.decode())
    except (ValueError, struct.error):
        return False
    return is_sums(data)


def texts_in(contribution: bytes) -> list[bytes]:
    """Returns the metadata that a contribution tells, that of the newest event first; it must not be empty."""
    return text_in(contribution).split(b"\n")
