"""Guesses what others' data mean: by the names and types of fields, and by how texts and numbers write times."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from pipeline.core.decoding.mapping.authoring.places import ENTRY, MANY, Place
from pipeline.core.decoding.mapping.compiling.execution import rewritten
from pipeline.core.decoding.mapping.language.model import UNITS
from pipeline.core.decoding.mapping.values.nodes import Leaf
from pipeline.core.decoding.mapping.values.times import unusual_time
from pipeline.core.events.event import is_name

LIKELY = 20
"""The least rank of a field that may name the sensor."""
CALLED_ID = 50
"""The least rank of a field that is called an id."""
ATTRIBUTES = ("service.instance.id", "host.name", "service.name")
"""Keys of attributes that differ between sensors, by OpenTelemetry's conventions."""
CALLED_TIME = 80
"""The least rank of a field that is called time or timestamp."""

# How well a field of such a name fits. The first pattern that matches is used.
SENSORS = (
    (2, r"(tenant|application|app|profile|request|message|event|deduplication|session|trace|user|gateway|config)_.*id"),
    (10, r"(.*_)?(dev|device|sensor)_(eui|id|uid|uuid)|.*_?eui"),
    (9, r"passkey|(.*_)?(serial(_(number|no|num))?|site_no|node_id|station_id|meter_id|imei|mac(_(address|addr))?)"),
    (7, r"sensor|device|dev|node|station|meter|unit|from|uid|uuid|device_name|sensor_name|logger|probe"),
    (7, r"(mess|wetter|pegel)(stelle|punkt|station)|(sensor|geraete?|geraet|zaehler)(_?(id|nr|nummer|name))?|fuehler"),
    (6, r"id"),
    (5, r".*_(id|uid|uuid)"),
    (4, r"name"),
    (3, r".*_(name|address|addr)|address|label|channel|port|index"),
)
TIMES = (
    (0, r"(.*_)?(uptime|duration|elapsed|interval|timeout|age|since|period|delay|offset|zone|latency)(_.*)?"),
    (3, r"(created|updated|received|rx|gw|ns|start|boot|expires|installed|last|next)_(.*_)?(at|time|ts)(_UNIT)?"),
    (3, r"(start|base|begin)_UNIT"),
    (10, r"((event|sample|reading)_)?(time|timestamp|ts|datetime)(_(unix|utc|epoch))*(_UNIT)?"),
    (10, r"(mess_?)?(zeit|zeitpunkt|zeitstempel|datum)|datum(_?(und|/)?_?(uhr)?zeit)?|date_?time"),
    (9, r"((measured|sampled|recorded|observed|taken|captured)_)?at(_UNIT)?"),
    (6, r".*_(at|time|timestamp|ts)(_UNIT)?|time_.*|timestamp_.*|(unix|epoch)(_.*)?|date(_time)?"),
)
_OFFSETS = (
    (1, r"((base|time|ts|t|start)_)?(offset|delta|relative|rel|dt|elapsed|since_start)(_(time|ts|t))?(_UNIT)?"),
)
_STEPS = ((1, r"((sample|sampling|time|measurement)_)?(step|interval|period|spacing|dt)(_UNIT)?"),)
_UNITS = {
    "ms": r"ms|milli|millis|msec|milliseconds",
    "us": r"us|micro|micros|usec|microseconds",
    "ns": r"ns|nano|nanos|nsec|nanoseconds",
    "s": r"s|sec|secs|seconds|unix|epoch",
}
_UNIT = "|".join(_UNITS.values())
# Numbers that identify or count messages, rather than measure.
NO_READING = re.compile(
    r"(.*_)?(id|uid|uuid|eui|imei|serial|mac|seq|sequence|crc|checksum|version|revision|nonce|alias|datatype|flags)"
    r"(_(number|no|num))?"
)
NAME = re.compile(  # of a reading
    r"name|key|((observed|measured)_)?(metric|measurement|measurand|quantity|parameter|param|variable|property|field|"
    r"reading|signal)(_(name|type|id))?|(mess)?groesse|kenngroesse"
)
VALUE = re.compile(r"(.*_)?(value|val|wert|messwert|reading|double|float|int|uint|long|bool|boolean|number)(_.*)?")


