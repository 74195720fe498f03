"""A Bigtable table in memory with the project's ways to read, write and rewrite rows, and garbage collection."""

from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby

from pipeline.core.rows.rows import Cell, EncodedRow, Row
from pipeline.core.schema.gc_policies import Intersection, MaxAge, MaxVersions, Union
from pipeline.core.schema.table_schema import SCHEMA_FAMILY
from tests.support.memory import Memory

_MICROSECOND = timedelta(microseconds=1)


class Table(Memory):
    """A table.

    Attributes:
        policies: the current policies, by family.
        noted: the table's notes, by key and column.
        before_write: called once before the next rewrite, for what happens at the same time.
    """

    def __init__(self, policies):
        super().__init__()
        self.policies = dict(policies)
        self.noted = {}
        self.before_write = None

    def keys(self, prefix=b""):
        return sorted(key for key in self._cells if key.startswith(prefix))

    def newest(self, key):
        """Returns the newest cell of each column of a row, by column."""
        newest = {}
        for cell in self._cells.get(key, {}).values():
            known = newest.get((cell.family, cell.qualifier))
            if known is None or cell.timestamp_us > known.timestamp_us:
                newest[cell.family, cell.qualifier] = cell
        return newest

    def snapshot(self):
        return {key: dict(cells) for key, cells in self._cells.items()}

    def row_of(self, key):
        """Returns a row's cells, to be put back."""
        return dict(self._cells.get(key, {}))

    def put_back(self, key, cells):
        """Gives a row these cells and no others."""
        self._delete(key, lambda _: True)
        self.write(Row(key, list(cells.values())))
        self._drop_empty(key)

    def apply(self, key, mutations):
        super().apply(key, mutations)
        self._drop_empty(key)

    def write_rows(self, rows):
        """Writes rows or encoded rows, as a sink does."""
        for row in rows:
            if isinstance(row, EncodedRow):
                self.write_encoded(row)
            else:
                self.write(row)

    # As pipeline.cloud.writing.rewriter.Rewriter

    def add(self, rows):
        """Writes rows, as a rewriter does."""
        self.write_rows(rows)

    def write(self, rows):
        """Writes one row, or encoded rows as a rewriter does."""
        if isinstance(rows, Row):
            super().write(rows)
            return
        rows = list(rows)
        self._before_rewrite()
        self.write_rows(rows)

    def replace(self, replacements):
        replacements = list(replacements)
        self._before_rewrite()
        for key, family, cells, deletes in replacements:
            self._delete(key, lambda cell, family=family, deletes=deletes: deletes and cell.family == family)
            self.write(Row(key, list(cells)))
            self._drop_empty(key)

    def _before_rewrite(self):
        hook, self.before_write = self.before_write, None
        if hook is not None:
            hook()

    def delete_column(self, keys, family, qualifier):
        for key in list(keys):
            self._delete(key, lambda cell: (cell.family, cell.qualifier) == (family, qualifier))

    # As pipeline.cloud.scanning.row_reader.RowReader

    def with_new_counters(self):
        return self

    def read_selection(self, selection):
        return self(selection)

    @contextmanager
    def opened(self, *_):
        yield self

    # As pipeline.cloud.tables.retention_notes

    def note(self, key, columns, *, replace=False, without=()):
        kept = {} if replace else self.noted.get(key, {})
        self.noted[key] = {column: value for column, value in kept.items() if column not in without} | columns
        self._delete(key, lambda _: True)
        cells = (Cell(SCHEMA_FAMILY, column, 0, value) for column, value in self.noted[key].items())
        self.write(Row(key, list(cells)))

    # Garbage collection

    def collect(self, now_us):
        """Drops every cell that the current policies allow to drop."""
        for key in self.keys():
            cells = sorted(self._cells[key].values(), key=lambda cell: (cell[:2], -cell.timestamp_us))
            gone = set()
            for (family, _), versions in groupby(cells, key=lambda cell: cell[:2]):
                for newer, cell in enumerate(versions):
                    if family in self.policies and _is_collectible(self.policies[family], cell, newer, now_us):
                        gone.add(cell)
            if gone:
                self._delete(key, gone.__contains__)

    def _delete(self, key, goes):
        row = self._cells.get(key, {})
        for column in [column for column, cell in row.items() if goes(cell)]:
            del row[column]
        self._drop_empty(key)

    def _drop_empty(self, key):
        if not self._cells.get(key, True):
            del self._cells[key]
            self._keys.remove(key)


def _is_collectible(policy, cell, newer, now_us):
    match policy:
        case MaxAge(age):
            return cell.timestamp_us < now_us - age // _MICROSECOND
        case MaxVersions(versions):
            return newer >= versions
        case Union(members):
            return any(_is_collectible(member, cell, newer, now_us) for member in members)
        case Intersection(members):
            return bool(members) and all(_is_collectible(member, cell, newer, now_us) for member in members)
    return False
