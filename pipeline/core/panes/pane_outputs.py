"""Collects what follows from the panes of a firing: contributions to roll-ups, and results that it publishes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from pipeline.core.panes.firing import RollupRules
from pipeline.core.panes.group_state import GroupWindows, Schedule
from pipeline.core.results.window_results import Kind, PaneResult, ResultRules
from pipeline.core.rollups.contributions import Contribution
from pipeline.core.rollups.due import MOST_BYTES, Due, RowsThenDue, due_bytes, written_bytes
from pipeline.core.rows.rollup_rows import members_key, versioned_row
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rate import group_of
from pipeline.core.statistics.window_stats import WindowStats

_MOST_SENSORS = 1000  # in a mutation of a row of members


class PaneContributions:
    """The contributions of a firing.

    Args:
        rules: the rules.

    Attributes:
        size_bytes: their bytes so far.
    """

    def __init__(self, rules: RollupRules) -> None:
        self._rules = rules
        self.size_bytes = 0
        self._found: dict[tuple[int, int, int], dict[bytes, Contribution]] = defaultdict(dict)

    def add(self, tier: int, start_us: int, changed: Mapping[str, WindowStats]) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        contributions, shards = self._rules.of_tier[tier], self._rules.shards
        if contributions is None:
            return
        found, of = self._found, contributions.of
        for sensor_id, stats in changed.items():
            sensor = sensor_id.encode()
            contribution = found[tier, start_us, group_of(sensor, shards)][sensor] = of(start_us, stats)
            self.size_bytes += len(sensor) + len(contribution.cell.value) + sum(map(len, contribution.texts))

    def batches(self) -> Iterator[bytes]:
        """Yields rows of members of limited size, encoded with what is due once they are written."""
        rows, due, size = EncodedRows(), defaultdict[int, Due](dict), 0
        for (tier, start_us, shard), contributions in self._found.items():
            key = members_key(self._rules.tiers[tier].window, shard, start_us)
            for some in _some_at_a_time(contributions):
                row = versioned_row(key, start_us, [(sensor, each.cell) for sensor, each in some.items()])
                rows.append(row)
                texts = due[shard].setdefault((tier, start_us), {})
                texts.update(dict.fromkeys([text for each in some.values() for text in each.texts]))
                size += len(row.mutations)
                if size >= MOST_BYTES:
                    yield _encoded(rows, due)
                    rows, due, size = EncodedRows(), defaultdict(dict), 0
        if rows:
            yield _encoded(rows, due)


def _some_at_a_time(contributions: Mapping[bytes, Contribution]) -> Iterator[dict[bytes, Contribution]]:
    """Yields as many contributions as are written at once."""
    items = iter(contributions.items())
    while some := dict(islice(items, _MOST_SENSORS)):
        size, part = 0, dict[bytes, Contribution]()
        for sensor, each in some.items():
            part[sensor] = each
            size += len(each.cell.value)
            if size >= MOST_BYTES:
                yield part
                size, part = 0, {}
        if part:
            yield part


def _encoded(rows: EncodedRows, due: Mapping[int, Mapping[tuple[int, int], Iterable[bytes]]]) -> bytes:
    return written_bytes(RowsThenDue(rows, [(shard, data) for shard, each in due.items() for data in due_bytes(each)]))


_CLOCKS_DIFFER_US = 60_000_000  # at most, between workers


class PaneResults:
    """The results that a firing publishes: its panes, early ones only if the rules ask for them.

    When the watermark passes the end of a window, a pane fires even if nothing came since the one before: it tells that
    the window is done. Each group passes each time once, so nothing has to be kept for that.

    A drain passes the end of windows that are still in progress, and so may publishers whose clocks are ahead. By the
    clock, such results are early. They are published in any case: the next job may get nothing more for their windows.

    Args:
        rules: the rules.
        windows: the group's windows, which are changed in place.
        schedule: the group's schedule, which tells how far the watermark has passed.
        now_us: the current time.

    Attributes:
        found: the results.
    """

    def __init__(self, rules: ResultRules, windows: GroupWindows, schedule: Schedule, now_us: int) -> None:
        self._early = rules.early
        self._windows, self._schedule = windows, schedule
        self._in_progress_us = now_us + _CLOCKS_DIFFER_US
        self.found: list[PaneResult] = []

    def finish(self) -> None:
        """Makes windows of the shortest tier fire whose end the watermark passes."""
        for start_us, window in self._windows.of_tier[0].items():
            if self._ends(start_us):
                for entry in window.entries.values():
                    if entry.written >= 0:
                        entry.dirty = entry.finished = True

    def add(self, tier: int, start_us: int, changed: Mapping[str, WindowStats], kind: Kind) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        if kind == "early" and not self._early:
            return
        if not self._windows.ends_by(tier, start_us, self._in_progress_us):
            kind = "early"
        self.found += [PaneResult(tier, sensor, start_us, stats, kind) for sensor, stats in changed.items()]

    def _ends(self, start_us: int) -> bool:
        ends_by, schedule = self._windows.ends_by, self._schedule
        return ends_by(0, start_us, schedule.passed_us) and not ends_by(0, start_us, schedule.passed_before_us)
