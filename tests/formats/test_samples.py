"""Mappings drafted of samples compile, read every record, and say what is in doubt."""

import codecs
import gzip
import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.authoring.rows import Sampled
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.notation.times import parse_time
from pipeline.formats.samples import draft_of, read_sample, trials_of_sample
from pipeline.formats.values import UnreadableFile

GERMAN = (
    "Messstelle;Zeitpunkt;Temperatur (°C);Abfluss (l/s);Status\r\n"
    "Oker 3;17.02.2026 11:30;-0,5;1.207,25;geprüft\r\n"
    "Oker 3;17.02.2026 12:30;;-;Ausfall\r\n"
    "Oker 4;17.02.2026 11:30;3;88;\r\n"
).encode("cp1252")
AMERICAN = (
    codecs.BOM_UTF8 + b"Device ID,Date,Time,Temp (F),Humidity %,Battery\n"
    b"A-1,2/17/2026,10:30:00 AM,71.2,48%,NA\nA-1,2/18/2026,10:40:00 PM,71.4,47%,3.1\n"
)
LONG = (
    b"sensor,timestamp,metric,value,unit\n"
    b"a,1771324200,temp,21.5,C\na,1771324200,hum,48,%\na,1771324260,temp,21.7,C\nb,1771324260,in/temp,-9999,C\n"
)
WIDE = b"ts_ms,kitchen,bath\n1771324200500,21.5,22.5\n1771324201500,21.5,\n"


def written(path: Path, content: bytes) -> Path:
    """Returns the path of a file that now has this content."""
    path.write_bytes(content)
    return path


def drafted(path: Path, content: bytes, zone: str = "") -> tuple[dict[str, Any], str, list[tuple[Any, ...]]]:
    """Returns the TOML document of a draft, its text, and the events that it makes of the sample."""
    sampled = read_sample(written(path, content))
    text = draft_of(sampled, zone)
    tried = trials_of_sample(sampled, MappedType("draft", text))
    return tomllib.loads(text), text, [event[:4] for *_, trial in tried for event in trial.events]


def test_a_german_spreadsheet(tmp_path: Path) -> None:
    """The delimiter, the encoding, the decimal sign, the thousands, the format and the zone are found."""
    document, text, events = drafted(tmp_path / "a.csv", GERMAN)
    assert document == {
        "message": "json",
        "sensor": "{Messstelle:id}",
        "time": {"path": "Zeitpunkt", "format": "%d.%m.%Y %H:%M", "time_zone": "Europe/Berlin"},
        "decimal": ",",
        "thousands": ".",
        "null": ["-"],
        "csv": {"delimiter": ";", "encoding": "cp1252"},
        "readings": {
            "temperatur_c": {"path": '"Temperatur (°C)"', "unit": "°C"},
            "abfluss_l_s": {"path": '"Abfluss (l/s)"', "unit": "l/s"},
        },
        "metadata": {"Status": "Status"},
    }
    assert "# doubt: its times have no offset" in text
    at = 1_771_324_200_000_000
    assert events[0] == ("Oker%203", at, {"temperatur_c": -0.5, "abfluss_l_s": 1207.25}, {"Status": "geprüft"})
    assert drafted(tmp_path / "a.csv", GERMAN, "Asia/Tokyo")[0]["time"]["time_zone"] == "Asia/Tokyo"


def test_the_zone_of_nested_json(tmp_path: Path) -> None:
    """It is the given one, also of ISO 8601."""
    content = (
        b'{"dev": "a", "points": [{"time": "2026-02-17T11:30:00", "v": 1}, {"time": "2026-02-17T11:45:00", "v": 2}]}'
    )
    document, _, events = drafted(tmp_path / "a.json", content, "Europe/Berlin")
    assert (document["sensor"], document["time"]) == ("dev", {"path": ".time", "time_zone": "Europe/Berlin"})
    assert events[0] == ("a", parse_time(AT), {"v": 1.0}, {})


def test_digits_of_a_date_in_json(tmp_path: Path) -> None:
    """Integers are read by their format."""
    content = b'{"id": "a", "at": 2026021723, "v": 1}\n{"id": "a", "at": 2026021800, "v": 2}'
    document, _, events = drafted(tmp_path / "a.ndjson", content, "UTC")
    assert document["time"] == {"path": "at", "format": "%Y%m%d%H", "time_zone": "UTC"}
    assert [made[1] for made in events] == [parse_time("2026-02-17T23:00Z"), parse_time("2026-02-18T00:00Z")]