def words(name: str) -> str:
    """Returns a name in snake case: ``devEui`` and ``Dev-EUI`` are ``dev_eui``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-.]", "_", name).lower().strip("_")


def sensor_rank(place: Place) -> int:
    """Returns how likely a field names the sensor, up to 100; 0 for not at all."""
    fit = rank(SENSORS, place.steps[-1])
    if place.kind not in ("string", "int", "bytes") or (place.kind == "bytes" and fit < 6):
        return 0
    return _less_deep(fit or int(place.kind == "string"), place)


def time_rank(place: Place) -> int:
    """Returns how likely a field is the time of the readings, up to 100; 0 for not at all."""
    fit = rank(TIMES, place.steps[-1]) if place.steps else 0
    if place.kind == "timestamp":
        return _less_deep(5 + (fit or 2), place)
    return _less_deep(fit, place) if place.kind in ("int", "double", "float", "string") else 0


def rank(ranks: tuple[tuple[int, str], ...], name: str) -> int:
    """Returns how likely a field or a column of this name is a sensor or a time, up to 10; 0 for not at all."""
    return next((fit for fit, pattern in ranks if re.fullmatch(pattern.replace("UNIT", f"({_UNIT})"), words(name))), 0)


def fits(pattern: re.Pattern[str], name: str) -> bool:
    """Returns whether the name of a field or a column is one of these."""
    return pattern.fullmatch(words(name)) is not None


def unit_of(place: Place) -> tuple[str, bool]:
    """Returns the unit of a time that is a number, and whether its name says so: ``ms``, ``us``, ``ns`` or ``s``."""
    *_, last = words(place.steps[-1]).split("_")
    for unit, pattern in _UNITS.items():
        if re.fullmatch(pattern, last):
            return unit, last not in ("unix", "epoch")
    is_long = isinstance(place.node, Leaf) and place.node.bits == 64
    return "ms" if is_long else "s", False


def is_reading(place: Place) -> bool:
    """Returns whether a field measures something, by its name: a number, but no id, counter of messages or time."""
    name = next((step for step in reversed(place.steps) if step not in (MANY, ENTRY)), "")
    is_number = place.kind in ("double", "float", "int", "bool", "duration")
    return is_number and not fits(NO_READING, name) and not time_rank(place)


def is_offset(place: Place) -> bool:
    """Returns whether a field is the span between a time and another one."""
    return _is_span(place) and rank(_OFFSETS, place.steps[-1]) > 0


def is_step(place: Place) -> bool:
    """Returns whether a field is the span between two values of a series."""
    return _is_span(place) and rank(_STEPS, place.steps[-1]) > 0


def _is_span(place: Place) -> bool:
    return place.kind in ("int", "double", "float", "duration")


def is_text(place: Place) -> bool:
    """Returns whether a field is text, or the name of an enum's value."""
    return place.kind in ("string", "enum")


def names_a_reading(place: Place) -> bool:
    """Returns whether a field is the name of a reading, beside its value."""
    return place.kind == "string" and fits(NAME, place.steps[-1])


def is_value(place: Place) -> bool:
    """Returns whether a field is the value of a reading, beside its name."""
    return is_reading(place) and fits(VALUE, place.steps[-1])


def _less_deep(fit: int, place: Place) -> int:
    return 10 * fit - min(9, len(place.steps)) if fit else 0


