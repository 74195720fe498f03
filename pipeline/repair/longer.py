"""The longer windows around rewritten ones that a repair does not audit, and so computes again from shorter windows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.core.completion.audit import Extent
from pipeline.core.completion.auditable_windows import COLLECTED_ROWS, KEPT_NO_LONGER, OPEN, Bounds
from pipeline.core.queries.sweeps import Span, SpansInOrder
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import sources


@dataclass(frozen=True)
class WindowsAbove:
    """The longer windows of a table, and which of them a repair audits.

    Attributes:
        tiers: the table's tiers, shortest first.
        bounds: the bounds of the windows to repair, by tier; None for no bounds.
        from_us: the start from which windows certainly have all rows of their source, by tier.
        audited: the windows that the repair computes from raw rows, in spans of time, by tier.
    """

    tiers: tuple[Tier, ...]
    bounds: Mapping[Tier, Bounds] | None
    from_us: Mapping[Tier, int]
    audited: Mapping[Tier, tuple[Extent, SpansInOrder]]

    @classmethod
    def of(
        cls, tiers: tuple[Tier, ...], bounds: Mapping[Tier, Bounds] | None, retention: Retention, now_us: int
    ) -> "WindowsAbove":
        """Returns the longer windows of a repair that audits nothing yet."""
        from_us = {
            tier: max(retention.aggregates_from_us(tiers[source], now_us), retention.added.get(tiers[source].family, 0))
            for tier, source in zip(tiers, sources(tuple(tier.window for tier in tiers)), strict=True)
        }
        return cls(tiers, bounds, from_us, {})

    def beside(self, audited: Iterable[tuple[Sequence[Extent], Sequence[Span]]]) -> "WindowsAbove":
        """Returns the same beside an audit of extents in spans; those of one tier do not overlap."""
        found: dict[Tier, tuple[Extent, list[Span]]] = {}
        for extents, spans in audited:
            for extent in extents:
                if extent.windows:
                    found.setdefault(extent.tier, (extent, []))[1].extend(spans)
        return replace(self, audited={tier: (each, SpansInOrder(spans)) for tier, (each, spans) in found.items()})

    def around(self, tier: int, start_us: int) -> Iterator[tuple[int, int]]:
        """Yields the tier, by index, and start of each longer window that depends on a window, shortest first."""
        starts = {tier: start_us}
        for index, source in enumerate(sources(tuple(each.window for each in self.tiers))):
            if source in starts:
                starts[index] = self.tiers[index].window.start_of(starts[source])
                yield index, starts[index]

    def are_audited(self, tier: int, sensor_id: str, start_us: int) -> bool:
        """Returns whether the repair computes a window from raw rows."""
        extent, spans = self.audited.get(self.tiers[tier], (None, SpansInOrder([])))
        return extent is not None and start_us in extent and spans.include(sensor_id, start_us)

    def why_left(self, tier: int, start_us: int) -> str | None:
        """Returns why a longer window can't be computed from shorter ones; None if it can."""
        of_tier = self.tiers[tier]
        if self.bounds is None:
            return None
        if start_us < self.bounds[of_tier].kept_us:
            return KEPT_NO_LONGER
        if of_tier.window.end_of(start_us) > self.bounds[of_tier].latest_us:
            return OPEN
        return COLLECTED_ROWS if start_us < self.from_us[of_tier] else None

    def follow(self, tier: int, start_us: int, sensor_id: str) -> bool:
        """Returns whether a window that is rewritten changes longer ones that the repair does not audit."""
        return any(
            not self.are_audited(index, sensor_id, longer_us) and self.why_left(index, longer_us) != KEPT_NO_LONGER
            for index, longer_us in self.around(tier, start_us)
        )

    def computes(self, tier: Tier, start_us: int) -> bool:
        """Returns whether the repair computes a longer window from shorter ones if these change."""
        index = self.tiers.index(tier)
        return index > 0 and self.why_left(index, start_us) is None
