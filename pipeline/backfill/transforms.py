"""Writes the aggregate rows of the windows of files' events, from these events and what the table stores."""

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsList, PCollection, TaggedOutput
from apache_beam.transforms.window import FixedWindows
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Duration
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.names import TableName
from pipeline.cloud.rewriter import Replacement, Rewriter
from pipeline.core.accumulator import WindowReadings, at_least
from pipeline.core.aggregates import aggregate_row
from pipeline.core.events import Event
from pipeline.core.extents import lateness_of
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.foreign import ForeignRow
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.stats import WindowStats
from pipeline.core.windows import Window
from pipeline.transforms import metrics
from pipeline.transforms.aggregate import PreAggregateReadings, WindowReadingsFn
from pipeline.transforms.tables import CompletingFn, now_us

_MICROSECOND = timedelta(microseconds=1)
_MOST_PENDING = 500  # windows, before their rows are written
_MOST_HELD = 50_000  # events of these
_WINDOWS, _LISTED = "windows", "listed"


class CountExpired(beam.PTransform):
    """Counts the ``Event`` elements that Bigtable would collect soon after they are written; passes nothing on."""

    def __init__(self, expiry: Expiry) -> None:
        super().__init__()
        self._expiry = expiry

    def expand(self, events: PCollection) -> PCollection:
        return events | "Count" >> beam.ParDo(_CountExpiredFn(self._expiry))


class _CountExpiredFn(beam.DoFn):
    def __init__(self, expiry: Expiry) -> None:
        self._expiry = expiry
        self._expired = metrics.counter(metrics.EXPIRED_EVENTS)

    def process(self, element: Event) -> None:
        if self._expiry.expires(element.event_time_us, element.readings, time.time_ns() // 1000):
            self._expired.inc()


class Completed(NamedTuple):
    """What comes out.

    Attributes:
        windows: ``(sensor_id, (start in µs, WindowStats))`` of windows whose aggregate rows are written.
        listed: ``(sensor_id, start in µs)`` of windows that a repair has to look at, for the table's work list.
    """

    windows: PCollection
    listed: PCollection


class CompleteWindows(beam.PTransform):
    """``Event`` elements to :class:`Completed`, of each window of the table's shortest tier that has one of them.

    A window's aggregate row becomes that of the events and of the raw rows that the table has of it, each reading
    once; where both have a reading, it is the events' own, which the raw row holds by then. One that may have been
    collected in part, so that less would replace more, is left as it is and listed. So is one that a job may still
    write, or a longer one that holds it: the job knows nothing of these events, and what it writes next is without
    them.

    Several backfills may run at once: every row is looked at again after it was written, when all raw rows of this
    one have long been there. So whoever writes a row last has seen the raw rows of all.

    Args:
        table: its name, its schema, and what of it may be collected.
        written: what comes out of the step that writes the raw rows: nothing, when it has ended.
        allowed_lateness: of the job that writes the table; zero where none runs.
        late_firing: of that job.
    """

    def __init__(
        self,
        table: tuple[TableName, TableSchema, Retention],
        written: PCollection,
        allowed_lateness: timedelta,
        late_firing: timedelta,
    ) -> None:
        super().__init__()
        self._table = table
        self._written = written
        self._job = allowed_lateness, late_firing

    def expand(self, events: PCollection) -> Any:  # Completed; Beam takes the annotation for a type hint and warns
        _, schema, _ = self._table
        window = schema.tiers[0].window
        complete_fn = _CompleteFn(*self._table, schema.tiers[0], *self._job)
        outputs = (
            events
            | "GatherReadings" >> PreAggregateReadings(window, schema.identity)
            | "Window" >> _windows(window)
            | "Gather" >> beam.CombinePerKey(_KeepFn(deduplicate=True)).with_output_types(tuple[str, WindowReadings])
            | "Complete" >> beam.ParDo(complete_fn, AsList(self._written)).with_outputs(_LISTED, main=_WINDOWS)
        )
        return _completed(outputs)


class CompleteLongerWindows(beam.PTransform):
    """``(sensor_id, (start in µs, WindowStats))`` of shorter windows to :class:`Completed` of those that they divide.

    The shorter windows that do not come are as their aggregate rows in the table have them, or their raw rows.

    Args:
        table: its name, its schema, and what of it may be collected.
        tiers: of the shorter windows, and of those that come out.
    """

    def __init__(self, table: tuple[TableName, TableSchema, Retention], tiers: tuple[Tier, Tier]) -> None:
        super().__init__()
        self._table = table
        self._tiers = tiers

    def expand(self, windows: PCollection) -> Any:  # Completed
        # The timestamp of what came out of a shorter window is within it, and so within the longer one.
        complete_fn = _CompleteLongerFn(*self._table, self._tiers)
        outputs = (
            windows
            | "Window" >> _windows(self._tiers[1].window)
            | "Gather" >> beam.GroupByKey()
            | "Complete" >> beam.ParDo(complete_fn).with_outputs(_LISTED, main=_WINDOWS)
        )
        return _completed(outputs)


def _windows(window: Window) -> beam.WindowInto:
    return beam.WindowInto(FixedWindows(Duration(micros=window.length_us)))


def _completed(outputs: Any) -> Completed:
    outputs[_WINDOWS].element_type = KV[str, Any]
    outputs[_LISTED].element_type = KV[str, int]
    return Completed(outputs[_WINDOWS], outputs[_LISTED])


class _KeepFn(WindowReadingsFn):
    """Gives the accumulator itself: there is more to add."""

    def extract_output(self, accumulator: WindowReadings) -> Any:
        return accumulator


class _Pending(NamedTuple):
    """A window whose row is about to be written."""

    sensor_id: str
    window: Any
    fresh: Any  # what of it has come
    written: bool = False  # whether that is what its row counts


class _Completed(NamedTuple):
    """What a window comes to."""

    stats: WindowStats
    all_of_it: Any  # which a further look takes for fresh


class _WritingFn(CompletingFn):
    """Completes windows and writes their aggregate rows, many at once."""

    def __init__(self, name: TableName, schema: TableSchema, retention: Retention, tier: Tier) -> None:
        super().__init__(name, schema, retention, search=True)
        self._tier = tier
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)
        self._left = metrics.counter(metrics.BACKFILL_WINDOWS_LEFT)
        self._listed = metrics.counter(metrics.BACKFILL_WINDOWS_LISTED)

    def setup(self) -> None:
        super().setup()
        self._rewriter: Rewriter | None = None

    def start_bundle(self) -> None:
        super().start_bundle()
        self._pending: list[_Pending] = []
        self._size = 0

    def finish_bundle(self) -> Iterator[Any]:
        yield from self._write()

    def _add(self, pending: _Pending, size: int) -> Iterator[Any]:
        self._pending.append(pending)
        self._size += size
        if len(self._pending) >= _MOST_PENDING or self._size >= _MOST_HELD:
            yield from self._write()

    def _write(self) -> Iterator[Any]:
        """Writes the rows of what is pending, and each once more that counts more by then."""
        pending, self._pending, self._size = self._pending, [], 0
        completed: list[_Completed | None] = [self._completed(each) for each in pending]
        changed = {index: each for index, each in enumerate(completed) if each is not None}
        while changed:
            self._replace([(pending[index], stats) for index, (stats, _) in changed.items()])
            written, changed = changed, {}
            for index, (stats, all_of_it) in written.items():
                # What was written is among what it has to count: it is fresh by now, wherever it was from.
                again = self._completed(pending[index]._replace(fresh=all_of_it, written=True))
                if again is None:
                    completed[index] = None  # somebody wrote what we can't complete
                elif not at_least([stats], again.stats):
                    completed[index] = changed[index] = again
        for (sensor_id, window, *_), found in zip(pending, completed, strict=True):
            start_us = window.start.micros
            if found is not None:
                self._aggregate_rows.inc()
                yield WindowedValue((sensor_id, (start_us, found.stats)), window.max_timestamp(), (window,))
            else:
                self._left.inc()
            if found is None or self._may_be_written(start_us):
                self._listed.inc()
                key = sensor_id, start_us
                yield TaggedOutput(_LISTED, WindowedValue(key, window.max_timestamp(), (window,)))

    def _completed(self, pending: _Pending) -> _Completed | None:
        """What the window comes to; None where it is left as it is."""
        try:
            return self._compute(pending)
        except ForeignRow:
            return None

    def _compute(self, pending: _Pending) -> _Completed | None:
        raise NotImplementedError

    def _may_be_written(self, start_us: int) -> bool:
        """Whether a job may still write the window."""
        raise NotImplementedError

    def _replace(self, windows: list[tuple[_Pending, WindowStats]]) -> None:
        if self._rewriter is None:
            self._rewriter = self._connections.enter_context(Rewriter.open(self._name))
        tier = self._tier
        rows = (
            aggregate_row(tier.window, sensor_id, window.start.micros, stats, tier.family)
            for (sensor_id, window, *_), stats in windows
        )
        self._rewriter.replace(Replacement(row.key, tier.family, tuple(row.cells)) for row in rows)


