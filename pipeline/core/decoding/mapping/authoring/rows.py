"""Proposes a mapping for records of columns, by their names and values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain, count, pairwise, product
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.authoring.guesses import (
    NAME,
    NO_READING,
    SENSORS,
    TIMES,
    VALUE,
    TimeNotation,
    clock_of,
    day_numbers_of,
    fits,
    looks_like_time,
    notation_of,
    rank,
    slug,
    toml_key,
    toml_text,
    words,
)
from pipeline.core.decoding.mapping.language.model import JSON, CsvFormat
from pipeline.core.decoding.mapping.values.conversions import encoded_id, number_reader
from pipeline.core.events.event import MAX_METADATA, MAX_READINGS
from pipeline.core.notation.text import MAX_UNIT, is_label, plain

MISSING = frozenset(
    {
        "na",
        "n/a",
        "nan",
        "null",
        "none",
        "-",
        "--",
        "---",
        "?",
        "k.a.",
        "k. a.",
        "#n/a",
        "#nv",
        "unavailable",
        "unknown",
    }
)
"""Texts that stand for a missing value, in lower case."""

_SENTINELS = frozenset({-999.0, -9999.0, -99999.0, -99.9, -999.9})
# They are values elsewhere, and doubtful if all others are far away: of a sensor that was reset or is not connected.
_EXTREMES = frozenset({99.0, 999.0, 9999.0, 99999.0, 999.9, 9999.9, 85.0, -127.0, 65535.0, 32767.0, -32768.0})
_MOST_DISTINCT = 3  # examples of texts
_NUMBERS = 0.9  # the share of numbers in a column of readings
_SECRET = re.compile(r"passw(or)?d|passkey|secret|token|api_?key")
_OFFSET = re.compile(r"(?:utc|gmt)\s*([+-][0-9]{1,2})(?::?([0-9]{2}))?", re.IGNORECASE)  # at the end of a header
_SUFFIX = re.compile(r"[+-]?[0-9][0-9.,']*\s*([^0-9\s.,'][^0-9]*)")

_IN_BRACKETS = re.compile(r".*([\[(])\s*(?![0-9]*\s*[\])])([^()\[\]]{1,32}?)\s*[)\]]\s*")
_UNIT_TEXT = re.compile(  # a symbol of units, or a prefix and a unit
    r"\S{0,9}[°%‰Ωµμ²³/]\S{0,9}|[kmMGcdh]?(?:W|Wh|V|A|VA|var|Pa|bar|Hz|m|g|l|L|J|K|N|s)"
    r"|[dD]eg ?[CF]|C|F|min|h|d|dBm?|lux|lx|pp[mb]|mph|in|ft"
)


def _zone_in(header: str) -> str:
    """Returns the zone of the times below a header, such as ``Time, GMT-05:00``; empty if it has none."""
    if offset := _OFFSET.search(header):
        return f"Etc/GMT{-int(offset[1]):+d}" if offset[2] in (None, "00") else ""  # west is positive there
    return "UTC" if re.search("utc|gmt", header, re.IGNORECASE) else ""


class NumberNotation(NamedTuple):
    """The decimal sign and the separator of thousands."""

    decimal: str = "."
    thousands: str = ""


class Column:
    """A column of a sample: its name, and the values of all records, None for a record without the column."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        self.slug = slug(name)
        self.bare = name if re.fullmatch(r"[A-Za-z0-9_]+", name) else f'"{name}"'
        self.path = toml_text(self.bare)
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

    @property
    def unit(self) -> str:
        """The unit that its texts or its name end with, in square brackets any text; empty if neither has one."""
        in_name = _IN_BRACKETS.fullmatch(self.name)
        texts = self.suffix, in_name[2] if in_name else ""
        is_certain = in_name is not None and in_name[1] == "["
        return next((text for text in texts if text and (is_certain or _UNIT_TEXT.fullmatch(text))), "")

    @cached_property
    def time(self) -> TimeNotation | None:
        """How its values write times; None if they don't."""
        texts = self.present if self.is_text else [str(value) for value in self.values if is_number(value)]
        if not texts or len(texts) < len(self.present or self.values):
            return None
        return notation_of(texts) or (day_numbers_of(texts) if rank(TIMES, self.slug) else None)

    @property
    def times(self) -> int:
        """The number of values that may be times."""
        texts = [str(value).strip() for value in self.values]
        if self.time and self.time.interval:
            texts = [text.partition(self.time.interval)[0] for text in texts]
        return sum(map(looks_like_time, texts))

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

    def extremes(self, notation: NumberNotation) -> list[float]:
        """Returns the least and the greatest number if these are far from all others, and may mean a missing value."""
        numbers = sorted(set(self.numbers(notation)) - _SENTINELS)
        others = [number for number in numbers if number not in _EXTREMES or number not in (numbers[0], numbers[-1])]
        if len(others) < 2:
            return []
        far = 2 * (others[-1] - others[0])
        return [end for end in {numbers[0], numbers[-1]} - {*others} if min(abs(end - other) for other in others) > far]

    def distinct(self) -> list[str]:
        """Returns its values as text, each once."""
        return list(dict.fromkeys(str(value) for value in self.values))

    def examples(self) -> str:
        """Returns some of its values, for a comment."""
        distinct = self.distinct()
        return ", ".join(distinct[:_MOST_DISTINCT]) + (", …" if len(distinct) > _MOST_DISTINCT else "")


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


