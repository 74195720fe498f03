"""Key ranges: finds the row keys of a template that match a sensor, a metric, metadata and a span of time."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.rows.rows import KeyRange, after_prefix
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.key_tokens import (
    EventIdToken,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
    Token,
)

_MAX_PATTERN = 8192  # characters of metric names; Bigtable accepts filters up to 20 kB


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
class KeySpace:
    """The ordered keys of one template."""

    template: KeyTemplate

    def shares_times(self, known: KeyBindings) -> bool:
        """Whether several rows may have the same sensor and the same time, to the grain of the keys."""
        after_time = self.template.parts[self.template.index_of_last_time :]
        return any(
            isinstance(part, MetadataToken | EventIdToken) or (isinstance(part, MetricToken) and known.metric is None)
            for part in after_time
        )

    def missing_metadata(self, known: KeyBindings) -> list[str]:
        """Returns the unknown metadata fields that are needed to find a sensor."""
        before = self.template.parts[: self.template.index_of_first_time]
        return [part.name for part in before if isinstance(part, MetadataToken) and part.name not in known.metadata]

    def first_unknown(self, known: KeyBindings) -> Token | None:
        """Returns the first unknown token before the time, whose values must be looked up; None if all are known."""
        for part in self.template.parts[: self.template.index_of_first_time]:
            if not isinstance(part, str) and _known_text(part, known) is None:
                return part
        return None

    def prefix(self, known: KeyBindings, sensor_prefix: str = "") -> bytes:
        """Returns the common prefix of all matching keys: everything before the first unknown token.

        Args:
            known: the known tokens.
            sensor_prefix: the prefix of the sensor ids, if the sensor is unknown.
        """
        prefix = ""
        for part in self.template.parts:
            text = part if isinstance(part, str) else _known_text(part, known)
            if text is None:
                return (prefix + sensor_prefix if isinstance(part, SensorToken) else prefix).encode()
            prefix += text
        return prefix.encode()

    def scan(self, known: KeyBindings, start_us: int, end_us: int) -> Scan:
        """Returns the key ranges of events from ``start_us``, inclusive, to ``end_us``, exclusive.

        Requires 0 ≤ start_us < end_us ≤ :data:`LATEST_US` + 1, and that every token before the last time is known:
        :meth:`first_unknown` is None, and the sensor is known. If the grain of the keys is coarse, the ranges contain
        events outside these times too.
        """
        first = self.template.index_of_first_time
        ranges = list(self._ranges(first, self.prefix(known), known, start_us, end_us - 1))
        return Scan(ranges, not self.template.times[-1].newest_first, self.pattern_of(known))

    def coarse_range(self, known: KeyBindings, start_us: int, end_us: int) -> KeyRange:
        """Returns the range of keys whose first time is between these times. Requires the same as :meth:`scan`."""
        least, most = sorted((self.template.times[0].render(start_us), self.template.times[0].render(end_us - 1)))
        prefix = self.prefix(known)
        return KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))

    def _ranges(self, index: int, prefix: bytes, known: KeyBindings, start_us: int, last_us: int) -> Iterator[KeyRange]:
        """Yields the ranges below a prefix that ends before the time token at ``index``, newest first.

        Both instants are inclusive.
        """
        token = self.template.parts[index]
        assert isinstance(token, TimeToken)  # noqa: S101 (for the type checker)
        finer = next(
            (i for i in range(index + 1, len(self.template.parts)) if isinstance(self.template.parts[i], TimeToken)),
            None,
        )
        if finer is None:
            least, most = sorted((token.render(start_us), token.render(last_us)))
            yield KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))
            return
        between = "".join(
            part if isinstance(part, str) else _known_text(part, known) or ""
            for part in self.template.parts[index + 1 : finer]
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
            for part in self.template.parts[self.template.index_of_last_time :]
            if isinstance(part, SensorToken | MetricToken) and (pattern := _known_pattern(part, known)) is not None
        }
        return self._pattern(patterns) if patterns else None

    def pattern_of_sensor(self, sensor_id: str) -> str:
        """Returns the pattern of all keys of a sensor, wherever they contain it."""
        known = KeyBindings(sensor_id)
        tokens = (part for part in self.template.parts if not isinstance(part, str))
        return self._pattern({part: text for part in tokens if (text := _known_pattern(part, known)) is not None})

    def _pattern(self, patterns: Mapping[Token, str]) -> str:
        return "".join(
            re.escape(part) if isinstance(part, str) else patterns.get(part, part.pattern)
            for part in self.template.parts
        )


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
