"""Prints how many rows and cells an event costs, with all of its panes, at an event of a sensor a minute.

Run with ``.venv/bin/python -m tests.benchmarks.amplification``. A day of a group of sensors passes in memory, with the
job's own windows and panes; the watermark follows the clock by a second. Events have three metrics.
"""

import random

from pipeline.core.events.event import Event
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import MINUTE, Group

SENSORS, MINUTES = 20, 24 * 60
START = 1_771_286_400_000_000  # midnight
SCHEMAS = {
    "1h": TableSchema.default(),
    "1h and 1d": parse_schema("tiers = { 1h = 'hours', 1d = 'days' }"),
    "1h, newest readings": TableSchema.for_new_table(),
}
STATISTICS = {
    "by default": "",
    "last": '[statistics]\nother = ["last"]',
    "last, increase": '[statistics]\nother = ["last", "increase"]',
    "count, avg, p95": '[statistics]\nother = ["count", "avg", "p95"]',
    "avg, p50, p95, p99, first, last": '[statistics]\nother = ["avg", "p50", "p95", "p99", "first", "last"]',
}
EARLY = {"60s": 1, "2m": 2, "5m": 5, "10m": 10, "15m": 15, "0": 0}


def cost(schema: TableSchema, early: str) -> tuple[float, float]:
    """Returns the rows and the cells that panes write for each event."""
    rng = random.Random(1)
    group = Group(schema, START, early_us=EARLY[early] * MINUTE)
    phases = [rng.randrange(MINUTE) for _ in range(SENSORS)]
    for minute in range(MINUTES):
        for number, phase in sorted(enumerate(phases), key=lambda pair: pair[1]):
            group.pass_time_to(START + minute * MINUTE + phase)
            readings = {f"metric_{index}": rng.random() for index in range(3)}
            group.receive(Event(f"s{number}", group.now_us, readings, {}))
    group.pass_time_to(START + (MINUTES + 60) * MINUTE)
    events = SENSORS * MINUTES
    return len(group.written) / events, sum(len(row.cells) for row in group.written) / events


def lines() -> list[str]:
    """Returns the lines of the table."""
    return [
        "early firing   aggregate rows an event   cells an event   with days: rows   cells   with newest: rows   cells",
        *(
            "{:>12}   {:23.2f}   {:14.1f}   {:15.2f}   {:5.1f}   {:17.2f}   {:5.1f}".format(
                early, *(number for schema in SCHEMAS.values() for number in cost(schema, early))
            )
            for early in EARLY
        ),
        "raw rows: 1 of 3 cells an event",
        "",
        "statistics, early firing 5m        cells an event",
        *(f"{name:33}  {cost(parse_schema(text), '5m')[1]:14.1f}" for name, text in STATISTICS.items()),
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
