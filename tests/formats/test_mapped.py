"""Files whose records a mapping turns into events."""

import gzip
import io
import json
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.mapping.descriptors import Descriptors
from pipeline.core.message_types import Mapped
from pipeline.core.times import parse_time
from pipeline.formats.files import (
    FileColumns,
    MappedMaker,
    Original,
    Refusal,
    Remark,
    Skipped,
    UnreadableFile,
    open_records,
)
from tests.core.mapping.protos import descriptor_set
from tests.formats.reading import LATEST_US, MORNING, MORNING_US, NOW_US

PROBE = "plant.v1.Probe"
PROBES = descriptor_set("package plant.v1; message Probe { string id = 1; int64 at = 2; repeated double t = 3; }")
PROBE_MAPPING = """
message = "plant.v1.Probe"
skip_if = { path = "id", glob = "lab-*" }
sensor = "id"
time = { path = "at", unit = "us" }
readings = { "t*" = "t.*" }
"""
SIMPLE = 'message = "json"\nsensor = "id"\ntime = "at"\n'
GERMAN = """
message = "json"
sensor = "Messstelle"
time = { path = "Zeit", format = "%d.%m.%Y %H:%M", time_zone = "Europe/Berlin" }
decimal = ","
thousands = "."
null = ["-", "k. A."]
csv = { delimiter = ";", encoding = "cp1252" }
[readings]
temperature = '"Temp. °C"'
flow = { path = "Durchfluß", invalid = "null" }
[metadata]
site = "Straße"
"""
HEADER = "Messstelle;Zeit;Temp. °C;Durchfluß;Straße;\r\n"


def read(folder: Path, name: str, content: bytes, *mapped: Mapped, limit: int = 10_000) -> list[Any]:
    """Returns what publish would send of the records of a file."""
    (folder / name).write_bytes(content)
    with open_records(folder / name, FileColumns(), lambda: NOW_US, limit, mapped) as records:
        return list(records)


def plainly(found: list[Any]) -> list[Any]:
    """Returns events as plain data."""
    return [
        (each.sensor_id, each.event_time.ToMicroseconds(), dict(each.readings), dict(each.metadata)) for each in found
    ]


def csv_mapping(more: str) -> Mapped:
    return Mapped("m.toml", SIMPLE + more)


def probe(**fields: Any) -> bytes:
    return Descriptors(PROBES).message_class(PROBE)(**fields).SerializeToString()


def delimited(*payloads: bytes) -> bytes:
    out = io.BytesIO()
    for payload in payloads:
        out.write(bytes([len(payload)]) + payload)  # shorter than 128 bytes
    return out.getvalue()


def test_a_german_spreadsheet_needs_no_script(tmp_path: Path) -> None:
    """Semicolons, decimal commas, grouped thousands, local times, cp1252, blank cells, and a column without a name."""
    text = HEADER + (
        "Süd-1;17.02.2026 09:30;-1.234,5;7,25;Hauptstraße;\r\n"
        "N-1;17.02.2026 09:30;-1.234,5;7,25;Hauptstraße;\r\n"
        "N-1;17.02.2026 09:31;;1;-;\r\n"
        "N-1;17.02.2026 09:32;1;kaputt;;\r\n"
        "N-1;17.02.2026 09:33;1.5;1;;\r\n"
    )
    maker = Mapped("german.toml", GERMAN)
    refused, *found, wrong = read(tmp_path, "a.csv", text.encode("cp1252"), maker)
    at = parse_time("2026-02-17T08:30:00Z")
    assert plainly(found) == [
        ("N-1", at, {"temperature": -1234.5, "flow": 7.25}, {"site": "Hauptstraße"}),
        ("N-1", at + 60_000_000, {"flow": 1.0}, {}),
        ("N-1", at + 120_000_000, {"temperature": 1.0}, {}),
    ]
    assert refused.line == 2
    assert refused.reason.startswith("INVALID_SENSOR_ID: ")
    assert (wrong.line, wrong.reason) == (6, "NOT_A_NUMBER: readings.temperature is '1.5', not a number")


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", b"\xef\xbb\xbf"), ("UTF8", b""), ("utf-16", b"")])
def test_a_byte_order_mark_is_no_part_of_the_header(encoding: str, mark: bytes, tmp_path: Path) -> None:
    content = mark + f"id,at,v\na,{MORNING},1\n".encode(encoding)
    mapped = csv_mapping(f'csv = {{ encoding = "{encoding}" }}\nreadings = {{ v = "v" }}')
    assert plainly(read(tmp_path, "a.csv", content, mapped)) == [("a", MORNING_US, {"v": 1.0}, {})]


