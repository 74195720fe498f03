"""Guesses by name and type what a field of somebody else's message means."""

import re

from pipeline.core.decoding.mapping.authoring.places import Place
from pipeline.core.decoding.mapping.values.nodes import Leaf

LIKELY = 20
"""The least rank of a field that may name the sensor."""
CALLED_ID = 50
"""The least rank of a field that is called an id."""
ATTRIBUTES = ("service.instance.id", "host.name", "service.name")
"""Keys of attributes that tell sensors apart, by OpenTelemetry's conventions."""
CALLED_TIME = 80
"""The least rank of a field that is called time or timestamp."""

# How well a field of such a name fits. The first pattern that matches counts.
_SENSORS = (
    (2, r"(tenant|application|app|profile|request|message|event|deduplication|session|trace|user|gateway|config)_.*id"),
    (10, r"(.*_)?(dev|device|sensor)_(eui|id|uid|uuid)|.*_?eui"),
    (9, r"(.*_)?(serial(_(number|no|num))?|node_id|station_id|meter_id|imei|mac(_(address|addr))?)"),
    (7, r"sensor|device|node|station|meter|unit|from|uid|uuid|device_name|sensor_name|logger|probe"),
    (7, r"(mess|wetter|pegel)(stelle|punkt|station)|(sensor|geraete?|geraet|zaehler)(_?(id|nr|nummer|name))?|fuehler"),
    (6, r"id"),
    (5, r".*_(id|uid|uuid)"),
    (4, r"name"),
    (3, r".*_(name|address|addr)|address|label|channel|port|index"),
)
_TIMES = (
    (0, r"(.*_)?(uptime|duration|elapsed|interval|timeout|age|since|period|delay|offset|zone|latency)(_.*)?"),
    (3, r"(created|updated|received|rx|gw|ns|start|boot|expires|installed|last|next)_(.*_)?(at|time|ts)(_UNIT)?"),
    (10, r"((event|sample|reading)_)?(time|timestamp|ts|datetime)(_(unix|utc|epoch))*(_UNIT)?"),
    (10, r"(mess)?(zeit|zeitpunkt|zeitstempel)|datum(_?(und|/)?_?(uhr)?zeit)?|date_?time"),
    (9, r"((measured|sampled|recorded|observed|taken|captured)_)?at(_UNIT)?"),
    (6, r".*_(at|time|timestamp|ts)(_UNIT)?|time_.*|timestamp_.*|(unix|epoch)(_.*)?|date(_time)?"),
)
_UNITS = {
    "ms": r"ms|milli|millis|msec|milliseconds",
    "us": r"us|micro|micros|usec|microseconds",
    "ns": r"ns|nano|nanos|nsec|nanoseconds",
    "s": r"s|sec|secs|seconds|unix|epoch",
}
_UNIT = "|".join(_UNITS.values())
# Numbers that identify or count messages, rather than measure.
_NO_READING = re.compile(
    r"(.*_)?(id|uid|uuid|eui|imei|serial|mac|seq|sequence|crc|checksum|version|revision|nonce|alias|datatype|flags)"
    r"(_(number|no|num))?"
)
_NAME = re.compile(
    r"name|key|((observed|measured)_)?(metric|measurement|measurand|quantity|parameter|param|variable|property|field|"
    r"reading|signal)(_(name|type|id))?|(mess)?groesse|kenngroesse"
)
_VALUE = re.compile(r"(.*_)?(value|val|wert|messwert|reading|double|float|int|uint|long|bool|boolean|number)(_.*)?")


def words(name: str) -> str:
    """Returns a name in snake case: ``devEui`` and ``Dev-EUI`` are ``dev_eui``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-.]", "_", name).lower()


def sensor_rank(place: Place) -> int:
    """Returns how likely a field names the sensor, up to 100; 0 for not at all."""
    if not isinstance(place.node, Leaf) or place.node.kind not in ("string", "int", "bytes"):
        return 0
    rank = _rank(_SENSORS, words(place.steps[-1]))
    if place.node.kind == "bytes" and rank < 6:
        return 0
    if place.node.kind == "string":
        rank = rank or 1
    return _less_deep(rank, place)


def time_rank(place: Place) -> int:
    """Returns how likely a field is the time of the readings, up to 100; 0 for not at all."""
    if not isinstance(place.node, Leaf):
        return 0
    rank = _rank(_TIMES, words(place.steps[-1]))
    if place.node.kind == "timestamp":
        rank = 5 + (rank or 2)
    elif place.node.kind not in ("int", "double", "float", "string"):
        return 0
    return _less_deep(rank, place)


def sensor_rank_of_name(name: str) -> int:
    """Returns how likely a column of this name contains the sensor, up to 10; 0 for not at all."""
    return _rank(_SENSORS, words(name))


def time_rank_of_name(name: str) -> int:
    """Returns how likely a column of this name contains the time of the readings, up to 10; 0 for not at all."""
    return _rank(_TIMES, words(name))


def is_id(name: str) -> bool:
    """Returns whether a column of this name identifies or counts something, rather than measures."""
    return _NO_READING.fullmatch(words(name)) is not None


def is_name_of_readings(name: str) -> bool:
    """Returns whether a column of this name contains names of readings."""
    return _NAME.fullmatch(words(name)) is not None


def may_name_other_things(name: str) -> bool:
    """Returns whether a column of this name may also contain names of sensors or places."""
    return words(name) in ("name", "key")


def is_value_of_readings(name: str) -> bool:
    """Returns whether a column of this name contains values of readings, whose names another column has."""
    return _VALUE.fullmatch(words(name)) is not None


def unit_of(place: Place) -> tuple[str, bool]:
    """Returns the unit of a time that is a number, and whether its name says so: ``ms``, ``us``, ``ns`` or ``s``."""
    *_, last = words(place.steps[-1]).split("_")
    for unit, pattern in _UNITS.items():
        if re.fullmatch(pattern, last):
            return unit, last not in ("unix", "epoch")
    is_long = isinstance(place.node, Leaf) and place.node.bits == 64
    return "ms" if is_long else "s", False


def is_number(place: Place) -> bool:
    """Returns whether a field is a number or a boolean."""
    return isinstance(place.node, Leaf) and place.node.kind in ("double", "float", "int", "bool", "duration")


def is_reading(place: Place) -> bool:
    """Returns whether a field measures something, by its name: a number, but no id, counter of messages or time."""
    name = words(next(step for step in reversed(place.steps) if step.isidentifier()))
    return is_number(place) and not _NO_READING.fullmatch(name) and not time_rank(place)


def is_text(place: Place) -> bool:
    """Returns whether a field is text, or the name of an enum's value."""
    return isinstance(place.node, Leaf) and place.node.kind in ("string", "enum")


def names_a_reading(place: Place) -> bool:
    """Returns whether a field is the name of a reading, beside its value."""
    return (
        isinstance(place.node, Leaf)
        and place.node.kind == "string"
        and _NAME.fullmatch(words(place.steps[-1])) is not None
    )


def is_value(place: Place) -> bool:
    """Returns whether a field is the value of a reading, beside its name."""
    return is_reading(place) and _VALUE.fullmatch(words(place.steps[-1])) is not None


def _rank(ranks: tuple[tuple[int, str], ...], name: str) -> int:
    return next((rank for rank, pattern in ranks if re.fullmatch(pattern.replace("UNIT", f"({_UNIT})"), name)), 0)


def _less_deep(rank: int, place: Place) -> int:
    return 10 * rank - min(9, len(place.steps)) if rank else 0
