"""Prints the state that each step of a job reads and writes, for each byte of messages.

The job has hours and days, roll-ups of a hundred sites and of the fleet, and two rules of alerts, and it publishes all
results. It runs as in :mod:`tests.benchmarks.rollups`, where the fleet is described, on workers without a cache of
state: each read counts. An hour begins with the run, and the state of its windows grows until the hour is over.

Of the fleet, a sixteenth runs, in as many groups, so that a group has as many sensors as one of the whole fleet. There
are a hundred sites even so: roll-ups cost more for each byte than those of the whole fleet.

Run with ``.venv/bin/python -m tests.benchmarks.job_state``.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from pipeline.cloud.tables.alert_store import RULES_KEY
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import SCHEMA_FAMILY
from pipeline.core.schema.toml import parse_schema
from tests.benchmarks.rollups import BEGIN, ROLLUPS, TIERS, CostTable, MeasuredJob, fleet
from tests.engine.job import job_of
from tests.model.reference import DAY, MINUTE

_TOPICS = {f"{name}_topic": f"projects/test-project/topics/{name}" for name in ("results", "alerts")}
_RULES = b"""
[[rule]]
name = "warm"
sensors = "*"
metric = "temperature"
above = 57
for = "5m"

[[rule]]
name = "silent"
sensors = "*"
silent_for = "30m"
"""


class _Table(CostTable):
    """A table of sensors of which none is silent."""

    def read(self, *_: Any) -> Iterator[Row]:
        """Reads the newest readings of silent sensors."""
        return iter(())


class _Measured(MeasuredJob):
    """A job whose elements are counted by the step and the key that gets them."""

    def run(self, messages: Iterator[tuple[int, list]]) -> None:
        self.received: defaultdict[str, Counter] = defaultdict(Counter)
        super().run(messages)

    def pass_on(self, committed: bool, outputs: list) -> None:
        for _, value, collection in outputs:
            for name in self._graph.next[collection]:
                if self.stages[name].fragment.has_state:
                    key, element = value.value
                    self.received[name][key] += len(element) if isinstance(element, bytes) and element else 1
        super().pass_on(committed, outputs)


def measured(sensors: int, minutes: int, part: int) -> _Measured:
    """Returns a job that got the events of a number of minutes.

    Args:
        sensors: the number of the fleet's sensors.
        minutes: the length of the run.
        part: the number by which the sensors, and their groups, are divided.
    """
    schema = parse_schema('latest = "latest"\n' + TIERS.format(sensors) + ROLLUPS)
    table = _Table(schema)
    table.write(Row(RULES_KEY, [Cell(SCHEMA_FAMILY, b"rules.toml", 1000, _RULES)]))
    job = job_of(
        schema, BEGIN - 2 * DAY, table, kind=_Measured, cache_mb=0, groups=256 // part, results="all", **_TOPICS
    )
    with job.running():
        job.advance(BEGIN - MINUTE, BEGIN - MINUTE)
        job.run(fleet(sensors // part, minutes))
    return job


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.job_state", description=__doc__)
    parser.add_argument("--sensors", type=int, default=100_000)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--part", type=int, default=16, help="the number by which sensors and groups are divided")
    arguments = parser.parse_args()
    job = measured(arguments.sensors, arguments.minutes, arguments.part)
    total, of_all = job.table.input_bytes, Counter[str]()
    print(f"{total / 1e6:.1f} MB of messages; bytes for each byte of them:\n")
    print(f"{'step':55} {'read':>7} {'written':>7} {'outputs':>7} {'element':>9} {'commit':>10}  of one key")
    for name, stage in job.stages.items():
        counts, received = stage.fragment.state.counts, job.received[name]
        of_all += counts
        of_key = f"{max(received.values()) / received.total():.1%} of {len(received)}" if received else ""
        moved = [number / total for number in (counts["read"], counts["written"], stage.output_bytes)]
        commit, element = stage.largest
        print(f"{name:55}", *(f"{each:7.3f}" for each in moved), f"{element:9,} {commit:10,}  {of_key}")
    read, written = of_all["read"] / total, of_all["written"] / total
    print(f"\nall steps: {read:.3f} read and {written:.3f} written are {read + written:.3f}")


if __name__ == "__main__":
    main()
