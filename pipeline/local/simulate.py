"""``tidetable simulate``: a fleet of sensors, published."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import click

from pipeline.cli.console import out, print_json_line, progress_bar, stop_on_sigint
from pipeline.cli.options import Parsed
from pipeline.cloud.names import topic_path
from pipeline.cloud.publisher import Pacer, Publisher
from pipeline.core.durations import parse_duration
from pipeline.core.times import parse_time
from pipeline.local.fleet import Plan, Simulated
from pipeline.local.fleet import simulate as simulated


@click.command()
@click.option("--topic", required=True, type=Parsed("topic", topic_path), help="projects/PROJECT/topics/TOPIC.")
@click.option("--sensors", type=click.IntRange(1), default=20, show_default=True, help="How many sensors.")
@click.option(
    "--duration", type=Parsed("duration", parse_duration), default="3h", show_default=True, help="Time simulated."
)
@click.option(
    "--interval", type=Parsed("duration", parse_duration), default="10s", show_default=True, help="Between events."
)
@click.option(
    "--end", type=Parsed("time", parse_time), help="Where the simulated time ends, in ISO 8601; now without it."
)
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Events a message.")
@click.option("--malformed", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of broken ones.")
@click.option("--late", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of late events.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Events a second; flat out without it.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed and --end give the same messages.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as a JSON line.")
@click.pass_context
def simulate(
    ctx: click.Context,
    topic: str,
    sensors: int,
    duration: timedelta,
    interval: timedelta,
    end: int | None,
    batch: int,
    malformed: float,
    late: float,
    rate: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Publish a simulated fleet: daily cycles, noise, drift, outages, late events, broken messages of every kind.

    Exit code: 0; 130 after Ctrl-C, which leaves out the rest. What was sent is published either way.
    """
    if not duration or not interval:
        raise click.UsageError("--duration and --interval must be longer than nothing")
    end_us = end if end is not None else int(time.time() * 1_000_000)
    microsecond = timedelta(microseconds=1)
    plan = Plan(
        sensors=sensors,
        start_us=end_us - duration // microsecond,
        end_us=end_us,
        interval_us=interval // microsecond,
        seed=seed,
        batch=batch,
        malformed=malformed,
        late=late,
    )
    started = time.monotonic()
    messages = events = 0
    broken: Counter[str] = Counter()
    with stop_on_sigint() as stopped, Publisher(topic) as publisher:
        for one in _paced(simulated(plan), plan, rate, stopped):
            publisher.send(one.message)
            messages += 1
            events += len(one.events)
            broken.update(one.reasons)
    seconds = time.monotonic() - started
    if as_json:
        summary = {"messages": messages, "events": events, "malformed": dict(broken), "seconds": round(seconds, 3)}
        print_json_line({"topic": topic, **summary, "interrupted": stopped()})
    else:
        out.print(
            f"published {events:,} valid and {broken.total():,} broken events in {messages:,} messages to {topic} "
            f"in {seconds:.1f} s{'; interrupted' if stopped() else ''}",
            soft_wrap=True,
        )
    if stopped():
        ctx.exit(130)


def _paced(
    messages: Iterator[Simulated], plan: Plan, rate: float | None, stopped: Callable[[], bool]
) -> Iterator[Simulated]:
    """The messages at the wanted pace until somebody wants to stop, with a progress bar."""
    pacer = Pacer(rate or math.inf, stopped)
    expected = plan.sensors * ((plan.end_us - plan.start_us) // plan.interval_us)
    with progress_bar() as progress:
        task = progress.add_task("publishing events", total=expected)
        for message in messages:
            pacer.wait(max(1, len(message.events)))
            if stopped():
                return
            yield message
            progress.advance(task, len(message.events))