def test_an_american_spreadsheet(tmp_path: Path) -> None:
    """A byte-order mark, a date and a clock of twelve hours, units in headers and cells, a missing value."""
    document, _, events = drafted(tmp_path / "a.csv", AMERICAN)
    assert (document["sensor"], document["null"]) == ('"Device ID"', ["NA"])
    assert document["time"] == {"path": "{Date} {Time}", "format": "%m/%d/%Y %I:%M:%S %p", "time_zone": "UTC"}
    assert document["readings"]["humidity_percent"] == {"path": '"Humidity %"', "suffix": "%", "unit": "%"}
    assert events == [
        ("A-1", 1_771_324_200_000_000, {"temp_f": 71.2, "humidity_percent": 48.0}, {}),
        ("A-1", 1_771_454_400_000_000, {"temp_f": 71.4, "humidity_percent": 47.0, "Battery": 3.1}, {}),
    ]


def test_a_row_for_each_reading(tmp_path: Path) -> None:
    """A column of names and one of values; the unit, which differs between readings, is no metadata."""
    document, text, events = drafted(tmp_path / "a.csv", LONG)
    assert document["readings"] == {"*": {"path": "value", "name": "metric"}}
    assert (document["time"], document["null"]) == ({"path": "timestamp", "unit": "s"}, [-9999])
    assert [event[2] for event in events] == [{"temp": 21.5}, {"hum": 48.0}, {"temp": 21.7}]
    assert "is -9999 a missing value?" in text
    assert "# left out: unit: it differs" in text


AT = "2026-02-17T10:30:00Z"


@pytest.mark.parametrize(
    ("content", "name", "doubt"),
    [
        pytest.param(f"sensor,time,metric,value\na,{AT},temp,21.5\na,{AT},hum,48\n", "metric", False, id="two"),
        pytest.param(f"sensor,time,metric,value\na,{AT},temp,21.5\nb,{AT},hum,48\n", "metric", True, id="apart"),
        pytest.param(f"sensor,time,metric,value\na,{AT},temp,21.5\n", "metric", True, id="one"),
        pytest.param(f"id,time,name,value\na,{AT},temp,21.5\na,{AT},hum,48\n", "name", False, id="name"),
        pytest.param(f"id,zeit,art,einheit,wert\n7,{AT},T,C,2\n7,{AT},H,%,3\n", "art", True, id="unknown name"),
        pytest.param(f"id,time,parameter,amount\n7,{AT},T,2\n7,{AT},H,3\n", "parameter", False, id="unknown value"),
    ],
)
def test_few_rows_that_are_one_reading_each(tmp_path: Path, content: str, name: str, doubt: bool) -> None:
    """Names differ at one time of a sensor; without that proof, the draft tells the doubt."""
    document, text, events = drafted(tmp_path / "a.csv", content.encode())
    assert document["readings"]["*"]["name"] == name
    assert len({metric for event in events for metric in event[2]}) == len(events)
    assert ("doubt: is each row one reading?" in text) == doubt


@pytest.mark.parametrize(
    "content",
    [
        f"id,time,name,value\na,{AT},Cellar,21.5\nb,{AT},Roof,48\na,{AT[:-2]}1Z,Cellar,21\n",
        f"id,time,status,value\na,{AT},ok,21.5\nb,{AT},bad,48\n",
        f"id,time,status,temperature,value\na,{AT},ok,1,2\na,{AT},bad,1,3\n",
    ],
    ids=["a sensor's name", "no name", "two columns of numbers"],
)
def test_a_row_with_a_text_is_not_one_reading(tmp_path: Path, content: str) -> None:
    """Text that the sensor determines, or beside other numbers, names no reading."""
    document = drafted(tmp_path / "a.csv", content.encode())[0]
    assert "value" in document["readings"]
    assert set(document["metadata"]) & {"name", "status"}


