"""Files whose records a mapping turns into events."""

import gzip
import io
import json
import math
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

from pipeline.core.dead_letters import DeadLetter, letter_json
from pipeline.core.decoding.dry_decode import Trials
from pipeline.core.decoding.file_names import file_attributes
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.dead_letter import REPLAYS, dead_letter
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import json_line
from pipeline.core.notation.times import format_time, parse_time
from pipeline.formats.files import open_records
from pipeline.formats.lines import Original, Refusal, Remark
from pipeline.formats.mapped import MappedMaker, SkippedElements
from pipeline.formats.values import FileColumns, UnreadableFile
from tests.core.decoding.mapping.protos import descriptor_set
from tests.formats.reading import LATEST_US, MORNING, MORNING_US, NOW_US, SIMPLE, plainly, read

PROBE = "plant.v1.Probe"
PROBES = descriptor_set("package plant.v1; message Probe { string id = 1; int64 at = 2; repeated double t = 3; }")
PROBE_MAPPING = """
message = "plant.v1.Probe"
skip_if = { path = "id", glob = "lab-*" }
sensor = "id"
time = { path = "at", unit = "us" }
readings = { "t*" = "t.*" }
"""
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
flow = { path = "Durchfluß", invalid = "drop reading" }
[metadata]
site = "Straße"
"""
HEADER = "Messstelle;Zeit;Temp. °C;Durchfluß;Straße;\r\n"


ORDER = SIMPLE.replace('"at"', '{ path = "at", time_zone = "Europe/Berlin", ambiguous = "order" }')


def test_the_order_of_a_file_tells_its_times(tmp_path: Path) -> None:
    """Rows become events of either run; a row that tells none is refused, and messages can't be published so."""
    mapped = MappedType("m.toml", f"{ORDER}readings.t = 't'\n")
    clocks = ["01:30", "02:30", "02:30", "03:00", "02:30"]
    rows = "".join(f"a,2025-10-26 {clock},{n}\n" for n, clock in enumerate(clocks))
    *found, refused = read(tmp_path, "a.csv", f"id,at,t\n{rows}".encode(), mapped)
    assert [format_time(event.event_time_us) for event in found] == [
        "2025-10-25T23:30:00Z", "2025-10-26T00:30:00Z", "2025-10-26T01:30:00Z", "2025-10-26T02:00:00Z",
    ]  # fmt: skip
    assert (refused.line, refused.reason) == (
        6,
        "INVALID_EVENT_TIME: time is '2025-10-26 02:30', a time that clocks show twice in Europe/Berlin, and no order "
        "of a file, oldest record first, tells which",
    )
    line = b'{"id": "a", "at": "2025-10-26 02:30", "t": 1}\n'
    with pytest.raises(UnreadableFile, match='line 1: with ambiguous = "order" only backfill can read it'):
        read(tmp_path, "a.ndjson", line, mapped)


OF_FILE = 'readings.t = "t"\nmetadata.path = "$file"\n'


@pytest.mark.parametrize("name", ["s-1.csv", "s-1.ndjson", "S-1.NDJSON.GZ"])
def test_a_file_of_one_sensor(name: str, tmp_path: Path) -> None:
    """Its name is the sensor. A line of JSON, too, is published as an event, since a job has no file."""
    mapped = MappedType("m.toml", SIMPLE.replace('"id"', '"{$file.folder:id}/{$file.stem:lower}"') + OF_FILE)
    content = f"at,t\n{MORNING},1\n" if name.endswith("csv") else json.dumps({"at": MORNING, "t": 1})
    data = gzip.compress(content.encode()) if name.endswith("GZ") else content.encode()
    (folder := tmp_path / "north 3").mkdir()
    assert plainly(read(folder, name, data, mapped)) == [
        ("north%203/s-1", MORNING_US, {"t": 1.0}, {"path": str(folder / name)})
    ]


def test_the_order_of_a_file_of_one_sensor(tmp_path: Path) -> None:
    """The runs through an hour are those of the sensor that the file names; lines of JSON have an order too, then."""
    mapped = MappedType("m.toml", ORDER.replace('"id"', '"$file.stem"') + OF_FILE)
    lines = [json.dumps({"at": f"2025-10-26 {clock}", "t": 1}) for clock in ("02:00", "02:30", "02:00")]
    found = read(tmp_path, "s-1.ndjson", "\n".join(lines).encode(), mapped)
    assert [(event.sensor_id, format_time(event.event_time_us)[:16]) for event in found] == [
        ("s-1", "2025-10-26T00:00"), ("s-1", "2025-10-26T00:30"), ("s-1", "2025-10-26T01:00"),
    ]  # fmt: skip


