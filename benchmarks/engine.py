"""Prints what a group of sensors costs Dataflow, from ten thousand sensors to a hundred million.

One group of a fleet's size is driven through a day's end and an hour, by the code of the job and with state that counts
what is read and written. Groups are alike, so the fleet's figures are that of one, times their number. Of a group with
many sensors some are simulated, and bytes and CPU time are multiplied.

Each sensor sends three metrics at a constant rate; a reading reaches its group with those of ten seconds, or of a
second at 1 Hz. Some events are late, by up to a day, and have their raw rows in the table. The defaults of the job
apply: windows of an hour, early panes every five minutes, late panes every minute unless ``--late_firing`` is set.

The largest commit contains the rows that are put out. CPU time includes that of reading the table, which is in memory
here.

A second table has the cost of a restart. An earlier job has stored the first half of an hour, and written its rows. The
new one reads that hour when the next readings come, and the following hour as well, which the earlier job may have had
events of. There, the table answers with the bytes that Bigtable would send, so that CPU time includes parsing them, but
not gRPC.

--sensors is the most sensors of a group that are simulated, --late_firing the minutes from late readings to a late
pane, --schema the file of another schema than that of new tables, and --results which results the job publishes, final
or all.
"""

import gc
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import Lines, arguments, rate_of, readings
from benchmarks.served import MeasuredGroup, Served
from pipeline.core.events.event import Event
from pipeline.core.panes.group_state import Bags, Schedule
from pipeline.core.results.window_results import PaneResult, ResultRules, batches_of, message_of, read_batch
from pipeline.core.schema.rate import Rate, groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, SECOND, CountingBag, Group

FLEETS = [
    *[(MINUTE, sensors, late) for sensors in (10**4, 10**5, 10**6, 10**7, 10**8) for late in (0, 0.01, 0.1)],
    *[(SECOND, sensors, late) for sensors in (10**4, 10**5, 10**6) for late in (0, 0.01, 0.1)],
]
RESTARTED_FLEETS = [(MINUTE, 10**4), (MINUTE, 10**6), (MINUTE, 10**8), (SECOND, 10**6)]
LATENESS = 5 * MINUTE
_MOST_ROWS = 60_000  # before a restart: all sensors of a group at 1/min, some at 1 Hz


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