def test_names_of_columns(tmp_path: Path) -> None:
    """A hyphen separates words; names that no path can contain and a header of values are doubts."""
    document, text, _ = drafted(tmp_path / "a.csv", f'Sensor-ID,Zeit,"T {{C}}",h\nS1,{AT},1,2\n'.encode())
    assert document["sensor"] == '"Sensor-ID"'
    assert "left out: T {C}: no path can contain this name; rename it" in text
    assert "lack a header" not in text
    _, text, _ = drafted(tmp_path / "b.csv", f"a,{AT},1.5\nb,{AT},2.5\n".encode())
    assert f"# doubt: does the file lack a header? A column is called {AT}" in text
    assert r'delimiter = "\t"' in drafted(tmp_path / "c.csv", f"id\tat\tx\na\t{AT}\t1\n".encode())[1]


def test_a_column_for_each_sensor(tmp_path: Path) -> None:
    """Without a sensor, the file's name is one; a comment has the mapping for a column per sensor, which works."""
    document, text, events = drafted(tmp_path / "flat.csv", WIDE)
    assert document["sensor"] == {"constant": "flat"}
    assert events[0] == ("flat", 1_771_324_200_500_000, {"kitchen": 21.5, "bath": 22.5}, {})
    other = "\n".join(
        line[2:] for line in text.splitlines() if line.startswith(("# each", "# sen", "# skip", "# read"))
    )
    mapping = f'message = "json"\ntime = {{ path = "ts_ms", unit = "ms" }}\n{other}\n'
    tried = trials_of_sample(read_sample(tmp_path / "flat.csv"), MappedType("m", mapping))
    assert [event[0] for *_, trial in tried for event in trial.events] == ["kitchen", "bath", "kitchen"]


RDB = (
    "# a comment\n#\nagency_cd\tsite_no\tdatetime\ttz_cd\tflow\n5s\t15s\t20d\t6s\t14n\n"
    "USGS\t01234567\t2026-02-17 05:30\tEST\t100\nUSGS\t01234567\t2026-02-17 06:30\tEDT\t101\n"
)
TITLES = "Station: Roof\nExported; 2026\n\nTime;Temp. [°C];Hum (%)\n;°C;%\n"
TITLES += "".join(f"17.02.2026 10:3{n};20,{n};5{n},5\n" for n in range(5)) + "17.02.2026 10:35;85;9999\n"
LOGGER = (
    '"TOA5","83014","CR1000","1","x","y","2","Table1"\n"TIMESTAMP","RECORD","AirTC"\n"TS","RN","Deg C"\n"","","Smp"\n'
    '"2026-02-17 10:30:00",1,24.5\n"2026-02-17 10:31:00",2,"NAN"\n"2026-02-17 10:32:00",3,24.6\n'
)
INFLUX = (
    "#group,false,true,false,false,true,true\n#datatype,string,long,dateTime:RFC3339,KIND,string,string\n"
    "#default,_result,,,,,\n,result,table,_time,_value,_field,sensor_id\n,,0,2026-02-17T10:30:00Z,VALUE,FIELD,a\n\n"
)
STATES = INFLUX.replace("KIND", "double").replace("VALUE", "1.5").replace("FIELD", "co") + INFLUX.replace(
    "KIND", "string"
).replace("VALUE", "ok").replace("FIELD", "state")
BLANKS = "#id   time                 wind\n#-    UTC                  m/s\na     2026-02-17T10:30Z    5.5\n"
HISTORY = f"entity_id,state,last_changed\na.b,21.5,{AT}\na.b,unavailable,{AT}\na.c,on,{AT}\na.c,off,{AT}\n"


