"""Watches readings for alerts: a step with state, whose key is a group of sensors, and the sweeps that find silence."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagRuntimeState,
    BagStateSpec,
    ReadModifyWriteRuntimeState,
    ReadModifyWriteStateSpec,
    RuntimeTimer,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.util import ReshufflePerKey
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp

from pipeline.core.alerts.alert_messages import Alert, messages_of
from pipeline.core.alerts.group_alerts import BEGIN, AlertState, Found, GroupAlerts, silent_part
from pipeline.core.alerts.silence_clock import Heard, SilenceClock
from pipeline.core.panes.firing import END_US
from pipeline.core.rows.rows import EncodedRows
from pipeline.private_apis.worker_state import clock_is_set_forward, set_clock_timer, watermark_is_clock
from pipeline.transforms.alert_table import AlertTableFn, WatchedTable
from pipeline.transforms.tables import Clock, StatefulFn

_ROWS, _ALERTS = "rows", "alerts"  # output tags, which an update of a job compares
_TOGETHER_S = 1.0  # the time for which alerts of a rule wait for each other
_HEARD_EVERY_S = 10.0
_CLOCKS_DIFFER_US = 60_000_000  # a watermark that is ahead by more is that of a drain
_TICK_US = 10_000_000  # rules may come for which to look more often
_NO_GROUPS = b"[]"
_ENDED = b""  # by a drain: what comes late must not begin anything again

_TRACKS_SPEC = ReadModifyWriteStateSpec("tracks", BytesCoder())
_DUE_SPEC, _WAKE_SPEC = TimerSpec("alert_due", TimeDomain.WATERMARK), TimerSpec("alert_wake", TimeDomain.REAL_TIME)
_TRACKS, _DUE, _WAKE = beam.DoFn.StateParam(_TRACKS_SPEC), *map(beam.DoFn.TimerParam, (_DUE_SPEC, _WAKE_SPEC))

_WAITING_SPEC = BagStateSpec("alerts", BytesCoder())
_TOLD_SPEC = TimerSpec("alerts_told", TimeDomain.REAL_TIME)
_DRAINED_SPEC = TimerSpec("alerts_drained", TimeDomain.WATERMARK)
_ANY_WAITS_SPEC = ReadModifyWriteStateSpec("any_waits", VarIntCoder())
_WAITING, _ANY_WAITS = map(beam.DoFn.StateParam, (_WAITING_SPEC, _ANY_WAITS_SPEC))
_TOLD, _DRAINED = map(beam.DoFn.TimerParam, (_TOLD_SPEC, _DRAINED_SPEC))

_SWEEP_SPEC = TimerSpec("sweep", TimeDomain.WATERMARK)
_SWEPT_SPEC = ReadModifyWriteStateSpec("swept", VarIntCoder())
_SILENT_GROUPS_SPEC = ReadModifyWriteStateSpec("silent_groups", BytesCoder())
_SILENCE_CLOCK_SPEC = ReadModifyWriteStateSpec("silence_clock", BytesCoder())
_TICK_SPEC = TimerSpec("tick", TimeDomain.REAL_TIME)
_SWEPT, _SILENT_GROUPS, _SILENCE_CLOCK = map(
    beam.DoFn.StateParam, (_SWEPT_SPEC, _SILENT_GROUPS_SPEC, _SILENCE_CLOCK_SPEC)
)
_SWEEP, _TICK = map(beam.DoFn.TimerParam, (_SWEEP_SPEC, _TICK_SPEC))


class Watched(NamedTuple):
    """The outputs of watching.

    Attributes:
        rows: ``EncodedRows`` of alerts.
        alerts: ``(rule, alert)``, the alert as JSON, for :class:`PublishAlerts`.
    """

    rows: PCollection
    alerts: PCollection


class WatchAlerts(beam.PTransform):
    """Watches ``(group, readings)`` by the rules that a table stores, and returns :class:`Watched`.

    Args:
        table: the table, and what is known of it.
        groups: the number of groups.
        clock: a function that returns the current time.
        results: batches of windows' results, for rules on windows.
    """

    def __init__(
        self, table: WatchedTable, groups: int, clock: Clock = time.time, results: PCollection | None = None
    ) -> None:
        super().__init__()
        self._table, self._groups, self._clock, self._results = table, groups, clock, results

    def expand(self, parts: PCollection) -> Any:  # Watched, which Beam would take for a type hint
        begins = parts.pipeline | "Groups" >> _create((group, BEGIN) for group in range(self._groups))
        # The sweeps get few of the readings, and their watermark. That of the step that writes would be surer, but it
        # writes the rows of alerts too, which come from the sweeps.
        heard_fn = _HeardFn(self._table, self._groups, self._clock)
        watermark = parts | "Watermark" >> beam.ParDo(heard_fn).with_output_types(KV[int, bytes])
        begin = parts.pipeline | "BeginSweeps" >> _create([(0, BEGIN)])
        sweep_fn = _SweepFn(self._table, self._groups, self._clock)
        silent = (watermark, begin) | "Sweeps" >> beam.Flatten()
        silent |= "FindSilent" >> beam.ParDo(sweep_fn).with_output_types(KV[int, bytes])
        windows = []
        if self._results is not None:
            values = self._results | "OfWindows" >> beam.ParDo(_WindowsFn(self._table, self._groups))
            values.element_type = KV[int, bytes]
            windows.append(values)
        elements = (parts, begins, silent, *windows) | "WithSilent" >> beam.Flatten()
        alert_fn = _AlertFn(self._table, self._groups, self._clock)
        outputs = elements | "Evaluate" >> beam.ParDo(alert_fn).with_outputs(_ALERTS, main=_ROWS)
        outputs[_ROWS].element_type = KV[int, EncodedRows]
        outputs[_ALERTS].element_type = KV[str, bytes]
        # Only rows of committed firings are written: a firing that is repeated must not read what its first attempt
        # wrote, and hold it for told. Those of a group stay in order.
        rows = outputs[_ROWS] | "RowsOfCommitted" >> ReshufflePerKey()
        return Watched(rows | "Rows" >> beam.Values().with_output_types(EncodedRows), outputs[_ALERTS])


class PublishAlerts(beam.PTransform):
    """Publishes the alerts of :class:`WatchAlerts`. Those of a rule that come together are summed up if they are many.

    The messages are shuffled first. So only those of committed firings are published: if a firing is repeated, it may
    sum up more alerts, under another id.

    Args:
        topic: the topic's full path.
        clock: a function that returns the current time.
    """

    def __init__(self, topic: str, clock: Clock = time.time) -> None:
        super().__init__()
        self._topic, self._clock = topic, clock

    def expand(self, alerts: PCollection) -> PCollection:
        return (
            alerts
            | "ToMessages" >> AlertMessages(self._clock)
            | "OfCommitted" >> beam.Reshuffle()
            | "WriteToPubSub" >> WriteToPubSub(self._topic, with_attributes=True)
        )


class AlertMessages(beam.PTransform):
    """Makes ``PubsubMessage`` elements of ``(rule, alert)``."""

    def __init__(self, clock: Clock = time.time) -> None:
        super().__init__()
        self._clock = clock

    def expand(self, alerts: PCollection) -> PCollection:
        return alerts | "Collect" >> beam.ParDo(_CollectAlertsFn(self._clock)).with_output_types(PubsubMessage)


class _AlertFn(StatefulFn, AlertTableFn):
    def setup(self) -> None:
        super().setup()
        self._alerts = GroupAlerts(self._table.name.table, self, self._table.schema)

    def process(
        self,
        element: tuple[int, bytes],
        tracks: ReadModifyWriteRuntimeState = _TRACKS,
        due: RuntimeTimer = _DUE,
        wake: RuntimeTimer = _WAKE,
    ) -> Iterable[Any]:
        group, part = element
        return self._outputs(group, self._alerts.process(group, part, _state_of(tracks, due, wake), self._now_us()))

    @on_timer(_DUE_SPEC)
    def condition_held(
        self,
        group: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        tracks: ReadModifyWriteRuntimeState = _TRACKS,
        due: RuntimeTimer = _DUE,
        wake: RuntimeTimer = _WAKE,
    ) -> Iterable[Any]:
        """Fires alerts whose conditions have held for long enough."""
        now_us = self._now_us()
        drains = at.micros > now_us + _CLOCKS_DIFFER_US  # whether a condition goes on, only the next job will see
        if drains:
            wake.clear()  # a drain would wait for it
        state = _state_of(tracks, due, wake)
        found = self._alerts.settle(group, state, now_us, at.micros, ends=drains)
        return self._outputs(group, found)

    @on_timer(_WAKE_SPEC)
    def held(
        self,
        group: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        tracks: ReadModifyWriteRuntimeState = _TRACKS,
        due: RuntimeTimer = _DUE,
        wake: RuntimeTimer = _WAKE,
    ) -> Iterable[Any]:
        """Decides about readings that were held, and tells what had to wait."""
        now_us = self._now_us()
        stops = at.micros > now_us + _CLOCKS_DIFFER_US
        found = self._alerts.settle(group, _state_of(tracks, due, wake), now_us, ends=stops)
        return self._outputs(group, found)

    def _outputs(self, group: int, found: Found) -> Iterator[Any]:
        if found.rows:
            yield group, found.rows
        for alert in found.alerts:
            yield TaggedOutput(_ALERTS, (alert.rule, json.dumps(alert).encode()))


class _WindowsFn(AlertTableFn):
    """Finds what rules on windows look at in batches of results."""

    def process(self, element: bytes) -> Iterator[tuple[int, bytes]]:
        return self.window_values(element)


class _HeardFn(AlertTableFn):
    """Tells the sweeps now and then how old readings are when they come, if a rule is on silence."""

    def setup(self) -> None:
        super().setup()
        self._next_s = 0.0

    def process(self, element: tuple[int, bytes]) -> Iterator[tuple[int, bytes]]:
        now_s = self._clock()
        if self._next_s - _HEARD_EVERY_S <= now_s < self._next_s:  # else the clock was ahead
            return
        self._next_s = now_s + _HEARD_EVERY_S
        if self.rules().on_silence:
            yield 0, json.dumps(Heard.of_part(element[1], int(now_s * 1_000_000))).encode()


class _SweepFn(StatefulFn, AlertTableFn):
    """Looks for silent sensors, again and again, as the watermark passes, or the clock while the watermark stands."""

    def process(
        self,
        element: tuple[int, bytes],
        silence_clock: ReadModifyWriteRuntimeState = _SILENCE_CLOCK,
        sweep: RuntimeTimer = _SWEEP,
        tick: RuntimeTimer = _TICK,
    ) -> None:
        now_us, data = self._now_us(), silence_clock.read()
        if element[1] == BEGIN:
            sweep.set(Timestamp(micros=now_us))
            silence_clock.write(self._begin(tick).to_bytes())
        elif data != _ENDED:
            known = SilenceClock.from_bytes(data) if data else self._begin(tick)  # else the job was updated
            if known.ticked_us > now_us + _CLOCKS_DIFFER_US:  # the clock was ahead, and so is the timer
                known = self._begin(tick)
            heard = Heard._make(json.loads(element[1]))
            silence_clock.write(known.hear(heard.at(now_us)).to_bytes())

    @on_timer(_SWEEP_SPEC)
    def sweep(
        self,
        at: Any = beam.DoFn.TimestampParam,
        swept: ReadModifyWriteRuntimeState = _SWEPT,
        groups: ReadModifyWriteRuntimeState = _SILENT_GROUPS,
        silence_clock: ReadModifyWriteRuntimeState = _SILENCE_CLOCK,
        sweep: RuntimeTimer = _SWEEP,
        tick: RuntimeTimer = _TICK,
    ) -> Iterator[tuple[int, bytes]]:
        """Yields what is silent at a watermark, unless the watermark leaps, as after a backlog or in a drain."""
        if watermark_is_clock(sweep):
            return  # it passes a backlog by; ticks go on
        now_us, every_us = self._now_us(), self.sweep_every_us()
        ahead_us = at.micros - now_us
        if ahead_us > self._table.max_future_us + _CLOCKS_DIFFER_US:  # a drain
            silence_clock.write(_ENDED)
            tick.clear()  # a drain would wait for it
            return
        data, watermark_us = silence_clock.read(), at.micros
        known = SilenceClock.from_bytes(data) if data else self._begin(tick)  # else the job was updated
        next_us = watermark_us + every_us
        if now_us - (swept.read() or now_us) < every_us // 2:
            # The watermark may leap by weeks. As each sweep is a bundle, each goes twice as far as the one before.
            next_us = max(next_us, min(3 * watermark_us - 2 * known.watermark_us, now_us))
        elif ahead_us <= 0 and watermark_us >= known.looked_us:
            known = known._replace(looked_us=watermark_us)
            yield from self._look(watermark_us, groups)
        swept.write(now_us)
        silence_clock.write(known._replace(watermark_us=watermark_us).to_bytes())
        sweep.set(Timestamp(micros=next_us))

    @on_timer(_TICK_SPEC)
    def tick(
        self,
        at: Any = beam.DoFn.TimestampParam,
        groups: ReadModifyWriteRuntimeState = _SILENT_GROUPS,
        silence_clock: ReadModifyWriteRuntimeState = _SILENCE_CLOCK,
        sweep: RuntimeTimer = _SWEEP,
        tick: RuntimeTimer = _TICK,
    ) -> Iterator[tuple[int, bytes]]:
        """Yields what is silent by the clock if the watermark stands."""
        if not (data := silence_clock.read()):
            return  # a drain has ended the sweeps
        every_us, shortest_us = self.sweep_every_us(), self.shortest_silence_us()
        known = SilenceClock.from_bytes(data).tick(self._now_us(), every_us)
        if known.watermark_us:  # else none has been seen
            sweep.set(Timestamp(micros=known.watermark_us + every_us))  # sooner than before if a rule is new
        if shortest_us and (time_us := known.time_us(every_us, shortest_us)) is not None:
            yield from self._look(time_us, groups)
            known = known._replace(looked_us=time_us, ticked_us=self._now_us())  # a long look is no break
        elif not shortest_us and groups.read() != _NO_GROUPS:
            yield from self._look(known.ticked_us, groups)
        silence_clock.write(known.to_bytes())
        if not clock_is_set_forward(tick, at, self._now_us(), _TICK_US):
            set_clock_timer(tick, Timestamp(micros=known.ticked_us + _TICK_US))

    def _begin(self, tick: RuntimeTimer) -> SilenceClock:
        now_us = self._now_us()
        set_clock_timer(tick, Timestamp(micros=now_us + _TICK_US))
        return SilenceClock(now_us, now_us)

    def _look(self, watermark_us: int, groups: ReadModifyWriteRuntimeState) -> Iterator[tuple[int, bytes]]:
        """Yields what is silent, also to groups that had silent sensors before: their alerts may have ended.

        A job that begins does not know these, and tells all groups, until the time of a look is that of the job before:
        then it finds what that one found.
        """
        known, silent_groups = groups.read(), set[int]()
        told = range(self._groups) if known is None else json.loads(known)
        for group, silent in self.silent(watermark_us, told):
            yield group, silent_part(silent)
            if silent.newest_us:
                silent_groups.add(group)
        if not self.rules().on_silence:
            yield from ((group, BEGIN) for group in told)  # they see that the rules have changed
        if known is not None or watermark_us >= self._table.began_us + self._table.newest_behind_us:
            groups.write(json.dumps(sorted(silent_groups)).encode())


class _CollectAlertsFn(StatefulFn):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def process(
        self,
        element: tuple[str, bytes],
        waiting: BagRuntimeState = _WAITING,
        any_waits: ReadModifyWriteRuntimeState = _ANY_WAITS,
        told: RuntimeTimer = _TOLD,
        drained: RuntimeTimer = _DRAINED,
    ) -> None:
        waiting.add(element[1])
        if not any_waits.read():  # the first one's time counts, however many follow
            any_waits.write(1)
            set_clock_timer(told, Timestamp(self._clock() + _TOGETHER_S))
            drained.set(Timestamp(micros=END_US))

    @on_timer(_TOLD_SPEC)
    def waited(
        self, waiting: BagRuntimeState = _WAITING, any_waits: ReadModifyWriteRuntimeState = _ANY_WAITS
    ) -> Iterator[PubsubMessage]:
        """Passes on what waits."""
        return self._take(waiting, any_waits)

    @on_timer(_DRAINED_SPEC)
    def drained(
        self,
        waiting: BagRuntimeState = _WAITING,
        any_waits: ReadModifyWriteRuntimeState = _ANY_WAITS,
        told: RuntimeTimer = _TOLD,
    ) -> Iterator[PubsubMessage]:
        """Passes on what waits."""
        told.clear()  # a drain would wait for it
        return self._take(waiting, any_waits)

    @staticmethod
    def _take(waiting: BagRuntimeState, any_waits: ReadModifyWriteRuntimeState) -> Iterator[PubsubMessage]:
        messages = messages_of(Alert(*json.loads(alert)) for alert in waiting.read())
        waiting.clear()
        any_waits.clear()
        for message in messages:
            yield PubsubMessage(message.data, dict(message.attributes))


def _state_of(tracks: ReadModifyWriteRuntimeState, due: RuntimeTimer, wake: RuntimeTimer) -> AlertState:
    return AlertState(
        tracks.read,
        tracks.write,
        lambda at_us: due.set(Timestamp(micros=at_us)),
        lambda at_us: set_clock_timer(wake, Timestamp(micros=at_us)),
    )


def _create(elements: Iterable[tuple[int, bytes]]) -> beam.PTransform:
    return beam.Create(list(elements), reshuffle=False).with_output_types(KV[int, bytes])
