"""Tables in memory: rows by key, families with policies and what these do not keep, and the mutations of a row.

Rows sort by key, families in the order of their creation, columns by qualifier, cells newest first. A row is stored as
bytes: millions of rows fit on a laptop, and Python's garbage collector has nothing to follow.
"""

import marshal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from grpc import StatusCode
from sortedcontainers import SortedDict

from pipeline.local.embedded.services import RequestRefused, invalid, not_built

KeyRange = tuple[bytes, bytes | None]
"""The first key, and the end, which is exclusive; None for the end of the table."""

ALL_KEYS: KeyRange = (b"", None)

# As cloud.google.com/bigtable/quotas documents them.
MAX_KEY_BYTES = 4 << 10
MAX_QUALIFIER_BYTES = 16 << 10
MAX_CELL_BYTES = 100 << 20
MAX_ROW_BYTES = 256 << 20

_SERVER_TIME = -1
_GRAIN_US = 1000
_BATCH_KEYS = 500  # are looked up at once: rows may be written between batches
_MIN_WRITES = 1000  # from one compaction to the next


class StoredCell(NamedTuple):
    """A cell of a row, as filters see it."""

    family: str
    qualifier: bytes
    time_us: int
    value: bytes
    label: str = ""


_stored_cell = partial(tuple.__new__, StoredCell)

Cell = tuple[str, bytes, int, bytes, str]
"""A :class:`StoredCell` as a plain tuple."""

Cells = dict[tuple[str, bytes, int], Cell]
"""A row's cells by family, qualifier and time in µs."""