@given(number=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=4))
def test_numbers_in_german_notation(number: Decimal) -> None:
    """Whatever a spreadsheet writes, with or without points between thousands, is the number that it shows."""
    grouped = f"{number:,.4f}".translate(str.maketrans(",.", ".,"))
    plain = f"{number:.4f}".replace(".", ",")
    mapped = Mapped("german.toml", GERMAN)
    for text in (grouped, plain):
        record = MappedMaker([mapped]).of_object(
            {"Messstelle": "a", "Zeit": "17.02.2026 09:00", "Temp. °C": text, "Durchfluß": None}
        )
        decoded = mapped.decode(record.message, LATEST_US, ())
        assert [event.readings for event in decoded.events] == [{"temperature": float(number)}]


def test_a_byte_that_the_encoding_does_not_have_refuses_its_row(tmp_path: Path) -> None:
    content = f"id,at,v\na\x81,{MORNING},1\na,{MORNING},1\n".encode("latin-1")
    mapped = csv_mapping('csv = { encoding = "cp1252" }\nreadings = { v = "v" }')
    refused, event = read(tmp_path, "a.csv", content, mapped)
    assert refused == Refusal(2, "not CP1252: invalid byte 0x81")
    assert event.sensor_id == "a"


def test_damage_in_an_encoding_of_two_bytes_ends_the_file(tmp_path: Path) -> None:
    content = f"id,at,v\na,{MORNING},1\n".encode("utf-16") + b"\x00\xd8\x00\xd8\x0a\x00"
    mapped = csv_mapping('csv = { encoding = "utf-16" }\nreadings = { v = "v" }')
    with pytest.raises(UnreadableFile, match="can't be read"):
        read(tmp_path, "a.csv", content, mapped)


def test_columns_that_the_mapping_names_and_the_file_lacks(tmp_path: Path) -> None:
    """Without the sensor or the time nothing could be read; a reading that is missing is told."""
    mapped = csv_mapping('readings = { v = "v", w = ["w", "x"] }\nmetadata = { site = "@site" }')
    assert read(tmp_path, "a.csv", f"id,at,v\na,{MORNING},1\n".encode(), mapped)[0] == Remark(
        1, "no column 'w', which readings.w names"
    )
    with pytest.raises(UnreadableFile, match="no column 'at', which the mapping takes for the time; the columns are"):
        read(tmp_path, "a.csv", b"id,time,v\n", mapped)
    with pytest.raises(UnreadableFile, match="two columns have the same name"):
        read(tmp_path, "a.csv", b"id,at,v,v\n", mapped)
    refused = read(tmp_path, "a.csv", f"id,at,v,x\na,{MORNING},1\n".encode(), mapped)
    assert refused == [Refusal(2, "3 fields, but the header has 4")]


