"""Measures what a restart costs a group of sensors, for :mod:`tests.benchmarks.engine`.

An earlier job has stored the first half of an hour, and written its rows. The new one reads that hour when the next
readings come, and the following hour as well, which the earlier job may have had events of.

The table answers with the bytes that Bigtable would send, so that CPU time includes parsing them, but not gRPC.
"""

import gc
import random
import time
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.cloud.bigtable_v2.types import ReadRowsResponse

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.events.event import Event
from pipeline.core.panes.group_state import Schedule
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import Row
from pipeline.core.schema.rate import Rate, groups_for
from pipeline.core.schema.table_schema import TableSchema
from tests.support.groups import HOUR, MINUTE, SECOND, Group
from tests.support.row_server import response
from tests.support.served import terse_chunks

T = 1_771_286_400_000_000  # midnight
FLEETS = [(MINUTE, 10**4), (MINUTE, 10**6), (MINUTE, 10**8), (MINUTE // 60, 10**6)]
HEADINGS = [
    ("rate", "", 6), ("sensors", "", 11), ("groups", "", 8), ("CPU a sensor", "current hour", 12),
    ("CPU a sensor", "next hour", 12), ("requests", "a sensor", 8), ("key held", "current hour", 12),
    ("key held", "next hour", 9),
]  # fmt: skip
_ROWS = 100  # of a response
_MOST_ROWS = 60_000  # that are simulated: all sensors of a group at 1/min, some at 1 Hz


class Served:
    """A table of encoded rows, which a reader of tables reads.

    Attributes:
        busy_s: the CPU seconds of the table itself.
    """

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._encoded: dict[bytes, bytes] = {}
        self._reader = RowReader(self, TableName("p", "i", "t"))  # type: ignore[arg-type]
        self.busy_s = 0.0

    def write(self, row: Row) -> None:
        began = time.process_time()
        if row.key not in self._encoded:
            insort(self._keys, row.key)
        in_order = row._replace(cells=sorted(row.cells))
        self._encoded[row.key] = ReadRowsResponse.serialize(response(*terse_chunks(in_order)))
        self.busy_s += time.process_time() - began

    def __call__(self, selection: RowSelection) -> Iterator[Row]:
        return self._reader.read_selection(selection)

    @property
    def reads(self) -> int:
        """The number of requests so far."""
        return self._reader.requests

    @property
    def rows(self) -> int:
        """The number of rows that were read so far."""
        return self._reader.rows_read

    def read_rows(self, request: Any, **_: Any) -> Iterator[ReadRowsResponse]:
        """Answers as Google's client does."""
        began = time.process_time()
        found = list[bytes]()
        for each in request.rows.row_ranges:
            end = bisect_left(self._keys, each.end_key_open)
            found += self._keys[bisect_left(self._keys, each.start_key_closed) : end]
        found = found[: request.rows_limit]
        parts = [b"".join(map(self._encoded.__getitem__, found[i : i + _ROWS])) for i in range(0, len(found), _ROWS)]
        self.busy_s += time.process_time() - began
        yield from map(ReadRowsResponse.deserialize, parts)


class _Measured(Group):
    """A group whose firings are measured: the CPU seconds of each, without those of the table."""

    def __init__(self, now_us: int, table: Served, before_us: int | None = None) -> None:
        super().__init__(TableSchema.for_new_table(), now_us, before_us, table, early_us=5 * MINUTE)
        self.seconds: list[list[float]] = [[]]

    def _fire(self, schedule: Schedule, due: set[int]) -> None:
        gc.collect()  # what was before does not make this firing slower
        began = time.process_time() - self.table.busy_s
        super()._fire(schedule, due)
        self.seconds[-1].append(time.process_time() - self.table.busy_s - began)


@dataclass(frozen=True)
class Restart:
    """The cost of a restart.

    Args:
        sensors: the number of sensors that are simulated.
        cpu_s: the CPU seconds by which a firing takes longer: in the current hour, and in the next one.
        held_s: the CPU seconds of these firings of a whole group.
        reads: the number of requests for both hours.
    """

    sensors: int
    cpu_s: tuple[float, float]
    held_s: tuple[float, float]
    reads: int


def restart_of(every_us: int, sensors: int) -> Restart:
    """Returns what a restart costs a group of a fleet.

    Args:
        every_us: the time between the events of a sensor in µs.
        sensors: the number of the fleet's sensors.
    """
    of_group = max(1, round(sensors / groups_for(Rate(every_us, sensors=sensors))))
    simulated = min(of_group, _MOST_ROWS * every_us // (HOUR // 2))
    rng, table = random.Random(1), Served()
    old, names = _Measured(T, table), [f"sensor-{number:09}" for number in range(simulated)]

    def events(start_us: int, number: int) -> list[Event]:
        offsets = [(name, rng.randrange(every_us) // 1000 * 1000) for name in names]
        return [
            Event(name, start_us + offset + n * every_us, _readings(rng), {})
            for name, offset in offsets
            for n in range(number)
        ]

    old.receive(*events(T, HOUR // 2 // every_us))
    old.pass_time(HOUR // 2)
    firings = list[tuple[list[list[float]], int]]()
    for before_us in (None, T + 2 * HOUR):  # the first one for what the same firings cost without a restart
        new, reads = _Measured(old.now_us, Served() if before_us is None else table, before_us), table.reads
        for start_us in (T + HOUR // 2, T + HOUR):
            new.receive(*events(start_us + 10 * MINUTE, 1))
            new.seconds.append([])
            new.pass_time(5 * MINUTE)
            while new.bags.parts:  # the firing left some
                new.pass_time(SECOND)
        firings.append((new.seconds[1:], table.reads - reads))
    (plain, _), (restarted, reads) = firings
    now_s, next_s = (sum(after) - sum(before) for before, after in zip(plain, restarted, strict=True))
    held_s = max(restarted[0]), max(restarted[1]) * (of_group / simulated if len(restarted[1]) == 1 else 1)
    return Restart(simulated, (now_s, next_s), held_s, reads)


def line_of(every_us: int, sensors: int) -> str:
    """Returns a fleet's line of the table."""
    cost = restart_of(every_us, sensors)
    values = [
        "1/min" if every_us >= MINUTE else "1 Hz",
        f"{sensors:,}",
        f"{groups_for(Rate(every_us, sensors=sensors)):,}",
        *(f"{seconds / cost.sensors * 1000:.2f} ms" for seconds in cost.cpu_s),
        f"{cost.reads / cost.sensors:.3f}",
        *(f"{seconds:.2f} s" for seconds in cost.held_s),
    ]
    return "  ".join(f"{value:>{width}}" for value, (*_, width) in zip(values, HEADINGS, strict=True))


def _readings(rng: random.Random) -> dict[str, float]:
    return {f"metric_{number}": round(rng.gauss(20 + number, 1), 2) for number in range(3)}
