"""Decodes Avro's logical types without errors: a value out of range, or an invalid UUID, becomes a BadValue.

fastavro looks up a decoder by the underlying type and the name of the logical type. Ours are registered under names
of their own: other code in this process that reads Avro keeps fastavro's decoders.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

from fastavro.read import LOGICAL_READERS

from pipeline.core.notation.text import shown
from pipeline.formats.mappings import BadValue, time_of

_MAX_DECIMAL = 512  # bytes; more digits than any double has
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _decimal(raw: bytes, schema: Any, _: Any = None) -> Decimal | BadValue:
    scale = schema.get("scale", 0)
    if len(raw) > _MAX_DECIMAL or not isinstance(scale, int) or not 0 <= scale <= _MAX_DECIMAL:
        return BadValue(f"is a decimal of {len(raw):,} bytes with scale {scale}, which exceeds the range of a double")
    return Decimal(int.from_bytes(raw, signed=True)).scaleb(-scale, Context(prec=3 * _MAX_DECIMAL))


def _uuid(raw: Any, *_: Any) -> str | BadValue:
    try:
        return str(UUID(raw) if isinstance(raw, str) else UUID(bytes=raw))
    except ValueError:
        return BadValue(f"{shown(str(raw))} is not a UUID")


def _date(raw: int, *_: Any) -> date | BadValue:
    try:
        return date.fromordinal(_EPOCH.toordinal() + raw)
    except (OverflowError, ValueError):
        return BadValue(f"is outside the years 1 to 9999: a date of {raw:,} days since 1970")


def _instant(kind: str, numerator: int, denominator: int = 1, *, naive: bool = False) -> Callable[..., Any]:
    epoch = _EPOCH.replace(tzinfo=None) if naive else _EPOCH

    def read(raw: int, *_: Any) -> datetime | BadValue:
        time_us = raw * numerator // denominator
        try:
            return epoch + timedelta(microseconds=time_us)
        except OverflowError:
            return BadValue(f"is outside the years 1 to 9999: a {kind} of {time_us:,} µs since 1970")

    return read


_DECODERS: dict[str, Callable[..., Any]] = {
    "int-date": _date,
    "int-time-millis": lambda raw, *_: time_of(raw * 1000, "time-millis"),
    "long-time-micros": lambda raw, *_: time_of(raw, "time-micros"),
    "string-uuid": _uuid,
    "fixed-uuid": _uuid,
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "fixed-duration": lambda *_: BadValue("is a duration of months, days and milliseconds, neither a number nor text"),
    **{
        f"long-{local}timestamp-{unit}": _instant(f"{local}timestamp-{unit}", *factor, naive=bool(local))
        for local in ("", "local-")
        for unit, factor in {"millis": (1000,), "micros": (1,), "nanos": (1, 1000)}.items()
    },
}
_PREFIX = "tidetable-"
LOGICAL_READERS.update({key.replace("-", f"-{_PREFIX}", 1): read for key, read in _DECODERS.items()})


def with_own_decoders(schema: Any) -> Any:
    """Returns the schema with each logical type renamed to our decoder's name; removes those without a decoder.

    Values of a removed logical type are decoded as its underlying type.
    """
    if isinstance(schema, list):
        return [with_own_decoders(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = ("type", "items", "values", "fields")
    renamed = {name: with_own_decoders(value) if name in inner else value for name, value in schema.items()}
    logical = renamed.pop("logicalType", None)
    if f"{renamed.get('type')}-{logical}" in _DECODERS:
        renamed["logicalType"] = _PREFIX + logical
    return renamed
