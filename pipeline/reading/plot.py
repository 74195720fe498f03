"""``tidetable read plot``: one metric of one sensor over time, as a picture."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pipeline.charts.charts import BandPoint, Chart, PngPath, Reading, save_chart, terminal_chart
from pipeline.cli.console import out, print_json_line
from pipeline.cloud.reader import SensorTable
from pipeline.core.text import json_number
from pipeline.core.times import format_time
from pipeline.core.windows import Window
from pipeline.reading.absences import no_readings
from pipeline.reading.options import (
    WINDOW,
    Metadata,
    OpenTable,
    metadata_of_one,
    metadata_option,
    range_options,
    reading_options,
    usage_errors,
)

_MOST_EVENTS = 2000  # that are drawn
_NARROWEST, _WIDEST = 60, 100  # of a chart in a terminal


@click.command()
@click.argument("sensor")
@click.option("--metric", required=True, help="Which of the sensor's readings.")
@range_options
@click.option("--tier", type=WINDOW, help="The length of the windows; by default the shortest that the table has.")
@click.option(
    "-o", "--output", type=PngPath(), metavar="FILE.png", help="Where a PNG goes; without it, a chart is printed."
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
    """Draw a metric of SENSOR over a range of time, in the terminal or as a PNG.

    A band from minimum to maximum and a line of means, from the aggregates of all windows that reach into the range;
    over windows that are missing there is neither. With it the events themselves, where they are no more than 2,000;
    in a table without aggregates the events alone, the newest 2,000 of them. Time is UTC. What is drawn, and why, is
    told on standard error. More windows than a chart has room for are drawn together, as its legend tells.

    JSON is a line for each window and each event that is drawn, and no chart is printed. Where the range holds nothing,
    nothing is drawn and no file is written.
    """
    with open_table() as table:
        known = metadata_of_one(table.schema.key, metadata)
        found = _Found.read(table, sensor, metric, (start_us, end_us), tier, known)
        if not found.band and not found.events:
            click.echo(no_readings(table, sensor, known, [metric], (start_us, end_us)), err=True)
            return
    chart = Chart(
        f"{sensor}: {metric}",
        metric,
        found.band,
        **({"window_us": found.window.length_us} if found.window else {}),
        readings=found.events,
        asked_us=(start_us, end_us),
    )
    if output is not None:
        _save(chart, output)
    if as_json:
        for line in found.json(sensor, metric):
            print_json_line(line)
    elif output is None:
        click.echo(terminal_chart(chart, width=max(_NARROWEST, min(out.width, _WIDEST))))
    else:
        click.echo(f"saved as {output}")
    click.echo(found.told(tier), err=True)


@dataclass(frozen=True)
class _Found:
    """What is drawn: windows, the oldest first, and as many events as can be, the oldest first."""

    window: Window | None  # None: the table has no aggregates
    band: list[BandPoint]
    events: list[Reading]
    more: bool  # events than are drawn

    @classmethod
    def read(
        cls,
        table: SensorTable,
        sensor: str,
        metric: str,
        span_us: tuple[int, int],
        tier: Window | None,
        metadata: Mapping[str, str],
    ) -> "_Found":
        start_us, end_us = span_us
        tiers = table.schema.tiers
        window = tier or (tiers[0].window if tiers else None)
        with usage_errors():
            records = table.range(sensor, start_us, end_us, metrics=[metric], limit=_MOST_EVENTS + 1, metadata=metadata)
            windows = table.aggregates(sensor, window.start_of(start_us), end_us, tier=window) if window else ()
        band = [
            BandPoint(record.start_us, summary.min, summary.avg, summary.max)
            for record in windows
            if (summary := record.metrics.get(metric))
        ]
        newest = [Reading(record.event_time_us, record.readings[metric]) for record in records]
        more = len(newest) > _MOST_EVENTS
        events = [] if band and more else newest[:_MOST_EVENTS][::-1]
        return cls(window, band, events, more)

    def json(self, sensor: str, metric: str) -> Iterator[dict[str, Any]]:
        """What is drawn, a record for each."""
        of = {"sensor_id": sensor, "metric": metric}
        for start_us, *values in self.band:
            statistics = dict(zip(("min", "avg", "max"), map(json_number, values), strict=True))
            window = self.window.text if self.window else ""
            yield of | {"window_start": format_time(start_us), "window": window} | statistics
        for event in self.events:
            yield of | {"event_time": format_time(event.time_us), "value": event.value}

    def told(self, tier: Window | None) -> str:
        """What is drawn and why, in a line."""
        if self.window is None:
            windows = "the table has no aggregates"
        elif not self.band:
            windows = f"the range holds no aggregates of {self.window.text}"
        else:
            which = "as was asked for" if tier else "the shortest that the table has"
            windows = f"{_counted(len(self.band), 'window')} of {self.window.text}, {which}"
        if self.more and self.band:
            events = f"no events, for there are more than {_MOST_EVENTS:,}"
        elif self.more:
            events = f"the newest {_MOST_EVENTS:,} events alone, for there are more"
        elif self.events:
            events = _counted(len(self.events), "event")
        else:
            events = "the range holds no events"
        return f"drawn: {windows}; {events}"


def _save(chart: Chart, path: Path) -> None:
    try:
        save_chart(chart, path)
    except OSError as error:
        raise click.ClickException(f"{path} can't be written: {error.strerror or error}") from error


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
