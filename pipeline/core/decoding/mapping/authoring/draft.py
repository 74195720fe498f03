"""Proposes a mapping for a message type, by the names and types of its fields."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.authoring import guesses
from pipeline.core.decoding.mapping.authoring.guesses import slug, toml_text
from pipeline.core.decoding.mapping.authoring.places import (
    ANY,
    ENTRY,
    MANY,
    Place,
    lengths_of_json,
    places,
    places_of_json,
)
from pipeline.core.decoding.mapping.language.model import JSON
from pipeline.core.decoding.mapping.language.paths import MAX_PATH, MAX_STEPS
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Leaf
from pipeline.core.events.event import MAX_METADATA, MAX_READINGS, is_name
from pipeline.core.notation.text import plain

Steps = tuple[str, ...]

_READINGS = re.compile(r".*(reading|metric|measurement|sample|point|value|event|record|data|probe|sensor|channel).*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_MAX_OTHERS = 3


def draft(types: Descriptors, message: str) -> str:
    """Returns a mapping in TOML for a message type, with comments on what is a guess. It compiles.

    Raises MappingError if there is no such type.
    """
    return _Draft(message, places(types, message), f"the names and types of {message}'s fields").text()


def draft_of_json(values: Sequence[Any], source: str, time_zone: str = "") -> str:
    """Returns a mapping in TOML for messages in JSON, by the contents of samples from a source; see :func:`draft`.

    ``time_zone`` is the time zone of times without an offset; empty to guess it.
    """
    seen = places_of_json(values)
    notations = {place: guesses.notation_of(seen[place]) for place in seen}
    return _Draft(JSON, seen, source, notations, lengths_of_json(values), time_zone).text()


class _Each(NamedTuple):
    """A repeated field whose elements may become events.

    Attributes:
        steps: the path, which ends with ``MANY``; empty for the message itself.
        name: the field that names the reading of an element.
        score: a measure of how well the field fits.
        others: fields with the same elements and the same name: a gauge's points, and a sum's.
    """

    steps: Steps
    name: Place | None
    score: int
    others: tuple[Steps, ...] = ()


class _DraftEntry(NamedTuple):
    name: str
    path: str
    type: str


class _Draft:
    def __init__(
        self,
        message: str,
        found: Iterable[Place],
        source: str,
        notations: Mapping[Place, guesses.TimeNotation | None] | None = None,
        lengths: Mapping[Steps, list[int]] | None = None,
        time_zone: str = "",
    ) -> None:
        self._message = message
        self._source = source
        self._zone = time_zone
        self._notations = notations or {}  # of the times that samples have
        self._places = [place for place in found if 0 < len(place.steps) < MAX_STEPS and len(str(place)) < MAX_PATH]
        lists = self._places
        self._zips = self._put_lists_together(lengths or {})
        self._each = self._chosen()
        self._places = [  # lists that are not gone through together stay lists
            row if row.steps[:-1] == self._each.steps else place for place, row in zip(lists, self._places, strict=True)
        ]
        found = self._places = [
            place for place in self._places if not any(_within(place, one) for one in self._each.others)
        ]
        self._single = [place for place in found if not _wild(place.steps[self._level(place) :])]
        self._sensor, self._own_id = self._sensors()
        self._times = self._found_times()
        self._span = self._found_span()

    def text(self) -> str:
        """Returns the draft."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"# A draft by {plain(self._source)}. Look at every line: most are guesses."
        yield "# tidetable mapping check tells what it leaves out, and tidetable mapping try what it makes of messages."
        yield f"message = {toml_text(self._message)}"
        if lists := self._zips.get(self._each.steps):
            yield f"zip = {lists} # guess: the lists are gone through together, and each row is an event"
        elif self._each.steps:
            paths = [toml_text(_path(steps)) for steps in (self._each.steps, *self._each.others)]
            each = paths[0] if len(paths) == 1 else f"[{', '.join(paths)}]"
            yield f"each = {each} # guess: its elements are the events, or parts of them"
        yield self._sensor_line()
        yield self._time_line()
        if Leaf("float") in [place.node for place in self._places]:
            yield "shortest_floats = true # 21.3 instead of 21.299999237060547"
        in_element = list(filter(self._in_element, self._places))
        around = [place for place in self._places if not self._each.name or place not in in_element]
        readings = [] if self._each.name else list(self._entries(in_element, guesses.is_reading))
        metadata = list(self._entries(around, guesses.is_text))
        if self._each.name or any("*" in entry.name for entry in (*readings, *metadata)):
            yield "rewrite_names = true # names that messages contain become valid, and stay different"
        yield ""
        yield "[readings]"
        yield from self._named_readings() if self._each.name else _table(readings, MAX_READINGS)
        if not readings and not self._each.name:
            yield "# no field looks like a reading"
        if metadata:
            yield ""
            yield "[metadata]"
            yield from _table(metadata, MAX_METADATA)
        if opaque := [str(place) for place in self._single if str(place.node) in ("bytes", ANY)]:
            yield ""
            yield f"# If these contain messages, name their types under [types]: {', '.join(opaque)}"

    def _chosen(self) -> _Each:
        """Returns the repeated field whose elements look most like events; the message if none does."""
        prefixes = dict.fromkeys(
            place.steps[: index + 1]
            for place in self._places
            for index, step in enumerate(place.steps)
            if step == MANY and ENTRY not in place.steps[:index]
        )
        of_message = [place for place in self._places if not _wild(place.steps) or place.steps[-1] == ENTRY]
        is_empty = not any(guesses.is_reading(place) or place.node == PLAIN for place in of_message)
        scored = [self._scored(prefix, is_empty=is_empty) for prefix in prefixes]
        best = max(scored, key=lambda each: (each.score, -len(each.steps)), default=None)
        if best is None or best.score < 2:
            return _Each((), None, 0)
        others = [
            each.steps
            for each in scored
            if each.name
            and each.name == best.name
            and each.steps != best.steps
            and self._places_in(each.steps) == self._places_in(best.steps)
        ]
        return best._replace(others=tuple(others))

    def _put_lists_together(self, lengths: Mapping[Steps, list[int]]) -> dict[Steps, str]:
        """Turns lists of single values that belong together into a list of rows. Returns the text of each ``zip``.

        Lists belong together if one is of times, or the message has a step, and if their lengths are equal, where
        these are known.
        """
        zips = {}
        lists = [place for place in self._places if place.steps[1:] and place.steps[-1] == MANY]
        lists = [place for place in lists if not _wild(place.steps[-2:-1])]
        for around in dict.fromkeys(place.steps[:-2] for place in lists if place.kind):
            rows = {
                place: replace(place, steps=(*around, MANY, place.steps[-2]))
                for place in lists
                if place.kind and place.steps[:-2] == around
            }
            times = [place for place in rows if guesses.time_rank(rows[place]) >= guesses.CALLED_TIME]
            expected = [lengths.get(place.steps) for place in times or rows]
            together = {place: row for place, row in rows.items() if lengths.get(place.steps) == expected[0]}
            has_step = any(map(guesses.is_step, self._places))
            if len(together) < 2 or not (times or has_step) or not any(map(guesses.is_reading, together.values())):
                continue
            takes_all = lengths and together.keys() == {place for place in lists if place.steps[:-2] == around}
            paths = [toml_text(_path(place.steps)) for place in together]
            zips[*around, MANY] = (
                toml_text(f"{_path(around)}.*{MANY}".removeprefix(".")) if takes_all else f"[{', '.join(paths)}]"
            )
            self._notations = {together.get(place, place): one for place, one in self._notations.items()}
            self._places = [together.get(place, place) for place in self._places]
        return zips

    def _places_in(self, prefix: Steps) -> list[Place]:
        return [Place(place.steps[len(prefix) :], place.node) for place in self._places if _within(place, prefix)]

    def _scored(self, prefix: Steps, *, is_empty: bool) -> _Each:
        inside = [place for place in self._places if _within(place, prefix) and not _wild(place.steps[len(prefix) :])]
        name = self._name_of_reading(prefix) if any(map(guesses.is_value, inside)) else None
        has_time = any(map(_tells_time, inside))
        has_id = max(map(guesses.sensor_rank, inside), default=0) >= guesses.LIKELY
        has_step = not has_id and any(guesses.is_step(place) and not _wild(place.steps) for place in self._places)
        if not any(map(guesses.is_reading, inside)) or not (name or has_time or has_id or has_step):
            return _Each(prefix, None, 0)
        is_called_so = len(prefix) == 1 or _READINGS.fullmatch(prefix[-2].lower()) is not None
        return _Each(prefix, name, 3 * bool(name) + 2 * (has_time or has_step) + is_called_so + is_empty)

    def _name_of_reading(self, prefix: Steps) -> Place | None:
        """Returns the innermost field that names readings, in an element of a level that the prefix goes through."""
        levels = {prefix[: at + 1] for at, step in enumerate(prefix) if step == MANY}
        names = [place for place in self._places if guesses.names_a_reading(place) and place.steps[:-1] in levels]
        return names[-1] if names else None

    def _level(self, place: Place) -> int:
        """Returns the number of steps up to the innermost element that the place and ``each`` share."""
        shared = 0
        for at, (step, other) in enumerate(zip(place.steps, self._each.steps, strict=False)):
            if step != other:
                break
            shared = at + 1 if step == MANY else shared
        return shared

    def _written(self, place: Place) -> str:
        """Returns the path of a place, as the mapping reads it."""
        level = self._level(place)
        rest = _path(("", *place.steps[level:]), star=True) + (".**" if place.node == PLAIN else "")
        if level and level == len(self._each.steps):
            return rest or "."
        return (_path(place.steps[:level]) + rest).removeprefix(".")

    def _in_element(self, place: Place) -> bool:
        return self._level(place) == len(self._each.steps)

    def _sensors(self) -> tuple[list[Place], Place | None]:
        """Returns the places that may name the sensor, the likeliest first, and the place that differs between
        elements.

        The latter is None unless elements have no time of their own.
        """
        ranked = sorted(filter(guesses.sensor_rank, self._single), key=_always_set(guesses.sensor_rank), reverse=True)
        # What stands beside the name of a reading describes the reading: its unit is no device.
        metric = self._each.name.steps[:-1] if self._each.name else None
        ranked = [
            place for place in ranked if guesses.time_rank(place) < guesses.CALLED_TIME and place.steps[:-1] != metric
        ]
        inner = [place for place in ranked if self._in_element(place)]
        if not self._each.steps or not inner or self._each.name or (ranked and self._in_element(ranked[0])):
            return ranked, None
        has_time = any(_tells_time(place) for place in self._single if self._in_element(place))
        return ranked, None if has_time else inner[0]

    def _sensor_line(self) -> str:
        likely = [place for place in self._sensor if guesses.sensor_rank(place) >= guesses.LIKELY]
        attribute = self._attribute()
        if attribute and (not likely or guesses.sensor_rank(likely[0]) < guesses.CALLED_ID):
            known = ", ".join(toml_text(attribute.format(key)) for key in guesses.ATTRIBUTES)
            return f"sensor = [{known}] # guess: the first attribute that is set"
        if not likely:
            return 'sensor = "@device_id" # guess: no field looks like a sensor\'s id; name a field or an attribute'
        first, *others = [self._written(place) for place in likely[: _MAX_OTHERS + 1]]
        if self._own_id:
            inner = self._written(self._own_id)
            return f"sensor = {toml_text(f'{{{first}}}/{{{inner}}}')} # guess: elements without a time of their own"
        return f"sensor = {toml_text(first)} # guess" + (f"; or {', '.join(others)}" if others else "")

    def _attribute(self) -> str | None:
        """Returns the path of an attribute in a list of keys and values around the elements; its key is ``{}``."""
        if not self._each.steps:
            return None
        for place in self._places:
            around, key = place.steps[:-2], place.steps[-2:]
            if key != (MANY, "key") or not guesses.is_text(place) or self._in_element(place):
                continue
            values = [one for one in self._places if _within(one, (*around, MANY, "value")) and guesses.is_text(one)]
            single = [one for one in values if not _wild(one.steps[len(around) + 1 :])]
            if single and _level_of(around, self._each.steps) == _wild(around):
                return f"{_path(around)}[key={{}}].{_path(single[0].steps[len(around) + 1 :])}"
        return None

    def _found_times(self) -> list[Place]:
        """Returns the places that may be the time: the likeliest in the element, then the likeliest around it."""
        ranked = sorted(filter(guesses.time_rank, self._single), key=_always_set(guesses.time_rank), reverse=True)
        ranked = [
            place for place in ranked if place.kind != "string" or not self._notations or self._notations.get(place)
        ]
        ranked = ranked or [place for place in self._single if self._notations.get(place)]
        inner = [place for place in ranked if self._in_element(place)][:1]
        outer = [place for place in ranked if not self._in_element(place)][:1]
        return inner + outer

    def _found_span(self) -> tuple[str, Place] | None:
        """Returns the place of the span between the message's time and the time of an element, and its key."""
        if not self._each.steps or any(map(self._in_element, self._times)):
            return None
        offsets = [place for place in self._single if self._in_element(place) and guesses.is_offset(place)]
        if offsets:
            return "plus", offsets[0]
        steps = [place for place in self._single if not self._in_element(place) and guesses.is_step(place)]
        is_series = not self._each.name and not any(map(self._in_element, self._sensor))
        return ("step", steps[0]) if steps and is_series else None

    def _time_line(self) -> str:
        sources, note, span = [], "guess", ""
        if self._span:
            key, place = self._span
            unit, is_known = guesses.unit_of(place)
            unit = "" if place.kind == "duration" else f", unit = {toml_text(unit if is_known else 's')}"
            span = f", {key} = {{ path = {toml_text(self._written(place))}{unit} }}"
        for place in self._times:
            source = toml_text(self._written(place))
            notation = self._notations.get(place)
            if notation and (notation.format or notation.interval or (notation.is_local and self._zone)):
                interval = f"interval = {toml_text(notation.interval)}, " if notation.interval else ""
                time_format = f"format = {toml_text(notation.format)}, " if notation.format else ""
                zone = toml_text(self._zone or "UTC")
                source = f"{{ path = {source}, {interval}{time_format}time_zone = {zone}{span} }}"
                note = note if self._zone else "guess, also of the zone"
            elif place.kind in ("int", "double", "float"):
                unit, is_known = (notation.unit, True) if notation else guesses.unit_of(place)
                source = f"{{ path = {source}, unit = {toml_text(unit)}{span} }}"
                note = note if is_known else "guess, also of the unit"
            elif span:
                source = f"{{ path = {source}{span} }}"
            sources.append(source)
        if span:  # at the publish time, all elements would have one time
            published = f'{{ path = "$publish_time"{span} }}'
            return f"time = {sources[0] if sources else published} # {note}"
        if not sources:
            return 'time = "$publish_time" # guess: no field looks like a time'
        is_named = not self._each.steps or self._each.name
        if not is_named and any(map(self._in_element, self._times)):  # elements without a time would be one event
            return f"time = {sources[0] if len(sources) == 1 else '[' + ', '.join(sources) + ']'} # {note}"
        note += "; a message without a plausible time takes the last one"
        return f'time = [{", ".join(sources)}, "$publish_time"] # {note}'

    def _taken(self) -> set[Place]:
        first = [place for place in self._sensor[:1] if guesses.sensor_rank(place) >= guesses.LIKELY]
        return {
            *first,
            *self._times,
            *([self._own_id] if self._own_id else []),
            *(self._span[1:] if self._span else []),
            *([self._each.name] if self._each.name else []),
        }

    def _named_readings(self) -> Iterator[str]:
        """Yields the entry of readings whose names the elements contain."""
        values = [place for place in self._single if self._in_element(place) and guesses.is_value(place)]
        name = self._written(self._each.name) if self._each.name else ""
        listed = ", ".join(toml_text(self._written(place)) for place in values)
        yield f'"*" = {{ name = {toml_text(name)}, first = [{listed}] }} # guess: an element is a name and a value'

    def _entries(self, places: Iterable[Place], is_wanted: Callable[[Place], bool]) -> Iterator[_DraftEntry]:
        """Yields the entries of places that nothing else takes, unless more than one star would have to lead there."""
        taken = self._taken()
        for place in places:
            rest = place.steps[self._level(place) :] or place.steps[-2:-1]
            is_plain = place.node == PLAIN
            if place in taken or not (is_plain or is_wanted(place)) or _wild(rest) + is_plain > 1:
                continue
            is_star = is_plain or rest[-1] == ENTRY
            name = "*" if is_star else ".".join("*" if step in (MANY, ENTRY) else step for step in rest)
            yield _DraftEntry(name, self._written(place), str(place.node))


