"""Looks at the values of columns: which are numbers, in which notation, with which unit."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.authoring.time_guesses import TimeNotation, clock_of, looks_like_time, notation_of
from pipeline.core.decoding.mapping.values.numbers import number_reader
from pipeline.core.events.event import is_name

MISSING = frozenset({"na", "n/a", "nan", "null", "none", "-", "--", "---", "?", "k.a.", "k. a.", "#n/a", "#nv"})
"""Texts that stand for a missing value, in lower case."""

_SENTINELS = frozenset({-999.0, -9999.0, -99999.0, -99.9, -999.9})
_MOST_DISTINCT = 3  # examples of texts
_NUMBERS = 0.9  # the share of numbers in a column of readings
_SUFFIX = re.compile(r"[+-]?[0-9][0-9.,']*\s*([^0-9\s.,'][^0-9]*)")
_SPELLED = {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss", "°": "", "%": "percent"}
_SPELLED |= {"µ": "u", "μ": "u", "²": "2", "³": "3"}


class NumberNotation(NamedTuple):
    """The decimal sign and the separator of thousands."""

    decimal: str = "."
    thousands: str = ""


class Column:
    """A column of a sample.

    Args:
        name: the name.
        values: the values of all records, None in those without the column.
    """

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        self.all = values
        self.values = [value for value in values if value is not None and value != ""]
        self.texts = [value.strip() for value in self.values if isinstance(value, str)]
        self.present = [text for text in self.texts if text.lower() not in MISSING]
        self.missing = sorted({text for text in self.texts if text.lower() in MISSING})

    @property
    def is_text(self) -> bool:
        """Whether it has text, and nothing else."""
        return bool(self.texts) and len(self.texts) == len(self.values)

    @cached_property
    def suffix(self) -> str:
        """What follows the number in each text, such as a unit; empty if nothing does."""
        found = {match[1].strip() if (match := _SUFFIX.fullmatch(text)) else "" for text in self.present}
        return found.pop() if len(found) == 1 else ""

    @cached_property
    def time(self) -> TimeNotation | None:
        """How its values write times; None if they don't."""
        texts = self.present if self.is_text else [str(value) for value in self.values if is_number(value)]
        return notation_of(texts) if texts and len(texts) == len(self.present or self.values) else None

    @property
    def times(self) -> int:
        """The number of values that may be times."""
        return sum(looks_like_time(str(value).strip()) for value in self.values)

    @cached_property
    def clock(self) -> str | None:
        """The format of times of a day; None if it has none."""
        return clock_of(self.present) if self.is_text else None

    def numbers(self, notation: NumberNotation) -> list[float]:
        """Returns its numbers."""
        read = number_reader(*notation)
        texts = (read(text.removesuffix(self.suffix)) for text in self.present)
        return [float(text) for text in texts if text is not None] + [
            float(value) for value in self.values if is_number(value)
        ]

    def is_numeric(self, notation: NumberNotation) -> bool:
        """Returns whether most of its values are numbers or booleans."""
        found = len(self.numbers(notation)) + sum(isinstance(value, bool) for value in self.values)
        return found > 0 and found >= _NUMBERS * (len(self.values) - len(self.texts) + len(self.present))

    def others(self, notation: NumberNotation) -> list[str]:
        """Returns the texts that are no numbers, each once."""
        read = number_reader(*notation)
        return list(dict.fromkeys(text for text in self.present if read(text.removesuffix(self.suffix)) is None))

    def sentinels(self, notation: NumberNotation) -> list[float]:
        """Returns numbers that often stand for a missing value."""
        return sorted(_SENTINELS & set(self.numbers(notation)))

    def distinct(self) -> list[str]:
        """Returns its values as text, each once."""
        return list(dict.fromkeys(str(value) for value in self.values))

    def examples(self) -> str:
        """Returns some of its values, for a comment."""
        distinct = self.distinct()
        return ", ".join(distinct[:_MOST_DISTINCT]) + (", …" if len(distinct) > _MOST_DISTINCT else "")


def columns_of(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Returns the columns of records, in the order in which they come."""
    names = list(dict.fromkeys(name for record in records for name in record if name))
    return [Column(name, [record.get(name) for record in records]) for name in names]


def number_notation_of(columns: Sequence[Column]) -> tuple[NumberNotation, bool]:
    """Returns the notation in which most columns are numbers, and whether another one fits just as well."""
    texts = [column for column in columns if column.is_text and not column.time and not column.clock]
    known = [NumberNotation(*each) for each in product(".,", ("", ".", ",", "'", " ")) if each[0] != each[1]]
    scores = {each: sum(column.is_numeric(each) for column in texts) for each in known}
    best = max(known, key=lambda each: (scores[each], -known.index(each)))
    values = [column.numbers(best) for column in texts if column.is_numeric(best)]
    others = [each for each in known if scores[each] == scores[best] > 0]
    doubt = any(values != [column.numbers(each) for column in texts if column.is_numeric(best)] for each in others)
    return best, doubt


def is_number(value: Any) -> bool:
    """Returns whether a value is a number, and no boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def slug(text: str) -> str:
    """Returns a valid name that resembles a text; the text itself if it is one already."""
    if is_name(text):
        return text
    spelled = "".join(_SPELLED.get(character, character) for character in text)
    ascii_text = unicodedata.normalize("NFKD", spelled).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9.]+", "_", ascii_text.lower()).strip("_.")
    return (name if name[:1].isalpha() else f"_{name}")[:120] or "_"
