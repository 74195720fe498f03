"""A roll-up: which sensors belong together, in which tiers, and which of their metrics are merged."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from urllib.parse import quote, unquote

from pipeline.core.windows import Window, parse_window

ALL = "all"
"""The value of the group of a roll-up of all sensors."""

_MOST_BYTES, _KEPT_BYTES = 200, 180  # of a value; and of one that is longer, before its digest
_SHORTENED = re.compile(rf"(?P<kept>.{{{_KEPT_BYTES}}})\+[0-9a-f]{{16}}")


@dataclass(frozen=True)
class Rollup:
    """A roll-up.

    Args:
        name: the name, unique in a schema.
        by: the metadata fields whose values name a sensor's group; none for one group of all sensors.
        tiers: the texts of the windows; none for all tiers.
        metrics: globs of the metrics that are merged.
    """

    name: str
    by: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("*",)

    def with_tiers_of(self, windows: Sequence[Window]) -> "Rollup":
        """Returns the roll-up with the texts that a table's windows have for the same windows."""
        wanted = [parse_window(text) for text in self.tiers]
        texts = (window.text for window in windows if any(window.same_as(each) for each in wanted))
        return replace(self, tiers=tuple(texts))

    def value_of(self, member: Mapping[str, str | None]) -> str | None:
        """Returns the value of a sensor's group, as row keys contain it; None for a sensor without one of the fields.

        Args:
            member: the sensor's metadata, as :func:`pipeline.core.statistics.member.member_fields` returns it.
        """
        if not self.by:
            return ALL
        values = [value for field in self.by if (value := member.get(field)) is not None]
        return encoded_value(values) if len(values) == len(self.by) else None

    def merges(self, metric: str) -> bool:
        """Returns whether a metric is merged."""
        return any(glob == "*" or fnmatchcase(metric, glob) for glob in self.metrics)


def encoded_value(values: Sequence[str]) -> str:
    """Encodes the values of a group's fields for a row key.

    Each is percent-encoded except for the unreserved characters of RFC 3986, and they are joined by slashes. Of a text
    of more than 200 bytes, the first 180 are followed by ``+``, which no other value contains, and 16
    hexadecimal digits of its SHA-256.
    """
    text = "/".join(quote(value, safe="") for value in values)
    if len(text) <= _MOST_BYTES:
        return text
    return f"{text[:_KEPT_BYTES]}+{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_shortened(value: str) -> bool:
    """Returns whether a row key tells only the beginning of a group's values."""
    return _SHORTENED.fullmatch(value) is not None


def decoded_values(value: str) -> list[str]:
    """Returns the values of a group's fields from a row key. Of a shortened text, the last one ends with ``…``."""
    shortened = _SHORTENED.fullmatch(value)
    text = re.sub("%.?$", "", shortened["kept"]) if shortened else value
    values = [unquote(each, errors="ignore") for each in text.split("/")]
    return [*values[:-1], values[-1] + "…"] if shortened else values
