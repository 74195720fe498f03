"""Files of every format as messages, through the real readers."""

import gzip
import os
from datetime import UTC, datetime
from pathlib import Path

import apache_beam as beam
import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from pipeline.backfill.files import ReadFiles, check_file, find_files, identity
from pipeline.core.events.event import Event
from pipeline.formats.values import EventMaker, FileColumns, UnreadableFile
from pipeline.transforms.process import CheckedEvents
from tests.formats.reading import CSV, EVENT, MORNING, MORNING_US, NDJSON
from tests.support.records import write_delimited

RECORD = {
    "sensor_id": "A-1",
    "event_time": datetime(2026, 2, 17, 8, tzinfo=UTC),
    "a": 1.0,
    "room": "küche",
}
AVRO = {
    "type": "record",
    "name": "reading",
    "fields": [
        {"name": "sensor_id", "type": ["null", "string"]},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "a", "type": ["null", "double"]},
        {"name": "room", "type": ["null", "string", {"type": "map", "values": "string"}]},
    ],
}


def write_avro(path: Path, *records: dict) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, AVRO, records, codec="deflate")
    return path


def write_parquet(path: Path, *records: dict) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path, row_group_size=2)
    return path


def events_of(element: CheckedEvents) -> list[Event]:
    return [event._replace(message=None) for event in element.events]


def check(*paths: Path, events=(), alone=(), refused=(), remarks=(), **maker: int) -> None:
    """Reads the files and checks the events, the file and line of those ``alone``, the refused records, the remarks."""
    with beam.Pipeline(FnApiRunner()) as pipeline:
        read = pipeline | ReadFiles(find_files(map(str, paths)), EventMaker(FileColumns(), **maker))
        whole = read.messages | beam.Filter(lambda message: "line" not in message.attributes)
        assert_that(whole | beam.FlatMap(events_of), equal_to(list(events)), "events")
        single = read.messages | beam.Filter(lambda message: "line" in message.attributes)
        places = single | beam.Map(lambda message: (Path(message.attributes["file"]).name, message.attributes["line"]))
        assert_that(places, equal_to(list(alone)), "alone")
        letters = read.refused | beam.Map(
            lambda letter: (
                Path(letter.attributes["file"]).name,
                letter.attributes.get("line"),
                letter.attributes["dead_letter_detail"],
            )
        )
        assert_that(letters, equal_to(list(refused)), "refused")
        reported = read.remarks | "Told" >> beam.Map(lambda remark: (Path(remark[0]).name, *remark[1:]))
        assert_that(reported, equal_to(list(remarks)), "remarks")


def test_every_format_gives_the_same_events(tmp_path: Path) -> None:
    """Text, protobuf, Avro and Parquet; gzipped, also where the name does not say so, as in a bucket."""
    paths = [tmp_path / name for name in ("a.csv", "B.CSV.GZ", "c.ndjson", "d.ndjson")]
    for path, content in zip(paths, (CSV, CSV, NDJSON, NDJSON), strict=True):
        path.write_text(content)
    for path in (paths[1], paths[3]):
        path.write_bytes(gzip.compress(path.read_bytes()))
    paths += [write_delimited(tmp_path / "e.binpb", [EVENT]), write_delimited(tmp_path / "f.pb", [EVENT])]
    (gzipped := tmp_path / "g.pb.gz").write_bytes(gzip.compress(paths[-1].read_bytes()))
    paths += [gzipped, write_avro(tmp_path / "h.avro", RECORD), write_parquet(tmp_path / "i.parquet", RECORD)]
    for path in paths:
        check_file(str(path), EventMaker(FileColumns()))
    check(*paths, events=[EVENT] * len(paths))


@pytest.mark.parametrize("column", ["{file.stem}", "{file.folder}", "{file}"])
def test_files_whose_names_are_the_sensors(column: str, tmp_path: Path) -> None:
    """In formats without a column of the sensor, gzipped or not; a message of protobuf has a sensor of its own."""
    paths = [tmp_path / name for name in ("a.csv", "B.CSV.GZ", "c.ndjson")]
    for path, content in zip(
        paths, ("event_time,a\n{},1\n", "a,event_time\n1,{}\n", '{{"event_time": "{}", "a": 1}}\n'), strict=True
    ):
        data = content.format(MORNING).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".GZ" else data)
    record = {"event_time": RECORD["event_time"], "a": 1.0}
    paths += [write_avro(tmp_path / "d.avro", record), write_parquet(tmp_path / "e.parquet", record)]
    names = {"{file.stem}": list("aBcde"), "{file.folder}": [tmp_path.name] * 5, "{file}": list(map(str, paths))}
    expected = [Event(name, MORNING_US, {"a": 1.0}, {}) for name in names[column]]
    own = write_delimited(tmp_path / "f.pb", [EVENT])
    with beam.Pipeline(FnApiRunner()) as pipeline:
        maker = EventMaker(FileColumns(sensor=column))
        read = pipeline | ReadFiles(find_files(map(str, (*paths, own))), maker)
        assert_that(read.messages | beam.FlatMap(events_of), equal_to([*expected, EVENT]))
        assert_that(read.refused, equal_to([]), "refused")
    with pytest.raises(UnreadableFile, match=r"no column '\{file.name\}' \(--sensor-column\)"):
        check_file(str(paths[0]), EventMaker(FileColumns(sensor="{file.name}")))


