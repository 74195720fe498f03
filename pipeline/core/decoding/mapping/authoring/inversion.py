"""Inverts a mapping: makes messages of its type, of which the mapping makes given events.

Each value is set where the first source that can be set reads it, and stays for all keys that read it.
"""

import base64
import copy
import fnmatch
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any
from urllib.parse import urlencode

from google.protobuf import duration_pb2, json_format, timestamp_pb2

from pipeline.core.decoding.mapping.authoring.documents import (
    Elements,
    ImpossibleError,
    LeftOutError,
    MessageRow,
    Spot,
    slot,
    value_at,
)
from pipeline.core.decoding.mapping.compiling.execution import MadeEvent, rewritten
from pipeline.core.decoding.mapping.compiling.mapper import Mapper
from pipeline.core.decoding.mapping.compiling.resolve import Branch, Resolver
from pipeline.core.decoding.mapping.language import model
from pipeline.core.decoding.mapping.language.model import JSON, Condition, MappingEntry, MappingError, Source
from pipeline.core.decoding.mapping.language.paths import (
    SELECTORS,
    Current,
    Field,
    Index,
    Lookup,
    Path,
    PathError,
    Root,
    Star,
    Step,
    Together,
)
from pipeline.core.decoding.mapping.values import conversions, in_units, inverses, times
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Getter, KeyAndValue, Leaf, Node, Record, Steps, ZipRow
from pipeline.core.events.event import LATEST_US, Event, valid_event
from pipeline.core.events.message import MESSAGE_TYPE, Message
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.line_protocol import FIELDS, MEASUREMENT, point_text
from pipeline.core.notation.times import to_datetime

_TEXT = Leaf("string")
_OF_STAR = 50  # values that a star over fields makes
_ORDERING_KEY = "$ordering_key"

_Make = Callable[[str, Source, list[Spot]], Any]
"""Takes a key, its source and the places of its path. Sets one of them, and returns its value in the event."""


_Rows = tuple[int, MessageRow, MadeEvent]
"""A row, the number of its branch, and the event that it is meant to become."""


