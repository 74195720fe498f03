"""Where the rows of a template's keys lie: which ranges of keys hold one sensor's time, and which those of many."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.rows import KeyRange, after_prefix
from pipeline.core.schema.template import KeyTemplate
from pipeline.core.schema.tokens import (
    EventIdToken,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
    Token,
)

_MAX_PATTERN = 8192  # characters of metrics' names: Bigtable takes a filter of 20 kB


@dataclass(frozen=True)
class KeyBindings:
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
class KeySpace:
    """The keys of one template, as a reader looks for them."""

    template: KeyTemplate

    def shares_times(self, known: KeyBindings) -> bool:
        """Whether several rows, in an order of their own, may be of one sensor and one time by the keys' grain."""
        behind = self.template.parts[self.template.index_of_last_time :]
        return any(
            isinstance(part, MetadataToken | EventIdToken) or (isinstance(part, MetricToken) and known.metric is None)
            for part in behind
        )

    def missing(self, known: KeyBindings) -> list[str]:
        """The promoted metadata fields without which a sensor can't be found, and that are not known."""
        before = self.template.parts[: self.template.index(TimeToken)]
        return [part.name for part in before if isinstance(part, MetadataToken) and part.name not in known.metadata]

    def unknown(self, known: KeyBindings) -> Token | None:
        """The first token that stands before the time and is not known: its values have to be looked up first."""
        for part in self.template.parts[: self.template.index(TimeToken)]:
            if not isinstance(part, str) and _of_known(part, known) is None:
                return part
        return None

    def prefix(self, known: KeyBindings, sensor_prefix: str = "") -> bytes:
        """What all keys begin with, of which so much is known: up to the first token that is not.

        Args:
            known: what is known.
            sensor_prefix: what the sensors' ids begin with, where no more of them is known.
        """
        prefix = ""
        for part in self.template.parts:
            text = part if isinstance(part, str) else _of_known(part, known)
            if text is None:
                return (prefix + sensor_prefix if isinstance(part, SensorToken) else prefix).encode()
            prefix += text
        return prefix.encode()

    def scan(self, known: KeyBindings, start_us: int, end_us: int) -> Scan:
        """Where events from ``start_us``, inclusive, to ``end_us``, exclusive, lie, by the grain of the keys.

        Needs 0 ≤ start_us < end_us ≤ :data:`LATEST_US` + 1, and everything before the last time to be known:
        :meth:`unknown` to be None, and the sensor. Where the grain is coarse, the ranges hold events outside these
        times too.
        """
        first = self.template.index(TimeToken)
        ranges = list(self._ranges(first, self.prefix(known), known, start_us, end_us - 1))
        return Scan(ranges, not self.template.times[-1].newest_first, self.pattern_of(known))

    def coarse_range(self, known: KeyBindings, start_us: int, end_us: int) -> KeyRange:
        """All keys whose first time, by its own grain, is within these; as for :meth:`scan`."""
        least, most = sorted((self.template.times[0].render(start_us), self.template.times[0].render(end_us - 1)))
        prefix = self.prefix(known)
        return KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))

    def _ranges(self, index: int, prefix: bytes, known: KeyBindings, start_us: int, last_us: int) -> Iterator[KeyRange]:
        """From the time token at ``index`` on, the newest first; both instants inclusive."""
        token = self.template.parts[index]
        assert isinstance(token, TimeToken)  # noqa: S101 (for the type checker)
        behind = next(
            (i for i in range(index + 1, len(self.template.parts)) if isinstance(self.template.parts[i], TimeToken)),
            None,
        )
        if behind is None:
            least, most = sorted((token.render(start_us), token.render(last_us)))
            yield KeyRange(prefix + least.encode(), after_prefix(prefix + most.encode()))
            return
        between = "".join(
            part if isinstance(part, str) else _of_known(part, known) or ""
            for part in self.template.parts[index + 1 : behind]
        )
        while start_us <= last_us:
            floor_us = max(token.floor(last_us), start_us)
            inner = prefix + (token.render(last_us) + between).encode()
            yield from self._ranges(behind, inner, known, floor_us, last_us)
            last_us = floor_us - 1

    def pattern_of(self, known: KeyBindings) -> str | None:
        """What a key has to match, where a sensor or metric that is known stands behind the last time."""
        telling: dict[Token, str] = {
            part: pattern
            for part in self.template.parts[self.template.index_of_last_time :]
            if isinstance(part, SensorToken | MetricToken) and (pattern := _known_pattern(part, known)) is not None
        }
        if not telling:
            return None
        return "".join(
            re.escape(part) if isinstance(part, str) else telling.get(part, part.pattern)
            for part in self.template.parts
        )


def _of_known(token: Token, known: KeyBindings) -> str | None:
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
    text = _of_known(token, known)
    if text is not None:
        return re.escape(text)
    if isinstance(token, MetricToken) and known.metrics and sum(map(len, known.metrics)) < _MAX_PATTERN:
        return f"(?:{'|'.join(map(re.escape, known.metrics))})"
    return None
