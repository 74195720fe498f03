"""Computes the longer windows around changed ones again: the days and months around an hour, from the rows in them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.completion.audit import Finding, Untouched
from pipeline.core.completion.auditable_windows import KEPT_NO_LONGER
from pipeline.core.completion.longer_audit import LongerAudit
from pipeline.core.completion.stored_windows import WindowRows
from pipeline.core.completion.work_list import work_row
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import sources
from pipeline.repair.longer import WindowsAbove
from pipeline.transforms.settle_rollups import WrittenWindow
from pipeline.transforms.tables import RETRY_S, TableReadingFn

_MOST_SENSORS = 1000  # whose windows are computed together
_MOST_TIMES = 3  # that windows are computed, if their shorter ones keep changing
_COMPUTED = "computed"

_Window = tuple[str, int]  # sensor and start


class Changed(NamedTuple):
    """A window that was rewritten, or is listed.

    Attributes:
        sensor_id: the sensor.
        tier: the tier's index.
        start_us: the start.
        rewritten: whether it was rewritten.
        cells: the cells that a dry run would have written; None if the table has them.
    """

    sensor_id: str
    tier: int
    start_us: int
    rewritten: bool = True
    cells: tuple[Cell, ...] | None = None


def is_followed(window: WrittenWindow, longer: WindowsAbove, rolled_up: Collection[int]) -> bool:
    """Returns whether longer windows or roll-ups follow a rewritten window, which is listed until then.

    Args:
        window: the rewritten window.
        longer: the longer windows of the repair.
        rolled_up: the indexes of the tiers whose roll-ups follow.
    """
    return window.tier in rolled_up or longer.follow(*window)


class LongerOutputs(NamedTuple):
    """The outputs of :class:`RecomputeLonger`.

    Attributes:
        found: a :class:`Finding` for each longer window whose row was wrong, and an :class:`Untouched` for each that
            stays as it is.
        computed: a :class:`WrittenWindow` for each that was computed again.
    """

    found: PCollection
    computed: PCollection


@dataclass(eq=False)
class RecomputeLonger(beam.PTransform):
    """Brings longer windows in line with :class:`Changed` windows in them, all of which the table has by then.

    Writes the windows that stay as they are to the work list. A dry run writes nothing.

    Args:
        table: the table's name.
        schema: the table's schema.
        retention: the retention of the table's cells.
        longer: the longer windows of the repair.
        dry_run: whether to write nothing.
    """

    table: TableName
    schema: TableSchema
    retention: Retention
    longer: WindowsAbove
    dry_run: bool

    def expand(self, changed: PCollection) -> Any:  # LongerOutputs; Beam takes the annotation for a type hint and warns
        recompute_fn = _RecomputeFn(self.table, self.schema, self.retention, self.longer, dry_run=self.dry_run)
        found = (
            changed
            | "BySensor" >> beam.Map(lambda each: (each.sensor_id, tuple(each))).with_output_types(tuple[str, Any])
            | "GatherChanged" >> beam.GroupByKey()
            | "RecomputeLonger" >> beam.ParDo(recompute_fn).with_outputs(_COMPUTED, main="found")
        )
        return LongerOutputs(found["found"], found[_COMPUTED])


class _RecomputeFn(TableReadingFn):
    def __init__(
        self, table: TableName, schema: TableSchema, retention: Retention, longer: WindowsAbove, *, dry_run: bool
    ) -> None:
        super().__init__(table, RETRY_S)
        self._schema, self._retention, self._longer, self._dry_run = schema, retention, longer, dry_run

    def setup(self) -> None:
        super().setup()
        self._rewriter: Rewriter | None = None

    def start_bundle(self) -> None:
        self._waiting: dict[str, list[Changed]] = {}

    def process(self, element: tuple[str, Iterable[tuple[Any, ...]]]) -> Iterator[Any]:
        sensor_id, changed = element
        self._waiting[sensor_id] = [Changed(*each) for each in changed]
        if len(self._waiting) >= _MOST_SENSORS:
            yield from self._computed()

    def finish_bundle(self) -> Iterator[Any]:
        """Computes what is waiting. Beam asks for windowed values here."""
        for each in self._computed():
            if isinstance(each, TaggedOutput):
                yield TaggedOutput(each.tag, GlobalWindows.windowed_value(each.value))
            else:
                yield GlobalWindows.windowed_value(each)

    def _computed(self) -> Iterator[Any]:
        waiting, self._waiting = self._waiting, {}
        table, tiers = WindowRows(self._schema, self._retention, self._read), self._schema.tiers
        changed: dict[int, dict[_Window, Changed]] = defaultdict(dict)
        for each in (each for of_sensor in waiting.values() for each in of_sensor):
            known = changed[each.tier].get((each.sensor_id, each.start_us))
            if known is None or not known.rewritten:
                changed[each.tier][each.sensor_id, each.start_us] = each
        for tier, source in enumerate(sources(tuple(tier.window for tier in tiers))):
            if not changed[source]:
                continue
            within: dict[_Window, dict[int, Changed]] = defaultdict(dict)
            for (sensor_id, start_us), each in changed[source].items():
                within[sensor_id, tiers[tier].window.start_of(start_us)][start_us] = each
            todo = {}
            for (sensor_id, start_us), shorter in within.items():
                rewritten = any(each.rewritten for each in shorter.values())
                changed[tier].setdefault((sensor_id, start_us), Changed(sensor_id, tier, start_us, rewritten))
                if self._longer.are_audited(tier, sensor_id, start_us):
                    continue
                why = self._longer.why_left(tier, start_us)
                if why is None:
                    todo[sensor_id, start_us] = {
                        each_us: _row_of(each, tiers[source]) for each_us, each in shorter.items()
                    }
                elif why != KEPT_NO_LONGER and rewritten:
                    yield from self._left([Untouched(tiers[tier], sensor_id, start_us, why)])
            for found in self._brought_in_line(LongerAudit(table, tiers[tier], tiers[source]), todo):
                yield found
                if self._dry_run and isinstance(found, Finding):
                    key = found.sensor_id, found.start_us
                    changed[tier][key] = changed[tier][key]._replace(cells=found.cells)
            yield from (TaggedOutput(_COMPUTED, WrittenWindow(tier, start_us, each)) for each, start_us in todo)

    def _brought_in_line(
        self, audit: LongerAudit, todo: Mapping[_Window, Mapping[int, Row | None]]
    ) -> Iterator[Finding | Untouched]:
        """Rewrites wrong windows, and looks at them again: others may write them, or those in them."""
        for number in range(_MOST_TIMES):
            found = {key: each for key, each in audit.audit(todo) if each is not None}
            wrong = {key: each for key, each in found.items() if isinstance(each, Finding)}
            if not number:
                yield from wrong.values()
            yield from self._left([each for each in found.values() if isinstance(each, Untouched)])
            if self._dry_run or not wrong:
                break
            self._writer.replace(Replacement(each.key, each.tier.family, each.cells) for each in wrong.values())
            todo = {key: todo[key] for key in wrong}

    def _left(self, windows: list[Untouched]) -> list[Untouched]:
        if windows and not self._dry_run:
            self._writer.add(work_row(self._schema.tiers[0], each.sensor_id, each.start_us) for each in windows)
        return windows

    @property
    def _writer(self) -> Rewriter:
        if self._rewriter is None:
            self._rewriter = self._connections.enter_context(Rewriter.open(self._name))
        return self._rewriter


def _row_of(changed: Changed, tier: Tier) -> Row | None:
    if changed.cells is None:
        return None
    return Row(aggregate_key(tier.window, changed.sensor_id, changed.start_us), list(changed.cells))
