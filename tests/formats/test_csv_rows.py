"""Files of CSV as programs write them: one table in every notation reads back equal."""

import codecs
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.language.model import BLANKS
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.event import Event
from pipeline.formats.files import records_of
from pipeline.formats.lines import MappedRecord, Record, Refusal
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import UnreadableFile
from tests.formats.reading import MORNING, SIMPLE, events, maker, plainly
from tests.formats.reading import read as read_file

READINGS = "[readings]\nx = 'x'\n"


def mapped(keys: str) -> MappedType:
    return MappedType("m.toml", f"{SIMPLE}csv = {{ {keys} }}\n{READINGS}")


def rows_of(content: bytes, keys: str, name: str = "a.csv") -> list[dict[str, str | None]]:
    """Returns the cells of all rows, as a mapping sees them."""
    with records_of(name, io.BytesIO(content), MappedMaker([mapped(keys)])) as records:
        found = list(records)
    assert not [record for record in found if isinstance(record, Refusal)], found
    return [json.loads(record.message.data) for record in found if isinstance(record, MappedRecord)]


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n,;\t #'\""), max_size=6)
TITLES = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20), max_size=4)


@given(
    st.lists(st.tuples(CELLS, CELLS), max_size=5),
    st.sampled_from([",", ";", "\t", "|", BLANKS]),
    TITLES,
    st.booleans(),
    st.sampled_from(["", "#", "//"]),
    st.integers(1, 3),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_a_table_reads_back_equal(
    table: list[tuple[str, str]],
    delimiter: str,
    titles: list[str],
    by_glob: bool,
    comment: str,
    header_lines: int,
    encoding: str,
    end: str,
) -> None:
    """With titles, comments, lines of units, runs of blanks and a byte-order mark, each row has the cells written."""
    if delimiter == BLANKS:  # which divide cells without quotes, and end lines in quotes
        table = [(one.replace("\t", ""), two.replace("\t", "").replace("\n", "")) for one, two in table]
        table = [(one.replace("\n", ""), two) for one, two in table]
    gaps = "  " if delimiter == BLANKS else delimiter

    def line(*cells: str) -> str:
        return gaps.join('"' + cell.replace('"', '""') + '"' for cell in cells) + end

    noted = f"{comment} it's \"noted{end}{end}" if comment else ""
    text = "".join(f"{title}{end}" for title in titles) + ("" if by_glob else noted)
    text += line("id", "at", "x", "y") + noted + line("", "", "°C", '"') * (header_lines - 1)
    text += "".join(line("a", MORNING, *row) + noted for row in table)
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    keys = [f"delimiter = {json.dumps(delimiter)}", f"header_lines = {header_lines}", 'encoding = "cp1252"']
    keys[2:] = keys[2:] if encoding != "utf-8" else []  # a mark overrules it
    keys += [f"comment = {json.dumps(comment)}"] if comment else []
    keys += ["skip_lines = '\"id\"*'" if by_glob else f"skip_lines = {len(titles)}"]
    expected = [
        {"id": "a", "at": MORNING, "x": x if x.strip() else None, "y": y if y.strip() else None} for x, y in table
    ]
    assert rows_of(mark + text.encode(encoding), ", ".join(keys)) == expected


def test_numbers_of_lines_count_what_is_skipped(tmp_path: Path) -> None:
    """A refusal names the line that an editor shows, below titles, comments and lines of units."""
    text = f"Title\n\n# note\nid,at,x\n,,V\n#\n\na,{MORNING},1\n# x\na,{MORNING}\na,{MORNING},2\n"
    first, refused, second = read_file(
        tmp_path, "a.csv", text.encode(), mapped('skip_lines = 2, header_lines = 2, comment = "#"')
    )
    assert [event[2] for event in plainly([first, second])] == [{"x": 1.0}, {"x": 2.0}]
    assert refused == Refusal(10, "2 fields, but the header has 3")


def test_a_header_may_look_like_a_comment() -> None:
    """A glob finds it among comments; the other comments are skipped, also between its lines."""
    text = f"# by a logger\n#n,id,at,x\n# note\n#,,,V\n1,a,{MORNING},2\n# note\n"
    row = {"#n": "1", "id": "a", "at": MORNING, "x": "2"}
    assert rows_of(text.encode(), 'skip_lines = "#n,*", comment = "#"') == [row]
    assert rows_of(text.encode(), 'skip_lines = "#n,*", comment = "# ", header_lines = 2') == [row]


def test_runs_of_blanks_at_both_ends(tmp_path: Path) -> None:
    """Spaces and tabs around cells mean nothing; quotes hold blanks, and an empty cell."""
    text = f'  id \t at   x\n\n  a  {MORNING}\t 1 \n"b c"\t{MORNING} ""\n d  {MORNING}  2'
    assert rows_of(text.encode(), 'delimiter = "blanks"') == [
        {"id": "a", "at": MORNING, "x": "1"},
        {"id": "b c", "at": MORNING, "x": None},
        {"id": "d", "at": MORNING, "x": "2"},
    ]


@pytest.mark.parametrize("name", ["a.tsv", "A.TSV.csv", "a.txt", "a.dat"])
def test_suffixes(tmp_path: Path, name: str) -> None:
    """Files of other suffixes are CSV; the cells of .tsv are separated by tabs unless the mapping says otherwise."""
    between = "\t" if name == "a.tsv" else ","
    text = between.join(("id", "at", "x")) + "\n" + between.join(("a", MORNING, "1"))
    assert rows_of(text.encode(), "", name) == [{"id": "a", "at": MORNING, "x": "1"}]
    assert rows_of(text.replace(between, ";").encode(), 'delimiter = ";"', name) == rows_of(text.encode(), "", name)


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson"])
def test_a_mark_needs_no_mapping(name: str) -> None:
    """UTF-16 is read by its mark, in JSON too."""
    text = f"sensor_id,event_time,x,room\nA,{MORNING},1,küche\n"
    if name == "a.ndjson":
        text = json.dumps({"sensor_id": "A", "event_time": MORNING, "x": 1, "room": "küche"}, ensure_ascii=False) + "\n"
    with records_of(name, io.BytesIO(text.encode("utf-16")), maker()) as records:
        (event,) = events(list(records))
    assert (event.readings, event.metadata) == ({"x": 1.0}, {"room": "küche"})


def test_a_header_that_is_not_there() -> None:
    """One line names the glob that no line is like; a file that ends in its titles is empty."""
    with pytest.raises(UnreadableFile, match="no line is like 'time,\\*', the header that skip_lines of"):
        rows_of(b"id,at,x\na,b,c\n", 'skip_lines = "time,*"')
    with pytest.raises(UnreadableFile, match="it ends above its header"):
        rows_of(b"id,at,x\na,b,c\n", "skip_lines = 5")


STATION = '"TOA5","Roof 1","CR1000","8","Std.32","CPU:x.CR1","1","Hourly"\r\n'
LOGGED = (
    '"TIMESTAMP","RECORD","AirTC","Text"\r\n"TS","RN","Deg C",""\r\n"","","Avg","Smp"\r\n'
    '"2026-02-17 09:00:00",1,24.5,"a"\r\n"2026-02-17 10:00:00",2,"NAN","b"\r\n'
)
STARS = '[readings]\n"*" = { path = "*", except = "RECORD" }\n[metadata]\ntext = "Text"\n'


def test_the_table_of_a_logger(tmp_path: Path) -> None:
    """TOA5 is known by its first line, whose station and table are columns; NAN is missing to a star."""
    mapping = 'message = "json"\nsensor = "{station:id}/{table}"\ntime = "TIMESTAMP"\n' + STARS
    first, second = read_file(tmp_path, "a.dat", (STATION + LOGGED).encode(), MappedType("m.toml", mapping))
    assert isinstance(first, Event)
    assert (first.sensor_id.startswith("Roof"), first.sensor_id.endswith("1/Hourly")) == (True, True)
    assert (first.readings, first.metadata) == ({"AirTC": 24.5}, {"text": "a"})
    assert isinstance(second, Refusal)
    assert "no readings" in second.reason
    own = mapping.replace("{station:id}/{table}", "station").replace('"Text"', '"table"')
    text = (STATION + LOGGED).replace('"Text"', '"station"')
    first, _ = read_file(tmp_path, "b.dat", text.encode(), MappedType("m.toml", own))
    assert plainly([first])[0][::3] == ("a", {"text": "Hourly"})


ANNOTATED = (
    "#group,false,false,true,false\n#datatype,string,long,string,double\n#default,_result,,none,\n"
    ",result,table,sensor,_value\n,,0,a,1.5\n,,1,,NaN\n,,2,b,12345678901234567\n\n"
)
STATES = "#datatype,string,long,string,string\n,result,table,sensor,_value\n,,3,a,ok\n,,4,a\n\n"
PIVOTED = "#datatype,dateTime:RFC3339,boolean,unsignedLong,string\n,_time,on,n,note\n,2026-02-17T08:00:00Z,true,7,007\n"


def annotated(text: str) -> list[Record]:
    with records_of("a.csv", io.BytesIO(text.encode()), MappedMaker([mapped("")])) as records:
        return list(records)


def test_annotated_tables_have_columns_and_types_of_their_own() -> None:
    """#datatype tells numbers from text, also of ``_value``; an empty cell has its default, or is not set."""
    found = annotated(ANNOTATED + STATES + PIVOTED)
    assert [json.loads(record.message.data) for record in found if isinstance(record, MappedRecord)] == [
        {"result": "_result", "table": 0, "sensor": "a", "_value": 1.5, "_type": "double"},
        {"result": "_result", "table": 1, "sensor": "none", "_value": None, "_type": "double"},
        {"result": "_result", "table": 2, "sensor": "b", "_value": 12345678901234567, "_type": "double"},
        {"result": None, "table": 3, "sensor": "a", "_value": "ok", "_type": "string"},
        {"_time": "2026-02-17T08:00:00Z", "on": True, "n": 7, "note": "007"},
    ]
    assert [record for record in found if isinstance(record, Refusal)] == [
        Refusal(12, "4 fields, but the header has 5")
    ]
    assert [record.line for record in found if isinstance(record, MappedRecord)] == [5, 6, 7, 11, 16]


def test_annotated_tables_that_cannot_be_read() -> None:
    """A header that is none ends the file, with its line; without a mapping, one line says where to get one."""
    with pytest.raises(UnreadableFile, match="the table on line 10: two columns have the same name"):
        annotated(ANNOTATED + "#datatype,long,long\n,a,a\n,1,2\n")
    with pytest.raises(UnreadableFile, match="the header of the table on line 10 is not CSV"):
        annotated(ANNOTATED + '#datatype,long,long\n,"a"b,c\n')
    with (
        pytest.raises(UnreadableFile, match="mapping draft FILE"),
        records_of("a.csv", io.BytesIO(ANNOTATED.encode()), maker()),
    ):
        pass


def test_stars_take_typed_columns(tmp_path: Path) -> None:
    """Stars of readings take the numbers and booleans of an annotated table, stars of metadata its text."""
    mapping = (
        'message = "json"\nsensor = { constant = "s" }\ntime = "_time"\n[readings]\n"*" = "*"\n[metadata]\n"*" = "*"\n'
    )
    (event,) = plainly(read_file(tmp_path, "a.csv", PIVOTED.encode(), MappedType("m.toml", mapping)))
    assert event[2:] == ({"on": 1.0, "n": 7.0}, {"note": "007"})