def test_a_dead_letter_keeps_the_name_of_its_file(tmp_path: Path) -> None:
    """Also a record that a mapping refused before it read the name, and one that is refused again."""
    mapped = MappedType("m.toml", SIMPLE.replace('"id"', '"$file.stem"') + OF_FILE)
    data = json.dumps({"at": MORNING, "t": 1}).encode()
    first, again = {"file": "in/s-1.csv"}, {"file": "refused.ndjson", **file_attributes("in/s-2.csv")}
    lines = []
    for attributes in (first, again):
        message = Message(data, {"message_type": "json", **attributes})
        letter = dead_letter(message, BadData(Reason.MISSING_SENSOR_ID, "none"), "Decode", RECORD["at"])
        lines.append(json_line(letter_json(DeadLetter.of(letter, Trials([mapped])))))
    assert plainly(read(tmp_path, "refused.ndjson", "\n".join(lines).encode(), mapped)) == [
        (f"s-{n}", MORNING_US, {"t": 1.0}, {"path": f"in/s-{n}.csv"}) for n in (1, 2)
    ]


def csv_mapping(more: str) -> MappedType:
    return MappedType("m.toml", SIMPLE + more)


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
    maker = MappedType("german.toml", GERMAN)
    refused, *found, wrong = read(tmp_path, "a.csv", text.encode("cp1252"), maker)
    at = parse_time("2026-02-17T08:30:00Z")
    assert plainly(found) == [
        ("N-1", at, {"temperature": -1234.5, "flow": 7.25}, {"site": "Hauptstraße"}),
        ("N-1", at + 60_000_000, {"flow": 1.0}, {}),
        (5, 1, "readings.flow is 'kaputt', not a number"),
        ("N-1", at + 120_000_000, {"temperature": 1.0}, {}),
    ]
    assert refused.line == 2
    assert refused.reason.startswith("INVALID_SENSOR_ID: ")
    assert (wrong.line, wrong.reason) == (6, "NOT_A_NUMBER: readings.temperature is '1.5', not a number")


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", b"\xef\xbb\xbf"), ("UTF8", b""), ("utf-16", b"")])
def test_a_byte_order_mark_is_no_part_of_the_header(encoding: str, mark: bytes, tmp_path: Path) -> None:
    """The mark at the file's beginning is left out, in each encoding."""
    content = mark + f"id,at,v\na,{MORNING},1\n".encode(encoding)
    mapped = csv_mapping(f'csv = {{ encoding = "{encoding}" }}\nreadings = {{ v = "v" }}')
    assert plainly(read(tmp_path, "a.csv", content, mapped)) == [("a", MORNING_US, {"v": 1.0}, {})]


@given(number=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=4))
def test_numbers_in_german_notation(number: Decimal) -> None:
    """Whatever a spreadsheet writes, with or without points between thousands, is the number that it shows."""
    grouped = f"{number:,.4f}".translate(str.maketrans(",.", ".,"))
    plain = f"{number:.4f}".replace(".", ",")
    mapped = MappedType("german.toml", GERMAN)
    for text in (grouped, plain):
        record = MappedMaker([mapped]).of_object(
            {"Messstelle": "a", "Zeit": "17.02.2026 09:00", "Temp. °C": text, "Durchfluß": None}
        )
        decoded = mapped.decode(record.message, LATEST_US)
        assert [event.readings for event in decoded.events] == [{"temperature": float(number)}]


def test_a_byte_that_the_encoding_does_not_have_refuses_its_row(tmp_path: Path) -> None:
    """The row with such a byte is refused, and the others are read."""
    content = f"id,at,v\na\x81,{MORNING},1\na,{MORNING},1\n".encode("latin-1")
    mapped = csv_mapping('csv = { encoding = "cp1252" }\nreadings = { v = "v" }')
    refused, event = read(tmp_path, "a.csv", content, mapped)
    assert refused == Refusal(2, "not CP1252: invalid byte 0x81")
    assert event.sensor_id == "a"


