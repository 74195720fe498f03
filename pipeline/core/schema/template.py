"""Row-key templates: ``{sensor_id}#{reverse_us}`` renders keys, reads them back, and knows where they lie.

A template is literal text and tokens (:mod:`pipeline.core.schema.tokens`). Keys of one sensor between two instants are
one range of keys, or a few, because every template obeys three rules: a token of text ends at a ``#`` or at the key's
end; whatever else tells rows apart stands before the first time or behind the last; time goes from coarse to fine.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pipeline.core.events import RESERVED_SENSOR_IDS, BadData, Event, Reason, shown
from pipeline.core.rows import KeyRange, after_prefix
from pipeline.core.schema.tokens import (
    HOUR_US,
    SPREADING_TOKENS,
    TEXT_TOKENS,
    CalendarToken,
    EventIdToken,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TemplateError,
    TimeToken,
    Token,
    parse_token,
)

MAX_KEY_BYTES = 4096  # of Bigtable

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)")
_PRINTABLE = re.compile(r"[!-~]+")  # ASCII
_MOST_PATTERN = 8192  # characters of metrics' names: Bigtable takes a filter of 20 kB
_MOST_BYTES = 1024  # so that with the longest sensor id and metric a key has room


class RawKey(NamedTuple):
    """What a raw row's key says. What its template does not have is empty."""

    sensor_id: str
    time_us: int  # the start of the finest grain that the key tells
    metric: str = ""
    event_id: str = ""
    metadata: Mapping[str, str] = {}


@dataclass(frozen=True)
class Known:
    """What a reader knows of the rows that it looks for; None and absent is what it does not."""

    sensor_id: str | None = None
    metric: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # one of these, where it is not known which; none for any


class Scan(NamedTuple):
    """Where the rows that are looked for lie.

    Attributes:
        ranges: of keys, the newest first.
        reverse: whether each has to be read from its end to give the newest first.
        pattern: a regular expression (RE2) that a whole key matches, where the ranges hold rows of others as well.
    """

    ranges: Iterable[KeyRange]
    reverse: bool
    pattern: str | None