def test_a_message_holds_many_events_of_one_file(tmp_path: Path) -> None:
    """Events of one file share messages."""
    files = [tmp_path / f"{name}.csv" for name in "ab"]
    for file in files:
        file.write_text("sensor_id,event_time,a\n" + f"A-1,{MORNING},1\n" * 700)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        read = pipeline | ReadFiles(find_files(map(str, files)), EventMaker(FileColumns()))
        sizes = read.messages | beam.Map(lambda message: (message.attributes["file"], len(events_of(message))))
        assert_that(sizes, equal_to([(str(file), size) for file in files for size in (500, 200)]))


def test_what_is_refused_says_where_it_is(tmp_path: Path) -> None:
    """An event that breaks a rule gets its own message; a record that is not an event becomes a dead letter."""
    path = tmp_path / "a.csv"
    path.write_text(CSV + "A-1,soon,2,attic\n" + "A-1,1999-01-01,3,17\n" + CSV.splitlines()[1])
    check(
        path,
        events=[EVENT, EVENT],
        alone=[("a.csv", "4")],
        refused=[("a.csv", "3", "'event_time' 'soon' is not an ISO 8601 time (--time-unit)")],
        remarks=[("a.csv", 2, "'room' is metadata in every record because 'küche' is not a number")],
    )


def test_a_damaged_file_costs_no_other(tmp_path: Path) -> None:
    """A remark names the file, and how far it could be read."""
    whole, half, broken = (write_avro(tmp_path / f"{name}.avro", RECORD) for name in ("whole", "half", "bad[1]"))
    half.write_bytes(half.read_bytes()[:-16])
    broken.write_bytes(b"Obj")
    parquet = write_parquet(tmp_path / "c.parquet", RECORD)  # pyarrow's error is one that a retry might mend elsewhere
    content = bytearray(parquet.read_bytes())
    content[pyarrow.parquet.read_metadata(parquet).row_group(0).column(0).dictionary_page_offset] ^= 0xFF
    parquet.write_bytes(content)
    maker = EventMaker(FileColumns())
    with beam.Pipeline(FnApiRunner()) as pipeline:
        read = pipeline | ReadFiles(find_files(map(str, (half, parquet, broken, whole))), maker)
        assert_that(read.messages | beam.FlatMap(events_of), equal_to([EVENT, EVENT]), "events")
        reported = read.remarks | "Told" >> beam.Map(lambda remark: (Path(remark[0]).name, *remark[1:]))
        starts = reported | beam.Map(lambda remark: (*remark[:2], remark[2][:30]))
        expected = [
            ("half.avro", 0, "can't be read beyond record 1:"),
            ("c.parquet", 0, "can't be read beyond record 0:"),
            ("bad[1].avro", 0, "can't be read: its header is n"),
        ]
        assert_that(starts, equal_to(expected), "remarks")
    unreadable = pipeline.result.metrics().query(MetricsFilter().with_name("unreadable_files"))["counters"]
    assert sum(counter.committed for counter in unreadable) == 3


def test_patterns_name_files_once(tmp_path: Path) -> None:
    """Globs and paths, in order, each file once, with its size; a pattern without a match is an error."""
    for name in ("b.csv", "a.csv", "c.ndjson"):
        (tmp_path / name).write_text(name)
    found = find_files([f"{tmp_path}/c.ndjson", f"{tmp_path}/*.csv", f"{tmp_path}/a.csv"])
    assert list(found.items()) == [(f"{tmp_path}/{name}", len(name)) for name in ("c.ndjson", "a.csv", "b.csv")]
    with pytest.raises(FileNotFoundError, match="no such file"):
        find_files([f"{tmp_path}/*.pb"])
    (tmp_path / "link.csv").symlink_to("a.csv")
    os.link(tmp_path / "a.csv", tmp_path / "hard.csv")
    assert len(find_files([f"{tmp_path}/a.csv", f"{tmp_path}/./*.csv"])) == 2


def test_what_is_there_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing file's path matches only that file; a glob may begin with a star."""
    for name in ("in[1].csv", "in1.csv", "all*.csv", "all.csv"):
        (tmp_path / name).write_text(CSV)
    for name, found in {"in[1].csv": 1, "all*.csv": 1, "in[0-9].csv": 1, "a*.csv": 2}.items():
        assert len(find_files([f"{tmp_path}/{name}"])) == found
    monkeypatch.chdir(tmp_path)
    assert list(find_files(["*.csv"])) == ["all*.csv", "all.csv", "in1.csv", "in[1].csv"]
    assert list(find_files(["./*1.csv"])) == ["./in1.csv"]
    path = f"{tmp_path}/in[1].csv"
    assert find_files([path]) == {path: len(CSV.encode())}
    check(Path(path), events=[EVENT])


def test_one_file_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal by another spelling, a link or a folder's link, also for a missing file. An object has one name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "folder").symlink_to(".")
    (tmp_path / "soft.csv").symlink_to("a.csv")
    os.link("a.csv", "hard.csv")
    names = ["a.csv", "./a.csv", f"{tmp_path}//a.csv", "folder/folder/a.csv", "soft.csv", "hard.csv"]
    assert len({identity(name) for name in names}) == 1
    assert identity("new.csv") == identity("folder/new.csv") != identity("a.csv")
    assert identity("gs://b/a/../c") != identity("gs://b/c")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "a.log",
            b"",
            "its name ends in none of .csv, .tsv, .txt, .dat, .ndjson, .lp, .pb, .binpb, with or without .gz",
        ),
        ("a.csv.gz", b"sensor_id,event_time\n", "can't be read: Not a gzipped file"),
        ("a.ndjson", b"\n", "it is empty"),
        ("a.avro", b"sensor_id", "can't be read: "),
    ],
)
def test_what_can_be_known_at_once_is(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    """The start of each file is read before a job begins."""
    (path := tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFile) as raised:
        check_file(str(path), EventMaker(FileColumns()))
    assert str(raised.value).startswith(problem)
