"""Reads events from Avro container files, block by block.

The format: https://avro.apache.org/docs/1.12.0/specification/#object-container-files. fastavro decodes the records.
This module reads the container itself, because fastavro begins at the start of a file only, and loads and decompresses
a block however large it is.
"""

import bz2
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, BinaryIO, cast

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from pipeline.core.events.event import Event
from pipeline.core.notation.documents import parse_loose_json
from pipeline.core.notation.text import shown
from pipeline.formats import lines
from pipeline.formats.avro_types import with_own_decoders
from pipeline.formats.lines import MappedRecord, Record, Refusal, UnreadableFile
from pipeline.formats.mapped import MappedMaker, record_of, remarks_on
from pipeline.formats.values import EventMaker, Malformed, check_encoding
from pipeline.proto.sensor_event_pb2 import SensorEvent

_MAX_HEADER = 1 << 20  # bytes
_MAX_BLOCK_FACTOR = 16  # the most bytes of a block, decompressed, in multiples of --max-record-bytes
_MAX_XZ = 1 << 27  # bytes of the decoder's memory; xz -9 takes half of it
_CHUNK = 1 << 16  # bytes to search at a time
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


class AvroFile:
    """An open Avro file whose header was read.

    Args:
        file: the stored bytes; seekable.
        maker: makes the events.

    Raises:
        UnreadableFile: the header is not that of an Avro file, or lacks the columns.
    """

    def __init__(self, file: BinaryIO, maker: EventMaker | MappedMaker) -> None:
        self._file = file
        self._maker = maker
        self._types: dict[str, Any] = {}
        head = io.BytesIO(file.read(_MAX_HEADER))
        try:
            header = cast(dict[str, Any], schemaless_reader(head, _HEADER, None))
            schema = parse_loose_json(header["meta"]["avro.schema"])
            codec = header["meta"].get("avro.codec", b"null").decode()
            self._schema = cast(dict[str, Any], parse_schema(with_own_decoders(schema), self._types))
        except _DECODE_ERRORS as error:
            raise UnreadableFile(
                f"can't be read: its header is not that of an Avro file: {lines.one_line(error)}"
            ) from error
        if header["magic"] != _MAGIC:
            raise UnreadableFile("can't be read: it does not start like an Avro file")
        if codec not in _CODECS:
            raise UnreadableFile(f"can't be read: unknown codec {shown(codec)}; supported are {', '.join(_CODECS)}")
        fields = self._schema.get("fields", ()) if isinstance(self._schema, dict) else ()
        names = [field["name"] for field in fields]
        self._remarks = remarks_on(names, maker)
        self._decompress = _CODECS[codec]
        self._sync = header["sync"]
        self._is_nested = any(self._has_values(kind) for field in fields for kind in _kinds(field["type"]))
        self._first_block = head.tell()

    def records(self, start: int = 0, stop: int = sys.maxsize) -> Iterator[Record]:
        """Yields the records of the blocks that start in a range of bytes.

        A refusal's line is the record's number in the file. Raises UnreadableFile if the rest can't be read.
        """
        if start == 0:
            yield from self._remarks
        limit = self._maker.max_record_bytes
        begin = self._find_block(start)
        before = cache(partial(self._count_before, begin))  # reads the sizes of all earlier blocks, for messages alone
        decoded = lines.until_damage(self._decode_blocks(begin, stop, limit), _DECODE_ERRORS, before)
        for number, record in enumerate(decoded, 1):
            parsed = (
                Refusal(0, lines.too_long(limit)) if record is None else lines.parse_or_refuse(0, self._event, record)
            )
            if isinstance(parsed, Refusal | MappedRecord):
                parsed = parsed._replace(line=max(before() + number, 0))
            yield parsed

    def _event(self, record: Mapping[str, Any]) -> SensorEvent | Event | MappedRecord:
        try:
            return record_of(record, self._maker)
        except Malformed:
            for name, value in record.items():  # bytes that are not UTF-8 were decoded as surrogates
                if isinstance(value, str):
                    try:
                        check_encoding(value)
                    except Malformed as problem:
                        raise Malformed(f"{shown(name)} is {problem}") from None
            raise

    def _find_block(self, start: int) -> int:
        """Returns the position of the first block at or after ``start``; the file's size if there is none."""
        if start <= self._first_block:
            return self._first_block
        position = max(start - _SYNC, self._first_block)  # a block follows the sync marker of the previous block
        self._file.seek(position)
        window = b""
        while chunk := self._file.read(_CHUNK):
            window += chunk
            if (found := window.find(self._sync)) >= 0:
                return position + found + _SYNC
            position += max(len(window) - _SYNC, 0)
            window = window[-_SYNC:]
        return self._file.tell()

    def _decode_blocks(self, begin: int, stop: int, limit: int) -> Iterator[Mapping[str, Any] | None]:
        """Yields the records of the block at ``begin`` and of later blocks that start before ``stop``.

        Yields None for a record that is too long. Raises any of ``_DECODE_ERRORS``.
        """
        file, most = self._file, limit * _MAX_BLOCK_FACTOR
        file.seek(begin)
        while file.tell() < stop and file.read(1):
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

    def _count_before(self, end: int) -> int:
        """Counts the records before ``end``; a large negative number if damaged. Restores the file's position."""
        position, total = self._file.tell(), 0
        try:
            self._file.seek(self._first_block)
            while self._file.tell() < end:
                total += _long(self._file.read)
                self._file.seek(abs(_long(self._file.read)) + _SYNC, io.SEEK_CUR)
        except _DECODE_ERRORS:
            return -sys.maxsize
        finally:
            self._file.seek(position)
        return total


def _kinds(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]


def _long(read: Callable[[int], bytes]) -> int:
    """Reads a zigzag varint."""
    value = lines.read_varint(read)
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