_CSV_NOTES = {
    "skip_lines": ' # titles; if their number differs between files, write a glob of the header, like "time,*"',
    "header_lines": " # the first has the names, the others have units or types",
}
_ZONES = {"UTC": "UTC", "GMT": "UTC", "CET": "Etc/GMT-1", "CEST": "Etc/GMT-2", "MEZ": "Etc/GMT-1", "MESZ": "Etc/GMT-2"}
_ZONES |= {f"{zone}ST": f"Etc/GMT+{hours}" for hours, zone in enumerate(("A", "E", "C", "M", "P", "AK", "H"), 4)}
_ZONES |= {f"{zone}DT": f"Etc/GMT+{hours}" for hours, zone in enumerate(("A", "E", "C", "M", "P", "AK"), 3)}
"""Time zones by abbreviations of America and Europe. Their names count hours west of Greenwich."""

_OF_QUERY_ALWAYS = frozenset({"result", "table", "_time"})
_OF_QUERY = frozenset({"result", "table", "_start", "_stop", "_type"})
"""Columns of InfluxDB's annotated CSV that a query adds to the data."""

_STATES = '{{ path = "_type", {} = "string" }}'
_LIKELY = 3  # the least rank of the name of a sensor's column
_IN_IDS = re.compile(r"[\x21\x22\x24-\x7e]+")
_ROW_NUMBERS = re.compile(r"unnamed_?\d*|index|idx|row|record|nr|no|number|lfd_nr|_")
_UNIT = re.compile(r"(unit|units|einheit|uom)")
_OF_GERMAN = re.compile(r"zeit|datum|uhr", re.IGNORECASE)
_MOST_COMMENT = 100


class Sampled(NamedTuple):
    """The records of a sample.

    Attributes:
        records: the records, each a value by the name of its column.
        source: the origin of the records, for comments.
        name: a name for a sensor if no column has one.
        csv: the notation of the file, if it is CSV.
        units: the units of columns, from a line of the header.
        message: the type of the messages, one of ``PLAIN_TYPES``.
        payloads: the messages, unless each record is one.
        is_compressed: whether some payloads are compressed.
    """

    records: Sequence[Mapping[str, Any]]
    source: str
    name: str
    csv: CsvFormat | None = None
    units: Mapping[str, str] = {}
    message: str = JSON
    payloads: Sequence[bytes] = ()
    is_compressed: bool = False


def draft_of_rows(sampled: Sampled, time_zone: str = "") -> str:
    """Returns a mapping in TOML for records without nested values, with comments on what is in doubt. It compiles.

    ``time_zone`` is the time zone of times without an offset; empty to guess it.
    """
    return "\n".join(_RowsDraft(sampled, time_zone).lines()) + "\n"


