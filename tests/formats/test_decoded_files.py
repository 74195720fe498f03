"""Whole files that a function of users reads."""

import gzip
import io
import logging
import pickle
import random
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pipeline import RefusedMessageError, SensorEvent
from pipeline.core.events.event import Event
from pipeline.core.events.reasons import Reason
from pipeline.formats.decoded_files import DecodingMaker, FileDecoder
from pipeline.formats.files import open_records, records_of
from pipeline.formats.lines import Refusal
from pipeline.formats.values import FileColumns, UnreadableFile
from tests.formats.reading import MORNING_US, NOW_US, read_until_damage

HOUR = timedelta(hours=1)
ENDED: list[tuple[str, bool]] = []
EVENT = SensorEvent(sensor_id="A-1", readings={"n": 1.0})
EVENT.event_time.FromMicroseconds(MORNING_US)


def read_numbers(file: BinaryIO, name: str) -> Iterator[Any]:
    """Fills one event again and again, with the number in a line; refuses what is none."""
    for line in file:
        if line == b"no\n":
            yield RefusedMessageError("it is no number", record=line)
        elif line == b"end\n":
            raise RefusedMessageError("it ends too soon", record=line.decode())
        else:
            EVENT.readings["n"] = float(line)
            yield EVENT


def read_members(file: BinaryIO, name: str) -> Iterator[SensorEvent]:
    """Reads the members of an archive, last one first, and closes it."""
    with zipfile.ZipFile(file) as archive:
        for member in reversed(archive.namelist()):
            yield from read_numbers(archive.open(member), name)
    file.close()


def refuse_without_end(file: BinaryIO, name: str) -> Iterator[Any]:
    """Notes how it ends."""
    try:
        while True:
            yield RefusedMessageError("it is a record", record=bytearray(b"r"))
    finally:
        ENDED.append((name, file.closed))


def read_to_any_end(file: BinaryIO, name: str) -> Iterator[Any]:
    """Takes a failure for the end of the file."""
    with suppress(EOFError):
        yield from read_numbers(file, name)


def fail_at_once(file: BinaryIO, name: str) -> Iterator[Any]:
    raise OSError("out of paper")


def yield_text(file: BinaryIO, name: str) -> Iterator[Any]:
    yield EVENT
    yield "A-1"


def maker(function: Callable[..., Any]) -> DecodingMaker:
    """Returns a maker that has been pickled, as Beam does."""
    made = DecodingMaker(FileDecoder(f"{__name__}:{function.__name__}"), clock, HOUR)
    return pickle.loads(pickle.dumps(made))  # noqa: S301 (made here)


def clock() -> int:
    return NOW_US


def read(function: Callable[..., Any], content: bytes, name: str = "in.dat") -> tuple[list[Any], str]:
    with records_of(name, io.BytesIO(content), maker(function)) as records:
        return read_until_damage(records)


def numbered(*numbers: float) -> list[Event]:
    return [Event("A-1", MORNING_US, {"n": number}, {}) for number in numbers]


def test_events_and_refused_records_in_their_order() -> None:
    """A record's number is its place; an invalid event is kept, and so is the text of a refused record."""
    first, refused, second, invalid = read(read_numbers, b"1\nno\n2\nnan\n")[0]
    assert [first, second] == numbered(1, 2)
    assert refused == Refusal(2, "it is no number", None, Reason.REFUSED_BY_DECODER, b"no\n")
    assert (invalid.line, invalid.reason[:16]) == (4, "INVALID_READING:")
    assert SensorEvent.FromString(invalid.data).sensor_id == "A-1"


def test_a_decoder_refuses_the_rest_of_a_file() -> None:
    """After the events and the refusals before it."""
    (event, refused), end = read(read_numbers, b"1\nend\n2\n")
    assert event == numbered(1)[0]
    assert refused == Refusal(2, "it ends too soon", None, Reason.REFUSED_BY_DECODER, b"end\n")
    assert end == "the decoder tests.formats.test_decoded_files:read_numbers read nothing beyond record 1"


@pytest.mark.parametrize(
    ("function", "content", "number", "problem"),
    [
        (read_numbers, b"1\nx\n", 2, r"test_decoded_files.py:\d+: ValueError: could not convert string to float: .*"),
        (read_members, b"x", 1, r"test_decoded_files.py:\d+: BadZipFile: File is not a zip file"),
        (fail_at_once, b"", 1, r"test_decoded_files.py:\d+: OSError: out of paper"),
        (yield_text, b"", 2, r"TypeError: it yielded a str, not a SensorEvent or RefusedMessageError"),
    ],
)
def test_an_exception_refuses_the_rest_of_a_file(
    function: Callable[..., Any], content: bytes, number: int, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a bug of the decoder, named with its line and logged; no server's, so nothing is tried again."""
    with records_of("in.dat", io.BytesIO(content), maker(function)) as records:
        *_, refused = (next(records) for _ in range(number))
        with pytest.raises(UnreadableFile, match="read nothing") as stopped:
            next(records)
    assert stopped.value.__cause__ is None
    assert (refused.line, refused.code) == (number, Reason.DECODER_FAILED)
    assert [one.levelno for one in caplog.records] == [logging.ERROR]
    assert re.fullmatch(problem, refused.reason)


@pytest.mark.parametrize("function", [read_numbers, read_to_any_end])
def test_a_damaged_file_is_no_fault_of_the_decoder(function: Callable[..., Any]) -> None:
    """Even if the decoder takes the damage for the end."""
    lines = b"".join(b"%d\n" % random.randrange(10**6) for _ in range(20_000))
    records, end = read(function, gzip.compress(lines)[:-20_000], "in.gz")
    assert end.startswith(f"can't be read beyond record {len(records):,}: Compressed file ended")
    assert all(isinstance(record, Event) for record in records)


def test_a_decoder_may_seek(tmp_path: Path) -> None:
    """As for archives, plain or gzipped again, whatever the suffix. What it closes is closed for it alone."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a", "1\n")
        archive.writestr("b", "2\n")
    (tmp_path / "in.csv").write_bytes(packed.getvalue())
    (tmp_path / "in.parquet.gz").write_bytes(gzip.compress(packed.getvalue()))
    for path in tmp_path.iterdir():
        decoder = FileDecoder(f"{__name__}:read_members")
        with open_records(path, FileColumns(), clock, file_decoder=decoder) as records:
            assert list(records) == numbered(2, 1)
            assert records.position == path.stat().st_size


def test_a_file_that_is_not_read_to_its_end() -> None:
    """The decoder ends before the file is closed."""
    with records_of("in.dat", io.BytesIO(), maker(refuse_without_end)) as records:
        assert next(records).record == b"r"
    assert ENDED == [("in.dat", False)]


def test_a_file_of_any_size() -> None:
    """Memory does not grow with the file."""
    content = gzip.compress(b"1\n" * 1_000_000)
    with records_of("in.gz", io.BytesIO(content), maker(read_numbers)) as records:
        next(records)
        tracemalloc.start()
        for _ in range(20_000):
            next(records)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
