"""Rolls up what panes contribute, each level once the one below is written.

    contributions ─ WriteMembers ─ Shards ─ WriteParts ─ Groups ─ rows of groups

The state of both steps in between is what is due; they read the rows that they compute from. What is due for the same
rows waits together for some seconds.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
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
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.connection.names import TableName
from pipeline.core.panes.firing import END_US
from pipeline.core.rollups.due import (
    MOST_BYTES,
    Due,
    RowsThenDue,
    bucket_of,
    buckets_for,
    due_bytes,
    read_due,
    read_written,
    written_bytes,
)
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import Derived, Levels
from pipeline.core.rows.rows import EncodedRows, row_bytes, some_at_a_time
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.worker_state import set_clock_timer
from pipeline.transforms.tables import RETRY_S, Clock, StatefulFn, TableReadingFn

_DEAD_LETTERS = "dead_letters"
_MEMBERS_S = 1.5  # the time for which what the sensors of a shard contribute waits for each other
_PARTS_S = 8.0  # the time between two computations of groups
_MOST_AT_ONCE = 16 << 20  # bytes that are read and computed in a firing
_SOON_S = 0.1
_GLOBAL = (GlobalWindow(),)

_DUE_SPEC = BagStateSpec("due", BytesCoder())
_WAITS_SPEC = ReadModifyWriteStateSpec("waits", VarIntCoder())
_DUE, _WAITS = map(beam.DoFn.StateParam, (_DUE_SPEC, _WAITS_SPEC))


class WrittenRows(NamedTuple):
    """``(key, due)`` once rows of roll-ups are written, and ``Message`` dead letters if the writer has any."""

    due: PCollection
    dead_letters: PCollection | None = None


class RolledUp(NamedTuple):
    """The outputs of :class:`RollUp`.

    Attributes:
        rows: ``EncodedRows`` of groups.
        dead_letters: ``Message`` elements of refused rows.
    """

    rows: PCollection
    dead_letters: list[PCollection]


class RollUp(beam.PTransform):
    """Rolls up contributions, which :func:`pipeline.core.rollups.due.written_bytes` has encoded, to :class:`RolledUp`.

    Args:
        schema: the table's schema, which has roll-ups.
        write: adds a step with a label that writes such elements.
        clock: a function that returns the current time.
    """

    def __init__(
        self,
        name: TableName,
        schema: TableSchema,
        write: Callable[[PCollection, str], WrittenRows],
        clock: Clock = time.time,
    ) -> None:
        super().__init__()
        self._arguments, self._write_rows = (name, schema, clock), write

    def expand(self, contributions: PCollection) -> Any:  # RolledUp, which Beam would take for a type hint
        members = self._write_rows(contributions, "WriteMembers")
        shards_fn, groups_fn = _ShardsFn(*self._arguments), _GroupsFn(*self._arguments)
        parts = self._write_rows(members.due | "Shards" >> beam.ParDo(shards_fn).with_output_types(bytes), "WriteParts")
        rows = parts.due | "Groups" >> beam.ParDo(groups_fn).with_output_types(EncodedRows)
        return RolledUp(rows, [each.dead_letters for each in (members, parts) if each.dead_letters is not None])


class WriteThenDueFn(beam.DoFn):
    """Writes rows with another DoFn, and passes on what is due once they are confirmed, at the end of a bundle.

    What is due because of a refused row is passed on too: it is computed from rows that the table has.
    """

    def __init__(self, writer: beam.DoFn) -> None:
        self._writer = writer

    def default_label(self) -> str:
        return str(self._writer.default_label())

    def display_data(self) -> dict[str, Any]:
        return dict(self._writer.display_data())

    def setup(self) -> None:
        self._writer.setup()

    def start_bundle(self) -> None:
        self._due: dict[tuple[int, bytes], None] = {}
        self._writer.start_bundle()

    def process(self, element: bytes) -> Iterator[Any]:
        rows, due = read_written(element)
        self._due.update(dict.fromkeys(due))
        for letter in self._writer.process(rows):
            yield TaggedOutput(_DEAD_LETTERS, letter)

    def finish_bundle(self) -> Iterator[Any]:
        for letter in self._writer.finish_bundle():
            yield TaggedOutput(_DEAD_LETTERS, letter)
        for due in self._due:
            yield WindowedValue(due, Timestamp(time.time()), _GLOBAL)

    def teardown(self) -> None:
        self._writer.teardown()


def write_then_due(elements: PCollection, label: str, write_fn: WriteThenDueFn, *, refuses: bool) -> WrittenRows:
    """Adds a step that writes rows; ``refuses`` is whether the writer has dead letters."""
    outputs = elements | label >> beam.ParDo(write_fn).with_outputs(_DEAD_LETTERS, main="due")
    outputs.due.element_type = KV[int, bytes]
    return WrittenRows(outputs.due, outputs[_DEAD_LETTERS] if refuses else None)


class _DueFn(StatefulFn, TableReadingFn):
    """Computes rows that are due."""

    def __init__(self, name: TableName, schema: TableSchema, clock: Clock) -> None:
        super().__init__(name, RETRY_S)
        self._schema, self._clock = schema, clock
        self._rules = GroupRules(schema)

    def setup(self) -> None:
        super().setup()
        self._levels = Levels(self._rules, self._read, _MOST_AT_ONCE)

    def _wait_s(self, key: int) -> float:
        """Returns the time until which what is due waits."""
        raise NotImplementedError

    def _derive(self, key: int, due: Due) -> Derived:
        raise NotImplementedError

    def _passed_on(self, derived: Derived) -> Iterator[Any]:
        raise NotImplementedError

    def _wait(self, element: tuple[int, bytes], state: "_DueState", timer: RuntimeTimer, end: RuntimeTimer) -> None:
        key, due = element
        state.due.add(due)
        if not state.waits.read():
            state.waits.write(1)
            set_clock_timer(timer, Timestamp(self._wait_s(key)))
            end.set(Timestamp(micros=END_US))

    def _fire(
        self, key: int, state: "_DueState", timer: RuntimeTimer | None, end: RuntimeTimer | None
    ) -> Iterator[Any]:
        """Computes what is due. If that is too much for a firing, one of the timers fires again."""
        derived = self._derive(key, read_due(state.due.read()))
        state.due.clear()
        if derived.rest:
            for some in due_bytes(derived.rest):
                state.due.add(some)
            if timer is not None:
                set_clock_timer(timer, Timestamp(self._clock() + _SOON_S))
            if end is not None:
                end.set(Timestamp(micros=END_US))
        else:
            state.waits.clear()
        yield from self._passed_on(derived)


class _DueState(NamedTuple):
    """The state of a step: what is due, and whether a timer is set."""

    due: BagRuntimeState
    waits: ReadModifyWriteRuntimeState


def _waiting(name: str) -> tuple[Callable[..., None], Callable[..., Any], Callable[..., Any]]:
    """Returns the methods of a step by which what is due waits for a timer, and is computed when it fires.

    The timers are named after the step: Beam's FnApiRunner confuses equal names within a stage.
    """
    timer_spec, end_spec = (
        TimerSpec(f"{name}_due", TimeDomain.REAL_TIME),
        TimerSpec(f"{name}_end", TimeDomain.WATERMARK),
    )
    timer_param, end_param = map(beam.DoFn.TimerParam, (timer_spec, end_spec))

    def process(
        self: _DueFn,
        element: tuple[int, bytes],
        due: BagRuntimeState = _DUE,
        waits: ReadModifyWriteRuntimeState = _WAITS,
        timer: RuntimeTimer = timer_param,
        end: RuntimeTimer = end_param,
    ) -> None:
        self._wait(element, _DueState(due, waits), timer, end)

    @on_timer(timer_spec)
    def waited(
        self: _DueFn,
        key: Any = beam.DoFn.KeyParam,
        due: BagRuntimeState = _DUE,
        waits: ReadModifyWriteRuntimeState = _WAITS,
        timer: RuntimeTimer = timer_param,
    ) -> Iterator[Any]:
        return self._fire(key, _DueState(due, waits), timer, None)

    @on_timer(end_spec)
    def drained(
        self: _DueFn,
        key: Any = beam.DoFn.KeyParam,
        due: BagRuntimeState = _DUE,
        waits: ReadModifyWriteRuntimeState = _WAITS,
        timer: RuntimeTimer = timer_param,
        end: RuntimeTimer = end_param,
    ) -> Iterator[Any]:
        timer.clear()  # a drain would wait for it
        return self._fire(key, _DueState(due, waits), None, end)

    return process, waited, drained


class _ShardsFn(_DueFn):
    """Computes the parts of a shard, as encoded ``RowsThenDue``. The key is the shard."""

    process, waited, drained = _waiting("shard")

    def _wait_s(self, _key: int) -> float:
        return self._clock() + _MEMBERS_S

    def _derive(self, key: int, due: Due) -> Derived:
        return self._levels.parts(key, due)

    def _passed_on(self, derived: Derived) -> Iterator[bytes]:
        buckets = buckets_for(self._rules.shards)
        rows_then_due = zip(derived.rows, derived.due, strict=True)
        for some in some_at_a_time(rows_then_due, lambda each: row_bytes(each[0]), MOST_BYTES):
            due: dict[int, Due] = defaultdict(dict)
            for _, (window, name) in some:
                due[bucket_of(name, buckets)].setdefault(window, {})[name] = None
            keyed = [(key, data) for key, of_key in due.items() for data in due_bytes(of_key)]
            yield written_bytes(RowsThenDue(EncodedRows(row for row, _ in some), keyed))


class _GroupsFn(_DueFn):
    """Computes the rows of groups, as ``EncodedRows``. The key is that of :func:`bucket_of`."""

    process, waited, drained = _waiting("group")

    def _wait_s(self, _key: int) -> float:
        now_s = self._clock()
        return now_s - now_s % _PARTS_S + _PARTS_S  # all at the same time: their rows share requests

    def _derive(self, _key: int, due: Due) -> Derived:
        return self._levels.groups(due)

    def _passed_on(self, derived: Derived) -> Iterator[EncodedRows]:
        return map(EncodedRows, some_at_a_time(derived.rows, row_bytes, MOST_BYTES))
