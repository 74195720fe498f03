"""Prints what features add to a job: its CPU time, its requests to the table, and the state that its steps move.

The job's own steps run in the worker code of Beam's SDK, bundle by bundle, as Dataflow runs them: on the model of the
engine that tests have. Each of --sensors sends three metrics --every so many seconds, a hundred events in a message,
and is in one of a hundred sites; all sensors are a fleet. Windows are an hour and a day long. One event of a hundred is
two hours late, and a share --beyond of the sensors is beyond a limit all the time. Messages of ten seconds are a bundle. Beam's connector writes the
rows of a stage. CPU time includes that of the table, which is in memory. The defaults of the job apply; no sensor is
silent.

--part divides the fleet: of 16 parts, one runs, in as many groups, so that a group has as many sensors as one of the
whole fleet. There are a hundred sites even so: roll-ups cost more for each byte than those of the whole fleet.

--cache is the megabytes of state that a worker keeps; without a cache each read counts. --features selects some of
them; with --steps, the state of each step is printed. Jobs take turns, and the least CPU time counts.
"""

import gc
import random
import time
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.measuring import Lines, arguments
from pipeline.cloud.tables.alert_store import RULES_KEY
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.engine.job import Job, job_of
from tests.model.reference import DAY, HOUR, MINUTE, SECOND
from tests.model.table import Table
from tests.model.world import Message
from tests.support.streams import pubsub_message

BEGIN = 20_501 * DAY + 10 * HOUR
_REVERSED = 9_999_999_999_999_999
_SCHEMA = 'latest = "latest"\n[tiers]\n1h = "hours"\n1d = "days"\n'
_RATE = '[rate]\nevery = "{}s"\nmetrics = 3\nmetadata = 1\nsensors = {}\n'
_ROLLUPS = '[rollups]\nsite = { by = "metadata.site" }\nfleet = { by = [] }\n'
_ON_READINGS = "".join(
    f'[[rule]]\nname = "rule-{number}"\nsensors = "{sensors}"\nmetric = "{metric}"\n{condition}\n'
    for number, (sensors, metric, condition) in enumerate(
        [
            ("*", "temperature", "above = 100"),
            ("*", "temperature", 'above = 90\nclears_below = 80\nfor = "10m"'),
            ("*", "temperature", "below = -100"),
            ("*", "humidity", "outside = [-100, 100]"),
            ("*", "humidity", 'above = 95\nfor = "5m"'),
            ("sensor-0*", "temperature", "above = 95"),
            ("sensor-*7", "temperature", "above = 95"),
            ("sensor-1*", "humidity", "below = -90"),
            ("sensor-??1*", "humidity", "above = 99"),
            ("other-*", "temperature", "above = 0"),
        ]
    )
)
_ON_SILENCE = '[[rule]]\nname = "silent"\nsensors = "*"\nsilent_for = "30m"\n'
_TWO_RULES = f'{_ON_SILENCE}[[rule]]\nname = "warm"\nsensors = "*"\nmetric = "temperature"\nabove = 57\nfor = "5m"\n'
FEATURES: dict[str, tuple[str, str, dict[str, str]]] = {  # the roll-ups, the rules and the flags of each
    "none": ("", "", {}),
    "roll-ups": (_ROLLUPS, "", {}),
    "rules": ("", _ON_READINGS, {}),
    "silence": ("", _ON_SILENCE, {}),
    "all": (_ROLLUPS, _TWO_RULES, {"results": "all", "results_topic": "projects/test-project/topics/results"}),
}


class CostTable(Table):
    """A table that keeps only rows that are read again, and what the stages that write it cost.

    Of raw rows, only those of late events are: they belong to hours before the job.
    """

    def __init__(self, schema: TableSchema) -> None:
        super().__init__(schema.policies)
        self.requests: Counter[str] = Counter()
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.input_bytes = 0

    def apply(self, key: bytes, mutations: Iterable) -> None:
        sensor_id, _, time = key.partition(b"#")
        if not sensor_id.startswith(b"sensor-") or _REVERSED - int(time) < BEGIN:
            super().apply(key, mutations)

    def read(self, *_: Any) -> Iterator[Row]:
        """Reads the newest readings of silent sensors, of which there are none."""
        return iter(())


class MeasuredJob(Job):
    """A job that is measured, with the number of elements that each key of a step gets."""

    def run(self, messages: Iterator[tuple[int, list]]) -> None:
        """Processes messages when they come, and fires timers each half a second in between."""
        self.received: defaultdict[str, Counter] = defaultdict(Counter)
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

    def pass_on(self, committed: bool, outputs: list) -> None:
        for _, value, collection in outputs:
            for name in self._graph.next[collection]:
                if self.stages[name].fragment.has_state:
                    key, element = value.value
                    self.received[name][key] += len(element) if isinstance(element, bytes) and element else 1
        super().pass_on(committed, outputs)


