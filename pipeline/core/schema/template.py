"""Row-key templates: ``{sensor_id}#{reverse_us}`` renders keys, reads them back, and knows where they lie.

A template is literal text and tokens (:mod:`pipeline.core.schema.tokens`). Keys of one sensor between two instants are
one range of keys, or a few, because every template obeys three rules: a token of text ends at a ``#`` or at the key's
end; whatever else tells rows apart stands before the first time or behind the last; time goes from coarse to fine.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pipeline.core.events import LATEST_US, RESERVED_SENSOR_IDS, BadData, Event, Reason, shown
from pipeline.core.schema.tokens import (
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

MAX_KEY_BYTES = 4096  # of Bigtable

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)")
_PRINTABLE = re.compile(r"[!-~]+")  # ASCII
_MAX_BYTES = 1024  # so that with the longest sensor id and metric a key has room


class RawKey(NamedTuple):
    """What a raw row's key says. What its template does not have is empty."""

    sensor_id: str
    time_us: int  # the start of the finest grain that the key tells
    metric: str = ""
    event_id: str = ""
    metadata: Mapping[str, str] = {}


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
        if len(text) > _MAX_BYTES:
            raise TemplateError(f"{shown(text)} has {len(text):,} characters, at most {_MAX_BYTES:,} leave a key room")
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
        return self.times[-1].grain_us

    @cached_property
    def distinguishes_events(self) -> bool:
        """Whether events of one moment have keys of their own."""
        return self.has(EventIdToken)

    @cached_property
    def newest_first(self) -> bool:
        """Whether a later event of a sensor has the lesser key."""
        return all(token.newest_first for token in self.times)

    @cached_property
    def coarse_time(self) -> TimeToken | None:
        """The first time, where a finer one stands behind it; None where there is one alone."""
        return self.times[0] if len(self.times) > 1 else None

    @cached_property
    def time_first(self) -> bool:
        """Whether the keys of all sensors begin with the time."""
        return self.index(TimeToken) < self.index(SensorToken)

    @cached_property
    def supports_prefix_scan(self) -> bool:
        """Whether all events of several sensors side by side can be had by one scan, sensor by sensor."""
        one_direction = len({token.newest_first for token in self.times}) == 1
        metric_behind = not self.has(MetricToken) or self.index(TimeToken) < self.index(MetricToken)
        return not self.time_first and one_direction and metric_behind

    @cached_property
    def spread_factor(self) -> int:
        """Over how many ranges of keys the sensors are spread by the salt and shard before them; 1 for none."""
        spread = 1
        for part in self.parts[: self.index(SensorToken)]:
            if isinstance(part, SPREADING_TOKENS):
                spread *= len(part.values)
        return spread

    @cached_property
    def metadata_before_sensor(self) -> tuple[str, ...]:
        """The promoted metadata fields that stand before the sensor."""
        before = self.parts[: self.index(SensorToken)]
        return tuple(part.name for part in before if isinstance(part, MetadataToken))

    # Keys

    def check(self, event: Event) -> None:
        """Raises BadData for an event of which no key can be made."""
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
                raise BadData(Reason.RESERVED_KEY, f"the row key begins with {segment}#, as the table's own rows do")

    def render(self, event: Event, metric: str = "") -> bytes:
        """The key of the event, or of the reading of it; the event has passed :meth:`check`."""
        return self.renderer(event, metric)

    @cached_property
    def renderer(self) -> Callable[[Event, str], bytes]:
        """What :meth:`render` calls, for those who render very many."""
        match self.tokens:
            case [SensorToken(), ReverseToken() as time]:  # the usual template: takes half the time
                key_format = self._format("%s", time.number_format)
                max_value, grain_us = time.max_value, time.grain_us
                return lambda event, _: (key_format % (event[0], max_value - event[1] // grain_us)).encode()
        key_format = self._format(*["%s"] * len(self.tokens))
        of_tokens = [_renderer(token) for token in self.tokens]
        return lambda event, metric: (key_format % tuple([of_token(event, metric) for of_token in of_tokens])).encode()

    def parse_key(self, key: bytes) -> RawKey:
        """What a key says. Raises ValueError where the template does not render such keys."""
        found = self._pattern.fullmatch(key.decode())
        if found is None:
            raise ValueError(f"it is not of the form {self.text}")
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
            raise ValueError("its time is behind all that keys reach")
        for index, token in self._following:
            text = found.group(index + 1)
            if isinstance(token, TimeToken):  # a week may lie in two months
                follows = token.render(time_us) == text or token.render(self.end_us(time_us) - 1) == text
            else:
                follows = text == token.render(sensor_id)
            if not follows:
                raise ValueError(f"it has {text} for {token.text}, which the rest of the key contradicts")
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

    def prefix_through(self, kind: type[Token], key: bytes) -> bytes:
        """How the key begins, up to the token of that kind and the ``#`` behind it. Raises ValueError as parse_key."""
        text = key.decode()
        found = self._pattern.fullmatch(text)
        if found is None:
            raise ValueError(f"it is not of the form {self.text}")
        index = next(index for index, token in enumerate(self.tokens) if isinstance(token, kind))
        end = found.end(index + 1)
        return text[: end + 1 if kind in TEXT_TOKENS and text[end:] else end].encode()

    def end_us(self, time_us: int) -> int:
        """Where the events end whose keys say that time."""
        token = self.times[-1]
        return token.next(time_us) if token.grain_us > WEEK_US else time_us + token.grain_us

    # What makes it sound

    @cached_property
    def _following(self) -> tuple[tuple[int, TimeToken | SaltToken | ShardToken], ...]:
        """The tokens that say nothing that the sensor and the finest time do not say too, and where they stand."""
        return tuple(
            (index, token)
            for index, token in enumerate(self.tokens)
            if isinstance(token, SaltToken | ShardToken)
            or (isinstance(token, TimeToken) and token is not self.times[-1])
        )

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """Its tokens, in order."""
        return tuple(part for part in self.parts if isinstance(part, Token))

    @cached_property
    def times(self) -> tuple[TimeToken, ...]:
        """Its times, the coarsest first."""
        return tuple(part for part in self.parts if isinstance(part, TimeToken))

    @cached_property
    def index_of_last_time(self) -> int:
        """Where the finest time stands among the parts."""
        return self.parts.index(self.times[-1])

    def _format(self, *of_tokens: str) -> str:
        """The template for ``%``, with these formats in the tokens' places."""
        rest = iter(of_tokens)
        return "".join(part.replace("%", "%%") if isinstance(part, str) else next(rest) for part in self.parts)

    @cached_property
    def accepts_all_events(self) -> bool:
        """Whether every valid event has what the key is made of, and makes a key that can be."""
        return not (self.metadata_names or self.has(EventIdToken) or self._may_be_reserved)

    @cached_property
    def _may_be_reserved(self) -> bool:
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

    def index(self, kind: type[Token]) -> int:
        """Where the first token of the kind stands among the parts."""
        return next(index for index, part in enumerate(self.parts) if isinstance(part, kind))

    def _check(self) -> None:
        texts = [token.text for token in self.tokens]
        if repeated := next((text for text in texts if texts.count(text) > 1), None):
            raise TemplateError(f"{self.text!r} has {repeated} twice")
        if not self.has(SensorToken):
            raise TemplateError(f"{self.text!r} has no {{sensor_id}}: sensors could not be told apart")
        if not self.times:
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
        for coarse, fine in pairwise(self.times):
            if coarse.grain_us <= fine.grain_us:
                raise TemplateError(f"{coarse.text} is no coarser than {fine.text} behind it; leave one out")
            if coarse.grain_us < HOUR_US or not isinstance(coarse, CalendarToken):
                raise TemplateError(
                    f"{coarse.text} before {fine.text} makes a range of keys of every moment; use {{bucket:1d}}"
                )
        first = self.index(TimeToken)
        last = self.index_of_last_time
        for part in self.parts[first:last]:
            if isinstance(part, MetricToken | MetadataToken):
                raise TemplateError(f"{part.text} stands between two times; put it before {self.times[0].text}")
        if any(isinstance(part, EventIdToken) for part in self.parts[:last]):
            raise TemplateError(
                f"{{event_id}} has to stand behind {self.times[-1].text}: it tells events of one moment apart"
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
