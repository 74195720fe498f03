"""What a table notes of itself beside its schema, in rows of the family ``tidetable``: what became of its rows.

| row | column | value |
|---|---|---|
| ``schema#kept`` | a family | the time from which on nothing of it was collected, where a policy was shorter once |
| ``schema#seen`` | a family | the age that it was last seen to collect from, where that is less than the schema says |
| ``schema#added`` | a family | the start of the windows from which on it has aggregates, where its tier was added |
| ``schema#repeats`` | a time, in 16 digits | ``off``, ``on``: how jobs were deduplicating from such windows on |

Times are microseconds since the epoch; of a tier that no job has written yet, it is later than any event.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from google.cloud.bigtable_v2.types import Mutation

from pipeline.cloud.bigtable_client import bigtable_client
from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.names import TableName
from pipeline.cloud.row_filters import row_filter
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import SCHEMA_KEY
from pipeline.core.aggregates import aggregate_prefix
from pipeline.core.rows import prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.policies import MaxAge, Policy, collected_after, counts_versions
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema, Tier

_OWN_ROWS = b"schema#"
_KEPT = b"schema#kept"
_SEEN = b"schema#seen"
_ADDED = b"schema#added"
_REPEATS = b"schema#repeats"
_KEY_ALONE = row_filter(CellSelection((), keys_only=True))
_MOST_DIGITS = 19
_MICROSECOND = timedelta(microseconds=1)


def retention_of(name: TableName, schema: TableSchema, policies: Mapping[str, Policy]) -> Retention:
    """What of a table may be collected: by the policies that it has, and by those that it had as far as it tells.

    Args:
        name: of the table.
        schema: by which it is written. Its policies count where the table has stored it.
        policies: of its families, as they are.

    Raises:
        ServerProblem: the table is out of reach.
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
    repeats = _spans(name, noted.get(_REPEATS, {}))
    return Retention.of(schema, *stored, policies, seen, since=since, repeats=repeats, added=added)