def test_damage_in_an_encoding_of_two_bytes_ends_the_file(tmp_path: Path) -> None:
    """Where the next row begins is unknown, so the file ends with an error."""
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
    plus = MappedType(
        "m.toml",
        'message = "json"\nsensor = "id"\ntime = { path = "at", plus = { path = "ms", unit = "ms" } }\n'
        'readings = { v = "v" }\n',
    )
    with pytest.raises(UnreadableFile, match="no column 'ms', which the mapping takes for the time's plus"):
        read(tmp_path, "a.csv", b"id,at,v\n", plus)
    content = f"id,at,v,ms\na,{MORNING},1,250\n".encode()
    assert read(tmp_path, "a.csv", content, plus)[0].event_time_us == MORNING_US + 250_000
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
    original, skipped, missing, broken = read(tmp_path, name, content, MappedType("m.toml", PROBE_MAPPING, PROBES))
    assert isinstance(original, Original)
    assert original.message.data == payloads[0]
    assert original.message.attributes["message_type"] == PROBE
    assert original.message.attributes["event_time"] == MORNING
    assert plainly(list(original.events)) == [("a", MORNING_US, {"t0": 1.5, "t1": 2.0}, {})]
    assert skipped == SkippedElements(1)
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
    event, refused = read(tmp_path, "a.avro", out.getvalue(), MappedType("m.toml", NESTED_MAPPING))
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
    found = plainly(read(tmp_path, "a.parquet", out.getvalue(), MappedType("m.toml", mapping)))
    sensor, at, readings, metadata = NESTED
    key = uuid.UUID(int=7).hex
    assert found == [NESTED, (sensor, at, {**readings, "took": 1.5}, {**metadata, "key": key})]


def test_a_file_that_no_mapping_is_for(tmp_path: Path) -> None:
    """It is not read as if there were no mapping."""
    protobuf, plain = MappedType("p.toml", PROBE_MAPPING, PROBES), csv_mapping('readings = { v = "v" }')
    with pytest.raises(UnreadableFile, match="no mapping is for a protobuf type"):
        read(tmp_path, "a.pb", b"", plain)
    another = MappedType("q.toml", PROBE_MAPPING.replace("Probe", "Other"), PROBES)
    with pytest.raises(UnreadableFile, match=r"don't say their type, and p.toml has no match"):
        read(tmp_path, "a.pb", b"", protobuf, another)
    for name in ("a.ndjson", "a.csv"):
        with pytest.raises(UnreadableFile, match='only a mapping with message = "json" reads it'):
            read(tmp_path, name, b"{}", protobuf)
    other = MappedType("o.toml", SIMPLE + 'csv = { delimiter = ";" }\nreadings = {}\nmatch = { path = "k", is = 1 }')
    with pytest.raises(UnreadableFile, match=r"the \[csv\] of m.toml and that of o.toml differ"):
        read(tmp_path, "a.csv", b"id,at\n", plain, other)


def test_several_mappings_of_json_are_told_apart_by_match(tmp_path: Path) -> None:
    """As in a job; the attributes of all messages in a file can be given."""
    one = csv_mapping('match = { path = "kind", is = "a" }\nreadings = { v = "v" }')
    two = csv_mapping('match = { path = "@kind", is = "b" }\nreadings = { w = "v" }')
    content = f'{{"id": "x", "at": "{MORNING}", "kind": "a", "v": 1}}\n'.encode()
    other = content.replace(b'"a"', b'"c"')
    for line, attributes, name in ((content, {}, "v"), (other, {"kind": "b"}, "w")):
        [original] = read(tmp_path, "a.ndjson", line, one, two, **attributes)
        assert dict(original.events[0].readings) == {name: 1.0}
        assert original.message.attributes.items() >= attributes.items()
    for mapped in ((one,), (one, two)):
        [refused] = read(tmp_path, "a.ndjson", other, *mapped)
        assert refused.reason.startswith("UNKNOWN_MESSAGE_TYPE: ")


FLAT = {"id": pyarrow.string(), "at": pyarrow.timestamp("us", "UTC")}


def parquet(more: dict[str, pyarrow.Array], v: Any = 1.0) -> bytes:
    """Returns a file of two records, the first with the value, with more columns."""
    columns = {"id": ["a", "b"], "at": [RECORD["at"]] * 2, "v": pyarrow.array([v, 2.0])}
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({**columns, **more}), out)
    return out.getvalue()


