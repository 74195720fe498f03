"""Prints what a group of sensors costs Dataflow, from ten thousand sensors to a hundred million.

One group of a fleet's size is driven through a day's end and an hour, by the code of the job and with state that counts
what is read and written. Groups are alike, so the fleet's figures are that of one, times their number. Of a group with
many sensors some are simulated, and bytes and CPU time are multiplied.

Each sensor sends three metrics at a constant rate; a reading reaches its group with those of ten seconds, or of a
second at 1 Hz. Some events are late, by up to a day, and have their raw rows in the table. The defaults of the job
apply: windows of an hour, early panes every five minutes, late panes every minute unless ``--late_firing`` is set.

The largest commit contains the rows that are put out. CPU time includes that of reading the table, which is in memory
here. A second table has the cost of a restart; see :mod:`tests.benchmarks.restart`.

Run with ``.venv/bin/python -m tests.benchmarks.engine``.
"""

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.events.event import Event
from pipeline.core.panes.group_state import Bags, Schedule
from pipeline.core.results.window_results import PaneResult, ResultRules, batches_of, message_of, read_batch
from pipeline.core.schema.rate import Rate, groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.benchmarks import restart
from tests.support.groups import MINUTE, SECOND, CountingBag, Group

HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
T = 1_771_286_400_000_000  # midnight
FLEETS = [
    *[(MINUTE, sensors, late) for sensors in (10**4, 10**5, 10**6, 10**7, 10**8) for late in (0, 0.01, 0.1)],
    *[(SECOND, sensors, late) for sensors in (10**4, 10**5, 10**6) for late in (0, 0.01, 0.1)],
]
LATENESS = 5 * MINUTE


@dataclass
class Cost:
    """The cost of one group in an hour.

    Attributes:
        events: the number of events.
        input_bytes: the bytes of their readings, as they reach the group.
        read_bytes, written_bytes: the bytes of state that firings read and wrote.
        peak_bytes: the most state at a time.
        commit_bytes: the most that a firing wrote, and published as results.
        element_bytes: the largest value of state or element.
        held_s: the most CPU seconds of a firing.
        cpu_s: the CPU seconds of all firings.
        reads: the number of requests to the table.
        results: the number of results that are published.
        scale: the number of the group's sensors for each that is simulated.
    """

    events: int = 0
    input_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    peak_bytes: int = 0
    commit_bytes: int = 0
    element_bytes: int = 0
    held_s: float = 0
    cpu_s: float = 0
    reads: int = 0
    results: int = 0
    scale: float = 1


class _Measured(Group):
    """A group whose firings are measured."""

    def __init__(self, schema: TableSchema, now_us: int, late_us: int, results: ResultRules | None) -> None:
        super().__init__(schema, now_us, early_us=5 * MINUTE, late_us=late_us, results=results)
        self.moved: Counter[tuple[str, str]] = Counter()
        self.bags = Bags(*(CountingBag(name, self.moved) for name in Bags._fields))
        self.cost, self._published_bytes = Cost(), 0

    def take(self, parts: list[bytes]) -> None:
        self.cost.input_bytes += sum(map(len, parts))
        super().take(parts)

    def _fire(self, schedule: Schedule, due: set[int]) -> None:
        before, reads, self._published_bytes = self.moved.copy(), self.table.reads, 0
        began = time.process_time()
        super()._fire(schedule, due)
        seconds, cost = time.process_time() - began, self.cost
        moved = {kind: sum(n - before[name, what] for (name, what), n in self.moved.items() if what == kind)
                 for kind in ("read", "added")}  # fmt: skip
        del self.written[:]
        cost.read_bytes += moved["read"]
        cost.written_bytes += moved["added"]
        cost.commit_bytes = max(cost.commit_bytes, moved["added"] + self._published_bytes)
        cost.element_bytes = max([cost.element_bytes, *(len(each) for each in self.chunks)])
        cost.held_s = max(cost.held_s, seconds)
        cost.cpu_s += seconds
        cost.reads += self.table.reads - reads

    def publish(self, results: list[PaneResult], batches: int) -> None:
        for batch in batches_of(results, self.schema.tiers, T, batches):
            self._published_bytes += len(batch)
            for serialized in read_batch(batch):
                message_of(serialized, "protobuf")
                self.cost.results += 1


