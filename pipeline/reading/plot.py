"""``tidetable read plot``: draws metrics of sensors, or of groups of sensors, over time."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pipeline.charts.charts import MAX_SERIES, BandPoint, Chart, PngPath, Reading, Series
from pipeline.charts.png import save_chart
from pipeline.charts.terminal import terminal_chart
from pipeline.cli.console import out, print_json_line
from pipeline.cli.extras import check_installed
from pipeline.cli.options import AskedRange, Parsed, asked_range_options, json_option
from pipeline.core.answers.enough_data import LeastData
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.answers.record_json import group_json
from pipeline.core.notation.text import counted, json_number, plain
from pipeline.core.notation.times import format_time
from pipeline.core.queries.windows import group_named, rollup_of, tier_of_rollup
from pipeline.core.rows.records import AggregateRecord, GroupRecord, MetricSummary, RawRecord, SensorGroup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import statistic
from pipeline.core.windows import DAILY, HOURLY, CalendarWindow, Window
from pipeline.reading.options import (
    Metadata,
    OpenTable,
    last_day,
    least_options,
    metadata_of_one,
    metadata_option,
    reading_options,
    usage_errors,
    window_option,
)
from pipeline.reading.views import missing_before, no_readings

if TYPE_CHECKING:
    from pipeline.cloud.reading.frames import AggregateRecords, GroupRecords
    from pipeline.cloud.reading.reader import SensorTable


_MAX_EVENTS = 2000  # drawn
_MIN_WIDTH, _MAX_WIDTH = 60, 100  # characters of a terminal chart
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
        subject: str | SensorGroup,
        metric: str,
        span_us: tuple[int, int],
        tier: Window | None,
        metadata: Mapping[str, str],
        max_events: int,
        asked: tuple[str, str] | None,
        least: LeastData,
    ) -> "Curve":
        """Reads a metric: windows, and the events of a sensor if they are at most ``max_events``."""
        start_us, end_us = span_us
        window: Window | None
        records: Iterable[RawRecord] = ()
        windows: AggregateRecords | GroupRecords | None = None
        with usage_errors():
            if isinstance(subject, SensorGroup):
                window = tier_of_rollup(table.schema, rollup_of(table.schema, subject.rollup), tier).window
                first_us = window.start_of(start_us)
                windows = table.rollups(subject.rollup, subject, first_us, end_us, tier=window, metrics=[metric])
            else:
                window = tier or next((tier.window for tier in table.schema.tiers), None)
                most = max_events + 1
                records = table.events(subject, start_us, end_us, metrics=[metric], limit=most, metadata=metadata)
                if window:
                    first_us = window.start_of(start_us)
                    windows = table.aggregates(
                        subject,
                        first_us,
                        end_us,
                        tier=window,
                        metrics=[metric],
                        min_coverage=least.coverage,
                        min_count=least.readings,
                    )
        names, band = _band_points(windows or (), metric, asked)
        lost = missing_before(windows.incomplete_before_us, "windows") if windows else ""
        newest = [Reading(record.event_time_us, record.readings[metric]) for record in records]
        more = len(newest) > max_events
        events = [] if band and more else newest[:max_events][::-1]
        about = group_json(subject) if isinstance(subject, SensorGroup) else {"sensor_id": subject}
        return cls(window, band, events, max_events if more else 0, names, lost, about)

    def json(self, metric: str) -> Iterator[dict[str, Any]]:
        """Yields a record for each window and event drawn."""
        common = {**self.about, "metric": metric}
        for start_us, *values in self.band:
            statistics = dict(zip(self.names.in_order, map(json_number, values), strict=True))
            window = self.window or HOURLY
            yield common | {"window_start": window.shown(start_us), "window": window.text} | statistics
        for event in self.events:
            yield common | {"event_time": format_time(event.time_us), "value": event.value}

    def summary(self, tier: Window | None, least: LeastData) -> str:
        """Returns a line about the windows and events drawn, and why these."""
        if self.window is None:
            windows = "the table has no aggregates"
        elif not self.band:
            enough = " with enough readings" if any(least) else ""
            windows = f"the range holds no aggregates of {self.window.text}{enough}"
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


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def _unit(text: str) -> tuple[str, str]:
    metric, equals, unit = text.partition("=")
    if not (unit if equals else metric):
        raise ValueError(f"{text!r} is neither a unit, such as °C, nor METRIC=UNIT, such as pressure=hPa")
    return (metric, unit) if equals else ("", metric)


def _band(text: str) -> tuple[str, str]:
    low, comma, high = text.partition(",")
    if not comma:
        raise ValueError(f"{text!r} is not two statistics, such as p5,p95")
    return statistic(low).name, statistic(high).name


@click.command()
@click.argument("sensors", nargs=-1, metavar="[SENSOR]...")
@click.option(
    "--rollup", metavar="NAME", help="Draw groups of this roll-up. Arguments are the values of their fields: north m1."
)
@click.option("--metric", "metrics", required=True, multiple=True, metavar="METRIC", help="The metric. Repeatable.")
@asked_range_options
@window_option
@least_options
@click.option(
    "--unit",
    "units",
    type=Parsed("[metric=]unit", _unit),
    multiple=True,
    help="The unit, such as °C, or a metric's, such as pressure=hPa. Metrics of one unit share an axis. By default, "
    "the schema's. Repeatable.",
)
@click.option(
    "--band",
    type=Parsed("low,high", _band),
    help="The statistics between which the band is drawn, such as p5,p95. By default min,max, or else the outer "
    "quantiles.",
)
@click.option("--y-min", type=Parsed("number", _finite), help="The lower end of the value axis.")
@click.option("--y-max", type=Parsed("number", _finite), help="The upper end of the value axis.")
@click.option(
    "-o", "--output", type=PngPath(), metavar="FILE.png", help="Write a PNG to this file instead of printing a chart."
)
@metadata_option
@reading_options
@json_option
def plot(
    sensors: tuple[str, ...],
    rollup: str | None,
    metrics: tuple[str, ...],
    asked: AskedRange,
    tier: Window | None,
    least: LeastData,
    units: tuple[tuple[str, str], ...],
    band: tuple[str, str] | None,
    y_min: float | None,
    y_max: float | None,
    output: Path | None,
    metadata: Metadata,
    open_table: OpenTable,
    as_json: bool,
) -> None:
    """Draw metrics of each SENSOR, or of groups of sensors, over a time range, in the terminal or as a PNG.

    Draws a band from minimum to maximum and a line of means, from the aggregates of all windows that overlap the range;
    without these statistics, the outer quantiles and the median. Missing windows leave a gap. Adds the events if they
    are at most 2,000. If the range has no aggregates, draws only the newest 2,000 events. The time axis is in the zone
    of --time-zone, else in that of --tier, else in UTC. Standard error reports what is drawn and why. A chart without
    room for all windows merges neighbouring ones; the legend gives their length.

    Sensors share a chart, and so do metrics with the same --unit; other metrics get charts of their own, below each
    other. A chart has at most eight lines, which share the 2,000 events. A terminal shows several lines without bands,
    and without events if they have means.

    With --rollup, draws the windows of groups: --rollup site north south, or --rollup fleet for all sensors.

    JSON is one line for each window and event drawn, instead of a chart. Without data, no file is written and the exit
    code is 1.
    """
    names = list(dict.fromkeys(metrics))
    _check_units(dict(units), names)
    _check_limits(y_min, y_max, 1)
    if rollup is None and not sensors:
        raise click.UsageError("name a sensor, or with --rollup a group")
    if rollup is not None and any(least):
        raise click.UsageError("--min-coverage and --min-count are for sensors; remove them, or --rollup")
    if not as_json:
        check_installed("charts")
    found: dict[tuple[str, str], Curve] = {}
    with open_table() as table:
        declared = {} if "" in dict(units) else {metric: _unit_in(table.schema, metric) for metric in names}
        panels = _panels(names, declared | dict(units))
        _check_limits(y_min, y_max, len(panels))
        fields = metadata_of_one(table.schema.key, metadata) if rollup is None else {}
        with usage_errors():
            drawn = list(dict.fromkeys(sensors)) if rollup is None else _groups(table, rollup, sensors)
            window = tier_of_rollup(table.schema, rollup_of(table.schema, rollup), tier).window if rollup else tier
        span_us, zone = last_day(*asked.us(window)), zone_for(asked.time_zone, window)
        _check_lines(panels, len(drawn))
        for of_axis in panels.values():
            most = _MAX_EVENTS // (len(drawn) * len(of_axis))
            for each in drawn:
                for metric in of_axis:
                    label = each if isinstance(each, str) else each.label
                    series = Curve.read(table, each, metric, span_us, tier, fields, most, band, least)
                    if series.band or series.events:
                        found[label, metric] = series
                    elif isinstance(each, str):
                        click.echo(no_readings(table, each, fields, [metric], span_us), err=True)
                    else:
                        click.echo(f"no windows of {metric} of {plain(label)} in this range", err=True)
    if not found:
        click.get_current_context().exit(1)
    if output is not None or not as_json:
        charts = list(_charts(panels, found, table.schema.labels, span_us, zone, (y_min, y_max)))
        _draw(charts, output, quietly=as_json)
    if as_json:
        for (_, metric), series in found.items():
            for line in series.json(metric):
                print_json_line(line)
    for (sensor, metric), series in found.items():
        which = "" if len(drawn) == len(names) == 1 else f"{plain(metric)} of {plain(sensor)}, "
        click.echo(f"drawn: {which}{series.summary(tier, least)}", err=True)


def _groups(table: "SensorTable", name: str, values: Sequence[str]) -> list[SensorGroup]:
    """Returns the groups with these values of their fields, one group after the other. Raises ValueError."""
    rollup = rollup_of(table.schema, name)
    size = max(len(rollup.by), 1)
    parts = [values[at : at + size] for at in range(0, len(values), size)] or [()]
    return list(dict.fromkeys(group_named(rollup, part) for part in parts))


def _check_units(units: Mapping[str, str], metrics: Sequence[str]) -> None:
    """Raises click.UsageError if a unit belongs to no metric."""
    if unknown := [metric for metric in units if metric and metric not in metrics]:
        raise click.UsageError(f"--unit {unknown[0]}=…: {unknown[0]} is not drawn; add --metric {unknown[0]}")


def _unit_in(schema: TableSchema, metric: str) -> str:
    """Returns the unit of the statistic that is drawn of a metric; empty if the schema has none."""
    declared = {statistic.name for statistic in schema.statistics.of(metric)}
    return schema.unit_of(metric, next((name for name in _LINES if name in declared), None)) or ""


def _panels(metrics: list[str], units: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the metrics by the label of their value axis: by their unit, or by themselves if they have none.

    The unit under the empty name stands for metrics that have no other.
    """
    panels: dict[str, list[str]] = {}
    for metric in metrics:
        panels.setdefault(units.get(metric) or units.get("") or metric, []).append(metric)
    return panels


