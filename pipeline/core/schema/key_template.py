"""Row key templates, such as ``{sensor_id}#{reverse_us}``: render row keys, parse them, and find their ranges.

A template consists of literal text and tokens (:mod:`pipeline.core.schema.key_tokens`). The keys of one sensor between
two instants form one range, or a few, because every template obeys three rules: a text token ends at a ``#`` or at the
end of the key; tokens that identify rows come before the first time token or after the last; time goes from coarse to
fine.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pipeline.core.events.event import LATEST_US, RESERVED_SENSOR_IDS, Event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown
from pipeline.core.rows.rows import KeyRange, after_prefix
from pipeline.core.schema.key_tokens import (
    HOUR_US,
    SPREADING_TOKENS,
    TEXT_TOKENS,
    WEEK_US,
    CalendarToken,
    EventIdToken,
    MetadataToken,
    MetricToken,
    ReverseToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TemplateError,
    TimeToken,
    Token,
    parse_token,
)

MAX_KEY_BYTES = 4096  # Bigtable's limit

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)")
_PRINTABLE = re.compile(r"[!-~]+")  # ASCII
_MAX_PATTERN = 8192  # characters of metric names; Bigtable accepts filters up to 20 kB
_MAX_BYTES = 1024  # leaves room in a key for the longest sensor id and metric


class RawKey(NamedTuple):
    """The fields of a raw row's key. Fields that its template lacks are empty."""

    sensor_id: str
    time_us: int  # the start of the finest grain in the key
    metric: str = ""
    event_id: str = ""
    metadata: Mapping[str, str] = {}


@dataclass(frozen=True)
class KeyBindings:
    """The known values of a template's tokens. None, or absent metadata, is unknown."""

    sensor_id: str | None = None
    metric: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # the possible metrics, if the metric is unknown; empty for any


class Scan(NamedTuple):
    """The key ranges to read.

    Attributes:
        ranges: key ranges, newest first.
        reverse: whether to read each range in reverse, to get the newest first.
        pattern: a regular expression (RE2) that the whole key must match; None if the ranges contain no other rows.
    """

    ranges: Iterable[KeyRange]
    reverse: bool
    pattern: str | None


