"""``tidetable read plot``: draws one metric of one sensor over time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.charts.charts import BandPoint, Chart, PngPath, Reading, save_chart, terminal_chart
from pipeline.cli.console import out, print_json_line
from pipeline.cli.extras import check_installed
from pipeline.core.text import json_number
from pipeline.core.times import format_time
from pipeline.core.windows import Window
from pipeline.reading.absences import no_readings
from pipeline.reading.options import (
    Metadata,
    OpenTable,
    metadata_of_one,
    metadata_option,
    range_options,
    reading_options,
    usage_errors,
    window_option,
)

if TYPE_CHECKING:  # --help does not wait for Google's clients
    from pipeline.cloud.reader import SensorTable

_MAX_EVENTS = 2000  # to draw
_MIN_WIDTH, _MAX_WIDTH = 60, 100  # of a terminal chart, in characters


@click.command()
@click.argument("sensor")
@click.option("--metric", required=True, help="The metric to draw.")
@range_options
@window_option()
@click.option(
    "-o", "--output", type=PngPath(), metavar="FILE.png", help="Write a PNG to this file instead of printing a chart."
)
@metadata_option
@reading_options
def plot(
    sensor: str,
    metric: str,
    start_us: int,
    end_us: int,
    tier: Window | None,
    output: Path | None,
    metadata: Metadata,
    open_table: OpenTable,
    as_json: bool,
) -> None:
    """Draw a metric of SENSOR over a time range, in the terminal or as a PNG.

    Draws a band from minimum to maximum and a line of means, from the aggregates of all windows that overlap the range;
    missing windows leave a gap. Adds the events if there are at most 2,000. If the range has no aggregates, draws only
    the newest 2,000 events. Time is UTC. Standard error reports what is drawn and why. If a chart has too little room
    for all windows, it merges neighbouring ones; the legend gives their length.

    JSON is one line for each window and event drawn, instead of a chart. If the range is empty, nothing is drawn and no
    file is written.
    """
    if not as_json:
        check_installed("charts")
    with open_table() as table:
        fields = metadata_of_one(table.schema.key, metadata)
        series = _Series.read(table, sensor, metric, (start_us, end_us), tier, fields)
        if not series.band and not series.events:
            click.echo(no_readings(table, sensor, fields, [metric], (start_us, end_us)), err=True)
            return
    chart = Chart(
        f"{sensor}: {metric}",
        metric,
        series.band,
        **({"window_us": series.window.length_us} if series.window else {}),
        readings=series.events,
        requested_us=(start_us, end_us),
    )
    if output is not None:
        _save(chart, output)
    if as_json:
        for line in series.json(sensor, metric):
            print_json_line(line)
    elif output is None:
        click.echo(terminal_chart(chart, width=max(_MIN_WIDTH, min(out.width, _MAX_WIDTH))))
    else:
        click.echo(f"saved as {output}")
    click.echo(series.summary(tier), err=True)


@dataclass(frozen=True)
class _Series:
    """The windows and events to draw, both oldest first."""

    window: Window | None  # None if the table has no aggregates
    band: list[BandPoint]
    events: list[Reading]
    more: bool  # whether the range has more events than are drawn

    @classmethod
    def read(
        cls,
        table: "SensorTable",
        sensor: str,
        metric: str,
        span_us: tuple[int, int],
        tier: Window | None,
        metadata: Mapping[str, str],
    ) -> "_Series":
        start_us, end_us = span_us
        tiers = table.schema.tiers
        window = tier or (tiers[0].window if tiers else None)
        with usage_errors():
            records = table.range(sensor, start_us, end_us, metrics=[metric], limit=_MAX_EVENTS + 1, metadata=metadata)
            windows = table.aggregates(sensor, window.start_of(start_us), end_us, tier=window) if window else ()
        band = [
            BandPoint(record.start_us, summary.min, summary.avg, summary.max)
            for record in windows
            if (summary := record.metrics.get(metric))
        ]
        newest = [Reading(record.event_time_us, record.readings[metric]) for record in records]
        more = len(newest) > _MAX_EVENTS
        events = [] if band and more else newest[:_MAX_EVENTS][::-1]
        return cls(window, band, events, more)

    def json(self, sensor: str, metric: str) -> Iterator[dict[str, Any]]:
        """Yields a record for each window and event drawn."""
        common = {"sensor_id": sensor, "metric": metric}
        for start_us, *values in self.band:
            statistics = dict(zip(("min", "avg", "max"), map(json_number, values), strict=True))
            window = self.window.text if self.window else ""
            yield common | {"window_start": format_time(start_us), "window": window} | statistics
        for event in self.events:
            yield common | {"event_time": format_time(event.time_us), "value": event.value}

    def summary(self, tier: Window | None) -> str:
        """Returns one line that says what is drawn and why."""
        if self.window is None:
            windows = "the table has no aggregates"
        elif not self.band:
            windows = f"the range holds no aggregates of {self.window.text}"
        else:
            which = "as requested" if tier else "the shortest that the table has"
            windows = f"{_plural(len(self.band), 'window')} of {self.window.text}, {which}"
        if self.more and self.band:
            events = f"no events (there are more than {_MAX_EVENTS:,})"
        elif self.more:
            events = f"only the newest {_MAX_EVENTS:,} events (there are more)"
        elif self.events:
            events = _plural(len(self.events), "event")
        else:
            events = "the range holds no events"
        return f"drawn: {windows}; {events}"


def _save(chart: Chart, path: Path) -> None:
    try:
        save_chart(chart, path)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}") from error


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
