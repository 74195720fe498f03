"""Reads events from Avro container files, block by block.

The format: https://avro.apache.org/docs/1.12.0/specification/#object-container-files. fastavro decodes the records.
This module reads the container itself, because fastavro loads and decompresses a block however large it is.

fastavro looks up a decoder of a logical type by the underlying type and the name of the logical type. Ours make a
BadValue of a value out of range or an invalid UUID, instead of an error. They are registered under names of their own:
other code in this process that reads Avro keeps fastavro's decoders.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import chain
from typing import Any, BinaryIO, cast
from uuid import UUID

from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from pipeline.core.events.event import Event
from pipeline.core.notation.documents import parse_loose_json
from pipeline.core.notation.text import shown
from pipeline.formats.lines import MappedRecord, Record, numbered_records, one_line, read_varint
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import BadValue, EventMaker, Malformed, UnreadableFile, check_encoding, time_of

_MAX_HEADER = 1 << 20  # bytes
_MAX_BLOCK_FACTOR = 16  # the most bytes of a block, decompressed, in multiples of --max-record-bytes
_MAX_XZ = 1 << 27  # bytes of the decoder's memory; xz -9 takes half of it
_MAX_DECIMAL = 512  # bytes; more digits than any double has
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAGIC, _SYNC = b"Obj\x01", 16
_LEAST_JSON = 2  # bytes of a value and what divides it from the next
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}  # bytes
_HEADER = parse_schema(
    {
        "type": "record",
        "name": "org.apache.avro.file.Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": len(_MAGIC)}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": _SYNC}},
        ],
    }
)
_DECODE_ERRORS = (
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RecursionError,
    SchemaParseException,
    TypeError,
    ValueError,
    lzma.LZMAError,
    zlib.error,
)
"""The errors that the decoders raise for damaged bytes."""


def avro_records(file: BinaryIO, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    """Returns the records of an open file.

    Raises:
        UnreadableFile: the header is not that of an Avro file, or lacks the columns.
    """
    opened = _AvroFile(file, maker.max_record_bytes)

    def parsed(record: Mapping[str, Any]) -> Event | MappedRecord:
        try:
            return maker.of_object(record)
        except Malformed:
            for name, value in record.items():  # bytes that are not UTF-8 were decoded as surrogates
                if isinstance(value, str):
                    try:
                        check_encoding(value)
                    except Malformed as problem:
                        raise Malformed(f"{shown(name)} is {problem}") from None
            raise

    remarks = maker.check_columns(opened.names)
    return chain(remarks, numbered_records(opened.records(), _DECODE_ERRORS, parsed, maker.max_record_bytes))


class _AvroFile:
    """An open Avro file whose header was read."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._limit = file, limit
        self._types: dict[str, Any] = {}
        head = io.BytesIO(file.read(_MAX_HEADER))
        try:
            header = cast(dict[str, Any], schemaless_reader(head, _HEADER, None))
            schema = parse_loose_json(header["meta"]["avro.schema"])
            codec = header["meta"].get("avro.codec", b"null").decode()
            self._schema = cast(dict[str, Any], parse_schema(_with_own_decoders(schema), self._types))
        except _DECODE_ERRORS as error:
            raise UnreadableFile(f"can't be read: its header is not that of an Avro file: {one_line(error)}") from error
        if header["magic"] != _MAGIC:
            raise UnreadableFile("can't be read: it does not start like an Avro file")
        if codec not in _CODECS:
            raise UnreadableFile(f"can't be read: unknown codec {shown(codec)}; supported are {', '.join(_CODECS)}")
        fields = self._schema.get("fields", ()) if isinstance(self._schema, dict) else ()
        self.names = [field["name"] for field in fields]
        self._decompress = _CODECS[codec]
        self._sync = header["sync"]
        self._is_nested = any(self._has_values(kind) for field in fields for kind in _kinds(field["type"]))
        file.seek(head.tell())

    def records(self) -> Iterator[Mapping[str, Any] | None]:
        """Yields the records; None for one that is too long. Raises any of ``_DECODE_ERRORS``."""
        file, limit = self._file, self._limit
        most = limit * _MAX_BLOCK_FACTOR
        while file.read(1):
            file.seek(-1, io.SEEK_CUR)
            count, size = _long(file.read), _long(file.read)
            if count < 0 or size < 0:
                raise ValueError("a block has a negative size")
            content = self._decompress(file.read(size), most + 1) if size <= most else None
            if content is None or len(content) > most:
                raise ValueError(f"a block has more than {most:,} bytes, {_MAX_BLOCK_FACTOR} times --max-record-bytes")
            if count > len(content):
                raise ValueError("a block has more records than bytes")
            data = io.BytesIO(content)
            for _ in range(count):
                start = data.tell()
                if self._is_nested:
                    as_json = self._measure(self._schema, data)
                    if max(data.tell() - start, as_json) > limit:
                        yield None
                        continue
                    data.seek(start)
                record = schemaless_reader(data, self._schema, None, handle_unicode_errors="surrogateescape")
                yield cast(dict[str, Any], record) if data.tell() - start <= limit else None
            if file.read(_SYNC) != self._sync:
                raise ValueError("a block does not end with the sync marker")

    def _has_values(self, kind: Any) -> bool:
        """Returns whether a value of a type is made of others."""
        return kind in self._types if isinstance(kind, str) else kind["type"] in ("record", "array", "map")

    def _measure(self, schema: Any, data: BinaryIO) -> int:
        """Skips a value of this schema without decoding it, and returns the least that it takes as JSON, in bytes.

        A value of few bytes may contain values without number.
        """
        if isinstance(schema, list):
            return _LEAST_JSON + self._measure(schema[_long(data.read)], data)
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "null" | "boolean" | "float" | "double":
                _skip(data, _SIZES[kind])
            case "int" | "long" | "enum":
                _long(data.read)
            case "bytes" | "string":
                _skip(data, _long(data.read))
            case "fixed":
                _skip(data, schema["size"])
            case "record" | "error":
                fields = schema["fields"]
                return _LEAST_JSON + sum(len(each["name"]) + self._measure(each["type"], data) for each in fields)
            case "array":
                return _LEAST_JSON + self._measure_items((schema["items"],), data)
            case "map":
                return _LEAST_JSON + self._measure_items(("string", schema["values"]), data)
            case _:
                return self._measure(kind if isinstance(kind, (dict, list)) else self._types[kind], data)
        return _LEAST_JSON

    def _measure_items(self, schemas: tuple[Any, ...], data: BinaryIO) -> int:
        """Skips the items of an array or map, each of these schemas in turn, and returns the least that they take."""
        as_json = 0
        while count := _long(data.read):
            if count < 0:  # the size of the items in bytes follows
                _long(data.read)
            for index in range(abs(count)):
                start = data.tell()
                item = sum(self._measure(schema, data) for schema in schemas)
                if data.tell() == start:  # values of this type have no bytes, so nothing bounds their number
                    as_json += item * (abs(count) - index)
                    break
                as_json += item
        return as_json