@pytest.mark.parametrize(
    ("content", "expected", "comments"),
    [
        pytest.param(
            RDB,
            {
                "csv": {"comment": "#", "delimiter": "\t", "header_lines": 2},
                "sensor": "site_no",
                "readings": {"flow": "flow"},
            },
            ['{ path = "datetime", time_zone = "Etc/GMT+4", when = { path = "tz_cd", is = "EDT" } }]'],
            id="a survey's comments, types and zones",
        ),
        pytest.param(
            TITLES,
            {
                "csv": {"delimiter": ";", "header_lines": 2, "skip_lines": 3},
                "readings": {
                    "temp_c": {"path": '"Temp. [°C]"', "null": [85], "unit": "°C"},
                    "hum_percent": {"path": '"Hum (%)"', "null": [9999], "unit": "%"},
                },
            },
            ["# 20 to 20.4; doubt: is 85 a missing value?", "doubt: is 9999 a missing value?"],
            id="titles, units and sentinels",
        ),
        pytest.param(
            LOGGER,
            {
                "csv": None,
                "sensor": "station",
                "null": ["NAN"],
                "readings": {"AirTC": {"path": "AirTC", "unit": "Deg C"}},
            },
            ["# 24.5 to 24.6", "# left out: RECORD"],
            id="TOA5",
        ),
        pytest.param(
            STATES,
            {
                "sensor": "sensor_id",
                "readings": {
                    "*": {"path": "_value", "name": "_field", "when": {"path": "_type", "is_not": "string"}},
                },
                "metadata": {"*": {"path": "_value", "name": "_field", "when": {"path": "_type", "is": "string"}}},
            },
            [
                "an event without numbers needs metadata_alone",
                "# left out: _type, result, table: columns of a query's result",
            ],
            id="annotated CSV",
        ),
        pytest.param(
            BLANKS,
            {
                "csv": {"delimiter": "blanks", "header_lines": 2},
                "sensor": '"#id"',
                "readings": {"wind": {"path": "wind", "unit": "m/s"}},
            },
            ["# 5.5 to 5.5"],
            id="blanks, and a header that looks like comments",
        ),
        pytest.param(
            HISTORY,
            {"readings": {"state": {"path": "state", "when": {"path": "state", "glob": "[-+.0-9]*"}}}},
            ["doubt: numbers beside texts, such as on, off"],
            id="a history with states",
        ),
    ],
)
def test_files_as_programs_write_them(
    tmp_path: Path, content: str, expected: dict[str, Any], comments: list[str]
) -> None:
    """The draft has what is above the records and between them, in UTF-8 and in UTF-16, and reads a record."""
    document, text, events = drafted(tmp_path / "a.csv", content.encode())
    assert {key: document.get(key) for key in expected} == expected
    assert [comment for comment in comments if comment not in text] == []
    assert events
    assert drafted(tmp_path / "a.csv", content.encode("utf-16")) == (document, text, events)


def test_extremes_that_are_measured(tmp_path: Path) -> None:
    """A number that stands for a missing value elsewhere is none beside others like it."""
    rows = "".join(f"a,{AT},{value}\n" for value in (9997, 9998, 9999, -127, 85))
    assert drafted(tmp_path / "a.csv", f"id,time,x\n{rows}".encode())[0]["readings"] == {"x": "x"}


def test_records_of_parquet_and_ndjson(tmp_path: Path) -> None:
    """Values have types there; a counter of the records is left out, an empty column too."""
    path = tmp_path / "a.parquet"
    table = {"index": [0, 1], "id": ["a", "a"], "at": ["2026-02-17T10:30:00Z"] * 2, "x": [1.5, None], "e": [None] * 2}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    document, _, events = drafted(path, path.read_bytes())
    assert (document["sensor"], document["time"], document["readings"]) == ("id", "at", {"x": "x"})
    assert events == [("a", 1_771_324_200_000_000, {"x": 1.5}, {})]
    nested = {"device": {"id": "a"}, "time": 1_771_324_200, "data": {"temp C": 21, "ok": True}}
    document, _, events = drafted(tmp_path / "a.ndjson", json.dumps(nested).encode())
    assert document["time"] == [{"path": "time", "unit": "s"}, "$publish_time"]
    assert events == [("a", 1_771_324_200_000_000, {"ok": 1.0, "temp_c": 21.0}, {})]
    document, _, events = drafted(tmp_path / "a.json", b'[{"id": "a", "ts": 1771324200123, "v": 2}, {"id": "b"}]')
    assert (document["each"], [event[0] for event in events]) == ("[]", ["a"])


def test_messages_of_other_notations(tmp_path: Path) -> None:
    """Forms, line protocol and several objects are recognised by content, also compressed or with NaN."""
    form = b"PASSKEY=00AA&dateutc=2026-02-17+10%3A30%3A00&tempf=70.5&model=GW"
    document, _, events = drafted(tmp_path / "a.form", form)
    assert (document["message"], document["sensor"], document["readings"]) == (
        "form",
        "{PASSKEY:sha256}",
        {"tempf": "tempf"},
    )
    assert [event[1:] for event in events] == [(1_771_324_200_000_000, {"tempf": 70.5}, {"model": "GW"})]
    lines = [f'{{"id": "a", "ts": {1_771_324_200 + second}, "x": {second}, "y": NaN}}' for second in range(3)]
    document, _, events = drafted(tmp_path / "a.bin", gzip.compress("\n".join(lines).replace("NaN", "1").encode()))
    assert (document["message"], document["compression"], len(events)) == ("json", "auto", 3)
    assert read_sample(written(tmp_path / "a.json", "\n".join(lines).encode())).records[2]["x"] == 2
    with pytest.raises(UnreadableFile, match="its name ends in none of"):
        read_sample(written(tmp_path / "a.bin", b"hello"))
    with pytest.raises(UnreadableFile, match="it is not JSON"):
        read_sample(written(tmp_path / "a.json", b"hello"))