class _CountedGroup(Group):
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
        for batch in batches_of(results, self.schema.tiers, MIDNIGHT, batches):
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
    of_group = _sensors_of_group(every_us, sensors)
    simulated = min(of_group, most)
    rng = random.Random(1)
    group = _CountedGroup(schema or TableSchema.for_new_table(), MIDNIGHT, late_us, results)
    step = 10 * SECOND if every_us >= MINUTE else SECOND
    hours = 2 if late else 1.2
    phases = [rng.randrange(every_us) for _ in range(simulated)]
    begin_us = MIDNIGHT + round((hours - 1) * HOUR)
    for now_us in range(MIDNIGHT, MIDNIGHT + round(hours * HOUR), step):
        if now_us == begin_us:
            group.cost = Cost()
        in_time, too_late = [], []
        for sensor, phase in enumerate(phases):
            for at_us in range(now_us + (phase - now_us) % every_us, now_us + step, every_us):
                is_late = rng.random() < late
                sent_us = at_us - rng.randrange(LATENESS, DAY) if is_late else at_us
                event = Event(f"sensor-{sensor:09}", sent_us // 1000 * 1000, readings(rng), {})
                (too_late if is_late else in_time).append(event)
        group.receive(*in_time, *too_late)
        group.cost.events += len(in_time) + len(too_late)
        group.pass_time_to(now_us + step)
        group.cost.peak_bytes = max(group.cost.peak_bytes, sum(map(len, group.chunks)))
    group.cost.scale = of_group / simulated
    return group.cost


def _sensors_of_group(every_us: int, sensors: int) -> int:
    return max(1, round(sensors / groups_for(Rate(every_us, sensors=sensors))))


def figures_of(every_us: int, sensors: int, late: float, cost: Cost) -> list[str]:
    """Returns a fleet's line of the table."""
    groups = groups_for(Rate(every_us, sensors=sensors))
    simulated = sensors / groups / cost.scale
    fleet = (cost.read_bytes + cost.written_bytes) * cost.scale * groups / 3600 / 1e6
    return [
        rate_of(every_us),
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


def restart_figures(every_us: int, sensors: int) -> list[str]:
    """Returns a fleet's line of the table of restarts: how much longer the firings of a group take after one."""
    of_group = _sensors_of_group(every_us, sensors)
    simulated = min(of_group, _MOST_ROWS * every_us // (HOUR // 2))
    rng, table, schema = random.Random(1), Served(), TableSchema.for_new_table()
    names = [f"sensor-{number:09}" for number in range(simulated)]

    def events(start_us: int, number: int) -> list[Event]:
        offsets = [(name, rng.randrange(every_us) // 1000 * 1000) for name in names]
        return [
            Event(name, start_us + offset + n * every_us, readings(rng), {})
            for name, offset in offsets
            for n in range(number)
        ]

    old = Group(schema, MIDNIGHT, table=table, early_us=5 * MINUTE)
    old.receive(*events(MIDNIGHT, HOUR // 2 // every_us))
    old.pass_time(HOUR // 2)
    firings = list[list[list[float]]]()
    for before_us in (None, MIDNIGHT + 2 * HOUR):  # the first one for what the same firings cost without a restart
        of_new, reads = Served() if before_us is None else table, table.reads
        new = MeasuredGroup(schema, old.now_us, before_us, of_new, early_us=5 * MINUTE)
        of_hours = []
        for start_us in (MIDNIGHT + HOUR // 2, MIDNIGHT + HOUR):
            new.receive(*events(start_us + 10 * MINUTE, 1))
            new.seconds, wait_us = [], 5 * MINUTE
            while new.bags.parts:  # each firing may leave some
                gc.collect()  # what was before does not make this firing slower
                new.pass_time(wait_us)
                wait_us = SECOND
            of_hours.append(new.seconds)
        firings.append(of_hours)
    plain, (now, following) = firings
    longer = [sum(after) - sum(before) for before, after in zip(plain, (now, following), strict=True)]
    held_s = max(now), max(following) * (of_group / simulated if len(following) == 1 else 1)
    return [
        rate_of(every_us),
        f"{sensors:,}",
        f"{groups_for(Rate(every_us, sensors=sensors)):,}",
        *(f"{seconds / simulated * 1000:.2f} ms" for seconds in longer),
        f"{(table.reads - reads) / simulated:.3f}",
        *(f"{seconds:.2f} s" for seconds in held_s),
    ]


def main() -> None:
    options = arguments(sensors=200, late_firing=1, schema=Path, results=str)
    results = ResultRules(MIDNIGHT, options.results == "all") if options.results else None
    schema = parse_schema(options.schema.read_text()) if options.schema else None
    lines = Lines(
        "rate", "   sensors", " groups", "late", "read per input byte", "written per input byte", "both, of the fleet",
        "state of a sensor", "commit of a group", "largest element", "key held", "CPU an event", "table reads an event",
        "results an event",
    )  # fmt: skip
    for every_us, sensors, late in FLEETS:
        most = options.sensors if every_us >= MINUTE else options.sensors // 10
        how = {"late_us": options.late_firing * MINUTE, "schema": schema, "results": results}
        lines.add(*figures_of(every_us, sensors, late, cost_of(every_us, sensors, late, most=most, **how)))
    print("\nA restart, in this hour and in the next one:")
    lines = Lines(
        "rate", "   sensors", " groups", "CPU a sensor", "the next hour", "requests a sensor", "key held",
        "the next hour",
    )  # fmt: skip
    for every_us, sensors in RESTARTED_FLEETS:
        lines.add(*restart_figures(every_us, sensors))


if __name__ == "__main__":
    main()
