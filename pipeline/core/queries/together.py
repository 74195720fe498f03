"""Reads the rows of many selections together: one request costs as much as many rows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pipeline.core.queries.seeks import MOST_RANGE_BYTES, MOST_RANGES, ReadRows, RowSelection
from pipeline.core.rows.rows import Part, Row, RowStream, cells_in, in_parts, most_cells, one_by_one, split

MOST_CELLS = 50_000
"""The cells that are in memory together, beside a page and the rows of one name. Each takes some 200 bytes."""

_MOST_PAGE_ROWS = 1000


class RowsTogether:
    """A :data:`ReadRows` that answers from memory the selections that were read together, and reads others itself.

    An answer is what the table contained when the rows were read. Any number of threads may read, while one reads
    together.

    Args:
        read: reads the table's rows.
    """

    def __init__(self, read: ReadRows) -> None:
        self._read = read
        self._known: dict[RowSelection, list[Part]] = {}
        self._widest = 0  # the most cells of a row whose page was limited

    def __call__(self, selection: RowSelection) -> Iterator[Row]:
        parts = self._known.get(selection)
        return self._read(selection) if parts is None else RowStream(one_by_one(parts), iter(parts))

    @contextmanager
    def kept(self, selections: Iterable[RowSelection]) -> Iterator[None]:
        """Keeps the rows of selections in memory for the length of a ``with`` block."""
        by_cells: dict[object, list[RowSelection]] = defaultdict(list)
        for selection in selections:
            by_cells[selection.cells, selection.pattern].append(selection)
        answers = [dict(self._answers(some)) for some in by_cells.values()]
        for each in answers:
            self._known |= each
        try:
            yield
        finally:
            self._forget(selection for each in answers for selection in each)

    def batches(self, wanted: Mapping[str, Sequence[RowSelection] | None]) -> Iterator[list[str]]:
        """Yields names, each once, while the rows of their selections are in memory.

        Leaves out names without known selections, and those whose selections differ in their cells or overlap with
        others: they have to be read one by one.

        Args:
            wanted: the selections of each name; None if they are not known.
        """
        by_cells: dict[object, dict[RowSelection, str]] = defaultdict(dict)
        nothing = [name for name, selections in wanted.items() if selections is not None and not selections]
        if nothing:
            yield nothing
        for name, selections in wanted.items():
            kinds = {(each.cells, each.pattern) for each in selections or ()}
            if len(kinds) == 1:
                by_cells[kinds.pop()] |= dict.fromkeys(selections or (), name)
        for owners in by_cells.values():
            yield from self._batches(owners)

    def _batches(self, owners: Mapping[RowSelection, str]) -> Iterator[list[str]]:
        """Yields names while the rows of their selections are in memory, given the name of each selection."""
        missing = Counter(owners.values())
        ready, cells, known = list[str](), 0, list[RowSelection]()
        try:
            for selection, parts in self._answers(owners):
                name = owners[selection]
                self._known[selection] = parts
                known.append(selection)
                cells += sum([cells_in(part) for part in parts])
                missing[name] -= 1
                if not missing[name]:
                    ready.append(name)
                    if cells >= MOST_CELLS:
                        yield ready
                        self._forget(known)
                        ready, cells, known = [], 0, []
            if ready:
                yield ready
        finally:
            self._forget(known)

    def _answers(self, selections: Iterable[RowSelection]) -> Iterator[tuple[RowSelection, list[Part]]]:
        """Yields selections of the same cells with their rows, in the order of keys; no two that overlap."""
        ordered = sorted(selections, key=lambda each: each.ranges)
        some, size, end = list[RowSelection](), 0, b""
        for selection in ordered:
            [keys] = selection.ranges
            if not keys.end or keys.start < end:
                continue
            end, more = keys.end, len(keys.start) + len(keys.end)
            if len(some) == MOST_RANGES or size + more > MOST_RANGE_BYTES:
                yield from self._read_together(some)
                some, size = [], 0
            some.append(selection)
            size += more
        if some:
            yield from self._read_together(some)

    def _read_together(self, selections: Sequence[RowSelection]) -> Iterator[tuple[RowSelection, list[Part]]]:
        first = selections[0]
        page_rows = first.page_rows
        if page_rows is not None and self._widest:
            page_rows = max(page_rows, min(MOST_CELLS // self._widest, _MOST_PAGE_ROWS))
        ranges = tuple(keys for each in selections for keys in each.ranges)
        found = in_parts(self._read(RowSelection(ranges, first.cells, first.pattern, page_rows)))
        rest = next(found, None)
        for selection in selections:
            [keys] = selection.ranges
            parts = list[Part]()
            while rest is not None:
                of_selection, rest = split(rest, keys.end)
                if of_selection is not None:
                    parts.append(of_selection)
                if rest is not None:
                    break
                rest = next(found, None)
            if page_rows is not None:
                self._widest = max([self._widest, *map(most_cells, parts)])
            yield selection, list[Part](one_by_one(parts))[::-1] if selection.reverse else parts

    def _forget(self, selections: Iterable[RowSelection]) -> None:
        for selection in selections:
            self._known.pop(selection, None)