class _RowsDraft:
    def __init__(self, sampled: Sampled, time_zone: str) -> None:
        self._sampled = sampled
        self._zone = time_zone
        names = dict.fromkeys(name for record in sampled.records for name in record if name)
        self._of_query = _OF_QUERY & names.keys() if names.keys() >= _OF_QUERY_ALWAYS else frozenset[str]()
        self._has_states = any(record.get("_type") == "string" for record in sampled.records)
        columns = [
            Column(name, [self._value_of(record, name) for record in sampled.records])
            for name in names
            if name not in self._of_query
        ]
        self._unusable = [
            column for column in columns if re.search('["{}]', column.name) or not column.name.isprintable()
        ]
        self._columns = [column for column in columns if column not in self._unusable]
        self._notation, self._notation_doubt = number_notation_of(self._columns)
        self._numeric = [column for column in self._columns if column.is_numeric(self._notation)]
        self._time = self._time_columns()
        self._sensors = self._sensor_columns()
        self._name, self._value, self._long_doubt = self._long()
        taken = [*self._time, *self._sensors[:1], *(each for each in (self._name, self._value) if each)]
        self._rest = [column for column in self._columns if column not in taken]

    def _value_of(self, record: Mapping[str, Any], name: str) -> Any:
        """Returns the value in a column; None for a state of annotated CSV, which has an entry of its own."""
        is_state = self._has_states and name == "_value" and record.get("_type") == "string"
        return None if is_state else record.get(name)

    def lines(self) -> Iterator[str]:
        """Yields the lines of the draft."""
        yield f"# A draft by {plain(self._sampled.source)}. Look at the lines with a doubt, and at the events below."
        # Columns may have the numbers of channels as their names.
        names = (column.name for column in self._columns if not column.name.isdigit())
        if data := [name for name in names if looks_like_time(name.strip())]:
            yield f"# doubt: does the file lack a header? A column is called {_comment(data[0])}"
        yield f"message = {toml_text(self._sampled.message)}"
        yield self._sensor_line()
        yield self._time_line()
        yield from self._notation_lines()
        if self._name:
            yield "rewrite_names = true # names that records contain become valid, and stay different"
        yield from self._csv_lines()
        yield ""
        yield "[readings]"
        readings, metadata, left_out = self._divided()
        if self._name and self._value:
            is_one = "doubt: is each row one reading?" if self._long_doubt else "a row is one reading;"
            yield (
                f'"*" = {{ path = {self._value.path}, name = {self._name.path}{self._conversions(self._value)} }} '
                f"# {is_one} names: {_comment(self._name.examples())}"
            )
        elif not readings:
            yield "# doubt: no column has numbers alone"
            for column in metadata:
                if column.is_text and column.numbers(self._notation):
                    texts = _comment(", ".join(column.others(self._notation)[:_MOST_DISTINCT]))
                    is_number = f'{{ path = {column.path}, glob = "[-+.0-9]*" }}'
                    value = f"{{ path = {column.path}, when = {is_number} }}"
                    yield f"{toml_key(column.slug)} = {value} # doubt: numbers beside texts, such as {texts}"
        yield from self._entries(readings, MAX_READINGS, self._reading)
        if metadata or self._has_states:
            yield ""
            yield "[metadata]"
            if self._has_states:
                yield (
                    f'"*" = {{ path = "_value", name = "_field", when = {_STATES.format("is")} }} '
                    "# doubt: an event without numbers needs metadata_alone = true in the schema"
                )
            yield from self._entries(metadata, MAX_METADATA, self._metadata)
        yield from self._by_column(readings)
        if left_out or self._unusable or self._of_query:
            yield ""
            for column, why in left_out:
                yield f"# left out: {_comment(column.name)}: {why}"
            if self._of_query:
                yield f"# left out: {', '.join(sorted(self._of_query))}: columns of a query's result"
            for column in self._unusable:
                yield f"# left out: {_comment(column.name)}: no path can contain this name; rename it in the file"

    def _csv_lines(self) -> Iterator[str]:
        """Yields the keys of CSV that are not the defaults."""
        written = asdict(self._sampled.csv or CsvFormat()).items() - asdict(CsvFormat()).items()
        if written:
            yield ""
            yield "[csv]"
        for key, value in sorted(written):
            yield f"{key} = {toml_text(value) if isinstance(value, str) else value}{_CSV_NOTES.get(key, '')}"

    def _by_column(self, readings: Sequence[Column]) -> Iterator[str]:
        """Yields a comment with another mapping, for records with a column for each sensor."""
        if not self._sensors and len(readings) > 1 and self._time:
            no_sensors = [column for column in self._columns if column not in readings]
            yield ""
            yield "# If each column is a sensor of its own, replace the sensor and all tables but [csv] with:"
            yield '# each = "[]"'
            yield '# sensor = ".key"'
            names = ", ".join(toml_text(column.name) for column in no_sensors)
            yield f'# skip_if = {{ path = ".key", is = [{names}] }}'
            yield '# readings = { value = ".value" }'

    def _time_columns(self) -> list[Column]:
        """Returns the column of the time, or the columns of the date and of the time of day."""
        whole = [column for column in self._columns if column.time and not column.time.is_date]
        dates = [column for column in self._columns if column.time and column.time.is_date]
        clocks = [column for column in self._columns if column.clock]
        named = [column for column in whole if self._time_rank(column)]
        if found := max(named, key=self._time_rank, default=None):
            return [found]
        if dates and clocks and dates[0].is_text:
            return [dates[0], clocks[0]]
        texts = [column for column in (*whole, *dates) if column.is_text]
        return [*texts, *whole][:1]

    def _time_rank(self, column: Column) -> int:
        return 2 * rank(TIMES, column.slug) + column.is_text

    def _time_line(self) -> str:
        if not self._time:
            return 'time = "$publish_time" # doubt: no column has times; set the column, with a format or a unit'
        first, *clock = self._time
        notation = first.time
        if notation is None:
            raise AssertionError(first.name)
        keys, doubts, time_format = {"path": first.path}, [], notation.format
        if clock:
            keys["path"] = toml_text(f"{{{first.bare}}} {{{clock[0].bare}}}")
            time_format = f"{notation.format or '%Y-%m-%d'} {clock[0].clock}"
        if notation.unit:
            keys["unit"] = toml_text(notation.unit)
            if not rank(TIMES, first.slug):
                doubts.append("its values look like times, its name does not")
        if notation.epoch:
            keys["epoch"] = toml_text(notation.epoch)
        if notation.interval:
            keys["interval"] = toml_text(notation.interval)
        if time_format:
            keys["format"] = toml_text(time_format)
        if notation.swapped:
            doubts.append(f"or day and month the other way round, {notation.swapped}")
        inline = ", ".join(f"{key} = {value}" for key, value in keys.items())
        if (notation.is_local or clock) and (zoned := self._zone_column()):
            sources = (
                f"{{ {inline}, time_zone = {toml_text(_ZONES[text])}, "
                f"when = {{ path = {zoned.path}, is = {toml_text(text)} }} }}"
                for text in dict.fromkeys(zoned.texts)
            )
            return f"time = [{', '.join(sources)}]{_doubt(*doubts, 'are these the zones of its abbreviations?')}"
        if notation.is_local or clock:
            is_german = time_format.startswith("%d.%m.") and any(
                _OF_GERMAN.search(column.name) for column in self._columns
            )
            named = _zone_in(first.name)
            keys["time_zone"] = toml_text(self._zone or named or ("Europe/Berlin" if is_german else "UTC"))
            if not self._zone and named != "UTC":
                doubts.append("its times have no offset: is this their time zone?")
        if notation.is_date and not clock:
            doubts.append("it has dates without a time of day")
        if missing := len(first.all) - first.times:
            doubts.append(f"{missing:,} of {len(first.all):,} records have none")
        inline = ", ".join(f"{key} = {value}" for key, value in keys.items())
        return f"time = {first.path if list(keys) == ['path'] else f'{{ {inline} }}'}{_doubt(*doubts)}"

    def _zone_column(self) -> Column | None:
        """Returns the column of the abbreviations of time zones; None if the zone is known, or no column has one."""
        zoned = (column for column in self._columns if column.is_text and set(column.texts) <= _ZONES.keys())
        return None if self._zone else next(zoned, None)

    def _sensor_columns(self) -> list[Column]:
        """Returns the columns that may name the sensor, the likeliest first."""
        ranks = {column.name: rank(SENSORS, column.slug) for column in self._columns}
        found = [column for column in self._columns if ranks[column.name] >= _LIKELY and self._may_be_sensor(column)]
        return sorted(found, key=lambda column: -ranks[column.name])

    def _may_be_sensor(self, column: Column) -> bool:
        """Returns whether the values of a column are neither times nor measurements."""
        if not column.values or column in self._time or _UNIT.fullmatch(column.slug.lower()):
            return False
        is_whole = all(isinstance(value, int) for value in column.values)
        return (column.is_text or is_whole) and not self._is_row_number(column)

    def _is_row_number(self, column: Column) -> bool:
        """Returns whether a column counts the records."""
        numbers = column.numbers(NumberNotation())
        if len(numbers) < 2 or len(numbers) < len(column.all):
            return False
        return all(after - before == 1 for before, after in pairwise(numbers))

    def _sensor_line(self) -> str:
        if not self._sensors:
            texts = [
                column.name
                for column in self._columns
                if column.is_text and column not in self._time and column not in self._numeric
            ]
            known = f", or name a column, such as {_comment(', '.join(texts[:3]))}" if texts else ""
            name = encoded_id(self._sampled.name) or "sensor"
            return (
                f"sensor = {{ constant = {toml_text(name)} }} # doubt: no column looks like a sensor's id: all records "
                f"are of this one{known}"
            )
        first, *others = self._sensors
        doubts = [f"or {_comment(other.name)}" for other in others[:2]]
        path = first.path
        if words(first.name) == "passkey":  # of a weather station: a secret
            path = toml_text(f"{{{first.bare}:sha256}}")
        elif not all(_IN_IDS.fullmatch(text) for text in first.distinct()):
            path = toml_text(f"{{{first.bare}:id}}")
            doubts.insert(0, 'ids have no spaces and are ASCII: ":id" writes other characters as %20 and the like')
        if empty := len(first.all) - len(first.values):
            doubts.append(f"{empty:,} of {len(first.all):,} records have none")
        if words(first.name) == "passkey":
            return f"sensor = {path} # a hash, since it is a secret"
        return f"sensor = {path}{_doubt(*doubts) if doubts else f' # such as {_comment(first.examples())}'}"

    def _notation_lines(self) -> Iterator[str]:
        decimal, thousands = self._notation
        doubt = _doubt("numbers could be written another way, so compare the events") if self._notation_doubt else ""
        if decimal != "." or doubt:
            yield f"decimal = {toml_text(decimal)}{doubt}"
        if thousands:
            yield f"thousands = {toml_text(thousands)}"
        missing = sorted({text for column in self._numeric for text in column.missing})
        sentinels = sorted({number for column in self._numeric for number in column.sentinels(self._notation)})
        if missing or sentinels:
            values = [*map(toml_text, missing), *(f"{number:g}" for number in sentinels)]
            doubt = f" # doubt: is {sentinels[0]:g} a missing value?" if sentinels else ""
            yield f"null = [{', '.join(values)}]{doubt}"

    def _long(self) -> tuple[Column | None, Column | None, bool]:
        """Returns the columns of the name and the value, if a record is one reading, and whether that is in doubt."""
        free = [column for column in self._columns if column not in (*self._time, *self._sensors[:1])]
        numbers = [column for column in free if column in self._numeric and not fits(NO_READING, column.slug)]
        values = [column for column in numbers if fits(VALUE, column.slug)]
        for name in sorted(free, key=lambda column: not fits(NAME, column.slug)):
            is_named = fits(NAME, name.slug)
            # The only numbers are the values, whatever their name.
            value = next(iter(values or (numbers if is_named and len(numbers) == 1 else ())), None)
            if not value or not name.is_text or name in numbers or _UNIT.fullmatch(name.slug.lower()):
                continue
            differs = self._differs(name, *self._sensors[:1], *self._time)
            if is_named and words(name.slug) not in ("name", "key"):
                repeats = 1 < len(name.values) > len(name.distinct())
                return name, value, not (repeats or differs)
            if differs and (is_named or len(numbers) == 1):
                return name, value, not is_named
            if is_named and len(name.values) > len(name.distinct()) and self._differs(name, *self._sensors[:1]):
                return name, value, False
        return None, None, False

    def _divided(self) -> tuple[list[Column], list[Column], list[tuple[Column, str]]]:
        """Returns the columns of readings, of metadata, and the columns left out, with the reason."""
        readings, metadata, left_out = [], [], []
        for column in self._rest:
            name = column.slug
            if not column.values:
                left_out.append((column, "it is empty"))
            elif _SECRET.search(name.lower()):
                left_out.append((column, "it looks like a secret"))
            elif _ROW_NUMBERS.fullmatch(name.lower()) and self._is_row_number(column):
                left_out.append((column, "it counts the records"))
            elif self._name and (
                _UNIT.fullmatch(name.lower()) or self._differs(column, *self._sensors[:1], *self._time)
            ):
                left_out.append((column, "it differs between the readings of one time"))
            elif column in self._numeric and not fits(NO_READING, column.slug):
                readings.append(column)
            elif column.time and not column.is_text:
                left_out.append((column, "it looks like another time"))
            else:
                metadata.append(column)
        return readings, metadata, left_out

    def _differs(self, column: Column, *others: Column) -> bool:
        """Returns whether a column differs between records that agree in the others."""
        known: dict[tuple[Any, ...], Any] = {}
        keys = zip(*(each.all for each in others), strict=True) if others else [()] * len(column.all)
        return any(known.setdefault(key, value) != value for key, value in zip(keys, column.all, strict=True))

    def _entries(self, columns: Sequence[Column], most: int, entry: Any) -> Iterator[str]:
        names: set[str] = set()
        for column in columns[:most]:
            numbered = (f"{column.slug}_{number}" for number in count(2))
            name = next(name for name in chain([column.slug], numbered) if name not in names)
            names.add(name)
            yield f"{toml_key(name)} = {entry(column)}"
        if len(columns) > most:
            yield f"# {len(columns) - most:,} more columns, beyond the {most:,} that an event can have"

    def _conversions(self, column: Column) -> str:
        if column.suffix:
            return f", suffix = {toml_text(column.suffix)}"
        return f", when = {_STATES.format('is_not')}" if self._has_states and column is self._value else ""

    def _reading(self, column: Column) -> str:
        keys = self._conversions(column)
        extremes = column.extremes(self._notation)
        if extremes:
            keys += f", null = [{', '.join(f'{number:g}' for number in extremes)}]"
        unit = self._sampled.units.get(column.name) or column.unit
        if is_label(unit, MAX_UNIT):
            keys += f", unit = {toml_text(unit)}"
        value = f"{{ path = {column.path}{keys} }}" if keys else column.path
        if others := column.others(self._notation):
            doubt = f'{_comment(others[0])} is no number and refuses its record, unless invalid = "drop reading"'
            return f"{value} # doubt: {doubt}"
        sentinels = column.sentinels(self._notation)
        numbers = [number for number in column.numbers(self._notation) if number not in (*sentinels, *extremes)]
        if not numbers:
            return f"{value} # true is 1, false is 0"
        doubt = f"; doubt: is {extremes[0]:g} a missing value?" if extremes else ""
        return f"{value} # {min(numbers):g} to {max(numbers):g}{doubt}"

    def _metadata(self, column: Column) -> str:
        is_id = not column.is_text and all(map(is_number, column.values))
        return f"{column.path} # {'doubt: or a reading? ' if is_id else ''}{_comment(column.examples())}"


def _doubt(*doubts: str) -> str:
    return f" # doubt: {'; '.join(doubts)}" if doubts else ""


def _comment(text: str) -> str:
    """Returns a text of a sample for a comment: in one line, and not too long."""
    short = text if len(text) <= _MOST_COMMENT else f"{text[:_MOST_COMMENT]}…"
    return plain(short)