def cost_of(
    every_us: int,
    sensors: int,
    late: float,
    *,
    most: int,
    late_us: int = MINUTE,
    schema: TableSchema | None = None,
    results: ResultRules | None = None,
) -> Cost:
    """Returns the cost of one group of a fleet in an hour, after a first one.

    Args:
        every_us: the time between the events of a sensor in µs.
        sensors: the number of the fleet's sensors.
        late: the share of late events.
        most: the number of sensors that are simulated at most.
        late_us: the time from late readings to a late pane in µs.
        schema: the table's schema.
        results: the rules by which results are published; None to publish none.
    """
    of_group = max(1, round(sensors / groups_for(Rate(every_us, sensors=sensors))))
    simulated = min(of_group, most)
    rng = random.Random(1)
    group = _Measured(schema or TableSchema.for_new_table(), T, late_us, results)
    step = 10 * SECOND if every_us >= MINUTE else SECOND
    hours = 2 if late else 1.2
    phases = [rng.randrange(every_us) for _ in range(simulated)]
    begin_us = T + round((hours - 1) * HOUR)
    for now_us in range(T, T + round(hours * HOUR), step):
        if now_us == begin_us:
            group.cost = Cost()
        in_time, too_late = [], []
        for sensor, phase in enumerate(phases):
            for at_us in range(now_us + (phase - now_us) % every_us, now_us + step, every_us):
                is_late = rng.random() < late
                sent_us = at_us - rng.randrange(LATENESS, DAY) if is_late else at_us
                event = Event(f"sensor-{sensor:09}", sent_us // 1000 * 1000, _readings(rng), {})
                (too_late if is_late else in_time).append(event)
        group.receive(*in_time, *too_late)
        group.cost.events += len(in_time) + len(too_late)
        group.pass_time_to(now_us + step)
        group.cost.peak_bytes = max(group.cost.peak_bytes, sum(map(len, group.chunks)))
    group.cost.scale = of_group / simulated
    return group.cost


def _readings(rng: random.Random) -> dict[str, float]:
    return {f"metric_{number}": round(rng.gauss(20 + number, 1), 2) for number in range(3)}


_HEADINGS = [
    ("rate", "", 6), ("sensors", "", 11), ("groups", "", 8), ("late", "", 4), ("state read", "per input byte", 15),
    ("written", "per input byte", 15), ("both", "of the fleet", 13), ("state", "a sensor", 8),
    ("commit", "of a group", 10),
    ("largest", "element", 8), ("key", "held", 7), ("CPU", "an event", 8), ("table read", "per event", 10),
    ("results", "per event", 9),
]  # fmt: skip


def line_of(
    every_us: int,
    sensors: int,
    late: float,
    most: int,
    late_us: int = MINUTE,
    schema: TableSchema | None = None,
    results: ResultRules | None = None,
) -> str:
    """Returns a fleet's line of the table."""
    cost = cost_of(every_us, sensors, late, most=most, late_us=late_us, schema=schema, results=results)
    groups = groups_for(Rate(every_us, sensors=sensors))
    simulated = sensors / groups / cost.scale
    fleet = (cost.read_bytes + cost.written_bytes) * cost.scale * groups / 3600 / 1e6
    values = [
        "1/min" if every_us >= MINUTE else "1 Hz",
        f"{sensors:,}",
        f"{groups:,}",
        f"{late:.0%}",
        f"{cost.read_bytes / cost.input_bytes:.1f}",
        f"{cost.written_bytes / cost.input_bytes:.1f}",
        f"{fleet:,.1f} MB/s",
        f"{cost.peak_bytes / simulated:,.0f} B",
        f"{cost.commit_bytes * cost.scale / 1e6:.2f} MB",
        f"{min(cost.element_bytes * cost.scale, max(cost.element_bytes, 1 << 22)) / 1e6:.2f} MB",
        f"{cost.held_s * cost.scale:.2f} s",
        f"{cost.cpu_s / cost.events * 1e6:.0f} µs",
        f"{cost.reads / cost.events:.3f}",
        f"{cost.results / cost.events:.3f}",
    ]
    return "  ".join(f"{value:>{width}}" for value, (*_, width) in zip(values, _HEADINGS, strict=True))


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.engine", description=__doc__)
    parser.add_argument("--sensors", type=int, default=200, help="the most sensors of a group that are simulated")
    parser.add_argument("--late_firing", type=int, default=1, help="the minutes from late readings to a late pane")
    parser.add_argument("--schema", type=Path, help="the file of another schema than that of new tables")
    parser.add_argument(
        "--results", choices=["final", "all"], help="the results that the job publishes; none by default"
    )
    arguments = parser.parse_args()
    results = arguments.results and ResultRules(T, arguments.results == "all")
    schema = parse_schema(arguments.schema.read_text()) if arguments.schema else None
    most, late_us = arguments.sensors, arguments.late_firing * MINUTE
    _print_headings(_HEADINGS)
    for every_us, sensors, late in FLEETS:
        simulated = most if every_us >= MINUTE else most // 10
        print(line_of(every_us, sensors, late, simulated, late_us, schema, results), flush=True)
    print("\nA restart:")
    _print_headings(restart.HEADINGS)
    for every_us, sensors in restart.FLEETS:
        print(restart.line_of(every_us, sensors), flush=True)


def _print_headings(headings: list[tuple[str, str, int]]) -> None:
    for row in (0, 1):
        print("  ".join(f"{heading[row]:>{heading[2]}}" for heading in headings))


if __name__ == "__main__":
    _main()