@dataclass(frozen=True)
class KeyTemplate:
    """A row-key template, checked. Made by :meth:`parse`."""

    text: str
    parts: tuple[Token | str, ...] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "KeyTemplate":
        """The template that the text is.

        Raises:
            TemplateError: a token that is none, or a template whose rows could not be told apart or found again.
        """
        if len(text) > _MOST_BYTES:
            raise TemplateError(f"{shown(text)} has {len(text):,} characters, at most {_MOST_BYTES:,} leave a key room")
        if not _PRINTABLE.fullmatch(text):
            raise TemplateError(f"{shown(text)} is not printable ASCII without blanks")
        if "".join(found[0] for found in _PART.finditer(text)) != text:
            raise TemplateError(f"{text!r} has a brace without its partner")
        parts = [
            parse_token(token) if literal is None else literal
            for token, literal in (found.groups() for found in _PART.finditer(text))
        ]
        template = cls(text, tuple(parts))
        template._check()
        return template

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyTemplate.parse, (self.text,)  # the text says it all, and functions do not pickle

    # What it is made of

    def has(self, kind: type[Token]) -> bool:
        """Whether there is a token of the kind."""
        return any(isinstance(part, kind) for part in self.parts)

    @cached_property
    def metadata_names(self) -> tuple[str, ...]:
        """The metadata fields that are promoted to the key."""
        return tuple(part.name for part in self.parts if isinstance(part, MetadataToken))

    @cached_property
    def grain_us(self) -> int:
        """How far apart two events of a sensor must be so that their keys surely differ, in microseconds."""
        return self._times[-1].grain_us

    @cached_property
    def tells_events(self) -> bool:
        """Whether events of one moment have keys of their own."""
        return self.has(EventIdToken)

    @cached_property
    def newest_first(self) -> bool:
        """Whether a later event of a sensor has the lesser key."""
        return all(token.newest_first for token in self._times)

    @cached_property
    def coarse_time(self) -> TimeToken | None:
        """The first time, where a finer one stands behind it; None where there is one alone."""
        return self._times[0] if len(self._times) > 1 else None

    @cached_property
    def time_first(self) -> bool:
        """Whether the keys of all sensors begin with the time."""
        return self._index(TimeToken) < self._index(SensorToken)

    @cached_property
    def prefix_scans(self) -> bool:
        """Whether all events of several sensors side by side can be had by one scan, sensor by sensor."""
        one_direction = len({token.newest_first for token in self._times}) == 1
        metric_behind = not self.has(MetricToken) or self._index(TimeToken) < self._index(MetricToken)
        return not self.time_first and one_direction and metric_behind

    def shares_times(self, known: Known) -> bool:
        """Whether several rows, in an order of their own, may be of one sensor and one time by the keys' grain."""
        behind = self.parts[self._index_of_last_time :]
        return any(
            isinstance(part, MetadataToken | EventIdToken) or (isinstance(part, MetricToken) and known.metric is None)
            for part in behind
        )

    @cached_property
    def spread(self) -> int:
        """Over how many ranges of keys the sensors are spread by the salt and shard before them; 1 for none."""
        spread = 1
        for part in self.parts[: self._index(SensorToken)]:
            if isinstance(part, SPREADING_TOKENS):
                spread *= len(part.values)
        return spread

    @cached_property
    def names_before_sensor(self) -> tuple[str, ...]:
        """The promoted metadata fields that stand before the sensor."""
        before = self.parts[: self._index(SensorToken)]
        return tuple(part.name for part in before if isinstance(part, MetadataToken))

    # Keys

    def check(self, event: Event) -> None:
        """Raises BadData for an event of which no key can be made."""
        if not self._demanding:
            return
        for name in self.metadata_names:
            _check_field(f"metadata {name}", event.metadata.get(name, ""))
        if self.has(EventIdToken):
            _check_field("event_id", event.event_id)
        key = self.render(event, max(event.readings, key=len) if self.has(MetricToken) else "")
        if len(key) > MAX_KEY_BYTES:
            raise BadData(Reason.KEY_TOO_LONG, f"the row key has {len(key)} bytes, at most {MAX_KEY_BYTES}")
        for metric in event.readings if self._reservable and self.has(MetricToken) else [""]:
            segment = first_segment(self.render(event, metric))
            if segment in RESERVED_SENSOR_IDS:
                raise BadData(Reason.RESERVED_KEY, f"the row key begins with {segment}#, as the table's own rows do")

    def render(self, event: Event, metric: str = "") -> bytes:
        """The key of the event, or of the reading of it; the event has passed :meth:`check`."""
        return (self._format % tuple([of_event(event, metric) for of_event in self._renderers])).encode()

    def parse_key(self, key: bytes) -> RawKey:
        """What a key says. Raises ValueError where the template does not render such keys."""
        found = self._pattern.fullmatch(key.decode())
        if found is None:
            raise ValueError(f"{key!r} is not of the form {self.text}")
        sensor_id = metric = event_id = ""
        time_us = 0
        metadata = {}
        for token, text in zip(self._tokens, found.groups(), strict=True):
            match token:
                case SensorToken():
                    sensor_id = text
                case TimeToken():
                    time_us = token.parse(text)
                case MetricToken():
                    metric = text
                case MetadataToken(name=name):
                    metadata[name] = text
                case EventIdToken():
                    event_id = text
        return RawKey(sensor_id, time_us, metric, event_id, metadata)

    def split_keys(self, most: int) -> list[bytes]:
        """Keys at which a new table may be split, at most so many: between salts or shards. Empty without either."""
        prefixes = [""]
        spreading = [index for index, part in enumerate(self.parts) if isinstance(part, SPREADING_TOKENS)]
        for part in self.parts[: max(spreading, default=-1) + 1]:
            if isinstance(part, str):
                prefixes = [prefix + part for prefix in prefixes]
            elif isinstance(part, SPREADING_TOKENS):
                prefixes = [prefix + value for prefix in prefixes for value in part.values]
                if len(prefixes) > most:
                    break
            else:
                break
        step = -(-len(prefixes) // (most + 1))
        return [prefix.encode() for prefix in prefixes[step::step]]

    # Where keys lie

    def missing(self, known: Known) -> list[str]:
        """The promoted metadata fields without which a sensor can't be found, and that are not known."""
        before = self.parts[: self._index(TimeToken)]
        return [part.name for part in before if isinstance(part, MetadataToken) and part.name not in known.metadata]

    def unknown(self, known: Known) -> Token | None:
        """The first token that stands before the time and is not known: its values have to be looked up first."""
        for part in self.parts[: self._index(TimeToken)]:
            if not isinstance(part, str) and _of_known(part, known) is None:
                return part
        return None

    def prefix(self, known: Known, sensor_prefix: str = "") -> bytes:
        """What all keys begin with, of which so much is known: up to the first token that is not.

        Args:
            known: what is known.
            sensor_prefix: what the sensors' ids begin with, where no more of them is known.
        """
        prefix = ""
        for part in self.parts:
            text = part if isinstance(part, str) else _of_known(part, known)
            if text is None:
                return (prefix + sensor_prefix if isinstance(part, SensorToken) else prefix).encode()
            prefix += text
        return prefix.encode()

    def through(self, kind: type[Token], key: bytes) -> bytes:
        """How the key begins, up to the token of that kind and the ``#`` behind it. Raises ValueError as parse_key."""
        text = key.decode()
        found = self._pattern.fullmatch(text)
        if found is None:
            raise ValueError(f"{key!r} is not of the form {self.text}")
        index = next(index for index, token in enumerate(self._tokens) if isinstance(token, kind))
        end = found.end(index + 1)
        return text[: end + 1 if kind in TEXT_TOKENS and text[end:] else end].encode()

    def scan(self, known: Known, start_us: int, end_us: int) -> Scan:
        """Where events from ``start_us``, inclusive, to ``end_us``, exclusive, lie, by the grain of the keys.

        Needs 0 ≤ start_us < end_us ≤ :data:`LATEST_US` + 1, and everything before the last time to be known:
        :meth:`unknown` to be None, and the sensor. Where the grain is coarse, the ranges hold events outside these
        times too.
        """
        first = self._index(TimeToken)
        ranges = list(self._ranges(first, self.prefix(known), known, start_us, end_us - 1))
        return Scan(ranges, not self._times[-1].newest_first, self.pattern_of(known))

    def coarse_range(self, known: Known, start_us: int, end_us: int) -> KeyRange:
        """All keys whose first time, by its own grain, is within these; as for :meth:`scan`."""
        least, most = sorted((self._times[0].render(start_us), self._times[0].render(end_us - 1)))
        prefix = self.prefix(known)
        return KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))

    def _ranges(self, index: int, prefix: bytes, known: Known, start_us: int, last_us: int) -> Iterator[KeyRange]:
        """From the time token at ``index`` on, the newest first; both instants inclusive."""
        token = self.parts[index]
        assert isinstance(token, TimeToken)  # noqa: S101 (for the type checker)
        behind = next((i for i in range(index + 1, len(self.parts)) if isinstance(self.parts[i], TimeToken)), None)
        if behind is None:
            least, most = sorted((token.render(start_us), token.render(last_us)))
            yield KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))
            return
        between = "".join(
            part if isinstance(part, str) else _of_known(part, known) or "" for part in self.parts[index + 1 : behind]
        )
        while start_us <= last_us:
            floor_us = max(token.floor(last_us), start_us)
            inner = prefix + (token.render(last_us) + between).encode()
            yield from self._ranges(behind, inner, known, floor_us, last_us)
            last_us = floor_us - 1

    def pattern_of(self, known: Known) -> str | None:
        """What a key has to match, where a sensor or metric that is known stands behind the last time."""
        telling: dict[Token, str] = {
            part: pattern
            for part in self.parts[self._index_of_last_time :]
            if isinstance(part, SensorToken | MetricToken) and (pattern := _known_pattern(part, known)) is not None
        }
        if not telling:
            return None
        return "".join(
            re.escape(part) if isinstance(part, str) else telling.get(part, part.pattern) for part in self.parts
        )

    # What makes it sound

    @cached_property
    def _tokens(self) -> tuple[Token, ...]:
        return tuple(part for part in self.parts if isinstance(part, Token))

    @cached_property
    def _times(self) -> tuple[TimeToken, ...]:
        return tuple(part for part in self.parts if isinstance(part, TimeToken))

    @cached_property
    def _index_of_last_time(self) -> int:
        return self.parts.index(self._times[-1])

    @cached_property
    def _format(self) -> str:
        return "".join(part.replace("%", "%%") if isinstance(part, str) else "%s" for part in self.parts)

    @cached_property
    def _renderers(self) -> list[Callable[[Event, str], str]]:
        return [_renderer(token) for token in self._tokens]

    @cached_property
    def _demanding(self) -> bool:
        """Whether an event can lack what the key is made of, or make a key that can't be."""
        return bool(self.metadata_names) or self.has(EventIdToken) or self._reservable

    @cached_property
    def _reservable(self) -> bool:
        """Whether a key can begin as the table's own rows do; a sensor's id alone never does."""
        beginning = "".join(
            re.escape(part) if isinstance(part, str) else part.pattern for part in self.parts
        ).partition("\\#")[0]
        return not isinstance(self.parts[0], SensorToken) and any(
            re.fullmatch(beginning, segment) for segment in RESERVED_SENSOR_IDS
        )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(
            "".join(re.escape(part) if isinstance(part, str) else f"({part.pattern})" for part in self.parts), re.DOTALL
        )

    def _index(self, kind: type[Token]) -> int:
        return next(index for index, part in enumerate(self.parts) if isinstance(part, kind))

    def _check(self) -> None:
        texts = [token.text for token in self._tokens]
        if repeated := next((text for text in texts if texts.count(text) > 1), None):
            raise TemplateError(f"{self.text!r} has {repeated} twice")
        if not self.has(SensorToken):
            raise TemplateError(f"{self.text!r} has no {{sensor_id}}: sensors could not be told apart")
        if not self._times:
            raise TemplateError(
                f"{self.text!r} has no time: a sensor's events would all be one row; add one, like {{reverse_us}}"
            )
        self._check_text_ends()
        self._check_times()
        if first_segment(self.text.encode()) in RESERVED_SENSOR_IDS:
            raise TemplateError(
                f"{self.text!r} begins with {first_segment(self.text.encode())}#, as the table's own rows do"
            )

    def _check_text_ends(self) -> None:
        for part, behind in pairwise([*self.parts, "#"]):
            if isinstance(part, TEXT_TOKENS) and not (isinstance(behind, str) and behind.startswith("#")):
                raise TemplateError(
                    f"{part.text} has to be followed by '#' or end the key, or where it ends could not be told"
                )

    def _check_times(self) -> None:
        for coarse, fine in pairwise(self._times):
            if coarse.grain_us <= fine.grain_us:
                raise TemplateError(f"{coarse.text} is no coarser than {fine.text} behind it; leave one out")
            if coarse.grain_us < HOUR_US or not isinstance(coarse, CalendarToken):
                raise TemplateError(
                    f"{coarse.text} before {fine.text} makes a range of keys of every moment; use {{bucket:1d}}"
                )
        first = self._index(TimeToken)
        last = self._index_of_last_time
        for part in self.parts[first:last]:
            if isinstance(part, MetricToken | MetadataToken):
                raise TemplateError(f"{part.text} stands between two times; put it before {self._times[0].text}")
        if any(isinstance(part, EventIdToken) for part in self.parts[:last]):
            raise TemplateError(
                f"{{event_id}} has to stand behind {self._times[-1].text}: it tells events of one moment apart"
            )


