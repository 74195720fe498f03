"""Row filters: functions from the cells of a row to those that a read returns.

Python's engine matches their regular expressions, which are in RE2's syntax. Only what both write alike is taken, and
what is easily translated: the rest answers UNIMPLEMENTED.
"""

import random
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import Any

from pipeline.local.embedded.services import invalid, not_built
from pipeline.local.embedded.tables import StoredCell

_TOKEN = re.compile(
    rb"""
    (?:
        (?P<atom>
            \\(?:C|[adDfnrtvwW]|x[0-9a-fA-F]{2}|[^0-9a-zA-Z])                         # a byte, or one of a class
          | \[\^?+\]?+(?:\\(?:[dwfnrtva]|x[0-9a-fA-F]{2}|[^0-9a-zA-Z])|[^][\\])*+\]  # a set
          | \{(?![0-9]+(?:,[0-9]*)?\})
          | [^\\[({|*+?$^]                                                           # a byte, or the end of a group
        )
        (?P<repeated>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??(?![*+?{]))?
      | (?P<place>(?:\\[bAz]|[$^])(?![*+?{]))
      | (?P<group>\((?:\?:|(?!\?))|\|)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_TRANSLATED = {rb"\C": rb"[\x00-\xff]", rb"\z": rb"\Z", b"$": rb"\Z", b"{": rb"\{"}


def matcher(pattern: bytes | str, field: str) -> Callable[[bytes], bool]:
    """Returns a function that tells whether a pattern matches a whole text.

    Args:
        pattern: a regular expression in RE2's syntax.
        field: the filter's field, for messages.
    """
    source = pattern.encode() if isinstance(pattern, str) else pattern
    tokens, at = [], 0
    while at < len(source):
        token = _TOKEN.match(source, at)
        if not token:
            raise not_built(f"regular expression with {source[at : at + 10]!r}")
        tokens += [_TRANSLATED.get(part, part) for part in token.groups(b"")]
        at = token.end()
    try:
        found = re.compile(b"".join(tokens))
    except re.error as error:
        raise invalid(f"Error in field '{field}' : {error}") from error
    return lambda text: found.fullmatch(text) is not None


Cells = list[StoredCell]
RowFilter = Callable[[bytes, Cells], Cells]
"""Returns which of a row's cells pass; takes the row's key and its cells in order."""

_LABEL = re.compile(r"[a-z0-9-]{1,15}")


def compiled(message: Any) -> RowFilter:
    """Compiles a ``RowFilter`` of Bigtable's data API. Refuses one that is invalid or not built."""
    kind = message.WhichOneof("filter")
    if kind is None:
        return _pass_all
    if kind not in _COMPILERS:
        raise not_built(f"filter {kind}")
    return _COMPILERS[kind](getattr(message, kind))


def _pass_all(_: bytes, cells: Cells) -> Cells:
    return cells


def _where(passes: Callable[[StoredCell], bool]) -> RowFilter:
    return lambda _, cells: [cell for cell in cells if passes(cell)]


def _flag(name: str, result: RowFilter) -> Callable[[bool], RowFilter]:
    def compile_flag(value: bool) -> RowFilter:
        if not value:
            raise invalid(f"{name} must be true if set")
        return result

    return compile_flag


def _chain(chain: Any) -> RowFilter:
    filters = _several(chain, "Chain")

    def apply(key: bytes, cells: Cells) -> Cells:
        for each in filters:
            if not cells:
                break
            cells = each(key, cells)
        return cells

    return apply


def _interleave(interleave: Any) -> RowFilter:
    filters = _several(interleave, "Interleave")

    def apply(key: bytes, cells: Cells) -> Cells:
        families = {cell.family: index for index, cell in enumerate(cells)}
        passed = [cell for each in filters for cell in each(key, cells)]
        return sorted(passed, key=lambda cell: (families[cell.family], cell.qualifier, -cell.time_us))

    return apply


def _several(message: Any, name: str) -> list[RowFilter]:
    if len(message.filters) < 2:
        raise invalid(f"{name} must contain at least two RowFilters")
    return [compiled(each) for each in message.filters]


def _condition(condition: Any) -> RowFilter:
    predicate = compiled(condition.predicate_filter)
    of_true = compiled(condition.true_filter) if condition.HasField("true_filter") else None
    of_false = compiled(condition.false_filter) if condition.HasField("false_filter") else None

    def apply(key: bytes, cells: Cells) -> Cells:
        chosen = of_true if predicate(key, cells) else of_false
        return [] if chosen is None else chosen(key, cells)

    return apply


def _row_key_regex(pattern: bytes) -> RowFilter:
    matches = matcher(pattern, "row_key_regex_filter")
    return lambda key, cells: cells if matches(key) else []


def _family_regex(pattern: str) -> RowFilter:
    matches = matcher(pattern, "family_name_regex_filter")
    of_family = lru_cache(maxsize=1024)(lambda family: matches(family.encode()))
    return lambda _, cells: [cell for cell in cells if of_family(cell.family)]


def _qualifier_regex(pattern: bytes) -> RowFilter:
    matches = lru_cache(maxsize=1024)(matcher(pattern, "column_qualifier_regex_filter"))
    return _where(lambda cell: matches(cell.qualifier))


def _value_regex(pattern: bytes) -> RowFilter:
    matches = matcher(pattern, "value_regex_filter")
    return _where(lambda cell: matches(cell.value))


def _between(bounds: Any, name: str) -> Callable[[bytes], bool]:
    """Returns whether a text lies in a range of qualifiers or values, each end of which is open, closed or not set."""
    start, end = bounds.WhichOneof(f"start_{name}"), bounds.WhichOneof(f"end_{name}")
    first = getattr(bounds, start) if start else b""
    last = getattr(bounds, end) if end else None
    start_open, end_open = start == f"start_{name}_open", end == f"end_{name}_open"

    def lies_between(text: bytes) -> bool:
        if text < first or (start_open and text == first):
            return False
        return last is None or text < last or (not end_open and text == last)

    return lies_between


def _column_range(bounds: Any) -> RowFilter:
    lies_between = _between(bounds, "qualifier")
    return _where(lambda cell: cell.family == bounds.family_name and lies_between(cell.qualifier))


def _value_range(bounds: Any) -> RowFilter:
    lies_between = _between(bounds, "value")
    return _where(lambda cell: lies_between(cell.value))


def _time_range(bounds: Any) -> RowFilter:
    start_us, end_us = bounds.start_timestamp_micros, bounds.end_timestamp_micros
    return _where(lambda cell: start_us <= cell.time_us and (not end_us or cell.time_us < end_us))


def _row_offset(count: int) -> RowFilter:
    _check_positive(count, "cells_per_row_offset_filter")
    return lambda _, cells: cells[count:]


def _row_limit(count: int) -> RowFilter:
    _check_positive(count, "cells_per_row_limit_filter")
    return lambda _, cells: cells[:count]


def _check_positive(count: int, name: str) -> None:
    if count <= 0:
        raise invalid(f"Error in field '{name}' : argument must be > 0")


def _column_limit(limit: int) -> RowFilter:
    _check_positive(limit, "cells_per_column_limit_filter")

    def apply(_: bytes, cells: Cells) -> Cells:
        if len(cells) == len({(family, qualifier) for family, qualifier, *_ in cells}):
            return cells
        columns = groupby(cells, key=lambda cell: (cell.family, cell.qualifier))
        return [cell for _, column in columns for cell in list(column)[:limit]]

    return apply


def _sample(probability: float) -> RowFilter:
    if not 0 < probability < 1:
        raise invalid("row_sample_filter argument must be between 0.0 and 1.0")
    return lambda _, cells: cells if random.random() < probability else []


def _label(label: str) -> RowFilter:
    if not _LABEL.fullmatch(label):
        raise invalid(f"apply_label_transformer must match RE2([a-z0-9\\-]+), but found {label}")
    return lambda _, cells: [cell._replace(label=label) for cell in cells]


_COMPILERS: dict[str, Callable[[Any], RowFilter]] = {
    "chain": _chain,
    "interleave": _interleave,
    "condition": _condition,
    "pass_all_filter": _flag("pass_all_filter", _pass_all),
    "block_all_filter": _flag("block_all_filter", lambda _, __: []),
    "row_key_regex_filter": _row_key_regex,
    "row_sample_filter": _sample,
    "family_name_regex_filter": _family_regex,
    "column_qualifier_regex_filter": _qualifier_regex,
    "column_range_filter": _column_range,
    "timestamp_range_filter": _time_range,
    "value_regex_filter": _value_regex,
    "value_range_filter": _value_range,
    "cells_per_row_offset_filter": _row_offset,
    "cells_per_row_limit_filter": _row_limit,
    "cells_per_column_limit_filter": _column_limit,
    "strip_value_transformer": _flag(
        "strip_value_transformer", lambda _, cells: [cell._replace(value=b"", label="") for cell in cells]
    ),
    "apply_label_transformer": _label,
}
