"""``tidetable demo``: runs the whole job on emulators and verifies the table against what was published."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from google.cloud import bigtable, pubsub_v1

from pipeline.charts.charts import BandPoint, Chart, PngPath, Series
from pipeline.charts.png import save_chart
from pipeline.cli.console import err, out, progress_bar
from pipeline.cli.extras import check_installed
from pipeline.cli.options import sensor_count_option
from pipeline.cli.tables import number, print_table, word
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.publisher import Publisher
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.cloud.tables import tables
from pipeline.core.notation.text import counted
from pipeline.core.notation.times import parse_time
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.local.emulators import BIGTABLE, PUBSUB, embedded_option, origins, running_emulators
from pipeline.local.fleet import Fleet, simulate
from pipeline.local.processes import start_watched
from pipeline.local.proof import Expectation, Table
from pipeline.local.things_to_try import exports, suggestions

_PROJECT = "tidetable-demo"
_TABLE_TIMEOUT_S, _STOP_TIMEOUT_S = 75.0, 90.0
_POLL_S = 1.0
_SERVE_PORT = 8080
_SHOWN_DIFFERENCES = 10
_CHARTED = "temperature", "°C"
_ROLLUPS = Rollup("site", ("location",)), Rollup("fleet")
_FIELDS = {rollup.name: rollup.by for rollup in _ROLLUPS}


@dataclass
class _Published:
    """Counts what was published, and expects the rows and dead letters that follow from it."""

    expectation: Expectation = field(default_factory=lambda: Expectation(newest=True, rollups=_FIELDS))
    messages: int = 0
    events: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Resources:
    topic: str
    subscription: str
    dead_letter_topic: str
    dead_letter_subscription: str  # the demo counts and removes its messages
    kept_dead_letters: str  # another subscription, for commands tried with --keep
    results_topic: str
    results: str  # a subscription for such commands too
    table: TableName


@click.command()
@sensor_count_option(1000, 12)
@click.option("--seed", type=int, default=1, show_default=True, help="The random seed of the simulated fleet.")
@click.option(
    "--chart",
    type=PngPath(),
    default=Path("demo.png"),
    show_default=True,
    help="Write the chart to this PNG file.",
)
@click.option("--keep", is_flag=True, help="Then keep everything running until Ctrl-C, and print commands to try.")
@click.option("--serve", is_flag=True, help="Also serve the table to your browser. Implies --keep.")
@embedded_option
def demo(sensors: int, seed: int, chart: Path, keep: bool, serve: bool, embedded: bool) -> None:
    """Run the whole job on emulators and verify its table.

    Publishes a day of events from a simulated fleet, including malformed messages, runs the real pipeline on the
    DirectRunner, and compares every raw row, every hourly aggregate and every roll-up by site with an independent
    computation. The exit code is 1 if they differ.

    With --keep, the emulators, the table and the job then run until Ctrl-C, for commands in another terminal; with
    --serve, also a page in the browser.
    """
    keep = keep or serve
    for extra in ("beam", "charts", *(["serve"] if serve else [])):
        check_installed(extra)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends child processes as Ctrl-C does
    with ExitStack() as stack:
        # Emulators that were already running may contain an earlier demo's resources.
        suffix = f"-{time.time_ns():x}" if any(map(os.environ.get, (PUBSUB.variable, BIGTABLE.variable))) else ""
        out.print(origins(embedded=embedded), soft_wrap=True)
        with _step("starting Pub/Sub and Bigtable"):
            os.environ |= (environment := stack.enter_context(running_emulators(embedded=embedded)))
        with _step("creating topics, subscriptions and the table"):
            resources = _create_resources(suffix)
        with _step("starting the pipeline"):
            job = stack.enter_context(_running_pipeline(resources))
        with _step("publishing the fleet"):
            published = _publish(_last_day_of(sensors, seed), resources.topic)
        with _step("waiting for all rows in the table"):
            table, dead_letters = _wait_for_everything(job, resources, published)
        if not keep:
            _stop(job)
        differences = [*published.expectation.differences(table), *_dead_letter_differences(published, dead_letters)]
        sensor_id = _draw(table, chart)
        _summarise(published, table, dead_letters, sensor_id, chart)
        _conclude(differences, time.monotonic() - started)
        if keep:
            _suggest(environment, resources, sensor_id, job.log)
            if serve:
                stack.enter_context(_serving(resources.table))
            _run_until_ctrl_c(job)
        else:
            out.print("To look at such a table in your browser: make demo SERVE=1")


@contextmanager
def _step(what: str) -> Iterator[None]:
    """Prints the current step, and its duration once it is done."""
    started = time.monotonic()
    if not out.is_terminal:
        out.print(f"  {what} …")
    with err.status(what):
        yield
    out.print(f"[green]✓[/] {what} [dim]{time.monotonic() - started:.1f} s[/]")


def _last_day_of(sensors: int, seed: int) -> Fleet:
    now_us = int(time.time() * 1_000_000)
    return Fleet(
        sensors=sensors,
        start_us=now_us - 86_400_000_000,
        end_us=now_us,
        interval_us=180_000_000,
        seed=seed,
        batch=20,
    )


def _create_resources(suffix: str) -> _Resources:
    publisher, subscriber = pubsub_v1.PublisherClient(), subscriber_client()
    resources = _Resources(
        topic=publisher.topic_path(_PROJECT, f"events{suffix}"),
        subscription=subscriber.subscription_path(_PROJECT, f"events{suffix}"),
        dead_letter_topic=publisher.topic_path(_PROJECT, f"dead-letters{suffix}"),
        dead_letter_subscription=subscriber.subscription_path(_PROJECT, f"counted-dead-letters{suffix}"),
        kept_dead_letters=subscriber.subscription_path(_PROJECT, f"dead-letters{suffix}"),
        results_topic=publisher.topic_path(_PROJECT, f"results{suffix}"),
        results=subscriber.subscription_path(_PROJECT, f"results{suffix}"),
        table=TableName(_PROJECT, "demo", f"sensors{suffix}"),
    )
    for topic, *subscriptions in (
        (resources.topic, resources.subscription),
        (resources.dead_letter_topic, resources.dead_letter_subscription, resources.kept_dead_letters),
        (resources.results_topic, resources.results),
    ):
        publisher.create_topic(name=topic)
        for subscription in subscriptions:
            subscriber.create_subscription(name=subscription, topic=topic)
    publisher.stop()
    subscriber.close()
    tables.create(resources.table, replace(TableSchema.for_new_table(), rollups=_ROLLUPS))
    return resources


class _Job:
    """The pipeline in its own process, ``python -m pipeline``."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self._process = process
        self.log = log

    def check(self) -> None:
        """Raises ClickException if the process has ended."""
        if self._process.poll() is not None:
            raise self._failure("ended unexpectedly")

    def stop(self) -> None:
        """Stops the pipeline, which first writes all messages that it has pulled."""
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {_STOP_TIMEOUT_S:.0f} s") from None
        if code != 0:
            raise self._failure(f"stopped with exit code {code}")

    def kill(self) -> None:
        """Kills the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _failure(self, what: str) -> click.ClickException:
        return click.ClickException(f"the pipeline {what}; the end of its log:\n{self.log.read_text()[-3000:]}")


@contextmanager
def _running_pipeline(resources: _Resources) -> Iterator[_Job]:
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "--runner=DirectRunner",
        f"--project={_PROJECT}",
        f"--input_subscription={resources.subscription}",
        f"--dead_letter_topic={resources.dead_letter_topic}",
        f"--results_topic={resources.results_topic}",
        f"--bigtable_instance={resources.table.instance}",
        f"--bigtable_table={resources.table.table}",
        "--timestamp_attribute=event_time",
        "--early_firing=5s",
        "--late_firing=5s",
    ]
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "pipeline.log"
        with log.open("wb") as output, start_watched(command, stdout=output, stderr=subprocess.STDOUT) as process:
            job = _Job(process, log)
            try:
                yield job
            finally:
                job.kill()


@contextmanager
def _serving(table: TableName) -> Iterator[None]:
    """Runs ``tidetable serve``, which prints its address."""
    arguments = [f"--project={table.project}", f"--instance={table.instance}", f"--table={table.table}"]
    command = [sys.executable, "-c", "from pipeline.cli.extras import main; main()", "serve", *arguments]
    with start_watched([*command, f"--port={_free_port()}"]) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    """Returns the usual port, or 0, for any, if another program listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _SERVE_PORT))
        except OSError:
            return 0
    return _SERVE_PORT