LATE = pyarrow.array([1 << 60, 0]).view(pyarrow.timestamp("us"))
NOT_UTF8 = pyarrow.StringArray.from_buffers(
    2, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xffa")
)
TWICE = pyarrow.array([[(1, "a"), (1, "b")], None], pyarrow.map_(pyarrow.int64(), pyarrow.string()))
BYTES_KEY = pyarrow.array([[(b"1", "a")], None], pyarrow.map_(pyarrow.binary(), pyarrow.string()))
TWINS = pyarrow.StructArray.from_arrays([pyarrow.array([1, 2])] * 2, ["y", "y"], mask=pyarrow.array([False, True]))


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (LATE, "is outside the years 1 to 9999"),
        (NOT_UTF8, "is not UTF-8: invalid byte 0xff"),
        (pyarrow.StructArray.from_arrays([LATE], ["y"]), "is outside the years 1 to 9999"),
        (pyarrow.StructArray.from_arrays([NOT_UTF8], ["y"]), "is not UTF-8: invalid byte 0xff"),
        (TWICE, "has a key twice"),
        (BYTES_KEY, "can't be written as JSON: keys must be str"),
        (TWINS, "has two fields of the same name"),
        (pyarrow.array([b"x" * 9000, None]), "has 9,000 bytes"),
    ],
)
def test_a_value_that_cannot_be_read_matters_only_if_the_mapping_may_read_its_column(
    column: pyarrow.Array, problem: str, tmp_path: Path
) -> None:
    """A star may read all columns."""
    content = parquet({"x": column})
    for more in ('metadata = { x = "x.y" }', 'metadata = { "*" = "**" }', 'skip_if = { path = "x", is = "z" }'):
        refused, *_ = read(tmp_path, "a.parquet", content, csv_mapping(f'{more}\nreadings = {{ v = "v" }}'), limit=8000)
        assert refused.line == 1
        assert refused.reason.startswith(f"'x' {problem}")
    found = read(tmp_path, "a.parquet", content, csv_mapping('readings = { v = "v" }'), limit=8000)
    assert [event.readings["v"] for event in found] == [1.0, 2.0]


@pytest.mark.parametrize(("value", "text"), [(float("nan"), "NaN"), (float("-inf"), "-Infinity")])
def test_a_number_that_is_not_finite_is_text(value: float, text: str, tmp_path: Path) -> None:
    """It refuses a reading, unless the mapping says that it means nothing; elsewhere it does no harm."""
    content = parquet({"w": pyarrow.array([[1.0], [2.0]])}, value)
    refused, good = read(tmp_path, "a.parquet", content, csv_mapping('readings = { v = "v", w = "w[0]" }'))
    assert refused.reason == f"NOT_A_NUMBER: readings.v is '{text}', not a number"
    assert dict(good.readings) == {"v": 2.0, "w": 2.0}
    null = f'readings = {{ v = {{ path = "v", null = "{text}" }}, w = "w[0]" }}'
    for readings in (null, 'readings = { w = "w[0]" }'):
        first, _ = read(tmp_path, "a.parquet", content, csv_mapping(readings))
        assert dict(first.readings) == {"w": 1.0}


def test_nested_columns_of_every_kind(tmp_path: Path) -> None:
    """Lists of each kind, maps and structs, over several batches, with nulls at every level."""
    inner = pyarrow.struct({"at": pyarrow.timestamp("ns"), "took": pyarrow.duration("ms")})
    kinds = {
        "lists": pyarrow.list_(pyarrow.list_(pyarrow.int32())),
        "large": pyarrow.large_list(inner),
        "fixed": pyarrow.list_(pyarrow.int16(), 2),
        "map": pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.float64())),
    }
    rows = [
        {
            "id": f"s-{n}",
            "at": RECORD["at"],
            "lists": [[n], None, [], [n, None]] if n % 2 else None,
            "large": [{"at": MORNING_US * 1000 + n, "took": n}, None] if n % 3 else [],
            "fixed": [n, None],
            "map": [("a", [n / 2]), ("b", None)] if n % 7 else None,
        }
        for n in range(1500)
    ]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema({**FLAT, **kinds})), out)
    readings = 'readings = { l = "lists[-1][0]", t = "large[0].took", f = "fixed[0]", m = "map.a[0]" }'
    found = {
        event.sensor_id: dict(event.readings)
        for event in read(tmp_path, "a.parquet", out.getvalue(), csv_mapping(readings))
    }
    assert found == {
        f"s-{n}": {
            **({"l": float(n)} if n % 2 else {}),
            **({"t": n / 1000} if n % 3 else {}),
            "f": float(n),
            **({"m": n / 2} if n % 7 else {}),
        }
        for n in range(1500)
    }


