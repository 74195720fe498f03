"""A table in memory that reads as Bigtable does, and counts what it returned."""

import re
from bisect import bisect_left, insort
from collections import defaultdict
from itertools import islice

from pipeline.core.rows.rows import Cell, Row, disjoint
from tests.support.rows import mutations_of


class Memory:
    """Rows by key. Family, qualifier and timestamp identify a cell, as in Bigtable."""

    def __init__(self, rows=()):
        self._cells = {}
        self._keys = []  # in order
        self.reads = self.rows = self.cells = 0
        for row in rows:
            self.write(row)

    def write(self, row):
        if row.key not in self._cells:
            self._cells[row.key] = {}
            insort(self._keys, row.key)
        for cell in row.cells:
            self._cells[row.key][cell.family, cell.qualifier, cell.timestamp_us] = cell

    def write_encoded(self, row):
        """Applies the mutations of an encoded row."""
        self.apply(row.key, mutations_of(row))

    def apply(self, key, mutations):
        """Applies mutations of a row in order."""
        for each in mutations:
            kind = each.WhichOneof("mutation")
            if kind == "set_cell":
                cell = each.set_cell
                self.write(Row(key, [Cell(cell.family_name, cell.column_qualifier, cell.timestamp_micros, cell.value)]))
                continue
            of, cells = getattr(each, kind), self._cells.get(key, {})
            for family, column, time_us in list(cells):
                times = of.time_range if kind == "delete_from_column" else None
                if kind != "delete_from_row" and family != of.family_name:
                    continue
                if times is not None and (
                    column != of.column_qualifier
                    or not times.start_timestamp_micros <= time_us < (times.end_timestamp_micros or time_us + 1)
                ):
                    continue
                del cells[family, column, time_us]

    def __call__(self, selection):
        _, wanted, pattern, _, reverse = selection
        self.reads += 1
        keys = [key for each in disjoint(selection.ranges) for key in self._within(each)]
        for key in reversed(keys) if reverse else keys:
            if pattern is not None and not re.fullmatch(pattern.encode(), key, re.DOTALL):
                continue
            cells = self._selected(sorted(self._cells[key].values(), key=_in_a_row), wanted)
            if cells:
                self.rows += 1
                self.cells += len(cells)
                yield Row(key, cells)

    def _within(self, key_range):
        end = bisect_left(self._keys, key_range.end) if key_range.end else len(self._keys)
        return self._keys[bisect_left(self._keys, key_range.start) : end]

    @staticmethod
    def _selected(cells, selection):
        if selection.keys_only:
            return [cell._replace(value=b"") for cell in islice(cells, 1)]
        versions = defaultdict(int)
        kept = []
        for cell in cells:
            if cell.family not in selection.families:
                continue
            if selection.qualifiers is not None and cell.qualifier not in selection.qualifiers:
                continue
            if cell.qualifier.startswith(selection.without):
                continue
            if (
                selection.qualifier_range
                and not selection.qualifier_range[0] <= cell.qualifier < selection.qualifier_range[1]
            ):
                continue
            if selection.times_us and not selection.times_us[0] <= cell.timestamp_us < selection.times_us[1]:
                continue
            versions[cell.family, cell.qualifier] += 1
            if selection.versions is None or versions[cell.family, cell.qualifier] <= selection.versions:
                kept.append(cell)
        since_us = selection.none_since_us
        if since_us is not None and any(cell.timestamp_us >= since_us for cell in kept):
            return []
        return [cell._replace(value=b"") for cell in kept] if selection.times_only else kept


def _in_a_row(cell):
    return cell.family, cell.qualifier, -cell.timestamp_us