_FIRST_US, _LAST_US = 946_684_800_000_000, 4_102_444_800_000_000  # the years 2000 to 2099
_LATE_SECONDS = 1_900_000_000  # of the year 2030, where ten digits are rather the hours of a date from 1900 on
_FIRST_DAY, _LAST_DAY = 36_526, 73_051  # the same, as spreadsheets number days
INTERVALS = (" - ", " – ", " bis ", " to ")
_TEXT = re.compile(
    r"(?P<one>[0-9]+|[A-Za-z]+)(?P<gap>[-./ ])(?P<two>[0-9]+|[A-Za-z]+)(?P<gap2>[-./ ]|, )"
    r"(?P<three>[0-9]{4}|[0-9]{1,2})"
    r"(?:(?P<between>[ ,T-]+)(?P<clock>[0-9]{1,2}(?P<sign>[:.])[0-9]{2}(?P<seconds>(?P=sign)[0-9]{2})?)"
    r"(?P<decimals>[.,][0-9]{1,6})?(?P<half> ?[AaPp][Mm])?(?P<offset> ?[+-][0-9]{2}:?[0-9]{2}| ?Z| UTC| GMT)?)?"
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_SHARE = 0.6  # the share of times in a column of times
_SWAPPED = {"%d": "%m", "%m": "%d"}


class TimeNotation(NamedTuple):
    """How times are written: a unit since the epoch, or a format of text; neither for ISO 8601.

    Attributes:
        epoch: the date from which numbers count; empty for 1970.
        interval: the text between the two times of an interval; empty for single times.
        is_local: whether the times have no offset.
        swapped: the format that reads day and month the other way round, if it fits as well.
        is_date: whether the times are dates without a time of day.
    """

    unit: str = ""
    epoch: str = ""
    interval: str = ""
    format: str = ""
    is_local: bool = False
    swapped: str = ""
    is_date: bool = False


def notation_of(texts: Sequence[str]) -> TimeNotation | None:
    """Returns the notation in which texts are times, but for a few that are not; None if there is none."""
    for mark in INTERVALS:
        both = [text.split(mark) for text in texts]
        if both and all(len(times) == 2 for times in both):
            first, last = (notation_of(part) for part in zip(*both, strict=True))
            return first._replace(interval=mark) if first and first == last else None
    found = [text.strip() for text in texts if looks_like_time(text.strip())]
    if not found or len(found) < _SHARE * len(texts):
        return None
    texts = found
    if all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) for text in texts):
        return _of_numbers(texts)
    times = [_iso(text) for text in texts]
    if all(times):
        is_date = all(len(text) == 10 for text in texts)
        return TimeNotation(is_local=any(time.tzinfo is None for time in times if time), is_date=is_date)
    found = [each for each in _formats(texts[0]) if _fits(each, texts)]
    if not found:
        return None
    best = min(found, key=lambda each: (_disorder(texts, each), found.index(each)))
    swapped = re.sub("%[dm]", lambda sign: _SWAPPED[sign[0]], best)
    return TimeNotation(
        format=best,
        is_local=not best.endswith(("%z", "Z", "UTC", "GMT")),
        swapped=swapped if swapped in found else "",
        is_date=not re.search("%[HI]", best),
    )


def looks_like_time(text: str) -> bool:
    """Returns whether a text may be a time, or the number of one."""
    return bool(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) or _TEXT.fullmatch(text) or _iso(text))


def clock_of(texts: Sequence[str]) -> str | None:
    """Returns the format in which all texts are times of a day; None if there is none."""
    return next((clock for clock in _CLOCKS if _fits(clock, texts)), None) if texts else None


def _of_numbers(texts: Sequence[str]) -> TimeNotation | None:
    numbers = [float(text) for text in texts]
    if min(numbers) >= _LATE_SECONDS and _fits("%Y%m%d%H", texts):
        return TimeNotation(format="%Y%m%d%H", is_local=True)
    for unit, microseconds in UNITS.items():
        if unit != "d" and all(_FIRST_US <= number * float(microseconds) < _LAST_US for number in numbers):
            return TimeNotation(unit)
    for compact in ("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d"):
        if _fits(compact, texts) and all(len(text) == len(texts[0]) for text in texts):
            return TimeNotation(format=compact, is_local=True, is_date=compact == "%Y%m%d")
    return None