def test_the_clock_goes_on_while_a_file_is_published(tmp_path: Path) -> None:
    """A message whose time is the publish time has one; a row of CSV has none."""
    mapped = MappedType("m.toml", SIMPLE.replace('"at"', '["at", "$publish_time"]') + 'readings = { v = "v" }')
    clock = iter(range(NOW_US, NOW_US + 4 * 3_600_000_000, 3_600_000_000))
    (tmp_path / "a.ndjson").write_text('{"id": "a", "v": 1}\n' * 3)
    with open_records(tmp_path / "a.ndjson", FileColumns(), lambda: next(clock), mapped=[mapped]) as records:
        times = [record.events[0].event_time_us for record in records]
    assert times == [NOW_US + n * 3_600_000_000 for n in range(3)]
    [refused] = read(tmp_path, "a.csv", b"id,at,v\na,,1\n", mapped)
    assert refused.reason.startswith("MISSING_EVENT_TIME: ")


def test_a_dead_letter_of_an_infinite_number(tmp_path: Path) -> None:
    """A record with an infinite number is still a dead letter, although JSON has no such number."""
    broken = MappedType("m.toml", PROBE_MAPPING.replace('"us"', '"s"'), PROBES)
    message = Message(probe(id="a", at=MORNING_US, t=[1.5]), {"message_type": PROBE})
    letter = dead_letter(message, BadData(Reason.NON_FINITE_VALUE, "t"), "Decode", RECORD["at"])
    record = letter_json(DeadLetter.of(letter, Trials([broken])))
    line = json_line({**record, "mapped": {"message": {"t": math.inf}}}).encode()
    [replay] = read(tmp_path, "a.ndjson", line, MappedType("m.toml", PROBE_MAPPING, PROBES))
    assert replay.message.data == message.data


def test_dead_letters_of_a_mapping_can_be_published_again(tmp_path: Path) -> None:
    """They keep their attributes, and are read by the mapping as it is now."""
    broken = MappedType("m.toml", PROBE_MAPPING.replace('"us"', '"s"'), PROBES)
    message = Message(probe(id="a", at=MORNING_US, t=[1.5]), {"message_type": PROBE, "event_id": "7", "own": "x"}, "9")
    problem = BadData(Reason.EVENT_TIME_IN_FUTURE, "far")
    letters = [dead_letter(one, problem, "Decode", RECORD["at"]) for one in (message, message._replace(data=b"\xff"))]
    lines = [json_line(letter_json(DeadLetter.of(letter, Trials([broken])))) for letter in letters]
    content = "\n".join(lines).encode()
    replay, refused = read(tmp_path, "a.ndjson", content, MappedType("m.toml", PROBE_MAPPING, PROBES))
    assert replay.message.data == message.data
    assert replay.message.attributes.items() >= {**message.attributes, REPLAYS: "1"}.items()
    assert plainly(replay.events) == [("a", MORNING_US, {"t0": 1.5}, {})]
    assert (refused.line, refused.reason.split(":")[0]) == (2, "UNPARSEABLE")


def test_lines_of_line_protocol(tmp_path: Path) -> None:
    """Each is a message, as it is in the file; a wrong one is refused with its number, and comments are skipped."""
    keys = 'sensor = "tags.host"\ntime = { path = "time", unit = "us" }\nreadings."*" = "fields.*"'
    mapped = MappedType("m.toml", f'message = "influx"\n{keys}')
    good = f"cpu,host=a load=1.5,busy=t {MORNING_US}".encode()
    original, refused = read(tmp_path, "a.lp", b"# c\r\n\r\n" + good + b"\r\nbad", mapped)
    assert (original.message.data, original.message.attributes["message_type"]) == (good, "influx")
    assert plainly(original.events) == [("a", MORNING_US, {"load": 1.5, "busy": 1}, {})]
    assert (refused.line, refused.reason[:28]) == (4, "UNPARSEABLE: at character 4,")
    for others in ((), (MappedType("m.toml", f"{SIMPLE}readings = {{}}"),)):
        with pytest.raises(UnreadableFile, match=r'only a .*mapping with message = "influx"'):
            read(tmp_path, "a.lp", good, *others)