class _CompleteFn(_WritingFn):
    def __init__(
        self,
        name: TableName,
        schema: TableSchema,
        retention: Retention,
        tier: Tier,
        allowed_lateness: timedelta,
        late_firing: timedelta,
    ) -> None:
        super().__init__(name, schema, retention, tier)
        longest = schema.tiers[-1]
        self._longest = longest.window
        self._kept_us = lateness_of(schema.tiers, allowed_lateness, late_firing)[longest] // _MICROSECOND

    def process(
        self, element: tuple[str, WindowReadings], written: list[Any], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[Any]:
        if written:
            raise ValueError(f"{written[0]} came out of the step that writes raw rows")
        sensor_id, gathered = element
        yield from self._add(_Pending(sensor_id, window, gathered), gathered.pane().stats.events)

    def _compute(self, pending: _Pending) -> _Completed | None:
        sensor_id, window, gathered, written = pending
        whole = self._completion.completed(
            self._tier, sensor_id, window.start.micros, now_us(), gathered, written=written
        )
        return None if whole is None else _Completed(whole.pane().stats, whole)

    def _may_be_written(self, start_us: int) -> bool:
        end_us = self._longest.start_of(start_us) + self._longest.length_us
        return end_us + self._kept_us > now_us()


class _CompleteLongerFn(_WritingFn):
    def __init__(self, name: TableName, schema: TableSchema, retention: Retention, tiers: tuple[Tier, Tier]) -> None:
        super().__init__(name, schema, retention, tiers[1])
        self._tiers = tiers

    def process(
        self, element: tuple[str, Iterable[tuple[int, WindowStats]]], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[Any]:
        sensor_id, shorter = element
        yield from self._add(_Pending(sensor_id, window, dict(shorter)), 1)

    def _compute(self, pending: _Pending) -> _Completed | None:
        sensor_id, window, shorter, _ = pending
        stats = self._completion.completed_longer(self._tiers, sensor_id, window.start.micros, now_us(), shorter)
        return None if stats is None else _Completed(stats, shorter)

    def _may_be_written(self, start_us: int) -> bool:  # noqa: ARG002
        return False  # the shorter windows in it are listed then