def _check_lines(panels: Mapping[str, Sequence[str]], count: int) -> None:
    """Raises click.UsageError if an axis has too many lines, given the number of sensors or groups."""
    most = max(map(len, panels.values())) * count
    if most > MAX_SERIES or len(panels) > MAX_SERIES:
        what = f"{most} lines in a chart" if most > MAX_SERIES else f"{len(panels)} charts"
        raise click.UsageError(f"{what} are more than people can tell apart; draw at most {MAX_SERIES}")


def _check_limits(y_min: float | None, y_max: float | None, axes: int) -> None:
    if y_min is not None and y_max is not None and y_min >= y_max:
        raise click.UsageError(f"--y-min {y_min:g} is not below --y-max {y_max:g}")
    if axes > 1 and (y_min, y_max) != (None, None):
        raise click.UsageError(
            "--y-min and --y-max are for one value axis: draw one metric, or metrics with the same --unit"
        )


def _charts(
    panels: Mapping[str, Sequence[str]],
    found: Mapping[tuple[str, str], Curve],
    labels: Mapping[str, str],
    span_us: tuple[int, int],
    zone: str,
    limits: tuple[float | None, float | None],
) -> Iterator[Chart]:
    """Yields a chart for each value axis that has something to show."""
    several_axes = len(panels) > 1
    for unit, metrics in panels.items():
        drawn = {key: series for key, series in found.items() if key[1] in metrics}
        if not drawn:
            continue
        sensors = list(dict.fromkeys(sensor for sensor, _ in drawn))
        shown = list(dict.fromkeys(labels.get(metric, metric) for _, metric in drawn))
        only = labels.get(metrics[0], metrics[0])
        in_unit = "" if [unit] == metrics else f" ({unit})"
        label = unit if len(metrics) > 1 else f"{only}{in_unit}"
        window = next(iter(drawn.values())).window
        yield Chart(
            f"{', '.join(sensors)}: {', '.join(shown)}{in_unit}",
            label,
            [
                Series(
                    _name(sensor, labels.get(metric, metric), sensors, shown, several_axes=several_axes),
                    series.band,
                    series.events,
                )
                for (sensor, metric), series in drawn.items()
            ],
            **({"window_us": window.length.days * DAILY.length_us or window.length_us} if window else {}),
            calendar=window if isinstance(window, CalendarWindow) else None,
            requested_us=span_us,
            zone=zone,
            limits=limits,
            band=" or ".join(dict.fromkeys(_name_of(each.names.band) for each in drawn.values() if each.names.band)),
            line=" or ".join(
                dict.fromkeys("mean" if each.names.line == "avg" else each.names.line for each in drawn.values())
            ),
        )


def _name_of(band: tuple[str, str]) -> str:
    return "minimum to maximum" if band == ("min", "max") else " to ".join(band)


def _name(sensor: str, metric: str, sensors: list[str], metrics: list[str], *, several_axes: bool) -> str:
    """Returns a series' name in the legend: the part that tells it from the others."""
    if len(metrics) == 1:
        return sensor
    return metric if len(sensors) == 1 and not several_axes else f"{sensor}: {metric}"


def _draw(charts: list[Chart], output: Path | None, *, quietly: bool) -> None:
    if not all(chart.shows_something() for chart in charts):
        raise click.ClickException("no value is between --y-min and --y-max; nothing is drawn")
    if output is None:
        click.echo(terminal_chart(charts, width=max(_MIN_WIDTH, min(out.width, _MAX_WIDTH))))
        return
    try:
        save_chart(charts, output)
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror or error}") from error
    if not quietly:
        click.echo(f"saved as {output}")