def _publish(fleet: Fleet, topic: str) -> _Published:
    published = _Published()
    with Publisher(topic) as publisher, progress_bar() as progress:
        task = progress.add_task("publishing events", total=fleet.events)
        for one in simulate(fleet):
            publisher.send(one.message)
            published.messages += 1
            published.events += len(one.events)
            published.dead_letters.update(one.reasons)
            for event in one.events:
                published.expectation.add(event)
            progress.advance(task, len(one.events))
    return published


def _wait_for_everything(
    job: _Job, resources: _Resources, published: _Published
) -> tuple[dict[str, dict[str, str]], Counter[str]]:
    """Returns the table's rows and counts of dead letters by reason, once all of them have arrived."""
    deadline = time.monotonic() + _TABLE_TIMEOUT_S
    dead_letters: Counter[str] = Counter()
    expected = len(published.expectation.keys)
    with subscriber_client() as subscriber, progress_bar() as progress:
        task = progress.add_task("rows", total=expected)
        while True:
            job.check()
            table = _read_table(resources.table)
            dead_letters.update(_pull_dead_letters(subscriber, resources.dead_letter_subscription))
            progress.update(task, completed=len(table))
            everything = published.expectation.is_complete(table) and dead_letters.total() >= (
                published.dead_letters.total()
            )
            if everything:
                return table, dead_letters
            if time.monotonic() > deadline:
                raise click.ClickException(
                    f"after {_TABLE_TIMEOUT_S:.0f} s there were {len(table):,} of {expected:,} rows and "
                    f"{dead_letters.total():,} of {published.dead_letters.total():,} dead letters; "
                    "set a lower --sensor-count for this machine"
                )
            time.sleep(_POLL_S)  # reading the table slows down a small machine


