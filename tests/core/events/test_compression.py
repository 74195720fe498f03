"""Payloads that publishers compress, and those that only look so."""

import gzip
import zlib

import pytest

from pipeline.core.events.compression import MAX_UNPACKED, unpacked
from pipeline.core.events.dead_letter import event_alone
from pipeline.core.events.message import BATCH_TYPE, MESSAGE_TYPE, Message, parse, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEventBatch

TEXT = b'{"a": 1}'
PROTO = bytes.fromhex("789c01")  # a message of protobuf that begins like zlib


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_packed_payloads(pack):
    """The attribute says it, whatever its case, or the mapping; without either, a payload stays as it is."""
    packed = pack(TEXT)
    named = "gzip" if pack is gzip.compress else "zlib"
    for encoding in ("gzip", "x-gzip", "deflate", " GZIP "):
        assert unpacked(packed, {"a": "b", "Content-Encoding": encoding}) == TEXT
        assert unpacked(packed, {"content-encoding": encoding}, "auto") == TEXT
    assert unpacked(packed, {}, named) == unpacked(packed, {}, "auto") == TEXT
    assert unpacked(packed + b"\0", {}, named) == TEXT
    assert unpacked(packed, {}) == unpacked(packed, {"content-encoding": "identity"}) == packed


def test_payloads_that_are_not_packed():
    """Something on their way may have unpacked them; with auto, they may be of any kind."""
    for plain in (TEXT, b"", b"\x08\x01", PROTO):
        assert unpacked(plain, {}, "auto") == plain
    for compression in ("", "auto", "gzip"):
        assert unpacked(TEXT, {"CONTENT-ENCODING": "gzip"}, compression) == TEXT


@pytest.mark.parametrize(
    ("data", "compression", "problem"),
    [
        (TEXT, "gzip", "the payload is not gzip: "),
        (zlib.compress(TEXT), "gzip", "the payload is not gzip: "),
        (b"x\x9c\xff", "zlib", "the payload is not zlib: "),
        (gzip.compress(TEXT, mtime=0)[:-1], "auto", "the payload is gzip that is cut off"),
        (zlib.compress(TEXT)[:-1], "zlib", "the payload is zlib that is cut off"),
        (gzip.compress(TEXT, mtime=0) * 2, "auto", "the payload goes on after the end of its gzip"),
        (gzip.compress(bytes(MAX_UNPACKED + 1), mtime=0), "gzip", "the payload unpacks to more than 10,000,000 bytes"),
        (zlib.compress(bytes(50_000_000)), "auto", "the payload unpacks to more than 10,000,000 bytes"),
    ],
)
def test_what_can_not_be_unpacked(data, compression, problem):
    """The line says why; a bomb is not unpacked beyond the limit."""
    with pytest.raises(BadData, match=problem) as raised:
        unpacked(data, {}, compression)
    assert raised.value.reason is Reason.UNPARSEABLE
    assert len(unpacked(gzip.compress(bytes(MAX_UNPACKED)), {}, "gzip")) == MAX_UNPACKED


def test_the_built_in_type():
    """An event of a packed batch that is refused alone is not packed any more, and says so."""
    batch = SensorEventBatch(events=[sensor_event("a", 0, {"t": 1.0}, {})])
    attributes = {MESSAGE_TYPE: BATCH_TYPE, "Content-Encoding": "gzip"}
    message = Message(gzip.compress(batch.SerializeToString()), attributes)
    assert parse(message) == batch
    alone = event_alone(message, 0, batch.events[0])
    assert "Content-Encoding" not in alone.attributes
    assert parse(alone) == batch.events[0]
