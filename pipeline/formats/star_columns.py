"""The columns of a CSV that stars of mappings take: those with numbers alone are read as numbers."""

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pipeline.core.decoding.mapping.language.model import Mapping, MappingEntry
from pipeline.core.decoding.mapping.language.paths import Field, Root, Star
from pipeline.core.decoding.mapping.values.conversions import as_texts, number_reader
from pipeline.core.events.event import is_name
from pipeline.core.notation.text import shown
from pipeline.formats.lines import UnreadableFile
from pipeline.formats.values import Malformed, is_missing


class StarColumn(NamedTuple):
    """A column that a star of readings may take.

    Attributes:
        name: the column.
        number_in: returns a cell's number in Python's notation; None if it is no number.
        nulls: texts that count as missing.
    """

    name: str
    number_in: Callable[[str], str | None]
    nulls: frozenset[str]

    def is_missing(self, cell: str) -> bool:
        """Returns whether a cell has no value."""
        return is_missing(cell) or cell.strip() in self.nulls

    def is_numeric(self, cells: Iterable[str]) -> bool:
        """Returns whether cells contain numbers alone, and at least one."""
        found = [self.number_in(cell) is not None for cell in cells if not self.is_missing(cell)]
        return bool(found) and all(found)

    def number(self, cell: str) -> int | float | None:
        """Returns the number of a cell; None if it is missing. Raises Malformed for anything else."""
        if self.is_missing(cell):
            return None
        text = self.number_in(cell)
        number = float(text) if text is not None else math.nan
        if not math.isfinite(number):
            raise Malformed(
                f"{shown(self.name)} {shown(cell)} is not a finite number, as the column's first ones are; name the "
                "column in the mapping to read it otherwise"
            )
        return int(text) if text is not None and text.lstrip("+-").isdecimal() else number


def star_columns(mappings: Sequence[Mapping], names: Sequence[str]) -> list[StarColumn]:
    """Returns the columns that stars of readings may take.

    Raises:
        UnreadableFile: one of the columns that stars may take can't be a name.
    """
    found: dict[str, StarColumn] = {}
    named = {
        path.steps[0].name
        for mapping in mappings
        for path in mapping.paths
        if path.root in (Root.MESSAGE, Root.ELEMENT) and path.steps and isinstance(path.steps[0], Field)
    }
    for mapping in mappings:
        number_in = number_reader(mapping.decimal, mapping.thousands)
        for entries in (mapping.readings, mapping.metadata):
            for entry in filter(_has_star, entries):
                columns = [name for name in names if name and name not in named and not _is_excluded(name, entry)]
                _check_names(columns, entry, mapping)
                nulls = frozenset(text for source in entry.value for value in source.null for text in as_texts(value))
                if entries is mapping.readings:
                    found.update((name, StarColumn(name, number_in, nulls)) for name in columns if name not in found)
    return list(found.values())


def _has_star(entry: MappingEntry) -> bool:
    """Returns whether an entry takes all columns."""
    return any(
        source.path is not None and isinstance(next(iter(source.path.steps), None), Star) for source in entry.value
    )


def _is_excluded(name: str, entry: MappingEntry) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in entry.excluded)


def _check_names(columns: Iterable[str], entry: MappingEntry, mapping: Mapping) -> None:
    for name in columns:
        if not mapping.rewrite_names and not is_name(entry.name.replace("*", name)):
            raise UnreadableFile(
                f"column {shown(name)} can't be the name of a reading or of metadata: set rewrite_names = true in "
                "the mapping, name the column there, or leave it out with except"
            )
