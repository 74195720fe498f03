"""The logical types of Avro, decoded without an error: a value that is out of range, or no UUID, is Bad.

fastavro asks for a decoder by the type that a logical type stands on and by its name. Ours have names of their own, so
that whoever else reads Avro in this process has fastavro's.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

from fastavro.read import LOGICAL_READERS

from pipeline.core.events import shown
from pipeline.formats.mappings import Bad, time_of

_MAX_DECIMAL = 512  # bytes: more digits than any double has
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _decimal(raw: bytes, schema: Any, _: Any = None) -> Decimal | Bad:
    scale = schema.get("scale", 0)
    if len(raw) > _MAX_DECIMAL or not isinstance(scale, int) or not 0 <= scale <= _MAX_DECIMAL:
        return Bad(f"is a decimal of {len(raw):,} bytes and a scale of {scale}, beyond what a double can hold")
    return Decimal(int.from_bytes(raw, signed=True)).scaleb(-scale, Context(prec=3 * _MAX_DECIMAL))


def _uuid(raw: Any, *_: Any) -> str | Bad:
    try:
        return str(UUID(raw) if isinstance(raw, str) else UUID(bytes=raw))
    except ValueError:
        return Bad(f"{shown(str(raw))} is no uuid")


def _date(raw: int, *_: Any) -> date | Bad:
    try:
        return date.fromordinal(_EPOCH.toordinal() + raw)
    except (OverflowError, ValueError):
        return Bad(f"is outside the years 1 to 9999: a date of {raw:,} days since 1970")


def _instant(kind: str, numerator: int, denominator: int = 1, *, naive: bool = False) -> Callable[..., Any]:
    epoch = _EPOCH.replace(tzinfo=None) if naive else _EPOCH

    def read(raw: int, *_: Any) -> datetime | Bad:
        time_us = raw * numerator // denominator
        try:
            return epoch + timedelta(microseconds=time_us)
        except OverflowError:
            return Bad(f"is outside the years 1 to 9999: a {kind} of {time_us:,} µs since 1970")

    return read


_OWN: dict[str, Callable[..., Any]] = {
    "int-date": _date,
    "int-time-millis": lambda raw, *_: time_of(raw * 1000, "time-millis"),
    "long-time-micros": lambda raw, *_: time_of(raw, "time-micros"),
    "string-uuid": _uuid,
    "fixed-uuid": _uuid,
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "fixed-duration": lambda *_: Bad("is a duration of months, days and milliseconds, neither a number nor text"),
    **{
        f"long-{local}timestamp-{unit}": _instant(f"{local}timestamp-{unit}", *factor, naive=bool(local))
        for local in ("", "local-")
        for unit, factor in {"millis": (1000,), "micros": (1,), "nanos": (1, 1000)}.items()
    },
}
_PREFIX = "tidetable-"
LOGICAL_READERS.update({key.replace("-", f"-{_PREFIX}", 1): read for key, read in _OWN.items()})


def with_own_types(schema: Any) -> Any:
    """The schema with our names for the types that we decode; of others, what they stand on is decoded."""
    if isinstance(schema, list):
        return [with_own_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = ("type", "items", "values", "fields")
    own = {name: with_own_types(value) if name in inner else value for name, value in schema.items()}
    logical = own.pop("logicalType", None)
    if f"{own.get('type')}-{logical}" in _OWN:
        own["logicalType"] = _PREFIX + logical
    return own