def _table(entries: list[_DraftEntry], most: int) -> Iterator[str]:
    """Yields the lines of a table. A name is shortened to its last part if no other entry has the same one."""
    last = [entry.name.rpartition(".")[2] for entry in entries]
    lines: dict[str, tuple[list[str], str]] = {}
    for entry, short in zip(entries, last, strict=True):
        name = entry.name if "*" in entry.name else slug(short if last.count(short) == 1 else entry.name)
        if not is_name(name.replace("*", "a")):
            continue
        if name in lines and name == "*":
            lines[name][0].append(entry.path)
        elif name not in lines:
            lines[name] = [entry.path], entry.type
    for name, (paths, kind) in list(lines.items())[:most]:
        value = toml_text(paths[0]) if len(paths) == 1 else f"[{', '.join(map(toml_text, paths))}]"
        yield f"{guesses.toml_key(name)} = {value} # {kind}"
    if len(lines) > most:
        yield f"# {len(lines) - most:,} more fields, beyond the {most:,} that an event can have"


def _tells_time(place: Place) -> bool:
    return guesses.time_rank(place) >= guesses.CALLED_TIME or guesses.is_offset(place)


def _always_set(rank: Callable[[Place], int]) -> Callable[[Place], tuple[bool, int]]:
    """Returns a rank by which likely places outside oneofs are first."""
    return lambda place: (rank(place) >= guesses.LIKELY and not place.in_oneof, rank(place))


def _level_of(steps: Steps, each: Steps) -> int:
    """Returns the number of repeated fields that lead to both."""
    shared = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(steps, each, strict=False)))
    return sum(step == MANY for step, _ in shared)


def _within(place: Place, prefix: Steps) -> bool:
    return place.steps[: len(prefix)] == prefix


def _wild(steps: Steps) -> int:
    """Returns the number of steps that are elements or entries."""
    return sum(step in (MANY, ENTRY) for step in steps)


def _path(steps: Steps, *, star: bool = False) -> str:
    """Returns steps as a path, with ``[]`` for an element, or with stars for elements and entries."""
    if star:
        return ".".join("*" if step in (MANY, ENTRY) else _step(step) for step in steps)
    return ".".join(map(_step, steps)).replace(f".{MANY}", MANY)


def _step(step: str) -> str:
    return step if step in ("", MANY, ENTRY) or _BARE.fullmatch(step) else f'"{step}"'