class MemoryTable:
    """A table. Cells that a policy does not keep are gone when their row is read, or after as many writes as rows.

    Args:
        families: the ``ColumnFamily`` messages of Bigtable's admin API by name, in the order of their creation.
        now_us: the clock, by which cells get too old.
        protected: whether the table and its families can't be dropped.
    """

    def __init__(self, families: dict[str, Any], now_us: Callable[[], int], *, protected: bool = False) -> None:
        self.families = families
        self.protected = protected
        self._now_us = now_us
        self._rows: SortedDict = SortedDict()  # each row's cells in order, as marshal writes them
        self._writes = 0  # since the last compaction

    def keys(self, ranges: Iterable[KeyRange], *, reverse: bool = False) -> Iterator[list[bytes]]:
        """Yields the keys of ranges in batches, in order, each once. The table may change between batches."""
        for start, end in reversed(_merged(ranges)) if reverse else _merged(ranges):
            inclusive = (True, False)
            while batch := list(islice(self._rows.irange(start, end, inclusive, reverse=reverse), _BATCH_KEYS)):
                yield batch
                if len(batch) < _BATCH_KEYS:
                    break
                start, end = (start, batch[-1]) if reverse else (batch[-1] + b"\0", end)

    def cells(self, key: bytes) -> list[StoredCell]:
        """Returns the cells of a row in order; none for a row that does not exist."""
        stored = self._stored(key)
        return [*map(_stored_cell, self._collected(key, stored))] if stored else []

    def size(self, key: bytes) -> int:
        """Returns the bytes of a row's values, with those that are not collected yet."""
        return sum(len(cell[3]) for cell in self._stored(key))

    def mutate(self, key: bytes, mutations: Sequence[Any]) -> None:
        """Applies mutations in order: all of them, or none if one is refused."""
        _check_key(key)
        now_us = self._server_time_us()
        written = [self._checked(mutation, now_us) for mutation in mutations]
        cells: Cells = {cell[:3]: cell for cell in self._stored(key)}
        for cell, mutation in zip(written, mutations, strict=True):
            if cell is None:
                cells = _left(cells, mutation)
            else:
                cells[cell[:3]] = cell
        self._store(key, cells)
        self._count_write()

    def read_modify_write(self, key: bytes, rules: Sequence[Any]) -> list[StoredCell]:
        """Applies rules in order: all of them, or none if one is refused. Returns the cells that were written."""
        _check_key(key)
        newest = {cell[:2]: cell for cell in reversed(self.cells(key))}
        written: dict[tuple[str, bytes], Cell] = {}
        for rule in rules:
            column = rule.family_name, rule.column_qualifier
            self._check_family(rule.family_name)
            before = newest.get(column)
            value = _modified(before.value if before else None, rule)
            time_us = max(self._server_time_us(), before.time_us if before else 0)
            newest[column] = StoredCell(*column, time_us, value)
            written[column] = (*column, time_us, value, "")
        self._store(key, {cell[:3]: cell for cell in (*self._stored(key), *written.values())})
        self._count_write()
        order = list(self.families)
        return [newest[column] for column in sorted(written, key=lambda each: (order.index(each[0]), each[1]))]

    def drop_family(self, family: str) -> None:
        """Removes a family and its cells."""
        del self.families[family]
        for key in list(self._rows):
            self._store(key, {cell[:3]: cell for cell in self._stored(key) if cell[0] != family})

    def drop_rows(self, prefix: bytes) -> None:
        """Removes the rows whose keys begin with a prefix."""
        for batch in self.keys([(prefix, None)]):
            for key in batch:
                if not key.startswith(prefix):
                    return
                del self._rows[key]

    def _count_write(self) -> None:
        """Removes what the policies do not keep, after as many writes as there are rows."""
        self._writes += 1
        if self._writes > max(_MIN_WRITES, len(self._rows)):
            self._writes = 0
            for key in list(self._rows):
                self._collected(key, self._stored(key))

    def _stored(self, key: bytes) -> list[Cell]:
        """Returns the cells of a row in order, with those that are not collected yet."""
        row = self._rows.get(key)
        return marshal.loads(row) if row else []  # noqa: S302 - this process wrote them

    def _collected(self, key: bytes, stored: list[Cell]) -> list[Cell]:
        """Returns what is left of a row after the removal of the cells that the policies do not keep."""
        columns: dict[tuple[str, bytes], tuple[int, ...]] = defaultdict(tuple)
        for cell in stored:
            columns[cell[:2]] += cell[2:3]
        now_us, distinct = self._now_us(), {(family, times_us) for (family, _), times_us in columns.items()}  # are few
        gone = {each: expired(self.families[each[0]].gc_rule, each[1], now_us) for each in distinct}
        if any(gone.values()):
            stored = [cell for cell in stored if cell[2] not in gone[cell[0], columns[cell[:2]]]]
            self._store(key, {cell[:3]: cell for cell in stored})
        return stored

    def _store(self, key: bytes, cells: Cells) -> None:
        """Stores a row, and removes the row if it has no cell."""
        if cells:
            order = {family: index for index, family in enumerate(self.families)}
            in_order = sorted(cells.values(), key=lambda cell: (order[cell[0]], cell[1], -cell[2]))
            self._rows[key] = marshal.dumps(in_order)
        else:
            self._rows.pop(key, None)

    def _checked(self, mutation: Any, now_us: int) -> Cell | None:
        """Returns a cell to be set, with the server's time unless it has its own; None for a deletion."""
        kind = mutation.WhichOneof("mutation")
        if kind == "set_cell":
            cell = mutation.set_cell
            family, qualifier, value = cell.family_name, cell.column_qualifier, cell.value
            time_us = cell.timestamp_micros
            if time_us == _SERVER_TIME:
                time_us = now_us
            if family not in self.families or time_us < 0 or time_us % _GRAIN_US:
                self._check_family(family)
                _check_time(time_us)
            if len(qualifier) > MAX_QUALIFIER_BYTES:
                raise invalid(f"Column qualifiers must not exceed {MAX_QUALIFIER_BYTES} bytes")
            if len(value) > MAX_CELL_BYTES:
                raise invalid(f"A cell must not exceed {MAX_CELL_BYTES} bytes")
            return family, qualifier, time_us, value, ""
        if kind == "delete_from_column":
            self._check_family(mutation.delete_from_column.family_name)
            start_us, end_us = _bounds(mutation.delete_from_column.time_range)
            _check_time(start_us)
            _check_time(end_us)
            if end_us and start_us >= end_us:
                raise RequestRefused(StatusCode.UNKNOWN, f"inverted or invalid timestamp range [{start_us}, {end_us}]")
        elif kind is None:
            raise RequestRefused(StatusCode.UNKNOWN, "a mutation is empty")
        elif kind not in ("delete_from_family", "delete_from_row"):
            raise not_built(f"mutation {kind}")
        return None

    def _check_family(self, family: str) -> None:
        if family not in self.families:
            raise RequestRefused(StatusCode.UNKNOWN, f'unknown family "{family}"')

    def _server_time_us(self) -> int:
        now_us = self._now_us()
        return now_us - now_us % _GRAIN_US


