"""Prints what longer windows cost that follow those in progress, by ``--early_firing``.

A group of a fleet has hours and days, and its sensors send three metrics a minute. It is driven through an hour at
noon, by the code of the job: with days, and with hours only. The difference is what days cost. The table answers with
the bytes that Bigtable would send, so that CPU time includes parsing them, but not gRPC.

Run with ``.venv/bin/python -m tests.benchmarks.longer_windows``.
"""

import argparse
import random
import time
from collections import Counter

from pipeline.core.events.event import Event
from pipeline.core.panes.group_state import Schedule
from pipeline.core.schema.rate import Rate, groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.benchmarks.restart import Served
from tests.support.groups import HOUR, MIDNIGHT, MINUTE, SECOND, Group

SCHEMAS = [parse_schema(f"tiers = {{ {tiers} }}") for tiers in ("1h = 'hours'", "1h = 'hours', 1d = 'days'")]
NOON, STEP = MIDNIGHT + 12 * HOUR, 10 * SECOND


class _Measured(Group):
    """A group whose firings are measured, without the table's own CPU seconds."""

    cpu_s = 0.0

    def _fire(self, schedule: Schedule, due: set[int]) -> None:
        began = time.process_time() - self.table.busy_s
        super()._fire(schedule, due)
        self.cpu_s += time.process_time() - self.table.busy_s - began

    @property
    def costs(self) -> Counter[str]:
        """The CPU seconds so far, the rows that were read and written, and the requests that read them."""
        table = self.table
        return Counter(cpu_s=self.cpu_s, read=table.rows, requests=table.reads, written=len(self.written))


def cost(schema: TableSchema, early_s: int, sensors: int) -> Counter[str]:
    """Returns what a group costs in an hour.

    Args:
        schema: the table's schema.
        early_s: the seconds of ``--early_firing``.
        sensors: the number of the group's sensors.
    """
    rng, names = random.Random(1), [f"sensor-{number:09}" for number in range(sensors)]
    group = _Measured(schema, MIDNIGHT, table=Served(), early_us=early_s * SECOND)
    for hour in range(12):  # all hours have a row
        group.pass_time_to(MIDNIGHT + hour * HOUR + MINUTE)
        group.receive(*(Event(name, group.now_us, _readings(rng), {}) for name in names))
    group.pass_time_to(NOON + STEP)
    before = group.costs
    for now_us in range(NOON + STEP, NOON + HOUR, STEP):
        group.pass_time_to(now_us)
        some = names[now_us // STEP % 6 :: 6]
        group.receive(*(Event(name, now_us, _readings(rng), {}) for name in some))
    group.pass_time_to(NOON + HOUR)
    return Counter({what: number - before[what] for what, number in group.costs.items()})


def _readings(rng: random.Random) -> dict[str, float]:
    return {f"metric_{number}": round(rng.gauss(20 + number, 1), 2) for number in range(3)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.longer_windows", description=__doc__)
    parser.add_argument("--sensors", type=int, default=50_000, help="the number of the fleet's sensors")
    parser.add_argument("--early_firing", type=int, nargs="+", default=[1, 30, 60, 300], help="in seconds")
    arguments = parser.parse_args()
    groups = groups_for(Rate(MINUTE, sensors=arguments.sensors))
    print(f"{arguments.sensors:,} sensors at 1/min, {groups} groups")
    print("early firing   rows read   requests   rows written   vCPU of days   vCPU of hours")
    for early_s in arguments.early_firing:
        hours, days = (cost(schema, early_s, arguments.sensors // groups) for schema in SCHEMAS)
        fleet = {what: number * groups / 3600 for what, number in days.items()}
        hours_s = hours["cpu_s"] * groups / 3600
        values = f"{fleet['read']:>7,.0f}/s   {fleet['requests']:>6.1f}/s   {fleet['written']:>10,.0f}/s"
        print(f"{early_s:>10} s   {values}   {fleet['cpu_s'] - hours_s:12.3f}   {hours_s:13.3f}", flush=True)


if __name__ == "__main__":
    main()
