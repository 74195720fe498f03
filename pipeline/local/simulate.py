"""``tidetable simulate``: publishes a simulated fleet of sensors."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import click

from pipeline.cli.console import out, print_json_line, progress_bar, stop_on_sigint
from pipeline.cli.options import TIME, Parsed
from pipeline.cloud.names import topic_path
from pipeline.cloud.publisher import Pacer, Publisher
from pipeline.core.durations import parse_duration
from pipeline.local.fleet import Plan, Simulated
from pipeline.local.fleet import simulate as simulate_fleet


@click.command()
@click.option("--topic", required=True, type=Parsed("topic", topic_path), help="projects/PROJECT/topics/TOPIC.")
@click.option("--sensors", type=click.IntRange(1), default=20, show_default=True, help="The number of sensors.")
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
@click.option(
    "--malformed", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of malformed events."
)
@click.option("--late", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of late events.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Limit in events per second. Default: no limit.")
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="The random seed; with the same --end it gives the same messages.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
@click.pass_context
def simulate(
    ctx: click.Context,
    topic: str,
    sensors: int,
    duration: timedelta,
    interval: timedelta,
    end: int,
    batch: int,
    malformed: float,
    late: float,
    rate: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Publish the events of a simulated fleet of sensors.

    The events have daily cycles, noise, drift and outages. Some are late, and some messages are malformed, for every
    reason for which the pipeline refuses them.

    The exit code is 0, or 130 after Ctrl-C. Messages already sent are published either way.
    """
    if not duration or not interval:
        raise click.UsageError("--duration and --interval must be longer than 0")
    microsecond = timedelta(microseconds=1)
    plan = Plan(
        sensors=sensors,
        start_us=end - duration // microsecond,
        end_us=end,
        interval_us=interval // microsecond,
        seed=seed,
        batch=batch,
        malformed=malformed,
        late=late,
    )
    started = time.monotonic()
    messages = events = 0
    malformed_counts: Counter[str] = Counter()
    with stop_on_sigint() as stopped, Publisher(topic) as publisher:
        for one in _paced(simulate_fleet(plan), plan, rate, stopped):
            publisher.send(one.message)
            messages += 1
            events += len(one.events)
            malformed_counts.update(one.reasons)
    seconds = time.monotonic() - started
    if as_json:
        summary = {
            "messages": messages,
            "events": events,
            "malformed": dict(malformed_counts),
            "seconds": round(seconds, 3),
        }
        print_json_line({"topic": topic, **summary, "interrupted": stopped()})
    else:
        out.print(
            f"published {events:,} valid and {malformed_counts.total():,} malformed events in {messages:,} messages "
            f"to {topic} in {seconds:.1f} s{'; interrupted' if stopped() else ''}",
            soft_wrap=True,
        )
    if stopped():
        ctx.exit(130)


def _paced(
    messages: Iterator[Simulated], plan: Plan, rate: float | None, stopped: Callable[[], bool]
) -> Iterator[Simulated]:
    """Yields the messages at the given rate until Ctrl-C, with a progress bar."""
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