@pytest.mark.parametrize("name", ["a.pb", "a.binpb.gz"])
def test_messages_of_another_type_are_published_as_they_are(name: str, tmp_path: Path) -> None:
    """What a condition leaves out is not published, and neither is what the job would refuse."""
    payloads = [probe(id="a", at=MORNING_US, t=[1.5, 2]), probe(id="lab-1", at=1), probe(id="", t=[1]), b"\xff\xff"]
    content = delimited(*payloads)
    content = gzip.compress(content) if name.endswith("gz") else content
    original, skipped, missing, broken = read(tmp_path, name, content, Mapped("m.toml", PROBE_MAPPING, PROBES))
    assert isinstance(original, Original)
    assert original.message.data == payloads[0]
    assert original.message.attributes["message_type"] == PROBE
    assert original.message.attributes["event_time"] == MORNING
    assert plainly(list(original.events)) == [("a", MORNING_US, {"t0": 1.5, "t1": 2.0}, {})]
    assert skipped == Skipped(1)
    assert (missing.line, broken.line) == (3, 4)
    assert missing.reason.startswith("MISSING_SENSOR_ID: ")
    assert broken.reason.startswith("UNPARSEABLE: not a plant.v1.Probe")


def test_lines_of_json_are_published_as_they_are(tmp_path: Path) -> None:
    """Also lines that would mean something without a mapping; a line that is no JSON is refused."""
    lines = [{"id": "a", "at": MORNING, "readings": {"v": [1, 2]}}, {"id": "b", "at": MORNING, "readings": {}}]
    content = "\n\n".join(map(json.dumps, lines)).encode() + b"\n{\n\xff\n"
    mapped = csv_mapping('readings = { first = "readings.v[0]" }')
    original, empty, broken, binary = read(tmp_path, "a.ndjson", content, mapped)
    assert original.message.data == json.dumps(lines[0]).encode()
    assert original.message.attributes["message_type"] == "json"
    assert plainly(list(original.events)) == [("a", MORNING_US, {"first": 1.0}, {})]
    assert [each.line for each in (empty, broken, binary)] == [3, 4, 5]
    assert [each.reason.split(":")[0] for each in (empty, broken, binary)] == ["NO_READINGS", *["UNPARSEABLE"] * 2]


RECORD = {
    "device": {"id": "a", "key": b"\x01\xff"},
    "at": datetime(2026, 2, 17, 8, tzinfo=UTC),
    "points": [{"offset": 0, "v": 1.5}, {"offset": 1, "v": None}, {"offset": 2, "v": 3.5}],
    "tags": {"site": "north"},
    "price": Decimal("12.50"),
    "big": (1 << 53) + 2,
}
NESTED_MAPPING = """
message = "json"
sensor = "{device.id}"
time = "at"
readings = { "v_*" = "points.*.v", price = "price", big = "big" }
metadata = { key = "device.key", site = "tags.site" }
"""
NESTED = (
    "a",
    MORNING_US,
    {"v_0": 1.5, "v_2": 3.5, "price": 12.5, "big": float((1 << 53) + 2)},
    {"key": "01ff", "site": "north"},
)