def day_numbers_of(texts: Sequence[str]) -> TimeNotation | None:
    """Returns the notation of texts that number days as spreadsheets do, for a column whose name says it is a time."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    if not all(_FIRST_DAY <= number < _LAST_DAY for number in numbers):
        return None
    return TimeNotation("d", "1899-12-30", is_local=True)


def _formats(text: str) -> list[str]:
    """Returns the formats that a text may have."""
    found = _TEXT.fullmatch(text)
    if not found:
        return []
    one, two, three = found["one"], found["two"], found["three"]
    year = "%Y" if len(three) == 4 else "%y"
    if len(one) == 4:
        orders = [("%Y", "%m", "%d")]
    elif two.isalpha():
        orders = [("%d", "%b" if len(two) == 3 else "%B", year)]
    elif one.isalpha():
        orders = [("%b" if len(one) == 3 else "%B", "%d", year)]
    else:
        orders = [("%d", "%m", year), ("%m", "%d", year)]
        orders = orders if found["gap"] != "/" else orders[::-1]
    clock = ""
    if sign := found["sign"]:
        hour, half = ("%I", found["half"][:-2] + "%p") if found["half"] else ("%H", "")
        clock = found["between"] + hour + sign + "%M" + (f"{sign}%S" if found["seconds"] else "")
        clock += (found["decimals"][0] + "%f" if found["decimals"] else "") + half
        offset = found["offset"] or ""
        clock += re.sub(r"[+-].*", "%z", offset)
    return [f"{first}{found['gap']}{second}{found['gap2']}{third}{clock}" for first, second, third in orders]


def _fits(time_format: str, texts: Iterable[str]) -> bool:
    return all(_parsed(text, time_format) for text in texts)


def _parsed(text: str, time_format: str) -> datetime | None:
    try:
        time = _read(lambda written: datetime.strptime(written, time_format), text)
    except re.error:
        return None
    return time if time and time.year >= 1900 else None


def _iso(text: str) -> datetime | None:
    return _read(datetime.fromisoformat, text) if re.match(r"\d{4}-?\d\d-?\d\d", text) else None


def _read(read: Callable[[str], datetime], text: str) -> datetime | None:
    try:
        return read(text)
    except ValueError:
        unusual = unusual_time(read, text)
        return unusual[0] if unusual else None


def _disorder(texts: Sequence[str], time_format: str) -> float:
    """Returns how far apart times are that stand next to each other: less, if the format is the right one."""
    found = filter(None, (_parsed(text, time_format) for text in texts))
    times = [time.replace(tzinfo=time.tzinfo or UTC) for time in found]
    return sum(abs((after - before).total_seconds()) for before, after in pairwise(times))


_SPELLED = {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss", "°": "", "%": "percent"}
_SPELLED |= {"µ": "u", "μ": "u", "²": "2", "³": "3"}


def slug(text: str) -> str:
    """Returns a valid name that resembles a text; the text itself if it is one already, but for dots at its end."""
    if is_name(text := text.rstrip(".")):
        return text
    spelled = "".join(_SPELLED.get(character, character) for character in text)
    ascii_text = unicodedata.normalize("NFKD", spelled).encode("ascii", "ignore").decode()
    name = re.sub(r"[._]*_[._]*", "_", re.sub(r"[^a-z0-9.]+", "_", ascii_text.lower())).strip("_.")
    if not name:
        return rewritten(text)
    return (name if name[:1].isalpha() else f"_{name}")[:120]


def toml_key(name: str) -> str:
    """Returns a name as a key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


def toml_text(text: str) -> str:
    """Returns a text in TOML, in single quotes if it has double ones."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    text = text.replace("\\", r"\\").replace('"', r"\"").replace("\t", r"\t")
    escaped = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'