def _left(cells: Cells, mutation: Any) -> Cells:
    """Returns what is left of a row after a deletion that has been checked."""
    kind = mutation.WhichOneof("mutation")
    if kind == "delete_from_row":
        return {}
    if kind == "delete_from_family":
        return {place: cell for place, cell in cells.items() if cell[0] != mutation.delete_from_family.family_name}
    deletion = mutation.delete_from_column
    column, (start_us, end_us) = (deletion.family_name, deletion.column_qualifier), _bounds(deletion.time_range)
    return {
        place: cell
        for place, cell in cells.items()
        if cell[:2] != column or cell[2] < start_us or (end_us and end_us <= cell[2])
    }


def size_of(cells: Iterable[StoredCell]) -> int:
    """Returns the bytes of the cells' values."""
    return sum(len(cell.value) for cell in cells)


def _merged(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Returns ranges in order that do not overlap and have the same keys."""
    merged: list[KeyRange] = []
    for start, end in sorted(ranges, key=lambda each: each[0]):
        if merged and (merged[-1][1] is None or start <= merged[-1][1]):
            first, last = merged.pop()
            merged.append((first, None if last is None or end is None else max(last, end)))
        elif end is None or start < end:
            merged.append((start, end))
    return merged


def _modified(value: bytes | None, rule: Any) -> bytes:
    """Returns a value after a rule of ``ReadModifyWriteRow``. None stands for no cell."""
    if rule.WhichOneof("rule") == "append_value":
        return (value or b"") + rule.append_value
    if rule.WhichOneof("rule") is None:
        raise RequestRefused(StatusCode.UNKNOWN, "a rule is empty")
    if value is not None and len(value) != 8:
        raise RequestRefused(StatusCode.UNKNOWN, "increment on non-64-bit value")
    amount = int.from_bytes(value or b"", "big", signed=True) + rule.increment_amount
    return (amount % (1 << 64)).to_bytes(8, "big")


def _bounds(time_range: Any) -> tuple[int, int]:
    return time_range.start_timestamp_micros, time_range.end_timestamp_micros


def _check_key(key: bytes) -> None:
    if not key:
        raise invalid("Row keys must be non-empty")
    if len(key) > MAX_KEY_BYTES:
        raise invalid(f"Row keys must not exceed {MAX_KEY_BYTES} bytes")


def _check_time(time_us: int) -> None:
    if time_us < 0 or time_us % _GRAIN_US:
        raise RequestRefused(StatusCode.UNKNOWN, f"invalid timestamp {time_us}")


def expired(rule: Any, times_us: Sequence[int], now_us: int) -> set[int]:
    """Returns the times of the versions that a policy does not keep.

    Args:
        rule: a ``GcRule`` of Bigtable's admin API.
        times_us: the times of a column's versions, newest first.
        now_us: the current time.
    """
    kind = rule.WhichOneof("rule")
    if kind is None:
        return set()
    if kind == "max_num_versions":
        return set(times_us[rule.max_num_versions :])
    if kind == "max_age":
        oldest_us = now_us - rule.max_age.ToMicroseconds()
        return {time_us for time_us in times_us if time_us < oldest_us}
    parts = [expired(part, times_us, now_us) for part in getattr(rule, kind).rules] or [set()]
    return set.union(*parts) if kind == "union" else set.intersection(*parts)


def check_policy(rule: Any) -> None:
    """Refuses a policy that is invalid or not built."""
    kind = rule.WhichOneof("rule")
    if kind == "max_num_versions" and rule.max_num_versions < 0:
        raise invalid("max_num_versions must not be negative")
    if kind not in (None, "max_num_versions", "max_age", "union", "intersection"):
        raise not_built(f"policy {kind}")
    for part in getattr(rule, kind).rules if kind in ("union", "intersection") else ():
        check_policy(part)