def test_nested_records_of_avro(tmp_path: Path) -> None:
    """Records, arrays, maps, bytes, decimals and times."""
    point = {"type": "record", "name": "Point", "fields": [
        {"name": "offset", "type": "int"}, {"name": "v", "type": ["null", "double"]}]}  # fmt: skip
    device = {"type": "record", "name": "Device", "fields": [
        {"name": "id", "type": "string"}, {"name": "key", "type": "bytes"}]}  # fmt: skip
    types = {
        "device": device,
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "points": {"type": "array", "items": point},
        "tags": {"type": "map", "values": "string"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "big": "long",
    }
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    out = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    fastavro.writer(out, schema, [RECORD, RECORD | {"big": (1 << 53) + 1}])
    event, refused = read(tmp_path, "a.avro", out.getvalue(), Mapped("m.toml", NESTED_MAPPING))
    assert plainly([event]) == [NESTED]
    assert refused.line == 2
    assert refused.reason.startswith("INEXACT_INTEGER: ")


@pytest.mark.parametrize("use_dictionary", [False, True])
def test_nested_records_of_parquet(use_dictionary: bool, tmp_path: Path) -> None:
    """The same, and times without a zone, UUIDs, dates and durations."""
    more = {
        "device": {"id": "a", "key": uuid.UUID(int=7).bytes},
        "local": datetime(2026, 2, 17, 9),
        "took": timedelta(milliseconds=1500),
    }
    point = pyarrow.struct({"offset": pyarrow.int8(), "v": pyarrow.float64()})
    schema = pyarrow.schema(
        {
            "device": pyarrow.struct({"id": pyarrow.string(), "key": pyarrow.binary()}),
            "at": pyarrow.timestamp("ns", "UTC"),
            "points": pyarrow.list_(point),
            "tags": pyarrow.map_(pyarrow.string(), pyarrow.string()),
            "price": pyarrow.decimal128(6, 2),
            "big": pyarrow.int64(),
            "local": pyarrow.timestamp("us"),
            "took": pyarrow.duration("ms"),
        }
    )
    table = pyarrow.Table.from_pylist([RECORD, RECORD | more], schema)
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out, use_dictionary=use_dictionary)
    mapping = NESTED_MAPPING.replace('time = "at"', 'time = [{ path = "local", time_zone = "Europe/Berlin" }, "at"]')
    mapping = mapping.replace("readings = { ", 'readings = { took = "took", ')
    found = plainly(read(tmp_path, "a.parquet", out.getvalue(), Mapped("m.toml", mapping)))
    sensor, at, readings, metadata = NESTED
    key = uuid.UUID(int=7).hex
    assert found == [NESTED, (sensor, at, {**readings, "took": 1.5}, {**metadata, "key": key})]


def test_a_file_that_no_mapping_is_for(tmp_path: Path) -> None:
    """It is not read as if there were no mapping."""
    protobuf, plain = Mapped("p.toml", PROBE_MAPPING, PROBES), csv_mapping('readings = { v = "v" }')
    with pytest.raises(UnreadableFile, match="no mapping is for a protobuf type"):
        read(tmp_path, "a.pb", b"", plain)
    another = Mapped("q.toml", PROBE_MAPPING.replace("Probe", "Other"), PROBES)
    with pytest.raises(UnreadableFile, match=r"don't say their type, and p.toml has no match"):
        read(tmp_path, "a.pb", b"", protobuf, another)
    for name in ("a.ndjson", "a.csv"):
        with pytest.raises(UnreadableFile, match='only a mapping with message = "json" reads it'):
            read(tmp_path, name, b"{}", protobuf)
    other = Mapped("o.toml", SIMPLE + 'csv = { delimiter = ";" }\nreadings = {}\nmatch = { path = "k", is = 1 }')
    with pytest.raises(UnreadableFile, match=r"the \[csv\] of m.toml and that of o.toml differ"):
        read(tmp_path, "a.csv", b"id,at\n", plain, other)


def test_several_mappings_of_json_are_told_apart_by_match(tmp_path: Path) -> None:
    """The only one reads all records, also if its match is about attributes, which records don't have."""
    one = csv_mapping('match = { path = "kind", is = "a" }\nreadings = { v = "v" }')
    two = csv_mapping('match = { path = "@kind", is = "b" }\nreadings = { w = "v" }')
    content = f'{{"id": "x", "at": "{MORNING}", "kind": "a", "v": 1}}\n'.encode()
    for mapped, name in (((one, two), "v"), ((two,), "w")):
        [original] = read(tmp_path, "a.ndjson", content, *mapped)
        assert dict(original.events[0].readings) == {name: 1.0}
    [refused] = read(tmp_path, "a.ndjson", content.replace(b'"a"', b'"c"'), one, two)
    assert refused.reason.startswith("UNKNOWN_MESSAGE_TYPE: ")


def test_long_records_are_refused(tmp_path: Path) -> None:
    mapped = csv_mapping('readings = { v = "v" }')
    [refused] = read(tmp_path, "a.ndjson", b'{"id": "' + b"x" * 100 + b'"}\n', mapped, limit=50)
    assert "--max-record-bytes" in refused.reason
