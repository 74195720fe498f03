"""Notes that a table stores about its rows, beside its schema, in the family ``tidetable``.

| row | column | value |
|---|---|---|
| ``schema#kept`` | a family | the time since which none of its cells was collected, if its policy was shorter before |
| ``schema#seen`` | a family | the age at which its policy was last seen to collect, if less than in the schema |
| ``schema#added`` | a family | the start of its first windows with aggregates, if its tier was added later |
| ``schema#lateness`` | a time, in 16 digits | how late jobs launched from then on write windows, and newest readings |
| ``schema#ids`` | an id of the table | empty |

Times are microseconds since the epoch. A tier that no job has written yet has a time later than any event. What notes
something needs the table's family ``tidetable``. All functions raise
:class:`~pipeline.cloud.connection.errors.ServerError` if the table is out of reach or refuses the write.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import islice

from google.cloud.bigtable_v2.types import Mutation

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader, row_filter
from pipeline.cloud.tables.schema_store import IDS_KEY, SCHEMA_KEY
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.aggregate_rows import aggregate_prefix
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.gc_policies import MaxAge, Policy, collected_after, counts_versions
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema, Tier

_OWN_ROWS = b"schema#"
_KEPT = b"schema#kept"
_SEEN = b"schema#seen"
_ADDED = b"schema#added"
_LATENESS = b"schema#lateness"
_KEYS_ONLY = row_filter(CellSelection((), keys_only=True))
_MAX_DIGITS = 19
_VALID_S = 60.0  # for so long, a reader takes a retention for known
_MICROSECOND = timedelta(microseconds=1)
_UPDATED = timedelta(hours=1)  # after a launch, until no row that an earlier job wrote is on its way


def retention_of(name: TableName, schema: TableSchema, policies: Mapping[str, Policy]) -> Retention:
    """Returns which cells of a table may be collected, by its present policies and by earlier ones that it has noted.

    If the table stores the schema, the schema's policies apply too.
    """
    if SCHEMA_FAMILY not in policies:
        return Retention.of(schema, policies)
    noted = _noted(name)
    stored = [schema.policies] if SCHEMA_KEY in noted else []
    since, added = (
        {_text(family): _number(name, key, value) for family, value in noted.get(key, {}).items()}
        for key in (_KEPT, _ADDED)
    )
    seen = {
        _text(family): MaxAge(_number(name, _SEEN, value) * _MICROSECOND)
        for family, value in noted.get(_SEEN, {}).items()
    }
    of_jobs = _lateness_of_jobs(name, noted.get(_LATENESS, {})).values()
    allowed, late_firing, newest_every = (
        max(times_us) * _MICROSECOND for times_us in zip((0, 0, 0), *of_jobs, strict=True)
    )
    return Retention.of(
        schema,
        *stored,
        policies,
        seen,
        since=since,
        added=added,
        lateness=(allowed, late_firing),
        newest_every=newest_every,
    )


class KnownRetention:
    """Returns the retention of a table that is being read, when called, in any thread. Asks again after a minute.

    Without the permission ``bigtable.tables.get``, or if the administration's server is out of reach, returns one that
    knows nothing, so that no answer is taken for complete.
    """

    def __init__(self, name: TableName, schema: TableSchema, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._schema = schema
        self._clock = clock
        self._lock = threading.Lock()
        self._read_s = -_VALID_S
        self._retention: Retention | None = None

    def __call__(self) -> Retention:
        # While one thread asks again, the others go on with the last answer: the server may take its time.
        if self._is_due() and self._lock.acquire(blocking=self._retention is None):
            try:
                if self._is_due():
                    self._retention = self._read()
                    self._read_s = self._clock()
            finally:
                self._lock.release()
        return self._retention or Retention.unknown(self._schema)

    def _is_due(self) -> bool:
        return self._clock() - self._read_s >= _VALID_S

    def _read(self) -> Retention:
        from pipeline.cloud.tables.tables import describe  # slow to import, and few commands need it

        try:
            return retention_of(self._name, self._schema, describe(self._name))
        except ServerError:
            return Retention.unknown(self._schema)


def record_losses(name: TableName, schema: TableSchema, before: Retention, policies: Mapping[str, Policy]) -> None:
    """Notes losses beyond the schema's policies, if the table stores its schema.

    Also notes policies of the table that collect sooner than the schema's: nobody reports when they end.

    Args:
        name: the table.
        schema: the schema that the table stores from now on.
        before: the retention until now, from :func:`retention_of`.
        policies: the families' policies from now on.
    """
    noted = _noted(name) if SCHEMA_FAMILY in policies else {}
    if SCHEMA_KEY not in noted:
        return
    lost = before.losses_under(Retention.of(schema), time.time_ns() // 1000)
    if lost:
        _note(name, _KEPT, {family.encode(): str(time_us).encode() for family, time_us in lost.items()})
    seen = {family.encode(): str(age_us).encode() for family, age_us in _shorter_ages(schema, policies)}
    if seen != noted.get(_SEEN, {}):
        _note(name, _SEEN, seen, replace=True)


def tiers_without_rows(name: TableName, tiers: Iterable[Tier]) -> list[str]:
    """Returns the families of tiers without any row in the table."""
    with RowReader.open(name) as reader:
        return [
            tier.family
            for tier in tiers
            if not any(reader.read(prefix_range(aggregate_prefix(tier.window).encode()), _KEYS_ONLY, limit=1))
        ]


def record_added_tiers(name: TableName, families: Iterable[str]) -> None:
    """Notes that tiers of these families were added to a table with rows: earlier windows have no row in them."""
    if added := {family.encode(): b"%d" % FOR_EVER_US for family in families}:
        _note(name, _ADDED, added)


def record_job(name: TableName, latest_us: int) -> None:
    """Notes that jobs write every tier from now on, including tiers added since the last job started.

    Args:
        name: the table.
        latest_us: a time after the start of every window that earlier jobs may have written.
    """
    added = {
        family: b"%d" % latest_us
        for family, value in _noted(name).get(_ADDED, {}).items()
        if _number(name, _ADDED, value) == FOR_EVER_US
    }
    if added:
        _note(name, _ADDED, added)


def record_lateness(
    name: TableName, allowed: timedelta, late_firing: timedelta, newest_every: timedelta = timedelta(0)
) -> None:
    """Notes how late the job about to start may write windows and newest readings, if the job before noted another.

    Until the windows of an earlier job are written, its own note is valid too: the new job may update it in place.

    Args:
        name: the table.
        allowed: the job's allowed lateness.
        late_firing: the job's late firing interval.
        newest_every: the time by which its rows of newest readings may be behind.
    """
    noted = _noted(name).get(_LATENESS, {})
    value = b"%d %d %d" % tuple(each // _MICROSECOND for each in (allowed, late_firing, newest_every))
    if not noted or noted[max(noted)] != value:
        counting = {column: noted[column] for column in _lateness_of_jobs(name, noted)}
        last_us = max((_number(name, _LATENESS, column) for column in noted), default=0)
        column = b"%016d" % max(time.time_ns() // 1000, last_us + 1)  # the clock of another launch may be ahead
        _note(name, _LATENESS, counting | {column: value}, replace=True)


def noted_id(name: TableName) -> bytes:
    """Returns an id of the table. Notes a new one if it has none.

    Several launches at the same time may note an id each, and each finds its own again.
    """
    if noted := _noted(name).get(IDS_KEY):
        return min(noted)
    table_id = secrets.token_hex(8).encode()
    _note(name, IDS_KEY, {table_id: b""})
    return table_id


def _lateness_of_jobs(name: TableName, noted: Mapping[bytes, bytes]) -> dict[bytes, tuple[int, int, int]]:
    """Returns the noted lateness of jobs that may still write windows by it, in µs, by column."""
    found, now_us = dict[bytes, tuple[int, int, int]](), time.time_ns() // 1000
    times_us = {column: _number(name, _LATENESS, column) for column in sorted(noted)}
    for column, until_us in zip(times_us, [*islice(times_us.values(), 1, None), now_us], strict=False):
        allowed, _, rest = noted[column].partition(b" ")
        late, _, newest = rest.partition(b" ")
        allowed_us, late_us, newest_us = (_number(name, _LATENESS, each) for each in (allowed, late, newest or b"0"))
        if until_us + allowed_us + late_us + _UPDATED // _MICROSECOND > now_us:
            found[column] = allowed_us, late_us, newest_us
    return found


def _shorter_ages(schema: TableSchema, policies: Mapping[str, Policy]) -> Iterator[tuple[str, int]]:
    """Returns the families that collect sooner than in the schema, with their ages in microseconds."""
    for family in schema.families:
        if family not in policies:
            continue
        by_table, by_schema = (_age_us(schema, family, each[family]) for each in (policies, schema.policies))
        if by_table is not None and (by_schema is None or by_table < by_schema):
            yield family, by_table


def _age_us(schema: TableSchema, family: str, policy: Policy) -> int | None:
    """Returns the age from which a family loses cells; None if it never does."""
    if schema.versions_are_events and family in schema.metrics.families and counts_versions(policy):
        return 0
    age = collected_after(policy)
    return None if age is None else age // _MICROSECOND


def _noted(name: TableName) -> dict[bytes, dict[bytes, bytes]]:
    """Returns the table's own rows: for each key, the values by column."""
    with RowReader.open(name) as reader:
        rows = reader.read_selection(RowSelection(prefix_range(_OWN_ROWS), CellSelection((SCHEMA_FAMILY,), versions=1)))
        return {row.key: {cell.qualifier: cell.value for cell in row.cells} for row in rows}


def _note(name: TableName, key: bytes, columns: Mapping[bytes, bytes], *, replace: bool = False) -> None:
    """Writes columns of a row, beside its other columns or in place of them."""
    mutations = [Mutation(delete_from_row={})] if replace else []
    mutations += [
        Mutation(
            set_cell={
                "family_name": SCHEMA_FAMILY,
                "column_qualifier": column,
                "timestamp_micros": 0,  # always the same cell
                "value": value,
            }
        )
        for column, value in columns.items()
    ]
    with explained(name), bigtable_client() as client:
        client.mutate_row(request={**name.target, "row_key": key, "mutations": mutations})


def _text(column: bytes) -> str:
    """Returns a column's name as text. One that is not UTF-8 belongs to no family."""
    return column.decode(errors="backslashreplace")


def _number(name: TableName, key: bytes, text: bytes) -> int:
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise ServerError(f"table {name}: row {key.decode()} contains {text[:40]!r} instead of a number; delete it")
    return int(text)
