"""``tidetable simulate``: publishes a simulated fleet of sensors."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pipeline.cli.console import out, print_json_line, progress_bar, stop_on_sigint
from pipeline.cli.message_options import mapping_problems, message_options
from pipeline.cli.options import (
    MAX_COUNT,
    TIME,
    FloatRange,
    Parsed,
    json_option,
    rate_option,
    sensor_count_option,
    topic_option,
)
from pipeline.cloud.pubsub.publisher import Pacer, Publisher
from pipeline.core.events.event import EARLIEST_US
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.text import counted
from pipeline.core.notation.times import format_time
from pipeline.local.fleet import MAX_SENSORS, Fleet, Simulated
from pipeline.local.fleet import simulate as simulate_fleet
from pipeline.proto.sensor_event_pb2 import SensorEvent

if TYPE_CHECKING:
    from pipeline.core.decoding.message_types import MappedType

Wait = Callable[[Sequence[SensorEvent]], None]
"""Waits until a message with these events is due."""


@click.command()
@topic_option
@message_options
@sensor_count_option(MAX_SENSORS, 20)
@click.option(
    "--duration",
    type=Parsed("duration", parse_duration),
    default="3h",
    show_default=True,
    help="The simulated time span.",
)
@click.option(
    "--interval",
    type=Parsed("duration", parse_duration),
    default="10s",
    show_default=True,
    help="The time between two events of a sensor.",
)
@click.option("--end", type=TIME, default="now", show_default=True, help="The end of the simulated time.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Events per message.")
@click.option("--malformed", type=FloatRange(0, 1), default=0.01, show_default=True, help="Share of malformed events.")
@click.option(
    "--late",
    type=FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="The share of events that arrive after their window has closed, by up to a day.",
)
@rate_option
@click.option("--live", is_flag=True, help="Events happen now: publish for --duration of real time. For load tests.")
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="The random seed of the simulated fleet. With the same --end, it gives the same messages.",
)
@json_option
@click.pass_context
def simulate(
    ctx: click.Context,
    topic: str,
    mapped: "Sequence[MappedType]",
    sensors: int,
    duration: timedelta,
    interval: timedelta,
    end: int,
    batch: int,
    malformed: float,
    late: float,
    rate: float | None,
    live: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Publish the events of a simulated fleet of sensors.

    The events have daily cycles, noise, drift and outages. Some are late. Some messages are malformed, for each reason
    that the pipeline refuses.

    With --message-mapping, the messages are of your own type: each has values where the mapping reads them, so that the
    mapping makes the fleet's events of it. The last byte of a malformed message is missing or wrong. A path that can't
    be set is an error that names the mapping's key.

    With --live, for a load test, each event is published when it happens, in order of time, and --rate, divided among
    the sensors, replaces --interval. The summary has the longest delay of publishing.

    The exit code is 0, or 130 after Ctrl-C. Messages already sent are published either way.
    """
    if not duration or not interval:
        raise click.UsageError("--duration and --interval must be longer than 0")
    if live:
        _refuse_beside_live(ctx, "end", "late", *(["interval"] if rate else []))
    microsecond = timedelta(microseconds=1)
    end_us = end + duration // microsecond if live else end
    fleet = Fleet(
        sensors=sensors,
        start_us=end_us - duration // microsecond,
        end_us=end_us,
        interval_us=max(1, round(sensors / rate * 1_000_000)) if live and rate else interval // microsecond,
        seed=seed,
        batch=batch,
        malformed=malformed,
        late=late,
        prompt=live,
    )
    _check(fleet)
    simulated = _simulated(fleet, mapped)
    started = time.monotonic()
    messages = events = 0
    malformed_counts: Counter[str] = Counter()
    with stop_on_sigint() as stopped, Publisher(topic) as publisher:
        clock, pacer = LiveClock(stopped), Pacer(rate or math.inf, stopped)
        wait: Wait = clock.wait if live else lambda events: pacer.wait(max(1, len(events)))
        for sent in _paced(simulated, fleet, wait, stopped):
            publisher.send(sent.message)
            messages += 1
            events += len(sent.events)
            malformed_counts.update(sent.reasons)
    seconds = time.monotonic() - started
    summary = {
        "topic": topic,
        "messages": messages,
        "events": events,
        "malformed": dict(malformed_counts),
        "seconds": round(seconds, 3),
        "events_per_second": round(events / seconds, 1),
        **({"behind_seconds": round(clock.behind_s, 3)} if live else {}),
        "interrupted": stopped(),
    }
    if as_json:
        print_json_line(summary)
    else:
        out.print(_text(summary), soft_wrap=True)
    if summary["interrupted"]:
        ctx.exit(130)


