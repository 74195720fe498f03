"""What ``tidetable read plot`` draws of a metric: the windows and events of a sensor, or the windows of a group."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pipeline.charts.charts import BandPoint, Reading
from pipeline.core.answers.record_json import group_json
from pipeline.core.notation.text import counted, json_number, plain
from pipeline.core.notation.times import format_time
from pipeline.core.queries.windows import rollup_of, tier_of_rollup
from pipeline.core.rows.records import AggregateRecord, GroupRecord, MetricSummary, SensorGroup
from pipeline.core.statistics.window_stats import statistic
from pipeline.core.windows import HOURLY, Window
from pipeline.reading.absences import missing_before
from pipeline.reading.options import usage_errors

if TYPE_CHECKING:  # --help does not wait for Google's clients
    from pipeline.cloud.reading.reader import SensorTable

_LINES = "avg", "time_weighted_mean", "p50", "last", "first", "increase", "rate", "max", "min"  # the first is drawn


@dataclass(frozen=True)
class Curve:
    """The windows and events to draw, both oldest first."""

    window: Window | None  # None if the table has no aggregates
    band: list[BandPoint]
    events: list[Reading]
    more: int  # the most events that are drawn, if the range has more; else 0
    names: "DrawnStatistics"
    lost: str  # what may be missing
    about: Mapping[str, Any]  # the sensor or the group, in JSON

    @classmethod
    def read(
        cls,
        table: "SensorTable",
        sensor: str,
        metric: str,
        span_us: tuple[int, int],
        tier: Window | None,
        metadata: Mapping[str, str],
        max_events: int,
        asked: tuple[str, str] | None,
    ) -> "Curve":
        """Reads a metric of a sensor: windows, and events if they are at most ``max_events``."""
        start_us, end_us = span_us
        tiers = table.schema.tiers
        window = tier or (tiers[0].window if tiers else None)
        with usage_errors():
            records = table.range(sensor, start_us, end_us, metrics=[metric], limit=max_events + 1, metadata=metadata)
            first_us = window.start_of(start_us) if window else 0
            windows = table.aggregates(sensor, first_us, end_us, tier=window, metrics=[metric]) if window else None
        names, band = _band_points(windows or (), metric, asked)
        lost = missing_before(windows.incomplete_before_us, "windows") if windows else ""
        newest = [Reading(record.event_time_us, record.readings[metric]) for record in records]
        more = len(newest) > max_events
        events = [] if band and more else newest[:max_events][::-1]
        return cls(window, band, events, max_events if more else 0, names, lost, {"sensor_id": sensor})

    @classmethod
    def of_group(
        cls,
        table: "SensorTable",
        group: SensorGroup,
        metric: str,
        span_us: tuple[int, int],
        tier: Window | None,
        asked: tuple[str, str] | None,
    ) -> "Curve":
        """Reads the windows of a group."""
        start_us, end_us = span_us
        with usage_errors():
            window = tier_of_rollup(table.schema, rollup_of(table.schema, group.rollup), tier).window
            first_us = window.start_of(start_us)
            windows = table.rollups(group.rollup, group, first_us, end_us, tier=window, metrics=[metric])
        names, band = _band_points(windows, metric, asked)
        return cls(
            window, band, [], 0, names, missing_before(windows.incomplete_before_us, "windows"), group_json(group)
        )

    def json(self, metric: str) -> Iterator[dict[str, Any]]:
        """Yields a record for each window and event drawn."""
        common = {**self.about, "metric": metric}
        for start_us, *values in self.band:
            statistics = dict(zip(self.names.in_order, map(json_number, values), strict=True))
            window = self.window or HOURLY
            yield common | {"window_start": window.shown(start_us), "window": window.text} | statistics
        for event in self.events:
            yield common | {"event_time": format_time(event.time_us), "value": event.value}

    def summary(self, tier: Window | None) -> str:
        """Returns a line about the windows and events drawn, and why these."""
        if self.window is None:
            windows = "the table has no aggregates"
        elif not self.band:
            windows = f"the range holds no aggregates of {self.window.text}"
        else:
            which = (
                "as requested"
                if tier
                else f"the shortest that the {'roll-up' if 'group' in self.about else 'table'} has"
            )
            windows = f"{counted(len(self.band), 'window')} of {self.window.text}, {which}"
        if "group" in self.about:
            return windows + (f"; {self.lost}" if self.lost else "")
        if self.more and self.band:
            events = f"no events (there are more than {self.more:,})"
        elif self.more:
            events = f"only the newest {self.more:,} events (there are more)"
        elif self.events:
            events = counted(len(self.events), "event")
        else:
            events = "the range holds no events"
        return f"{windows}; {events}" + (f"; {self.lost}" if self.lost else "")


class DrawnStatistics(NamedTuple):
    """The statistics drawn.

    Attributes:
        line: the one that stands for a window.
        band: the two that bound the band; None without a band.
    """

    line: str
    band: tuple[str, str] | None

    @property
    def in_order(self) -> tuple[str, str, str]:
        """The statistics of a :class:`BandPoint`."""
        low, high = self.band or (self.line, self.line)
        return low, self.line, high


def _names(summaries: Iterable[MetricSummary], asked: tuple[str, str] | None) -> DrawnStatistics | None:
    """Returns what to draw of what the windows contain; None if that is nothing that a line can show."""
    known: set[str] = set()
    for each in summaries:
        known.update(each.statistics())
        if each.sketch:
            known.add("p50")  # of any quantiles
    quantiles = sorted((statistic(name).rank, name) for name in known if statistic(name).part == "sketch")
    found = (
        ("min", "max") if known >= {"min", "max"} else (quantiles[0][1], quantiles[-1][1]) if quantiles[1:] else None
    )
    line = next((name for name in _LINES if name in known), None)
    return DrawnStatistics(line, asked or found) if line else None


def _band_points(
    windows: Iterable[AggregateRecord | GroupRecord], metric: str, asked: tuple[str, str] | None
) -> tuple[DrawnStatistics, list[BandPoint]]:
    """Returns what is drawn of the metric, and the windows that have it. Raises click.ClickException if none has."""
    found = [(record.start_us, record.metrics[metric]) for record in windows if metric in record.metrics]
    names = _names((of for _, of in found), asked)
    values = [(at_us, tuple(map(of.value, names.in_order))) for at_us, of in found] if names else []
    band = [
        BandPoint(at_us, least, line, most)
        for at_us, (least, line, most) in values
        if not (least is None or line is None or most is None)
    ]
    if found and not band:
        lacks = " and ".join(asked) if asked and names else "any statistic that a line can show"
        raise click.ClickException(
            f"the table does not have {lacks} of {plain(metric)}; choose others with --band, such as p5,p95, or "
            "declare them in the schema's [statistics]"
        )
    return names or DrawnStatistics(_LINES[0], asked), band