class Inversion:
    """A compiled mapping, inverted."""

    def __init__(self, mapper: Mapper) -> None:
        self._mapper, self.mapping, self._resolver = mapper, mapper.mapping, mapper.resolver
        _check_keys(self.mapping)
        self._claimed = frozenset(use.names for use in mapper.uses if use.is_claimed and not use.of_star)
        # The choices for the first event hold for all: places, by branch and path; labels and places of stars; the
        # positions of the sources that can be set, by branch, key and label, None where messages lack the value.
        self._places: dict[tuple[int, Path], list[Spot]] = {}
        self._of_stars: dict[Any, list[tuple[str, Spot]]] = {}
        self.sources: dict[tuple[int, str, str], int | None] = {}
        self._is_proven = False
        self._getters: dict[tuple[str, int, int], Getter] = {}
        # One of the ways that lead through the same path of each.
        self._branches = list({branch.path: branch for branch in reversed(mapper.branches)}.values())[::-1]
        self._lists = [list(self._lists_of(branch)) for branch in self._branches]

    @property
    def holds_several(self) -> bool:
        """Whether a message may hold several events."""
        paths = [path for source in self.mapping.time for path in source.value_paths]
        is_in_elements = any(path.root is Root.ELEMENT or Current() in path.steps for path in paths)
        if not is_in_elements or any(source.step for source in self.mapping.time):
            return False
        return not any(isinstance(at.node, KeyAndValue) for lists in self._lists for at in lists)

    def messages(
        self, events: Iterable[tuple[int, Event]], batch: int = 1, *, delay: timedelta = timedelta(0)
    ) -> Iterator[tuple[Message, list[Event]]]:
        """Yields messages, and the events that the mapping makes of each.

        They have the given events' times, and their ids and values as far as the fields can hold them. Once a message
        was made, an event without a possible message is left out: clocks may show its time twice.

        Args:
            events: pairs of a sensor's number and an event.
            batch: the number of events that a message waits for, if it can hold several.
            delay: the time from an event to the publish time of its message.

        Raises:
            MappingError: no message can be made; the key can't be set.
        """
        for rows in self._grouped(events, batch):
            try:
                message, meant = self._message(rows)
                message = message._replace(publish_time=to_datetime(meant[0].event_time_us) + delay)
                events_of_message = self._read(message, meant)
            except MappingError:
                if not self._is_proven:
                    raise
            else:
                self._is_proven = True
                yield message, events_of_message

    def _grouped(self, events: Iterable[tuple[int, Event]], batch: int) -> Iterator[list[_Rows]]:
        waiting: dict[str, list[_Rows]] = {}  # by the shared part
        for number, event in events:
            filled = {}
            try:
                for branch, row, meant in self._rows(number, event):
                    shared = repr((row.levels[0], row.attributes))
                    filled[shared] = waiting.setdefault(shared, [])
                    filled[shared].append((branch, row, meant))
            except MappingError:
                if not self._is_proven:
                    raise
            for shared, rows in filled.items():
                if len({meant.identity for *_, meant in rows}) >= batch:
                    yield waiting.pop(shared)
        yield from waiting.values()

    def _read(self, message: Message, meant: Iterable[MadeEvent]) -> list[Event]:
        """Returns the events that the mapping makes of a message. Raises MappingError if they are not those meant."""
        try:
            content = self._mapper.parse(message)
            if not self._mapper.matches(message, content):
                raise MappingError("match", "simulate can't make a message that fulfils it")
            result = self._mapper.map(message, content, LATEST_US, metadata_alone=True)
            for refused in result.problems:
                raise refused
            events = [valid_event(event, LATEST_US, metadata_alone=True) for event in result.events]
        except BadData as error:
            raise MappingError("", f"simulate makes messages that the mapping refuses: {error}") from None
        by_identity = {(event.sensor_id, event.event_time_us): event for event in events}
        for event in meant:
            same = by_identity.get(event.identity[:2])
            if same is None:
                problem = "simulate can't set the path that is read for it; if it is the publish time, use --live"
                raise MappingError("time", problem)
            read: dict[str, Mapping[str, Any]] = {"readings": same.readings, "metadata": same.metadata}
            for table, wanted in ("readings", event.readings), ("metadata", event.metadata):
                for name, value in wanted.items():
                    if read[table].get(name) != value:
                        problem = f"simulate can't set it to {value}: {read[table].get(name)} is read"
                        raise MappingError(f"{table}.{name}", problem)
        return events

    def _rows(self, number: int, event: Event) -> list[_Rows]:
        """Returns the rows of an event in each branch: one, or one for each metric if elements have names."""
        rows: list[_Rows] = []
        for index, branch in enumerate(self._branches):
            labels = [entry.label for entry in self.mapping.readings if entry.label]
            is_labelled = any(self.places(branch, path) for label in labels for path in label[0].value_paths)
            for label in event.readings if is_labelled else ("",):
                filler = _Filler(self, branch, number, event, label)
                made = filler.fill()
                if made.readings:
                    rows.append((index, filler.row, made))
        if not rows:
            raise MappingError("readings", "simulate can't set any in one message")
        return rows

    def places(self, branch: Branch, path: Path) -> list[Spot]:
        """Returns the places of a path without a star: one for each way through oneofs, if a branch has any.

        Raises LeftOutError for a path that only Pub/Sub or a file sets.
        """
        key = id(branch), path
        if key not in self._places:
            self._places[key] = self._found(branch, path)
        return self._places[key]

    def _found(self, branch: Branch, path: Path) -> list[Spot]:
        if path.root is Root.ATTRIBUTE or path.text == _ORDERING_KEY:
            return [Spot(0, (), _TEXT, attribute=path.names if path.root is Root.ATTRIBUTE else (_ORDERING_KEY,))]
        if path.root is Root.ENVELOPE:
            raise LeftOutError(f"no publisher sets {path}")
        try:
            level, steps = branch.level_of(path)
            start = branch.levels[level]
            return [self._place(level, start, way, steps) for way in self._resolver.resolve(start, steps)]
        except PathError:
            return []

    def getter(self, key: str, source: Source, place: Spot, compiled: Callable[[Node], Getter]) -> Getter:
        """Returns how a source reads the value at a place."""
        at = key, id(source), id(place)
        if at not in self._getters:
            self._getters[at] = compiled(place.node)
        return self._getters[at]

    def of_star(
        self, branch: Branch, source: Source, names: Iterable[str], kinds: Iterable[str]
    ) -> list[tuple[str, Spot]]:
        """Returns labels and places of values of some kinds that a star takes, under some names where any is free."""
        key = id(branch), id(source), tuple(names)
        if key not in self._of_stars:
            self._of_stars[key] = self._found_by(branch, source, names, kinds)
        return self._of_stars[key]

    def _found_by(
        self, branch: Branch, source: Source, names: Iterable[str], kinds: Iterable[str]
    ) -> list[tuple[str, Spot]]:
        try:
            level, steps = branch.level_of(source.path)  # type: ignore[arg-type] # a star is in a path
            start = branch.levels[level]
            at = next(index for index, step in enumerate(steps) if isinstance(step, Star))
            ends: list[tuple[str, tuple[Step, ...]]] = []
            for way in self._resolver.resolve(start, steps[:at]):
                if isinstance(way.to, Record):
                    for items in self._resolver.resolve_star(start, steps, self._claimed):
                        below = items.names[len(way.names) :]
                        if items.names[: len(way.names)] == way.names and "*" not in below and items.node != PLAIN:
                            label = ".".join(below[: len(below) - len(steps[at + 1 :])])
                            ends.append((label, tuple(map(Field, below))))
                else:
                    free = [name for name in names if (*way.names, name) not in self._claimed]
                    ends += [(name, (Field(name), *steps[at + 1 :])) for name in free]
            return [
                (label, self._place(level, start, way, (*steps[:at], *below)))
                for label, below in ends[:_OF_STAR]
                for way in self._resolver.resolve(start, (*steps[:at], *below))
                if isinstance(way.to, Leaf) and way.to.kind in kinds
            ]
        except PathError:
            return []

    def _place(self, level: int, start: Steps, way: Steps, steps: tuple[Step, ...]) -> Spot:
        """Returns the place that steps lead to from the start of a level, with the names of the way's own fields."""
        names = iter(way.names[len(start.names) :])
        if not isinstance(start.to, ZipRow):
            steps = tuple(Field(next(names)) if isinstance(step, Field) else step for step in steps)
        rivals, inner = {}, {}
        for index, step in enumerate(steps):
            for before in self._resolver.resolve(start, steps[:index]):
                if isinstance(step, Field) and isinstance(before.to, Record):
                    field = before.to.type.fields_by_name.get(step.name)
                    if field is not None and field.containing_oneof:
                        rivals[index] = {rival.name for rival in field.containing_oneof.fields} - {step.name}
            if isinstance(step, SELECTORS) and not isinstance(step, Index):
                element = self._resolver.resolve(start, steps[: index + 1])[0]
                at = Steps(element.to, names=element.names)
                by = self._place(0, at, self._resolver.resolve(at, step.path.steps)[0], step.path.steps)
                inner[index] = by, inverses.raw_of(by.node, step.text) if isinstance(step, Lookup) else None
        return Spot(level, steps, way.to, rivals, inner)

    def _lists_of(self, branch: Branch) -> Iterator[Spot]:
        """Yields the place of the elements of each level, in an element of the level above."""
        segment: tuple[Step, ...] = ()
        level = 0
        for step in branch.path:
            if isinstance(step, Current):
                start, to = branch.levels[level : level + 2]
                is_zip = isinstance(segment[-1], Together)
                yield Spot(level, segment, to.to) if is_zip else self._place(level, start, to, segment)
                level, segment = level + 1, ()
            else:
                segment += (step,)

    def _message(self, rows: list[_Rows]) -> tuple[Message, list[MadeEvent]]:
        first = rows[0][1]
        root = first.levels[0]
        last: dict[tuple[int, int], tuple[Any, dict[str, Any]]] = {}
        made: dict[tuple[str, int, str], MadeEvent] = {}
        for branch, row, event in rows:
            merged = made.setdefault(event.identity, event)
            merged.readings.update(event.readings)
            merged.metadata.update(event.metadata)
            above, is_new = root, False
            for level, place in enumerate(self._lists[branch], 1):
                content = row.levels[level]
                if level == len(self._lists[branch]):
                    _append(above, place, content)
                    break
                is_new = is_new or last.get((branch, level), (None,))[0] != content
                if is_new:
                    last[branch, level] = content, copy.deepcopy(content)
                    _append(above, place, last[branch, level][1])
                above = last[branch, level][1]
        attributes = self._attributes(first.attributes)
        ordering_key = attributes.pop(_ORDERING_KEY, "")
        data = self._payload(self._plain(root.get("", {}), ()))
        return Message(data, attributes, ordering_key=ordering_key), list(made.values())

    def _payload(self, document: Any) -> bytes:
        if self._mapper.message_class is not None:
            data = self._serialized(document, self._mapper.message_class)
        elif self.mapping.message == model.FORM:
            data = urlencode(document).encode()
        elif self.mapping.message == model.INFLUX:
            data = point_text({MEASUREMENT: "simulated", FIELDS: {"simulated": True}} | document).encode()
        else:
            data = json.dumps(document, ensure_ascii=False).encode()
        match self.mapping.compression:
            case "gzip":
                return gzip.compress(data, mtime=0)
            case "zlib":
                return zlib.compress(data)
        return data

    def _attributes(self, parts: dict[tuple[str, ...], str]) -> dict[str, str]:
        attributes = {MESSAGE_TYPE: self.mapping.message}
        for name, *part in parts:
            if part:
                text = self.mapping.attributes[name].pattern
                for group in self.mapping.attributes[name].groupindex:
                    text = re.sub(rf"\(\?P<{group}>.*?\)", lambda _: parts.get((name, group), "x"), text)  # noqa: B023
                attributes[name] = re.sub(r"\\(.)", r"\1", text)
            else:
                attributes[name] = parts[name,]
        return attributes

    def _serialized(self, document: Any, message_class: Any) -> bytes:
        try:
            parsed = json_format.ParseDict(document, message_class(), descriptor_pool=self._mapper.pool)
        except json_format.ParseError as error:
            problem = " ".join(str(error).split())
            raise MappingError("message", f"simulate can't set all that it reads together: {problem}") from None
        return parsed.SerializeToString(deterministic=True)

    def _plain(self, value: Any, names: tuple[str, ...]) -> Any:
        """Returns a value as protobuf's JSON, or as JSON, with contents packed into bytes or text."""
        match value:
            case list():
                filler = next((item for item in value if item is not None), None)
                items = [self._plain(filler if item is None else item, names) for item in value]
                if not (isinstance(value, Elements) and value.is_map):
                    return items
                return {_key_text(item.get("key", "1")): item.get("value", {}) for item in items}
            case dict():
                value = {name: self._plain(member, (*names, name)) for name, member in value.items()}
            case bytes():
                value = base64.b64encode(value).decode()
            case timestamp_pb2.Timestamp() | duration_pb2.Duration():
                value = value.ToJsonString()
        contents = self.mapping.types.get(names)
        if not contents:
            return value
        node = self._node_around(names)
        if isinstance(node, Record):
            return {"@type": f"type.googleapis.com/{contents[0]}", **value}
        if JSON in contents:  # perhaps as one of several
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            return base64.b64encode(text.encode()).decode() if node == Leaf("bytes") else text
        data = self._serialized(value, self._resolver.types.message_class(contents[0]))
        return base64.b64encode(data).decode()

    @cache  # noqa: B019 (as long as the inversion)
    def _node_around(self, names: tuple[str, ...]) -> Node:
        """Returns the node whose values contain the types that the mapping declares."""
        others = {at: types for at, types in self.mapping.types.items() if at != names}
        return Resolver(self._resolver.types, others).ends(Steps(self._mapper.root), names)[0].to


