"""Mappings drafted of samples compile, read every record, and say what is in doubt."""

import codecs
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


def drafted(path: Path, content: bytes, zone: str = "") -> tuple[dict[str, Any], str, list[tuple[Any, ...]]]:
    """Returns the TOML document of a draft, its text, and the events that it makes of the sample."""
    path.write_bytes(content)
    sampled = read_sample(path)
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
        "readings": {"temperatur_c": '"Temperatur (°C)"', "abfluss_l_s": '"Abfluss (l/s)"'},
        "metadata": {"Status": "Status"},
    }
    assert "# doubt: its times have no offset" in text
    at = 1_771_324_200_000_000
    assert events[0] == ("Oker%203", at, {"temperatur_c": -0.5, "abfluss_l_s": 1207.25}, {"Status": "geprüft"})
    assert drafted(tmp_path / "a.csv", GERMAN, "Asia/Tokyo")[0]["time"]["time_zone"] == "Asia/Tokyo"


def test_an_american_spreadsheet(tmp_path: Path) -> None:
    """A byte-order mark, a date and a clock of twelve hours, units in headers and cells, a missing value."""
    document, _, events = drafted(tmp_path / "a.csv", AMERICAN)
    assert (document["sensor"], document["null"]) == ('"Device ID"', ["NA"])
    assert document["time"] == {"path": "{Date} {Time}", "format": "%m/%d/%Y %I:%M:%S %p", "time_zone": "UTC"}
    assert document["readings"]["humidity_percent"] == {"path": '"Humidity %"', "suffix": "%"}
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
