"""Tables in memory: rows by key, families with policies, and the mutations of a row.

Rows sort by key, families in the order of their creation, columns by qualifier, cells newest first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from grpc import StatusCode
from sortedcontainers import SortedDict

from pipeline.local.embedded.policies import collected
from pipeline.local.embedded.refusals import RequestRefused, invalid, not_built

Columns = dict[bytes, dict[int, bytes]]
"""The cells of a row in one family: values by qualifier and by time in µs."""

Change = Callable[[dict[str, Columns]], None]

# As cloud.google.com/bigtable/quotas documents them.
MAX_KEY_BYTES = 4 << 10
MAX_QUALIFIER_BYTES = 16 << 10
MAX_CELL_BYTES = 100 << 20
MAX_ROW_BYTES = 256 << 20

_SERVER_TIME = -1
_GRAIN_US = 1000


class StoredCell(NamedTuple):
    """A cell of a row, as filters see it."""

    family: str
    qualifier: bytes
    time_us: int
    value: bytes
    label: str = ""


class MemoryTable:
    """A table.

    Args:
        families: the policies by family, in the order of their creation.
        now_us: the clock, by which cells get too old.
        protected: whether the table and its families can't be dropped.
    """

    def __init__(self, families: dict[str, Any], now_us: Callable[[], int], *, protected: bool = False) -> None:
        self.families = families
        self.protected = protected
        self._now_us = now_us
        self._rows: SortedDict = SortedDict()

    def keys(self, start: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """Yields the keys from ``start``, inclusive, to ``end``, exclusive, in order; None for the end of the table."""
        yield from self._rows.irange(start, end, inclusive=(True, False))

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def cells(self, key: bytes) -> list[StoredCell]:
        """Returns the cells of a row in order; none for a row that does not exist."""
        row = self._rows.get(key, {})
        return [
            StoredCell(family, qualifier, time_us, versions[time_us])
            for family in self.families
            if family in row
            for qualifier, versions in sorted(row[family].items())
            for time_us in (sorted(versions, reverse=True) if len(versions) > 1 else versions)
        ]

    def mutate(self, key: bytes, mutations: Sequence[Any]) -> None:
        """Applies mutations in order: all of them, or none if one is refused."""
        if not key:
            raise invalid("Row keys must be non-empty")
        if len(key) > MAX_KEY_BYTES:
            raise invalid(f"Row keys must not exceed {MAX_KEY_BYTES} bytes")
        changes = [self._change(mutation) for mutation in mutations]
        row = self._rows.get(key, {})
        for change in changes:
            change(row)
        self._store(key, row)

    def read_modify_write(self, key: bytes, rules: Sequence[Any]) -> list[StoredCell]:
        """Applies rules in order. Returns the cells that were written."""
        for rule in rules:
            self._check_family(rule.family_name)
        row = self._rows.get(key, {})
        written: dict[tuple[str, bytes], StoredCell] = {}
        for rule in rules:
            versions = row.setdefault(rule.family_name, {}).setdefault(rule.column_qualifier, {})
            newest_us = max(versions, default=0)
            value = versions.get(newest_us, b"")
            if rule.WhichOneof("rule") == "append_value":
                value += rule.append_value
            else:
                if value and len(value) != 8:
                    raise RequestRefused(StatusCode.UNKNOWN, "increment on non-64-bit value")
                amount = int.from_bytes(value, "big", signed=True) + rule.increment_amount
                value = (amount % (1 << 64)).to_bytes(8, "big")
            time_us = max(self._server_time_us(), newest_us)
            versions[time_us] = value
            cell = StoredCell(rule.family_name, rule.column_qualifier, time_us, value)
            written[rule.family_name, rule.column_qualifier] = cell
        self._store(key, row)
        order = list(self.families)
        return sorted(written.values(), key=lambda cell: (order.index(cell.family), cell.qualifier))

    def drop_family(self, family: str) -> None:
        """Removes a family and its cells."""
        del self.families[family]
        for key, row in list(self._rows.items()):
            row.pop(family, None)
            self._store(key, row)

    def drop_rows(self, prefix: bytes) -> None:
        """Removes the rows whose keys begin with a prefix."""
        for key in list(takewhile(lambda key: key.startswith(prefix), self.keys(prefix))):
            del self._rows[key]

    def collect(self) -> None:
        """Removes the cells that the policies do not keep."""
        rules = {family: rule for family, rule in self.families.items() if rule.WhichOneof("rule")}
        now_us = self._now_us()
        for key, row in list(self._rows.items()):
            for family in row.keys() & rules.keys():
                for versions in row[family].values():
                    for time_us in collected(rules[family], sorted(versions, reverse=True), now_us):
                        del versions[time_us]
            self._store(key, row)

    def _store(self, key: bytes, row: dict[str, Columns]) -> None:
        """Stores what is left of a row, without columns and families that are empty."""
        for family, columns in list(row.items()):
            for qualifier in [qualifier for qualifier, versions in columns.items() if not versions]:
                del columns[qualifier]
            if not columns:
                del row[family]
        if row:
            self._rows[key] = row
        else:
            self._rows.pop(key, None)

    def _change(self, mutation: Any) -> Change:
        """Returns a function that changes a row. Refuses what can't be done before anything is changed."""
        kind = mutation.WhichOneof("mutation")
        if kind == "set_cell":
            return self._set_cell(mutation.set_cell)
        if kind == "delete_from_column":
            return self._delete_from_column(mutation.delete_from_column)
        if kind == "delete_from_family":
            return lambda row: row.update({mutation.delete_from_family.family_name: {}})
        if kind == "delete_from_row":
            return lambda row: row.clear()
        raise not_built(f"mutation {kind}")

    def _set_cell(self, cell: Any) -> Change:
        family, qualifier, value, time_us = cell.family_name, cell.column_qualifier, cell.value, cell.timestamp_micros
        self._check_family(family)
        if time_us == _SERVER_TIME:
            time_us = self._server_time_us()
        _check_time(time_us)
        if len(qualifier) > MAX_QUALIFIER_BYTES:
            raise invalid(f"Column qualifiers must not exceed {MAX_QUALIFIER_BYTES} bytes")
        if len(value) > MAX_CELL_BYTES:
            raise invalid(f"A cell must not exceed {MAX_CELL_BYTES} bytes")

        def change(row: dict[str, Columns]) -> None:
            row.setdefault(family, {}).setdefault(qualifier, {})[time_us] = value

        return change

    def _delete_from_column(self, deletion: Any) -> Change:
        family, qualifier = deletion.family_name, deletion.column_qualifier
        self._check_family(family)
        start_us, end_us = deletion.time_range.start_timestamp_micros, deletion.time_range.end_timestamp_micros
        _check_time(start_us)
        _check_time(end_us)
        if end_us and start_us >= end_us:
            raise RequestRefused(StatusCode.UNKNOWN, f"inverted or invalid timestamp range [{start_us}, {end_us}]")

        def change(row: dict[str, Columns]) -> None:
            versions = row.get(family, {}).get(qualifier, {})
            for time_us in [each for each in versions if start_us <= each and (not end_us or each < end_us)]:
                del versions[time_us]

        return change

    def _check_family(self, family: str) -> None:
        if family not in self.families:
            raise RequestRefused(StatusCode.UNKNOWN, f'unknown family "{family}"')

    def _server_time_us(self) -> int:
        now_us = self._now_us()
        return now_us - now_us % _GRAIN_US


def _check_time(time_us: int) -> None:
    if time_us < 0 or time_us % _GRAIN_US:
        raise RequestRefused(StatusCode.UNKNOWN, f"invalid timestamp {time_us}")


def size_of(cells: Iterable[StoredCell]) -> int:
    """Returns the bytes of the cells' values."""
    return sum(len(cell.value) for cell in cells)
