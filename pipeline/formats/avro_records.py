"""Avro container files as events, block by block.

The format: https://avro.apache.org/docs/1.12.0/specification/#object-container-files. fastavro decodes the records;
what is around them is read here, because fastavro takes a block into memory whole, however large, and because a value
that Python has no type for ends its reading of the file.
"""

import bz2
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from pipeline.core.events import shown
from pipeline.formats.avro_types import with_own_types
from pipeline.formats.lines import Record, Refusal, UnreadableFile, attempt, check_columns, one_line, too_long
from pipeline.formats.mappings import event_of
from pipeline.formats.values import EventMaker, Malformed, check_utf8
from pipeline.proto.sensor_event_pb2 import SensorEvent

_MAX_HEADER = 1 << 20  # bytes
_AT_ONCE = 1 << 16  # bytes that are passed over
_MAGIC, _SYNC = b"Obj\x01", 16
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
_DAMAGE = (
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
"""What bytes that are not what they should be make the decoders raise."""


class AvroFile:
    """An open file of records, its header read.

    Args:
        file: its bytes; it can seek.
        maker: makes the events.

    Raises:
        UnreadableFile: it does not begin as an Avro file of such records does.
    """

    def __init__(self, file: BinaryIO, maker: EventMaker) -> None:
        self._file = file
        self._maker = maker
        self._types: dict[str, Any] = {}
        head = io.BytesIO(file.read(_MAX_HEADER))
        try:
            header = cast(dict[str, Any], schemaless_reader(head, _HEADER, None))
            schema = json.loads(header["meta"]["avro.schema"])
            codec = header["meta"].get("avro.codec", b"null").decode()
            self._schema = cast(dict[str, Any], parse_schema(with_own_types(schema), self._types))
        except _DAMAGE as error:
            raise UnreadableFile(f"can't be read: its header is not that of an Avro file: {one_line(error)}") from error
        if header["magic"] != _MAGIC:
            raise UnreadableFile("can't be read: it does not begin as an Avro file does")
        if codec not in _CODECS:
            raise UnreadableFile(f"can't be read: its codec is {shown(codec)}; it has to be {', '.join(_CODECS)}")
        fields = self._schema.get("fields", ()) if isinstance(self._schema, dict) else ()
        check_columns([field["name"] for field in fields], maker.columns)
        self._decompressed = _CODECS[codec]
        self._sync = header["sync"]
        self._first_block = head.tell()

    def records(self, start: int = 0, stop: int = sys.maxsize) -> Iterator[Record]:
        """The records of the blocks that begin in a range of bytes; the line of a refusal is the record's number.

        Ends in UnreadableFile where there is more that can't be read.
        """
        limit = self._maker.max_record_bytes
        begin = self._find_block(start)
        before: int | None = None
        number = 0

        def in_file() -> int:  # which looks at all blocks before the range, so only where somebody is told
            nonlocal before
            before = self._count(begin) if before is None else before
            return max(before + number, 0)

        decoded = self._decoded(begin, stop, limit)
        while True:
            try:
                record = next(decoded)
            except StopIteration:
                return
            except _DAMAGE as error:
                raise UnreadableFile(f"can't be read beyond record {in_file():,}: {one_line(error)}") from error
            number += 1
            made = Refusal(0, too_long(limit)) if record is None else attempt(0, self._event, record)
            yield made._replace(line=in_file()) if isinstance(made, Refusal) else made

    def _event(self, record: Mapping[str, Any]) -> SensorEvent:
        try:
            return event_of(record, self._maker)
        except Malformed:
            for name, value in record.items():  # whose bytes that are no UTF-8 are surrogates
                if isinstance(value, str):
                    try:
                        check_utf8(value)
                    except Malformed as problem:
                        raise Malformed(f"{shown(name)} is {problem}") from None
            raise

    def _find_block(self, start: int) -> int:
        """Where the first block begins that begins there or later; it may be the end of the file."""
        if start <= self._first_block:
            return self._first_block
        position = max(start - _SYNC, self._first_block)  # a block begins behind the mark that ends the one before
        self._file.seek(position)
        window = b""
        while more := self._file.read(_AT_ONCE):
            window += more
            if (found := window.find(self._sync)) >= 0:
                return position + found + _SYNC
            position += max(len(window) - _SYNC, 0)
            window = window[-_SYNC:]
        return self._file.tell()

    def _decoded(self, begin: int, stop: int, limit: int) -> Iterator[Mapping[str, Any] | None]:
        """The records of the blocks from one that begins there to the last that begins before ``stop``.

        None for a record that is too long. Raises whatever is in ``_DAMAGE``.
        """
        file = self._file
        file.seek(begin)
        while file.tell() < stop and file.read(1):
            file.seek(-1, io.SEEK_CUR)
            count, section = _long(file.read), _Section(file, _long(file.read))
            if count < 0 or section.left < 0:
                raise ValueError("a block has a size below zero")
            content = self._decompressed(section)
            whole = _read(content, limit + 1)
            if len(whole) <= limit:
                data = io.BytesIO(whole)
                for _ in range(count):
                    yield self._record(data)
            else:
                tape = _Tape(whole, content, limit)
                for _ in range(count):
                    tape.begin()
                    self._walk(self._schema, tape)
                    yield None if tape.size > limit else self._record(io.BytesIO(tape.copy))
            _pass_over(section)
            if file.read(_SYNC) != self._sync:
                raise ValueError("a block does not end where it should")

    def _record(self, data: BinaryIO) -> Any:
        return schemaless_reader(data, self._schema, None, handle_unicode_errors="surrogateescape")

    def _walk(self, schema: Any, tape: "_Tape") -> None:
        """Passes over a value without keeping it."""
        if isinstance(schema, list):
            self._walk(schema[tape.long()], tape)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "null":
                pass
            case "boolean":
                tape.skip(1)
            case "int" | "long" | "enum":
                tape.long()
            case "float":
                tape.skip(4)
            case "double":
                tape.skip(8)
            case "bytes" | "string":
                tape.skip(tape.long())
            case "fixed":
                tape.skip(schema["size"])
            case "record" | "error":
                for field in schema["fields"]:
                    self._walk(field["type"], tape)
            case "array" | "map":
                while count := tape.long():
                    if count < 0:  # the size of the items follows
                        tape.skip(tape.long())
                        continue
                    for _ in range(count):
                        if kind == "map":
                            tape.skip(tape.long())
                        self._walk(schema["items" if kind == "array" else "values"], tape)
            case _:
                self._walk(kind if isinstance(kind, (dict, list)) else self._types[kind], tape)

    def _count(self, end: int) -> int:
        """The records in front of a block, far below zero where they can't be counted. The file stays where it is."""
        position, total = self._file.tell(), 0
        try:
            self._file.seek(self._first_block)
            while self._file.tell() < end:
                total += _long(self._file.read)
                self._file.seek(abs(_long(self._file.read)) + _SYNC, io.SEEK_CUR)
        except _DAMAGE:
            return -sys.maxsize
        finally:
            self._file.seek(position)
        return total


def _long(read: Callable[[int], bytes]) -> int:
    """A zigzag varint."""
    value = 0
    for shift in range(0, 70, 7):
        byte = read(1)
        if not byte:
            raise EOFError("it ends within a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a number has more than ten bytes")


def _read(content: BinaryIO, most: int) -> bytes:
    """So many bytes, or all that there are."""
    parts: list[bytes] = []
    while most and (part := content.read(min(most, _AT_ONCE))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _pass_over(section: "_Section") -> None:
    while section.read(_AT_ONCE):
        pass


class _Section(io.RawIOBase):
    """The next bytes of a file, so many of them."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self.left))
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)


class _Inflated(io.RawIOBase):
    """What a raw deflate stream holds, a little at a time."""

    def __init__(self, stored: _Section) -> None:
        self._stored = stored
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._inflate.eof:
            stored = self._inflate.unconsumed_tail or self._stored.read(_AT_ONCE)
            data = self._inflate.decompress(stored or b"", len(buffer))
            if data or not stored:
                buffer[: len(data)] = data
                return len(data)
        return 0


_CODECS: dict[str, Callable[[Any], Any]] = {
    "null": lambda section: section,
    "deflate": _Inflated,
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}


class _Tape:
    """Bytes that are passed over once; a copy of the record's is kept as long as it is within the limit."""

    def __init__(self, head: bytes, rest: BinaryIO, limit: int) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest
        self._limit = limit
        self.begin()

    def begin(self) -> None:
        """Begins a record."""
        self.copy = bytearray()
        self.size = 0

    def skip(self, count: int) -> None:
        """Passes over so many bytes."""
        if count < 0:
            raise ValueError("a length below zero")
        while count:
            count -= len(self._next(count))

    def long(self) -> int:
        """Passes over a number."""
        return _long(self._next)

    def _next(self, most: int) -> bytes:
        most = min(most, _AT_ONCE)
        data = self._head.read(most) or self._rest.read(most)
        if not data:
            raise EOFError("the block ends within a record")
        self.size += len(data)
        if self.size <= self._limit:
            self.copy += data
        else:
            self.copy.clear()
        return data