def _kinds(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]


def _long(read: Callable[[int], bytes]) -> int:
    """Reads a zigzag varint."""
    value = read_varint(read)
    if value is None:
        raise EOFError("the data ends before a number")
    return (value >> 1) ^ -(value & 1)


def _skip(data: BinaryIO, size: int) -> None:
    if size < 0:
        raise ValueError("a length is negative")
    if len(data.read(size)) < size:
        raise EOFError("the block ends within a record")


_CODECS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda data, _: data,
    "deflate": lambda data, most: zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most),
    "bzip2": lambda data, most: bz2.BZ2Decompressor().decompress(data, most),
    "xz": lambda data, most: lzma.LZMADecompressor(memlimit=_MAX_XZ).decompress(data, most),
}
"""What returns the decompressed content of a block, at most so many bytes."""


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


def _with_own_decoders(schema: Any) -> Any:
    """Returns the schema with each logical type renamed to our decoder's name; removes those without a decoder.

    Values of a removed logical type are decoded as its underlying type.
    """
    if isinstance(schema, list):
        return [_with_own_decoders(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = ("type", "items", "values", "fields")
    renamed = {name: _with_own_decoders(value) if name in inner else value for name, value in schema.items()}
    logical = renamed.pop("logicalType", None)
    if f"{renamed.get('type')}-{logical}" in _DECODERS:
        renamed["logicalType"] = _PREFIX + logical
    return renamed