POINTS = """
# of two computers
cpu,host=a,cpu=cpu0 idle=99,state="ok" 1771324200000000000
cpu,host=a,cpu=cpu1 idle=98 1771324200000000000
mem,host=b free=4i 1771324200000000000
"""


def test_points(tmp_path: Path) -> None:
    """The host is the sensor; tags that distinguish points of one time are in names; a file has a point a line."""
    names = ["{measurement}.{tags.cpu}.*", "{measurement}.*"]
    for name in ("a.lp", "a.payload"):
        document, _, events = drafted(tmp_path / name, POINTS.encode())
        assert (document["message"], document["sensor"]) == ("influx", "tags.host")
        assert document["readings"] == {"*": {"path": "fields.*", "name": names}}
        readings: dict[str, dict[str, float]] = {}
        for sensor, _, values, _ in events:
            readings.setdefault(sensor, {}).update(values)
        assert readings == {"a": {"cpu.cpu0.idle": 99, "cpu.cpu1.idle": 98}, "b": {"mem.free": 4}}
    for points, sensor in (("m f=1 1", "{measurement:id}"), ("m,id=a f=1 1\nm f=1 2", ["tags.id", "{measurement:id}"])):
        document, _, _ = drafted(tmp_path / "b.lp", points.encode())
        assert (document["sensor"], document["readings"]) == (sensor, {"*": "fields.*"})


def test_what_can_not_be_sampled(tmp_path: Path) -> None:
    """An empty file, and one of protobuf messages, name the way out."""
    for name, content, problem in (("a.csv", b"id,at\n", "no records"), ("a.pb", b"\x01a", "--message-descriptors")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableFile, match=problem):
            read_sample(tmp_path / name)


CELLS = st.one_of(
    st.none(), st.text(max_size=8), st.sampled_from(["1,5", "1.5", "1.234,5", "17.02.2026", "12:30", "-"])
)


@given(st.lists(st.dictionaries(st.text(max_size=6), st.one_of(CELLS, st.floats(), st.booleans())), min_size=1))
def test_every_draft_compiles(records: list[dict[str, Any]]) -> None:
    """Whatever the columns are called and contain."""
    MappedType("draft", draft_of(Sampled(records, "records", "name"))).compile()


@pytest.mark.parametrize(
    ("name", "cells", "time", "at"),
    [
        ("Zeit", ("16.02.2026 23:45", "16.02.2026 24:00"), {"format": "%d.%m.%Y %H:%M"}, "2026-02-17T00:00:00Z"),
        (
            "von bis", ("16.02.2026 23:00 - 16.02.2026 24:00", "17.02.2026 00:00 - 17.02.2026 01:00"),
            {"interval": " - ", "format": "%d.%m.%Y %H:%M"}, "2026-02-17T00:00:00Z",
        ),
        ("MESS_DATUM", ("2026021623", "2026021700"), {"format": "%Y%m%d%H"}, "2026-02-17T00:00:00Z"),
        ("Date", ("46069.5", "46070.4375"), {"unit": "d", "epoch": "1899-12-30"}, AT),
    ],
)  # fmt: skip
def test_times_at_the_end_of_days_intervals_and_day_numbers(tmp_path, name, cells, time, at):
    """The notation is found. Numbers that might count days are readings if no name says that they are times."""
    rows = "".join(f"a,{cell},{load}\n" for cell, load in zip(cells, (40_000, 50_000), strict=True))
    document, _, events = drafted(tmp_path / "a.csv", f"sensor,{name},load\n{rows}".encode(), "UTC")
    assert document["time"] == {"path": f'"{name}"' if " " in name else name, **time, "time_zone": "UTC"}
    assert events[-1][1:3] == (parse_time(at), {"load": 50_000.0})