def _read_table(name: TableName) -> dict[str, dict[str, str]]:
    """Reads the whole table with Google's client: the pipeline's own readers can't verify the pipeline."""
    table = bigtable.Client(project=name.project).instance(name.instance).table(name.table)
    return {
        row.row_key.decode(): {
            f"{family}:{qualifier.decode()}": cells[0].value.decode()
            for family, columns in row.cells.items()
            for qualifier, cells in columns.items()
        }
        for row in table.read_rows()
        if not row.row_key.startswith((b"schema#", b"rollup_"))  # what roll-ups are computed from is no result
    }


def _pull_dead_letters(subscriber: pubsub_v1.SubscriberClient, subscription: str) -> list[str]:
    """Pulls and acknowledges dead letters; returns their reasons."""
    received = subscriber.pull(subscription=subscription, max_messages=1000, return_immediately=True).received_messages
    if received:
        subscriber.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in received])
    return [each.message.attributes["dead_letter_reason"] for each in received]


def _dead_letter_differences(published: _Published, dead_letters: Counter[str]) -> Iterator[str]:
    for reason in sorted(published.dead_letters.keys() | dead_letters.keys()):
        expected, actual = published.dead_letters[reason], dead_letters[reason]
        if expected != actual:
            yield f"dead letters {reason}: {actual}, expected {expected}"


def _summarise(published: _Published, table: Table, dead_letters: Counter[str], sensor_id: str, chart: Path) -> None:
    rows = Counter(key.partition("#")[0] for key in table)
    numbers = {
        "published": f"{counted(published.events, 'event')} in {counted(published.messages, 'message')}",
        "raw rows": f"{len(table) - rows['agg'] - rows['latest'] - rows['rollup']:,}",
        "aggregate rows": f"{rows['agg']:,}",
        "rows of sites and of the fleet": f"{rows['rollup']:,}",
        "rows of newest readings": f"{rows['latest']:,}",
        "dead letters": f"{dead_letters.total():,}, for {counted(len(dead_letters), 'reason')}",
    }
    out.print()
    print_table([word(""), number("")], numbers.items(), is_bare=True)
    out.print(f"\nchart of {sensor_id}'s {_CHARTED[0]}: {chart}", soft_wrap=True, highlight=False)


def _draw(table: Table, chart: Path) -> str:
    """Draws the sensor with the widest range of values. Returns its id."""
    metric, unit = _CHARTED
    bands: dict[str, list[BandPoint]] = defaultdict(list)
    for key in sorted(table):
        values = table[key]
        if f"stats:avg_{metric}" in values:
            _, _, sensor_id, hour = key.split("#")
            numbers = (float(values[f"stats:{statistic}_{metric}"]) for statistic in ("min", "avg", "max"))
            bands[sensor_id].append(BandPoint(parse_time(hour), *numbers))
    sensor_id, band = max(
        bands.items(), key=lambda item: max(p.maximum for p in item[1]) - min(p.minimum for p in item[1])
    )
    save_chart([Chart(f"{sensor_id}: {metric} by the hour, {unit}", unit, [Series(band=band)])], chart)
    return sensor_id


def _conclude(differences: list[str], seconds: float) -> None:
    if differences:
        for difference in differences[:_SHOWN_DIFFERENCES]:
            err.print(difference, markup=False)
        raise click.ClickException(
            f"{counted(len(differences), 'difference')} between what was published and the table"
        )
    out.print(
        "[bold green]Every raw row, every aggregate and every roll-up equals an independent computation "
        f"over what was published.[/] [dim]{seconds:.0f} s[/]",
        soft_wrap=True,
    )


def _suggest(emulators: dict[str, str], resources: _Resources, sensor_id: str, log: Path) -> None:
    out.print(f"\nThe emulators, the table and the job keep running (the job's log: {log}).", soft_wrap=True)
    out.print("First paste this into another terminal:\n")
    for line in exports(emulators, resources.table, resources.topic, resources.kept_dead_letters, resources.results):
        out.print(line, markup=False, soft_wrap=True)
    out.print("\nThen try:")
    for what, command in suggestions(sensor_id, _CHARTED[0]):
        out.print(f"\n[dim]{what}:[/]\n{command}", soft_wrap=True)
    out.print("\nCtrl-C here stops everything that the demo started; its emulators keep no data.")


def _run_until_ctrl_c(job: _Job) -> None:
    try:
        while True:
            job.check()
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        _stop(job)


def _stop(job: _Job) -> None:
    with _step("stopping the pipeline"):
        job.stop()
