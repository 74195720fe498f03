"""Prints what roll-ups add to a job: its CPU time, its requests to the table, and the delay of their rows.

The job's own steps run in the worker code of Beam's SDK, bundle by bundle, as Dataflow runs them: on the model of the
engine that tests have. Each sensor sends three metrics a minute, a hundred events in a message, and is in one of a
hundred sites; all sensors are a fleet. Windows are an hour and a day long. One event of a hundred is two hours late.
The defaults of the job apply.

Messages of ten seconds are a bundle. Beam's connector writes the rows of a stage. CPU time includes that of the table,
which is in memory.

Run with ``.venv/bin/python -m tests.benchmarks.rollups``.
"""

import argparse
import gc
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.engine.job import Job, job_of
from tests.model.reference import DAY, HOUR, MINUTE, SECOND
from tests.model.table import Table
from tests.model.world import Message
from tests.support.streams import pubsub_message

BEGIN = 20_501 * DAY + 10 * HOUR
_REVERSED = 9_999_999_999_999_999
TIERS = '[tiers]\n1h = "hours"\n1d = "days"\n[rate]\nevery = "60s"\nmetrics = 3\nmetadata = 1\nsensors = {}\n'
ROLLUPS = '[rollups]\nsite = { by = "metadata.site" }\nfleet = { by = [] }\n'


class CostTable(Table):
    """A table that keeps only rows that are read again, and what the stages that write it cost.

    Of raw rows, only those of late events are: they belong to hours before the job.
    """

    def __init__(self, schema: TableSchema) -> None:
        super().__init__(schema.policies)
        self.requests: Counter[str] = Counter()
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.input_bytes = self.state_bytes = 0

    def apply(self, key: bytes, mutations: Iterable) -> None:
        sensor_id, _, time = key.partition(b"#")
        if not sensor_id.startswith(b"sensor-") or _REVERSED - int(time) < BEGIN:
            super().apply(key, mutations)


class MeasuredJob(Job):
    """A job that is measured."""

    def run(self, messages: Iterator[tuple[int, list]]) -> None:
        """Processes messages when they come, and fires timers each half a second in between."""
        for now_us, of_step in messages:
            while self.now_us < now_us:
                self.advance(self.now_us, self.now_us + SECOND // 2)
                self._settle()
            self.table.input_bytes += sum(len(each.data) for each in of_step)
            self.publish(*(Message((), each) for each in of_step))
            self._settle()

    def _settle(self) -> None:
        while due := [name for name in self.stages if self.stages[name].due()]:
            for name in due:
                self._bundles(name)
            self.advance()

    def _bundles(self, name: str) -> None:
        stage, costs = self.stages[name], self.table
        for key, timers in stage.due().items():
            gc.freeze()  # the collector of a worker doesn't go through what the table and the engine have
            self.bigtable.begin()
            began = time.process_time()
            committed, outputs = stage.bundle(key, stage.waiting[key], timers)
            costs.cpu_s[name] += time.process_time() - began
            costs.requests[name] += self.bigtable.requests
            self.pass_on(committed, outputs)


def measured(sensors: int, minutes: int, rollups: str) -> CostTable:
    """Returns what a job costs that gets the events of so many minutes."""
    schema = parse_schema(TIERS.format(sensors) + rollups)
    table = CostTable(schema)
    job = job_of(schema, BEGIN - 2 * DAY, table, kind=MeasuredJob)
    with job.running():
        job.advance(BEGIN - MINUTE, BEGIN - MINUTE)
        job.run(fleet(sensors, minutes))
        of_rollups = [stage.fragment.state.counts for name, stage in job.stages.items() if name.startswith("RollUp/")]
        table.state_bytes = sum(counts["read"] + counts["written"] for counts in of_rollups)
    table._cells.clear()  # so that the runs after this one have as little in memory
    gc.unfreeze()
    gc.collect()
    return table


def _least(runs: Iterable[CostTable]) -> CostTable:
    """Returns the least that each stage costs: the machine may do other things."""
    least, *more = runs
    for each in more:
        for name, cpu_s in each.cpu_s.items():
            least.cpu_s[name] = min(least.cpu_s[name], cpu_s)
    return least


def fleet(sensors: int, minutes: int) -> Iterator[tuple[int, list]]:
    """Yields the time and the messages of each ten seconds: of each sensor, an event a minute."""
    rng, of_step = random.Random(1), -(-sensors // 6)
    for step in range(minutes * 6):
        time_us, first = BEGIN + (step + 1) * 10 * SECOND, step % 6 * of_step
        events = [
            sensor_event(
                f"sensor-{number:07}",
                time_us - (2 * HOUR if rng.random() < 0.01 else SECOND) - number % of_step,
                {name: round(rng.gauss(20, 10), 2) for name in ("battery", "humidity", "temperature")},
                {"site": f"site-{number % 100}"},
            )
            for number in range(first, min(first + of_step, sensors))
        ]
        yield time_us, [pubsub_message(message_of(events[i : i + 100])) for i in range(0, len(events), 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=100_000)
    parser.add_argument("--minutes", type=int, default=8)
    parser.add_argument("--times", type=int, default=2)
    arguments = parser.parse_args()
    sensors, minutes = arguments.sensors, arguments.minutes
    in_turn = [measured(sensors, minutes, rollups) for _ in range(arguments.times) for rollups in ("", ROLLUPS)]
    plain, rolled = _least(in_turn[::2]), _least(in_turn[1::2])
    for name in rolled.cpu_s:
        print(f"{name:20} {plain.cpu_s[name]:8.2f} s {rolled.cpu_s[name]:8.2f} s")
    for name in rolled.requests:
        print(f"{name:20} {plain.requests[name]:8} {rolled.requests[name]:8} requests")
    before, after = (sum(each.cpu_s.values()) for each in (plain, rolled))
    print(f"CPU: {before:.1f} s, with roll-ups {after:.1f} s: {100 * (after / before - 1):.0f} % more")
    print(
        f"state of roll-ups: {rolled.state_bytes / rolled.input_bytes:.2f} bytes read and written per byte of messages"
    )
    before, after = (sum(each.requests.values()) + each.reads for each in (plain, rolled))
    print(f"requests: {before}, with roll-ups {after}: {100 * (after / before - 1):.0f} % more")


if __name__ == "__main__":
    main()
