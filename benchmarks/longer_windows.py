"""Prints what longer windows cost that follow those in progress, by --early_firing in seconds.

A group of a fleet of --sensors has hours and days, and its sensors send three metrics a minute. It is driven through an
hour at noon, by the code of the job: with days, and with hours only. The difference is what days cost. The table
answers with the bytes that Bigtable would send, so that CPU time includes parsing them, but not gRPC.
"""

import random
from collections import Counter

from benchmarks.measuring import Lines, arguments, readings
from benchmarks.served import MeasuredGroup, Served
from pipeline.core.events.event import Event
from pipeline.core.schema.rate import Rate, groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import HOUR, MIDNIGHT, MINUTE, SECOND

SCHEMAS = [parse_schema(f"tiers = {{ {tiers} }}") for tiers in ("1h = 'hours'", "1h = 'hours', 1d = 'days'")]
NOON, STEP = MIDNIGHT + 12 * HOUR, 10 * SECOND


def cost(schema: TableSchema, early_s: int, sensors: int) -> Counter[str]:
    """Returns what a group of so many sensors costs in an hour: CPU seconds, rows read and written, and requests."""
    rng, names, table = random.Random(1), [f"sensor-{number:09}" for number in range(sensors)], Served()
    group = MeasuredGroup(schema, MIDNIGHT, table=table, early_us=early_s * SECOND)

    def costs() -> Counter[str]:
        return Counter(cpu_s=sum(group.seconds), read=table.rows, requests=table.reads, written=len(group.written))

    def receive(some: list[str]) -> None:
        group.receive(*(Event(name, group.now_us, readings(rng), {}) for name in some))

    for hour in range(12):  # all hours have a row
        group.pass_time_to(MIDNIGHT + hour * HOUR + MINUTE)
        receive(names)
    group.pass_time_to(NOON + STEP)
    before = costs()
    for now_us in range(NOON + STEP, NOON + HOUR, STEP):
        group.pass_time_to(now_us)
        receive(names[now_us // STEP % 6 :: 6])
    group.pass_time_to(NOON + HOUR)
    return Counter({what: number - before[what] for what, number in costs().items()})


def main() -> None:
    options = arguments(sensors=50_000, early_firing=[1, 30, 60, 300])
    groups = groups_for(Rate(MINUTE, sensors=options.sensors))
    print(f"{options.sensors:,} sensors at 1/min, {groups} groups; a second:")
    lines = Lines("early firing", "rows read", "requests", "rows written", "vCPU of days", "vCPU of hours")
    for early_s in options.early_firing:
        hours, days = (
            {what: number * groups / 3600 for what, number in cost(schema, early_s, options.sensors // groups).items()}
            for schema in SCHEMAS
        )
        rows = f"{days['read']:,.0f}", f"{days['requests']:,.1f}", f"{days['written']:,.0f}"
        lines.add(f"{early_s} s", *rows, f"{days['cpu_s'] - hours['cpu_s']:.3f}", f"{hours['cpu_s']:.3f}")


if __name__ == "__main__":
    main()
