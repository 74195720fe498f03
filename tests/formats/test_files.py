import gzip
import tracemalloc
from pathlib import Path

import pytest

from pipeline.formats.files import open_records
from pipeline.formats.lines import Record, Refusal
from pipeline.formats.values import FileColumns, UnreadableFile
from tests.formats.reading import CSV, EVENT, MORNING, NDJSON, NOW_US, events, refusals, too_long
from tests.support.records import delimited


def read(path: Path, content: bytes) -> list[Record]:
    path.write_bytes(content)
    with open_records(path, FileColumns(), lambda: NOW_US) as records:
        return list(records)


def read_until_it_fails(path: Path, time_unit: str = "iso") -> tuple[list[Record], str]:
    """Returns the records before the failure, and its message."""
    records: list[Record] = []
    try:
        with open_records(path, FileColumns(time_unit=time_unit), lambda: NOW_US) as file:
            for record in file:
                records.append(record)  # noqa: PERF402 (keeps the records before a failure)
    except UnreadableFile as problem:
        return records, str(problem)
    pytest.fail("the file was read to its end")


@pytest.mark.parametrize("name", ["readings", "readings.log", "readings.gz", "csv", "readings.csv.bz2"])
def test_another_suffix_is_an_error(tmp_path: Path, name: str) -> None:
    """The content does not determine the format."""
    with pytest.raises(UnreadableFile) as raised:
        read(tmp_path / name, CSV.encode())
    known = ".csv, .tsv, .txt, .dat, .ndjson, .lp, .pb, .binpb, with or without .gz, .avro and .parquet"
    assert str(raised.value) == f"its name ends in none of {known}"


def test_a_json_array_is_told_its_way(tmp_path: Path) -> None:
    """Its elements are lines of NDJSON."""
    with pytest.raises(UnreadableFile, match=r"write a JSON array as lines of \.ndjson, such as with: jq"):
        read(tmp_path / "a.json", b"[]")


@pytest.mark.parametrize(("name", "content"), [("readings.csv", CSV), ("readings.ndjson", NDJSON)])
def test_a_byte_order_mark_and_windows_line_ends_are_ignored(tmp_path: Path, name: str, content: str) -> None:
    """A UTF-8 file saved by a Windows program is read like any other file."""
    assert events(read(tmp_path / name, content.replace("\n", "\r\n").encode("utf-8-sig"))) == [EVENT]


@pytest.mark.parametrize(("name", "content"), [("readings.csv", CSV), ("readings.ndjson", NDJSON)])
def test_a_byte_that_is_not_utf8_refuses_only_its_line(tmp_path: Path, name: str, content: str) -> None:
    """A line in Latin-1 is refused, the lines around it are not."""
    line = content.splitlines(keepends=True)[-1]
    records = read(tmp_path / name, content.encode() + line.encode("latin-1") + line.encode())
    number = len(content.splitlines()) + 1
    assert refusals(records) == [Refusal(number, "not UTF-8: invalid byte 0xfc")]
    assert events(records) == [EVENT, EVENT]


@pytest.mark.slow
def test_records_are_read_lazily(tmp_path: Path) -> None:
    """The first record is available before the whole file is read."""
    path = tmp_path / "readings.csv"
    path.write_text(CSV + f"A-1,{MORNING},1,x\n" * 100_000)
    with open_records(path, FileColumns(), lambda: NOW_US) as records:
        rest = iter(records)
        next(rest)
        assert 0 < records.position < records.size / 10
        assert len(list(rest)) == 100_000
        assert records.position == records.size


@pytest.mark.parametrize("suffix", [".csv.gz", ".ndjson.gz"])
@pytest.mark.slow
def test_a_truncated_gzip_yields_its_records_and_then_an_error(tmp_path: Path, suffix: str) -> None:
    """Every complete line before the cut is read, and the error names the last of them."""
    times = [1_700_000_000_000_000 + n * 1_234_567 for n in range(30_000)]
    header = "sensor_id,event_time,a\n" if suffix == ".csv.gz" else ""
    line = "A,{0},{0}\n" if suffix == ".csv.gz" else '{{"sensor_id":"A","event_time":{0},"a":{0}}}\n'
    stored = gzip.compress((header + "".join(line.format(time) for time in times)).encode())
    path = tmp_path / f"readings{suffix}"
    path.write_bytes(stored[: len(stored) * 2 // 3])

    records, problem = read_until_it_fails(path, "us")
    assert 15_000 < len(records) < 25_000
    assert [event.event_time_us for event in events(records)] == times[: len(records)]
    behind = len(records) + bool(header)
    assert problem.startswith(f"can't be read beyond line {behind}: Compressed file ended")


def test_an_invalid_gzip_is_an_error(tmp_path: Path) -> None:
    """A plain file with the suffix .gz is refused; one with a wrong checksum raises an error after its records."""
    path = tmp_path / "readings.csv.gz"
    path.write_bytes(CSV.encode())
    assert read_until_it_fails(path) == ([], "can't be read: Not a gzipped file (b'se')")

    stored = bytearray(gzip.compress(CSV.encode()))
    stored[-8] ^= 1  # of the checksum
    path.write_bytes(stored)
    records, problem = read_until_it_fails(path)
    assert events(records) == [EVENT]
    assert problem.startswith("can't be read beyond line 2: CRC check failed")


DELIMITED = delimited(EVENT)


@pytest.mark.parametrize(
    ("name", "above", "below"),
    [
        ("readings.csv.gz", CSV.encode(), b"\n" + CSV.splitlines()[1].encode()),
        ("readings.ndjson.gz", NDJSON.encode(), b"\n" + NDJSON.encode()),
        ("readings.pb.gz", DELIMITED + b"\x80\xe1\xeb\x17", DELIMITED),  # a length of 50,000,000
    ],
)
@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path, name: str, above: bytes, below: bytes) -> None:
    """A line or record of 50 MB is not read into memory; the records around it are read."""
    with gzip.open(path := tmp_path / name, "wb", compresslevel=1) as file:
        file.write(above)
        for _ in range(50):
            file.write(b"x" * 1_000_000)
        file.write(below)
    tracemalloc.start()
    try:
        with open_records(path, FileColumns(), lambda: NOW_US, 1_000_000) as records:
            found = list(records)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [refusal.reason for refusal in refusals(found)] == [too_long(1_000_000)]
    assert events(found) == [EVENT, EVENT]
    assert most < 10_000_000