def record_losses(name: TableName, schema: TableSchema, before: Retention, policies: Mapping[str, Policy]) -> None:
    """Notes what may be collected by now and the schema does not tell, in a table that has stored its schema.

    A policy of the table's own that collects sooner than the schema's is noted too: nobody tells when it ends.

    Args:
        name: of the table.
        schema: that it has of itself, from now on.
        before: what may be collected by now, as :func:`retention_of` has it.
        policies: of its families, as they are from now on.

    Raises:
        ServerProblem: the table is out of reach, or may not be written.
    """
    noted = _noted(name) if SCHEMA_FAMILY in policies else {}
    if SCHEMA_KEY not in noted:
        return
    lost = before.losses_under(Retention.of(schema), time.time_ns() // 1000)
    if lost:
        _note(name, _KEPT, {family.encode(): str(time_us).encode() for family, time_us in lost.items()})
    seen = {family.encode(): str(age_us).encode() for family, age_us in _sooner(schema, policies)}
    if seen != noted.get(_SEEN, {}):
        _note(name, _SEEN, seen, reconnected=True)


def tiers_without_rows(name: TableName, tiers: Iterable[Tier]) -> list[str]:
    """The families of those tiers that have no row in the table. Raises ServerProblem where it is out of reach."""
    with RowReader.open(name) as reader:
        return [
            tier.family
            for tier in tiers
            if not any(reader.read(prefix_range(aggregate_prefix(tier.window).encode()), _KEY_ALONE, limit=1))
        ]


def record_added_tiers(name: TableName, families: Iterable[str]) -> None:
    """Notes that tiers are added to a table with rows: windows of before have none in these families.

    Args:
        name: of the table, which has the family tidetable.
        families: of the tiers.

    Raises:
        ServerProblem: the table is out of reach, or may not be written.
    """
    if added := {family.encode(): b"%d" % FOR_EVER_US for family in families}:
        _note(name, _ADDED, added)


def record_job(name: TableName, *, deduplicate: bool, earliest_us: int, latest_us: int) -> None:
    """Notes how a job that is about to start deduplicates, where that is not as jobs before did.

    And that it writes every tier from now on, those too that were added since the last job started.

    Args:
        name: of the table, which has the family tidetable.
        deduplicate: whether it does.
        earliest_us: the earliest window that the job may write ends later.
        latest_us: the latest window that jobs before it may have written starts sooner.

    Raises:
        ServerProblem: the table is out of reach, or may not be written.
    """
    own_rows = _noted(name)
    added = {
        family: b"%d" % latest_us
        for family, value in own_rows.get(_ADDED, {}).items()
        if _number(name, _ADDED, value) == FOR_EVER_US
    }
    if added:
        _note(name, _ADDED, added)
    noted = own_rows.get(_REPEATS, {})
    last = noted[max(noted)] if noted else b"on"
    if last != (b"on" if deduplicate else b"off"):
        _note(name, _REPEATS, {b"%016d" % latest_us: b"on"} if deduplicate else {b"%016d" % earliest_us: b"off"})


def _sooner(schema: TableSchema, policies: Mapping[str, Policy]) -> Iterator[tuple[str, int]]:
    """The families that collect sooner than the schema says, and their ages in microseconds."""
    for family in schema.families:
        if family not in policies:
            continue
        by_table, by_schema = (_age_us(schema, family, each[family]) for each in (policies, schema.policies))
        if by_table is not None and (by_schema is None or by_table < by_schema):
            yield family, by_table


def _age_us(schema: TableSchema, family: str, policy: Policy) -> int | None:
    """The age from which on a family loses something; None where it keeps all for ever."""
    if schema.versions_are_events and family in schema.metrics.families and counts_versions(policy):
        return 0
    age = collected_after(policy)
    return None if age is None else age // _MICROSECOND


def _spans(name: TableName, noted: Mapping[bytes, bytes]) -> tuple[tuple[int, int], ...]:
    """The spans of time in whose windows readings may have been counted twice."""
    spans = []
    since_us = None
    for at, what in sorted(noted.items()):
        time_us = _number(name, _REPEATS, at)
        if what == b"off" and since_us is None:
            since_us = time_us
        elif what == b"on" and since_us is not None:
            spans.append((since_us, time_us))
            since_us = None
    return (*spans, (since_us, FOR_EVER_US)) if since_us is not None else tuple(spans)


def _noted(name: TableName) -> dict[bytes, dict[bytes, bytes]]:
    """The table's own rows."""
    with RowReader.open(name) as reader:
        rows = reader.read_selection(prefix_range(_OWN_ROWS), CellSelection((SCHEMA_FAMILY,), versions=1))
        return {row.key: {cell.qualifier: cell.value for cell in row.cells} for row in rows}


def _note(name: TableName, key: bytes, columns: Mapping[bytes, bytes], *, reconnected: bool = False) -> None:
    """Writes these columns of a row; anew, in place of all that it has."""
    mutations = [Mutation(delete_from_row={})] if reconnected else []
    mutations += [
        Mutation(
            set_cell={
                "family_name": SCHEMA_FAMILY,
                "column_qualifier": column,
                "timestamp_micros": 0,  # one cell for ever
                "value": value,
            }
        )
        for column, value in columns.items()
    ]
    with explained(f"table {name}"), bigtable_client(name.project) as client:
        client.mutate_row(request={"table_name": str(name), "row_key": key, "mutations": mutations})


def _text(column: bytes) -> str:
    """What a column is called; one that is no text is of no family."""
    return column.decode(errors="backslashreplace")


def _number(name: TableName, key: bytes, text: bytes) -> int:
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ServerProblem(
            f"table {name}: row {key.decode()} holds {text[:40]!r}, where a number should be; delete it"
        )
    return int(text)