def _append(above: dict[str, Any], place: Spot, content: dict[str, Any]) -> None:
    """Appends an element to a list of the element above; of ``zip``, each of its values to a list."""
    if place.steps and isinstance(place.steps[-1], Together):
        for steps in place.steps[-1].lists:
            for name in (steps[-1].name,) if isinstance(steps[-1], Field) else content.get("", {}):
                value = content.get("", {}).get(name)
                _append(above, Spot(place.level, (*steps[:-1], Field(name)), PLAIN), {"": value})
        return
    try:
        container, key = slot(above, place)
    except ImpossibleError as error:
        raise MappingError("each", f"simulate can't fill its list: {error}") from None
    elements = value_at(container, key)
    if elements is None:
        elements = container[key] = Elements()
        elements.is_map = isinstance(place.node, KeyAndValue)
    if not isinstance(elements, Elements):
        raise MappingError("each", "simulate can't fill its list, of which another path reads an element")
    elements.append(content.setdefault("", {}))  # None is an element of zip that is not set


def _key_text(key: Any) -> str:
    return json.dumps(key) if isinstance(key, bool) else str(key)


class _Filler:
    """Fills a row with an event, or with one of its metrics if elements have names."""

    def __init__(self, inversion: Inversion, branch: Branch, number: int, event: Event, label: str) -> None:
        self._inversion, self._mapping, self._branch = inversion, inversion.mapping, branch
        self._number, self._event, self._label = number, event, label
        self.row = MessageRow(len(branch.levels))

    def fill(self) -> MadeEvent:
        """Returns the event that the mapping makes of the row; without readings if the branch has no path of one."""
        mapping, event = self._mapping, self._event
        for key, condition in mapping.conditions:
            if condition.kind != "set" or condition.values != (key != "skip_if",):  # others may be set by an entry
                self._fulfil(key, condition)
        sensor = self._needed("sensor", mapping.sensor, self._text(event.sensor_id, self._number))
        time_us = self._needed("time", mapping.time, self._time)
        event_id = self._text(f"{self._number}-{event.event_time_us}", event.event_time_us // 1000)
        made = MadeEvent(sensor, time_us, {}, {}, self._first("event_id", mapping.event_id, event_id) or "")
        tables = ("readings", mapping.readings, made.readings), ("metadata", mapping.metadata, made.metadata)
        for table, entries, into in tables:
            for fill in (self._fixed, self._labelled, self._starred):
                for entry in entries:
                    fill(f"{table}.{entry.name}", entry, into)
        for key, condition in mapping.conditions:
            self._fulfil(key, condition)
        return made

    def _fulfil(self, key: str, condition: Condition) -> None:
        try:
            self._require(condition, holds=key != "skip_if")
        except ImpossibleError as error:
            raise MappingError(key, f"simulate can't make a message for it: {error}") from None

    def _fixed(self, key: str, entry: MappingEntry, into: dict[str, Any]) -> None:
        if "*" not in entry.name:
            self._put(key, entry, entry.name, into)

    def _labelled(self, key: str, entry: MappingEntry, into: dict[str, Any]) -> None:
        if entry.label:
            metrics = list(self._event.readings)
            metric = self._label or metrics[0]
            label = self._first(f"{key}.name", entry.label, self._text(metric, metrics.index(metric) + 1))
            if label is not None:
                self._put(key, entry, label, into)

    def _starred(self, key: str, entry: MappingEntry, into: dict[str, Any]) -> None:
        values, kinds = (
            (self._event.readings, conversions.MEASURED)
            if key.startswith("readings")
            else (self._event.metadata, ("string", "enum", "json"))
        )
        for source in entry.value if "*" in entry.name and not entry.label else ():
            for label, place in self._inversion.of_star(self._branch, source, values, kinds):
                self._put(key, replace(entry, value=(source,)), label, into, [place])

    def _put(
        self, key: str, entry: MappingEntry, label: str, into: dict[str, Any], places: list[Spot] | None = None
    ) -> None:
        name = entry.name.replace("*", label)
        name = rewritten(name) if self._mapping.rewrite_names else name
        if name in into or any(fnmatch.fnmatchcase(label, glob) for glob in entry.excluded):
            return
        if key.startswith("readings"):
            make = self._reading(_chosen(self._event.readings, label), is_star=places is not None)
        else:
            text = _chosen(self._event.metadata, label)
            if self._mapping.message == model.FORM and places and conversions.decimal_in(text) is not None:
                text = f"v{text}"  # a star takes a number as a reading
            make = self._text(text, self._number)
        value = self._first(key, entry.value, make, places, label)
        if value is not None:
            into[name] = value

    def _needed(self, key: str, sources: model.Value, make: _Make) -> Any:
        value = self._first(key, sources, make)
        if value is None:
            raise MappingError(key, "simulate can't set it: no publisher sets its paths")
        return value

    def _first(
        self, key: str, sources: model.Value, make: _Make, places: list[Spot] | None = None, label: str = ""
    ) -> Any:
        """Sets the first source that can be set, and returns its value in the event; None if messages may lack it.

        Raises MappingError if they all can't be set.
        """
        at, choices = (id(self._branch), key, label), self._inversion.sources
        problem = None
        for index, source in enumerate(sources):
            if at in choices and choices[at] != index:
                continue
            before = None if at in choices else self.row.copy()
            try:
                for condition in source.when:
                    self._require(condition, holds=True)
                value = make(key, source, self._places(source.path) if places is None else places)
            except ImpossibleError as error:
                self.row = before or self.row
                problem = problem if isinstance(error, LeftOutError) else error
            else:
                choices[at] = index
                return value
        if problem:
            raise MappingError(key, f"simulate can't set it: {problem}")
        choices[at] = None
        return None

    def _places(self, path: Path | None) -> list[Spot]:
        is_needed = path is not None and path.text != "$publish_time"
        return self._inversion.places(self._branch, path) if path and is_needed else []

    def _set(
        self,
        key: str,
        source: Source,
        places: list[Spot],
        raw: Callable[[Node], Any],
        compiled: Callable[[Node], Getter],
    ) -> Any:
        """Sets the first place that can be set, and returns the value that the source reads there."""
        problem: ImpossibleError = LeftOutError("no message has it")
        for place in places:
            try:
                value = self.row.put(place, partial(raw, place.node))
                made = None if value is None else self._inversion.getter(key, source, place, compiled)(value)
                if made is not None:
                    return made
                problem = ImpossibleError(f"no value of {place.node} is found for it")
            except LeftOutError:
                pass
            except BadData as error:
                problem = ImpossibleError(error.detail)
        raise problem

    def _text(self, text: str, number: int) -> _Make:
        def at(key: str, source: Source, places: list[Spot], spec: str = "") -> str:
            return self._set(
                key,
                source,
                places,
                lambda node: inverses.raw_text(node, text, number, spec),
                lambda node: conversions.formatted(key, node, spec, source),
            )

        def make(key: str, source: Source, places: list[Spot]) -> Any:
            if source.constant is not None:
                return source.constant
            if source.name_of is not None:
                return self._name_of(key, source, source.name_of)
            if source.template is None:
                return at(key, source, places)
            return "".join(
                part if isinstance(part, str) else at(key, source, self._places(part.path), part.format)
                for part in source.template
            )

        return make

    def _name_of(self, key: str, source: Source, path: Path) -> str:
        """Returns the name of an enum's value, or of the field of a oneof that is set already."""
        for place in self._places(path):
            if place.steps and place.steps[-1] != path.steps[-1]:  # the name of a oneof stands for its fields
                container, name = slot(self.row.levels[place.level], place)
                if name in container:
                    return name
            else:
                return self._set(
                    key,
                    source,
                    [place],
                    lambda node: inverses.raw_text(node, "", self._number),
                    lambda node: conversions.text_of(key, node, source, name_of=True),
                )
        raise LeftOutError("no field of the oneof is set")

    def _reading(self, number: float, *, is_star: bool) -> _Make:
        numbers_of = conversions.star_number_of if is_star else conversions.number_of
        texts_of = in_units.star_text_of if is_star else in_units.text_of

        def make(key: str, source: Source, places: list[Spot]) -> Any:
            decimal = self._mapping.decimal
            if source.unit_path:
                units = self._places(source.unit_path)
                self._text(source.units[0].unit, 1)(key, Source(path=source.unit_path), units)
                source = inverses.in_first_unit(source)
            raw, converted = (inverses.raw_in_unit, texts_of) if source.units else (inverses.raw_number, numbers_of)
            return self._set(
                key,
                source,
                places,
                lambda node: raw(node, number, source, decimal),
                lambda node: converted(key, node, source, self._mapping) or _unset,
            )

        return make

    def _time(self, key: str, source: Source, places: list[Spot]) -> int:
        length_us = (source.length or timedelta()) // timedelta(microseconds=1)
        return self._stamp(key, source, places, self._event.event_time_us + length_us) - length_us

    def _stamp(self, key: str, source: Source, places: list[Spot], time_us: int) -> int:
        if source.path is not None and source.path.text == "$publish_time":
            return time_us
        if source.template is None:
            return self._set(
                key,
                source,
                places,
                lambda node: inverses.raw_time(node, time_us, source),
                lambda node: times.time_of(key, node, source),
            )
        text = inverses.raw_time(_TEXT, time_us, source)
        pattern = "".join(re.escape(part) if isinstance(part, str) else "(.+?)" for part in source.template)
        match = re.fullmatch(pattern, text)
        if not match:
            raise ImpossibleError(f"{text} does not have its form")
        texts = iter(match.groups())
        parts = (
            part if isinstance(part, str) else self._text(next(texts), 1)(key, _PLAIN_TEXT, self._places(part.path))
            for part in source.template
        )
        return times.time_of(key, _TEXT, source)("".join(parts))

    def _is_read(self, place: Spot, path: Path) -> bool:
        """Returns whether a place has a value whatever a condition needs."""
        is_set = isinstance(place.node, Leaf) and place.node.is_always_set
        return is_set or any(path in source.value_paths for _, value in self._mapping.values for source in value)

    def _require(self, condition: Condition, *, holds: bool) -> None:
        """Sets a value for which a condition holds, or does not. Raises ImpossibleError."""
        kind, places = condition.kind, self._places(condition.path)
        if kind == "set" and condition.values != (holds,):
            self.row.unset.update(place.at for place in places)
            return
        # What is not set fulfils is_not and no other test.
        may_be_unset = kind != "set" and (kind == "is_not") == holds
        if may_be_unset and not any(self._is_read(place, condition.path) for place in places):
            return
        for place in places:
            try:
                test = conversions.tester("", condition, place.node)
                raw = self.row.put(
                    place,
                    partial(inverses.raw_for, condition, place.node, test, self._event.sensor_id, holds=holds),
                )
                if raw is not None and test(raw) == holds:
                    return
            except (LeftOutError, conversions.NeverHolds):
                continue
        raise ImpossibleError(f"no value of {condition.path} is found for the condition")


_PLAIN_TEXT = Source()


def _check_keys(mapping: model.Mapping) -> None:
    """Raises MappingError for a key that can't be inverted."""
    for entry in (*mapping.readings, *mapping.metadata):
        if entry.label and any(source.path and source.path.has_star for source in entry.value):
            raise MappingError(f"{entry.name}.name", "simulate can't make messages by this key")


def _unset(_value: Any) -> None:
    """Reads a value that a star leaves out."""


def _chosen(values: dict[str, Any], name: str) -> Any:
    """Returns the value of a name, or another value."""
    return values[name] if name in values else list(values.values())[len(name) % len(values)]
