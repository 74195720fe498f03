"""Proposes a mapping for points in InfluxDB's line protocol, by their tags."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.decoding.mapping.authoring.guesses import SENSORS, rank, toml_text
from pipeline.core.notation.line_protocol import MEASUREMENT, TAGS, TIME
from pipeline.core.notation.text import plain

_HOSTS = ("host", "hostname", "topic")  # tags that Telegraf adds
_MAX_OTHERS = 3


def draft_of_points(points: Sequence[Mapping[str, Any]], source: str) -> str:
    """Returns a mapping in TOML for points from a source, whose comments mark guesses. It compiles."""
    return "\n".join(_lines(points, source)) + "\n"


def _lines(points: Sequence[Mapping[str, Any]], source: str) -> Iterator[str]:
    yield f"# A draft by {plain(source)}. Look at every line: most are guesses."
    yield 'message = "influx"'
    tags = [tag for tag in dict.fromkeys(tag for point in points for tag in point[TAGS]) if '"' not in tag]
    sensors = sorted((tag for tag in tags if _fit(tag)), key=_fit, reverse=True)
    path = f"tags.{_quoted(sensors[0])}" if sensors else ""
    others = f"; or {plain(', '.join(sensors[1 : _MAX_OTHERS + 1]))}" if sensors[1:] else ""
    if not path:
        yield 'sensor = "{measurement:id}" # doubt: no tag looks like a sensor\'s id'
    elif all(sensors[0] in point[TAGS] for point in points):
        yield f"sensor = {toml_text(path)} # guess{others}"
    else:
        yield f'sensor = [{toml_text(path)}, "{{measurement:id}}"] # doubt: some points lack the tag{others}'
    yield 'time = [{ path = "time", unit = "ns" }, "$publish_time"] # a point without a time takes the last one'
    yield 'rewrite_names = true # in names of measurements and fields, "/" becomes ".", and other characters "_"'
    yield ""
    yield "[readings]"
    if len({point[MEASUREMENT] for point in points}) > 1 or _parts(points, sensors[:1]):
        names = [*(f"{{measurement}}.{{tags.{_quoted(tag)}}}.*" for tag in _parts(points, sensors[:1]))]
        texts = ", ".join(map(toml_text, [*names, "{measurement}.*"]))
        yield f'"*" = {{ path = "fields.*", name = {f"[{texts}]" if names else texts} }} # numbers and booleans'
    else:
        yield '"*" = "fields.*" # numbers and booleans'
    yield ""
    yield "[metadata]"
    yield '"*" = ["tags.*", "fields.*"] # text'


def _fit(tag: str) -> int:
    return 8 if tag in _HOSTS else rank(SENSORS, tag)


def _quoted(tag: str) -> str:
    return tag if tag.isidentifier() and tag.isascii() else f'"{tag}"'


def _parts(points: Sequence[Mapping[str, Any]], sensors: Sequence[str]) -> list[str]:
    """Returns the tags that distinguish points of one measurement, sensor and time, such as a computer's disks."""
    groups: dict[tuple[Any, ...], list[Mapping[str, str]]] = {}
    for point in points:
        at = point[MEASUREMENT], *(point[TAGS].get(tag) for tag in sensors), point.get(TIME)
        groups.setdefault(at, []).append(point[TAGS])
    parts: dict[str, None] = {}
    for alike in groups.values():
        apart = (tag for tag in alike[0] if len({tags.get(tag) for tags in alike}) == len(alike) and '"' not in tag)
        if len(alike) > 1 and (tag := next(apart, None)):
            parts[tag] = None
    return list(parts)