@dataclass(frozen=True)
class KeyTemplate:
    """A valid row key template. Made by :meth:`parse`."""

    text: str
    parts: tuple[Token | str, ...] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "KeyTemplate":
        """Parses a template. Raises TemplateError if rows with such keys could not be distinguished or found."""
        if len(text) > _MAX_BYTES:
            raise TemplateError(f"{shown(text)} has {len(text):,} characters; at most {_MAX_BYTES:,} are allowed")
        if not _PRINTABLE.fullmatch(text):
            raise TemplateError(f"{shown(text)} is not printable ASCII without blanks")
        if "".join(found[0] for found in _PART.finditer(text)) != text:
            raise TemplateError(f"{text!r} has an unmatched brace")
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
        return KeyTemplate.parse, (self.text,)  # cached properties contain functions, which do not pickle

    # Properties

    def has(self, kind: type[Token]) -> bool:
        """Whether the template has a token of that kind."""
        return any(isinstance(part, kind) for part in self.parts)

    @cached_property
    def metadata_names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, MetadataToken))

    @cached_property
    def grain_us(self) -> int:
        """The time in microseconds by which two events of a sensor must differ to have different keys for certain."""
        return self.times[-1].grain_us

    @cached_property
    def distinguishes_events(self) -> bool:
        """Whether events of one sensor with the same event time have different keys."""
        return self.has(EventIdToken)

    @cached_property
    def newest_first(self) -> bool:
        """Whether a later event of a sensor has a smaller key."""
        return all(token.newest_first for token in self.times)

    @cached_property
    def coarse_time(self) -> TimeToken | None:
        """The first time token, if a finer one follows; None for a single one."""
        return self.times[0] if len(self.times) > 1 else None

    @cached_property
    def time_first(self) -> bool:
        """Whether the time comes before the sensor."""
        return self.index_of_first_time < self.index(SensorToken)

    @cached_property
    def supports_prefix_scan(self) -> bool:
        """Whether one scan can read all events of sensors with a common prefix, sensor by sensor."""
        one_direction = len({token.newest_first for token in self.times}) == 1
        metric_after_time = not self.has(MetricToken) or self.index_of_first_time < self.index(MetricToken)
        return not self.time_first and one_direction and metric_after_time

    @cached_property
    def spread_factor(self) -> int:
        """The number of key ranges over which salts and shards before the sensor spread sensors; 1 without them."""
        factor = 1
        for part in self.parts[: self.index(SensorToken)]:
            if isinstance(part, SPREADING_TOKENS):
                factor *= len(part.values)
        return factor

    @cached_property
    def metadata_before_sensor(self) -> tuple[str, ...]:
        before = self.parts[: self.index(SensorToken)]
        return tuple(part.name for part in before if isinstance(part, MetadataToken))

    # Keys

    def check(self, event: Event) -> None:
        """Raises BadData for an event that has no valid key."""
        if self.accepts_all_events:
            return
        for name in self.metadata_names:
            _check_field(f"metadata {name}", event.metadata.get(name, ""))
        if self.has(EventIdToken):
            _check_field("event_id", event.event_id)
        key = self.render(event, max(event.readings, key=len) if self.has(MetricToken) else "")
        if len(key) > MAX_KEY_BYTES:
            raise BadData(Reason.KEY_TOO_LONG, f"the row key has {len(key)} bytes, at most {MAX_KEY_BYTES}")
        for metric in event.readings if self._may_be_reserved and self.has(MetricToken) else [""]:
            segment = first_segment(self.render(event, metric))
            if segment in RESERVED_SENSOR_IDS:
                raise BadData(Reason.RESERVED_KEY, f"the row key begins with the reserved prefix {segment}#")

    def render(self, event: Event, metric: str = "") -> bytes:
        """Returns the row key of an event, or of one of its readings. The event must have passed :meth:`check`."""
        return self.renderer(event, metric)

    def render_all(self, events: Iterable[Event]) -> list[bytes]:
        """Returns the row keys of events in a layout without a row for each metric."""
        match self.tokens:
            case [SensorToken(), ReverseToken() as time]:  # the usual template, a third faster than one by one
                key_format = self._format("%s", time.number_format)
                max_value, grain_us = time.max_value, time.grain_us
                return [(key_format % (event[0], max_value - event[1] // grain_us)).encode() for event in events]
        return [self.renderer(event, "") for event in events]

    @cached_property
    def renderer(self) -> Callable[[Event, str], bytes]:
        """The function that :meth:`render` calls. Call it directly to render many keys."""
        match self.tokens:
            case [SensorToken(), ReverseToken() as time]:  # the usual template, twice as fast
                key_format = self._format("%s", time.number_format)
                max_value, grain_us = time.max_value, time.grain_us
                return lambda event, _: (key_format % (event[0], max_value - event[1] // grain_us)).encode()
        key_format = self._format(*["%s"] * len(self.tokens))
        renderers = [_renderer(token) for token in self.tokens]
        return lambda event, metric: (key_format % tuple([render(event, metric) for render in renderers])).encode()

    def parse_key(self, key: bytes) -> RawKey:
        """Parses a row key. Raises ValueError for a key that the template does not render."""
        found = self._pattern.fullmatch(key.decode())
        if found is None:
            raise ValueError(f"it does not match {self.text}")
        sensor_id = metric = event_id = ""
        time_us = 0
        metadata = {}
        for token, text in zip(self.tokens, found.groups(), strict=True):
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
        if time_us > LATEST_US:
            raise ValueError("its time is out of range")
        for index, token in self._derived:
            text = found.group(index + 1)
            if isinstance(token, TimeToken):  # a week may span two months
                consistent = token.render(time_us) == text or token.render(self.end_us(time_us) - 1) == text
            else:
                consistent = text == token.render(sensor_id)
            if not consistent:
                raise ValueError(f"it has {text} for {token.text}, which contradicts the rest of the key")
        return RawKey(sensor_id, time_us, metric, event_id, metadata)

    def split_keys(self, most: int) -> list[bytes]:
        """Returns up to ``most`` keys at which to split a new table, between salts or shards; none without either."""
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

    def prefix_through(self, kind: type[Token], key: bytes) -> bytes:
        """Returns the key's prefix through the first token of that kind, with the ``#`` that ends it.

        Raises ValueError for a key that the template does not render.
        """
        text = key.decode()
        found = self._pattern.fullmatch(text)
        if found is None:
            raise ValueError(f"it does not match {self.text}")
        index = next(index for index, token in enumerate(self.tokens) if isinstance(token, kind))
        end = found.end(index + 1)
        return text[: end + 1 if kind in TEXT_TOKENS and text[end:] else end].encode()

    def end_us(self, time_us: int) -> int:
        """Returns the end, exclusive, of the event times whose keys contain that time."""
        token = self.times[-1]
        return token.next(time_us) if token.grain_us > WEEK_US else time_us + token.grain_us

    # Key ranges

    def shares_times(self, known: KeyBindings) -> bool:
        """Whether several rows may have the same sensor and the same time, to the grain of the keys."""
        after_time = self.parts[self.index_of_last_time :]
        return any(
            isinstance(part, MetadataToken | EventIdToken) or (isinstance(part, MetricToken) and known.metric is None)
            for part in after_time
        )

    def missing_metadata(self, known: KeyBindings) -> list[str]:
        """Returns the unknown metadata fields that are needed to find a sensor."""
        before = self.parts[: self.index_of_first_time]
        return [part.name for part in before if isinstance(part, MetadataToken) and part.name not in known.metadata]

    def first_unknown(self, known: KeyBindings) -> Token | None:
        """Returns the first unknown token before the time, whose values must be looked up; None if all are known."""
        for part in self.parts[: self.index_of_first_time]:
            if not isinstance(part, str) and _known_text(part, known) is None:
                return part
        return None

    def prefix(self, known: KeyBindings, sensor_prefix: str = "") -> bytes:
        """Returns the common prefix of all matching keys, up to the first unknown token.

        If the sensor is unknown, its id begins with ``sensor_prefix``.
        """
        prefix = ""
        for part in self.parts:
            text = part if isinstance(part, str) else _known_text(part, known)
            if text is None:
                return (prefix + sensor_prefix if isinstance(part, SensorToken) else prefix).encode()
            prefix += text
        return prefix.encode()

    def scan(self, known: KeyBindings, start_us: int, end_us: int) -> Scan:
        """Returns the key ranges of events from ``start_us``, inclusive, to ``end_us``, exclusive.

        Requires 0 ≤ start_us < end_us ≤ :data:`LATEST_US` + 1, and that every token before the last time is known:
        :meth:`first_unknown` is None, and the sensor is known. Ranges of keys with a coarse grain contain events
        outside these times too.
        """
        first = self.index_of_first_time
        ranges = list(self._ranges(first, self.prefix(known), known, start_us, end_us - 1))
        return Scan(ranges, not self.times[-1].newest_first, self.pattern_of(known))

    def coarse_range(self, known: KeyBindings, start_us: int, end_us: int) -> KeyRange:
        """Returns the range of keys whose first time is between these times. Requires the same as :meth:`scan`."""
        least, most = sorted((self.times[0].render(start_us), self.times[0].render(end_us - 1)))
        prefix = self.prefix(known)
        return KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))

    def _ranges(self, index: int, prefix: bytes, known: KeyBindings, start_us: int, last_us: int) -> Iterator[KeyRange]:
        """Yields the ranges below a prefix that ends before the time token at ``index``, newest first."""
        token = self.parts[index]
        assert isinstance(token, TimeToken)  # noqa: S101 (for the type checker)
        finer = next(
            (i for i in range(index + 1, len(self.parts)) if isinstance(self.parts[i], TimeToken)),
            None,
        )
        if finer is None:
            least, most = sorted((token.render(start_us), token.render(last_us)))
            yield KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))
            return
        between = "".join(
            part if isinstance(part, str) else _known_text(part, known) or "" for part in self.parts[index + 1 : finer]
        )
        while start_us <= last_us:
            floor_us = max(token.floor(last_us), start_us)
            inner = prefix + (token.render(last_us) + between).encode()
            yield from self._ranges(finer, inner, known, floor_us, last_us)
            last_us = floor_us - 1

    def pattern_of(self, known: KeyBindings) -> str | None:
        """Returns the pattern of matching keys if the sensor or a known metric comes after the last time; else None."""
        patterns: dict[Token, str] = {
            part: pattern
            for part in self.parts[self.index_of_last_time :]
            if isinstance(part, SensorToken | MetricToken) and (pattern := _known_pattern(part, known)) is not None
        }
        return self._matching(patterns) if patterns else None

    def pattern_of_sensor(self, sensor_id: str) -> str:
        """Returns the pattern of all keys of a sensor, wherever they contain it."""
        known = KeyBindings(sensor_id)
        tokens = (part for part in self.parts if not isinstance(part, str))
        return self._matching({part: text for part in tokens if (text := _known_pattern(part, known)) is not None})

    def _matching(self, patterns: Mapping[Token, str]) -> str:
        return "".join(
            re.escape(part) if isinstance(part, str) else patterns.get(part, part.pattern) for part in self.parts
        )

    # Structure and validation

    @cached_property
    def _derived(self) -> tuple[tuple[int, TimeToken | SaltToken | ShardToken], ...]:
        """The tokens that follow from the sensor and the finest time, with their indices."""
        return tuple(
            (index, token)
            for index, token in enumerate(self.tokens)
            if isinstance(token, SaltToken | ShardToken)
            or (isinstance(token, TimeToken) and token is not self.times[-1])
        )

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(part for part in self.parts if isinstance(part, Token))

    @cached_property
    def times(self) -> tuple[TimeToken, ...]:
        """The time tokens, coarsest first."""
        return tuple(part for part in self.parts if isinstance(part, TimeToken))

    @cached_property
    def index_of_first_time(self) -> int:
        return self.parts.index(self.times[0])

    @cached_property
    def index_of_last_time(self) -> int:
        return self.parts.index(self.times[-1])

    def _format(self, *token_formats: str) -> str:
        """Returns the template as a format for ``%``, with these formats for the tokens."""
        rest = iter(token_formats)
        return "".join(part.replace("%", "%%") if isinstance(part, str) else next(rest) for part in self.parts)

    @cached_property
    def accepts_all_events(self) -> bool:
        """Whether every valid event has a valid key."""
        return not (self.metadata_names or self.has(EventIdToken) or self._may_be_reserved)

    @cached_property
    def _may_be_reserved(self) -> bool:
        """Whether a key can begin with a reserved prefix. A sensor id cannot."""
        first_pattern = "".join(
            re.escape(part) if isinstance(part, str) else part.pattern for part in self.parts
        ).partition("\\#")[0]
        return not isinstance(self.parts[0], SensorToken) and any(
            re.fullmatch(first_pattern, segment) for segment in RESERVED_SENSOR_IDS
        )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(
            "".join(re.escape(part) if isinstance(part, str) else f"({part.pattern})" for part in self.parts), re.DOTALL
        )

    def index(self, kind: type[Token]) -> int:
        """Returns the index of the first token of that kind among the parts."""
        return next(index for index, part in enumerate(self.parts) if isinstance(part, kind))

    def _check(self) -> None:
        texts = [token.text for token in self.tokens]
        if repeated := next((text for text in texts if texts.count(text) > 1), None):
            raise TemplateError(f"{self.text!r} has {repeated} twice")
        if not self.has(SensorToken):
            raise TemplateError(f"{self.text!r} has no {{sensor_id}}: sensors would share rows")
        if not self.times:
            raise TemplateError(
                f"{self.text!r} has no time: a sensor's events would share one row; add one, like {{reverse_us}}"
            )
        self._check_text_ends()
        self._check_times()
        if first_segment(self.text.encode()) in RESERVED_SENSOR_IDS:
            raise TemplateError(f"{self.text!r} begins with the reserved prefix {first_segment(self.text.encode())}#")

    def _check_text_ends(self) -> None:
        for part, following in pairwise([*self.parts, "#"]):
            if isinstance(part, TEXT_TOKENS) and not (isinstance(following, str) and following.startswith("#")):
                raise TemplateError(f"{part.text} must be followed by '#' or end the key: its length is not fixed")

    def _check_times(self) -> None:
        for coarse, fine in pairwise(self.times):
            if coarse.grain_us <= fine.grain_us:
                raise TemplateError(f"{coarse.text} is no coarser than {fine.text} after it; leave one out")
            if coarse.grain_us < HOUR_US or not isinstance(coarse, CalendarToken):
                raise TemplateError(
                    f"{coarse.text} before {fine.text} splits a span of time into too many key ranges; "
                    "use {bucket:1d}"
                )
        first = self.index_of_first_time
        last = self.index_of_last_time
        for part in self.parts[first:last]:
            if isinstance(part, MetricToken | MetadataToken):
                raise TemplateError(f"{part.text} is between two times; put it before {self.times[0].text}")
        if any(isinstance(part, EventIdToken) for part in self.parts[:last]):
            raise TemplateError(
                f"{{event_id}} must come after {self.times[-1].text}: it distinguishes events with the same time"
            )


def first_segment(key: bytes) -> str:
    """Returns the part of a key before its first '#'."""
    return key.partition(b"#")[0].decode(errors="backslashreplace")


def _check_field(name: str, text: str) -> None:
    if not text:
        raise BadData(Reason.MISSING_KEY_FIELD, f"{name} is missing or empty, but part of the table's row keys")
    if "#" in text:
        raise BadData(Reason.INVALID_KEY_FIELD, f"{name} is {shown(text)}; a field of row keys can't contain '#'")


def _renderer(token: Token) -> Callable[[Event, str], str]:
    """Returns the function that renders the token, given the event and the metric."""
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


def _known_text(token: Token, known: KeyBindings) -> str | None:
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


def _known_pattern(token: Token, known: KeyBindings) -> str | None:
    text = _known_text(token, known)
    if text is not None:
        return re.escape(text)
    if isinstance(token, MetricToken) and known.metrics and sum(map(len, known.metrics)) < _MAX_PATTERN:
        return f"(?:{'|'.join(map(re.escape, known.metrics))})"
    return None