def first_segment(key: bytes) -> str:
    """What a key says before its first '#'."""
    return key.partition(b"#")[0].decode(errors="backslashreplace")


def _check_field(name: str, text: str) -> None:
    if not text:
        raise BadData(Reason.MISSING_KEY_FIELD, f"{name} is missing or empty; the table's row keys are made of it")
    if "#" in text:
        raise BadData(Reason.INVALID_KEY_FIELD, f"{name} is {shown(text)}; what row keys are made of can't hold '#'")


def _renderer(token: Token) -> Callable[[Event, str], str]:
    """What writes the token into a key, given the event and the metric."""
    match token:
        case SensorToken():
            return lambda event, _: event.sensor_id
        case TimeToken():
            render = token.render
            return lambda event, _: render(event.event_time_us)
        case SaltToken() | ShardToken():
            return lambda event, _: token.render(event.sensor_id)
        case MetricToken():
            return lambda _, metric: metric
        case MetadataToken(name=name):
            return lambda event, _: event.metadata[name]
        case EventIdToken():
            return lambda event, _: event.event_id
    raise TypeError(token)


def _of_known(token: Token, known: Known) -> str | None:
    match token:
        case SensorToken():
            return known.sensor_id
        case SaltToken() | ShardToken():
            return None if known.sensor_id is None else token.render(known.sensor_id)
        case MetricToken():
            return known.metric
        case MetadataToken(name=name):
            return known.metadata.get(name)
    return None


def _known_pattern(token: Token, known: Known) -> str | None:
    text = _of_known(token, known)
    if text is not None:
        return re.escape(text)
    if isinstance(token, MetricToken) and known.metrics and sum(map(len, known.metrics)) < _MOST_PATTERN:
        return f"(?:{'|'.join(map(re.escape, known.metrics))})"
    return None