def measured(feature: str, options: Namespace) -> MeasuredJob:
    """Returns a job with a feature that got the events of so many minutes."""
    rollups, rules, flags = FEATURES[feature]
    schema = parse_schema(_SCHEMA + _RATE.format(options.every, options.sensors) + rollups)
    table = CostTable(schema)
    if rules:
        table.write(Row(RULES_KEY, [Cell(SCHEMA_FAMILY, b"rules.toml", 1000, rules.encode())]))
        flags = flags | {"alerts_topic": "projects/test-project/topics/alerts"}
    job = job_of(
        schema, BEGIN - 2 * DAY, table, kind=MeasuredJob, cache_mb=options.cache, groups=256 // options.part, **flags
    )
    with job.running():
        job.advance(BEGIN - MINUTE, BEGIN - MINUTE)
        job.run(fleet(options.sensors // options.part, options.minutes, options.every, options.beyond))
    table.requests["all"] = table.requests.total() + table.reads
    table._cells.clear()  # so that the runs after this one have as little in memory
    gc.unfreeze()
    gc.collect()
    return job


def fleet(sensors: int, minutes: int, every_s: int, beyond: float) -> Iterator[tuple[int, list]]:
    """Yields the time and the messages of each ten seconds."""
    rng, of_step = random.Random(1), -(-sensors * 10 // max(every_s, 10))
    for step in range(minutes * 6):
        time_us, first = BEGIN + (step + 1) * 10 * SECOND, step * of_step % (-(-sensors // of_step) * of_step)
        events = [
            sensor_event(
                f"sensor-{number:07}",
                time_us - before_s * SECOND - (2 * HOUR if rng.random() < 0.01 else SECOND) - number % of_step,
                {name: round(rng.gauss(20, 10), 2) for name in ("battery", "humidity")}
                | {"temperature": round(rng.gauss(20, 10), 2) + (1000 if number * 7919 % 10_000 < beyond * 10_000 else 0)},
                {"site": f"site-{number % 100}"},
            )
            for before_s in range(0, 10, every_s)
            for number in range(first, min(first + of_step, sensors))
        ]
        yield time_us, [pubsub_message(message_of(events[i : i + 100])) for i in range(0, len(events), 100)]


def print_steps(job: MeasuredJob) -> None:
    """Prints the state that each step reads and writes for each byte of messages."""
    total = job.table.input_bytes
    lines = Lines(f"{'step':>55}", "read", "written", "outputs", "largest element", "largest commit", "of one key")
    for name, stage in job.stages.items():
        counts, received = stage.fragment.state.counts, job.received[name]
        of_key = f"{max(received.values()) / received.total():.1%} of {len(received)}" if received else ""
        moved = [f"{number / total:.3f}" for number in (counts["read"], counts["written"], stage.output_bytes)]
        commit, element = stage.largest
        lines.add(name, *moved, f"{element:,}", f"{commit:,}", of_key)


def main() -> None:
    options = arguments(
        sensors=100_000, every=60, minutes=60, beyond=0.0001, part=16, cache=0, features=list(FEATURES), times=1,
        steps=False,
    )  # fmt: skip
    cpu_s: dict[str, list[float]] = {feature: [] for feature in options.features}
    jobs = dict[str, MeasuredJob]()
    for _ in range(options.times):
        for feature in options.features:
            jobs[feature] = job = measured(feature, options)
            cpu_s[feature].append(sum(job.table.cpu_s.values()))
    first_s, first = min(cpu_s[options.features[0]]), jobs[options.features[0]]
    events = options.sensors // options.part * options.minutes * 60 // options.every
    lines = Lines("feature ", "CPU an event", "more", "requests", "more", "state read", "written, a byte of messages")
    for feature, job in jobs.items():
        seconds, requests = min(cpu_s[feature]), job.table.requests["all"]
        more = seconds / first_s - 1, requests / first.table.requests["all"] - 1
        counts = sum((stage.fragment.state.counts for stage in job.stages.values()), Counter[str]())
        state = [f"{counts[what] / job.table.input_bytes:.3f}" for what in ("read", "written")]
        lines.add(
            feature, f"{seconds / events * 1e6:.1f} µs", f"{more[0]:.0%}", f"{requests:,}", f"{more[1]:.0%}", *state
        )
    if options.steps:
        print_steps(job)


if __name__ == "__main__":
    main()