def _simulated(fleet: Fleet, mapped: "Sequence[MappedType]") -> Iterator[Simulated]:
    if len(mapped) > 1:
        raise click.UsageError("a simulated fleet sends messages of one type: pass one --message-mapping")
    if not mapped:
        return simulate_fleet(fleet)
    from pipeline.local.mapped_fleet import simulate as simulate_mapped

    with mapping_problems(f"{mapped[0].file}: "):
        return simulate_mapped(fleet, mapped[0])


def _text(summary: Mapping[str, Any]) -> str:
    malformed = counted(sum(summary["malformed"].values()), "malformed event")
    text = (
        f"published {summary['events']:,} valid and {malformed} in "
        f"{counted(summary['messages'], 'message')} to {summary['topic']} in {summary['seconds']:.1f} s, "
        f"{summary['events_per_second']:,.0f} events/s"
    )
    if "behind_seconds" in summary:
        text += f", at most {summary['behind_seconds']:.1f} s late"
    return f"{text}; interrupted" if summary["interrupted"] else text


def _check(fleet: Fleet) -> None:
    """Raises UsageError for a fleet that sends too early or too much."""
    if fleet.start_us < EARLIEST_US:
        raise click.UsageError(
            f"the simulated time would begin before {format_time(EARLIEST_US)}, when no event is valid"
        )
    if fleet.events > MAX_COUNT:
        raise click.UsageError(
            f"the fleet would send {fleet.events:,} events, and {MAX_COUNT:,} are allowed; "
            "choose a lower --sensor-count, a shorter --duration or a longer --interval"
        )


class LiveClock:
    """Holds a simulation to real time: ``wait`` returns when all events of a message have happened.

    Attributes:
        behind_s: the longest, in seconds, that an event waited for the simulation or for the topic.
    """

    _NAP_SECONDS = 0.1  # the time in which it notices a stop

    def __init__(
        self,
        stopped: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes the arguments of ``Pacer``; the clock returns seconds since the epoch."""
        self.behind_s = 0.0
        self._stopped = stopped
        self._clock = clock
        self._sleep = sleep

    def wait(self, events: Sequence[SensorEvent]) -> None:
        """Returns when all of the events have happened, or soon after ``stopped()`` returns True."""
        if not events:
            return
        newest_us = max(event.event_time.ToMicroseconds() for event in events)
        while (early := newest_us / 1_000_000 - self._clock()) > 0 and not self._stopped():
            self._sleep(min(early, self._NAP_SECONDS))
        self.behind_s = max(self.behind_s, -early)


def _refuse_beside_live(ctx: click.Context, *names: str) -> None:
    """Raises UsageError if one of these options is set."""
    for name in names:
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} can't be set with --live{' and --rate' if name == 'interval' else ''}")


def _paced(messages: Iterator[Simulated], fleet: Fleet, wait: Wait, stopped: Callable[[], bool]) -> Iterator[Simulated]:
    """Yields each message after waiting with its events, until Ctrl-C, with a progress bar."""
    with progress_bar() as progress:
        task = progress.add_task("publishing events", total=fleet.events)
        for message in messages:
            wait(message.events)
            if stopped():
                return
            yield message
            progress.advance(task, len(message.events))
