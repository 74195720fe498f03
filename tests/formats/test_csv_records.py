import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.event import Event
from pipeline.core.events.reasons import Reason
from pipeline.formats.csv_records import csv_records
from pipeline.formats.lines import Lines, Record, Refusal, Remark
from pipeline.formats.values import UnreadableFile
from tests.formats.reading import MORNING, MORNING_US, SIMPLE, events, maker, plainly, refusals, too_long
from tests.formats.reading import read as read_file

HEADER = "sensor_id,event_time,temperature,room\n"


def read(text: str, limit: int = 10_000_000, **columns: str) -> list[Record]:
    return list(csv_records(Lines(io.StringIO(text, newline=""), limit), maker(limit, **columns)))


def test_numeric_columns_are_readings_and_the_others_metadata() -> None:
    """A record becomes one event: sensor, time, numbers as readings, texts as metadata."""
    assert events(read(f"{HEADER}A-1,{MORNING},20.5,kitchen\nA-2,{MORNING},-3,cellar\n")) == [
        Event("A-1", MORNING_US, {"temperature": 20.5}, {"room": "kitchen"}),
        Event("A-2", MORNING_US, {"temperature": -3.0}, {"room": "cellar"}),
    ]


def test_columns_can_have_other_names_and_another_order() -> None:
    """Sensor and time are found by the configured names, in any position; blanks around a name do not matter."""
    records = read("co2, when ,device\n400,1000000000,A-1\n", sensor="device", time="when", time_unit="s")
    assert events(records) == [Event("A-1", 1_000_000_000_000_000, {"co2": 400.0}, {})]


@pytest.mark.parametrize("marker", ["", " ", "NA", "n/a", "NaN", "nan", "NULL", "null", "None", " none "])
def test_a_missing_value_is_left_out(marker: str) -> None:
    """Each marker means that the event lacks the value. It does not make its column metadata."""
    records = read(f"sensor_id,event_time,a,b,room\nA-1,{MORNING},{marker},1,{marker}\nA-1,{MORNING},2,3,attic\n")
    assert events(records) == [
        Event("A-1", MORNING_US, {"b": 1.0}, {}),
        Event("A-1", MORNING_US, {"a": 2.0, "b": 3.0}, {"room": "attic"}),
    ]


@pytest.mark.parametrize("marker", ["", "NA", "null"])
def test_a_missing_sensor_or_time_is_refused(marker: str) -> None:
    """A marker of a missing value is neither a sensor id nor a time."""
    assert read(f"sensor_id,event_time,a\n{marker},{MORNING},1\nA-1,{marker},1\n") == [
        Refusal(2, "'sensor_id' is missing"),
        Refusal(3, "'event_time' is missing"),
    ]


def test_the_first_thousand_records_decide_what_is_numeric() -> None:
    """A text in the thousandth record makes the column metadata; in the next one it makes the record malformed."""
    numbers = "".join(f"A-1,{MORNING},1,{n}\n" for n in range(999))
    early = events(read(f"sensor_id,event_time,a,b\n{numbers}A-1,{MORNING},1,word\n"))
    assert early[0] == Event("A-1", MORNING_US, {"a": 1.0}, {"b": "0"})
    assert early[-1] == Event("A-1", MORNING_US, {"a": 1.0}, {"b": "word"})

    late = read(f"sensor_id,event_time,a,b\n{numbers}A-1,{MORNING},1,5\nA-1,{MORNING},1,word\nA-1,{MORNING},1,6\n")
    assert refusals(late) == [Refusal(1002, "'b' 'word' is not a finite number")]
    assert events(late)[-1] == Event("A-1", MORNING_US, {"a": 1.0, "b": 6.0}, {})


def test_a_metadata_column_with_numbers_yields_a_remark() -> None:
    """One value that is not a finite number makes its column metadata; the remark has the line of that value."""
    records = read(f"sensor_id,event_time,a,b\nA-1,{MORNING},1,2\nA-1,{MORNING},1,\nA-1,{MORNING},1,-inf\n")
    assert records[0] == Remark(4, "'b' is metadata in every record because '-inf' is not a number")
    assert [event.metadata for event in events(records)] == [{"b": "2"}, {}, {"b": "-inf"}]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), min_size=1, max_size=5))
def test_any_text_survives_a_round_trip(texts: list[str]) -> None:
    """Text written by a CSV writer is read again, character for character."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["sensor_id", "event_time", "n", "text"])
    writer.writerows(["A-1", MORNING, n, f"x{text}"] for n, text in enumerate(texts))
    assert [event.metadata["text"] for event in events(read(file.getvalue()))] == [f"x{text}" for text in texts]


def test_refusals_name_the_line_that_an_editor_shows() -> None:
    """Blank lines and line breaks in quotes count; a refusal has the line on which its record starts."""
    records = read(
        f'{HEADER}\r\nA-1,{MORNING},1,"two\nlines"\r\n   \nA-1,yesterday,2,x\n\nA-1,never,3,"over\r\nthree\r\nlines"\n'
        f"A-1,{MORNING},4,y"
    )
    assert refusals(records) == [
        Refusal(6, "'event_time' 'yesterday' is not an ISO 8601 time (--time-unit)"),
        Refusal(8, "'event_time' 'never' is not an ISO 8601 time (--time-unit); the record ends on line 10"),
    ]
    assert [event.readings["temperature"] for event in events(records)] == [1.0, 4.0]


def test_a_wrong_number_of_fields_is_refused() -> None:
    """The refusal of a record with too few or too many fields has both numbers."""
    records = read(f"{HEADER}A-1,{MORNING},1\nA-1,{MORNING},1,x,\nA-1\nA-1,{MORNING},1,x\n")
    assert refusals(records) == [
        Refusal(2, "3 fields, but the header has 4"),
        Refusal(3, "5 fields, but the header has 4"),
        Refusal(4, "1 fields, but the header has 4"),
    ]
    assert len(events(records)) == 1


@pytest.mark.parametrize("below", ["", f'A-9,{MORNING},9,"quoted"\n'])
def test_an_unclosed_quote_refuses_only_its_own_line(below: str) -> None:
    """The lines below an unclosed quote are read as if it were not there, to the end or to the next quote."""
    records = read(f'{HEADER}A-1,{MORNING},1,"open\nA-2,{MORNING},2,x\nA-3,{MORNING},3,y\n{below}')
    [refusal] = refusals(records)
    assert refusal.line == 2
    assert refusal.reason.startswith("not CSV: ")
    assert [event.sensor_id for event in events(records)] == ["A-2", "A-3", "A-9"][: 2 + bool(below)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        (
            "sensor,event_time,a\n",
            "no column 'sensor_id' (--sensor-column); the columns are 'sensor', 'event_time', 'a'",
        ),
        ("sensor_id,time,a\n", "no column 'event_time' (--time-column); the columns are 'sensor_id', 'time', 'a'"),
        (
            "sensor_id,event_time,a, a\n",
            "two columns have the same name; the columns are 'sensor_id', 'event_time', 'a', 'a'",
        ),
        ("sensor_id,event_time,k\udcfcche\n", "the header is not UTF-8: invalid byte 0xfc"),
        ('sensor_id,event_time,"a\n', "the header is not CSV: unexpected end of data"),
    ],
)
def test_an_invalid_header_is_an_error_at_once(text: str, problem: str) -> None:
    """A header without both columns is one error, raised before any record is read."""
    with pytest.raises(UnreadableFile) as raised:
        csv_records(Lines(io.StringIO(text, newline="")), maker())
    assert str(raised.value) == problem


def test_a_line_that_is_too_long_is_skipped() -> None:
    """The lines around it are read and numbered correctly, also below an unclosed quote."""
    good, long = f"A-1,{MORNING},1,x\n", "y" * 500 + "\n"
    records = read(f'{HEADER}{good}{long}{good}A-1,{MORNING},1,"open\n{good}{long}{good}bad\n', limit=100)
    assert len(events(records)) == 4
    reasons = [(refusal.line, refusal.reason) for refusal in refusals(records)]
    assert reasons[:3] == [(3, too_long(100)), (5, too_long(100)), (7, too_long(100))]
    assert [line for line, _ in reasons[3:]] == [9]


def test_the_limit_applies_to_records_of_many_lines() -> None:
    """Quotes do not matter. If a record is too long to be read again, its lines are refused with it."""
    fields = '"a\na",' * 10
    [refusal] = refusals(read(f"{HEADER}{fields}x\n", limit=50))[:1]
    assert (refusal.line, refusal.reason) == (2, too_long(50))

    endless = 'x","' + "y" * 100 + "\n"
    text = f'{HEADER}A-1,{MORNING},1,"{endless * 30_000}'
    [refusal, *_] = refusals(read(text, limit=2_000_000))
    assert refusal.line == 2
    assert refusal.reason.startswith(f"{too_long(2_000_000)}; the record ends on line 19")


def test_a_header_that_is_too_long_is_an_error() -> None:
    """It raises UnreadableFile, as any invalid header does."""
    with pytest.raises(UnreadableFile) as raised:
        read(HEADER, limit=10)
    assert str(raised.value) == f"the header is {too_long(10)}"


def test_fewer_long_records_decide_what_is_numeric() -> None:
    """A thousand long records might not fit into memory, so a smaller sample decides; later records do not."""
    note = "z" * 900
    records = read(HEADER + f"A-1,{MORNING},1,{note}\n" * 50 + f"A-1,{MORNING},word,{note}\n", limit=1000)
    assert [refusal.line for refusal in refusals(records)] == [52]


def test_an_integer_that_a_double_cannot_hold_refuses_its_record() -> None:
    """It is neither rounded nor taken for text; in a column of metadata, it keeps its digits."""
    big = (1 << 53) + 1
    records = read(f"sensor_id,event_time,n,metadata.serial\nA-1,{MORNING},{big - 1},{big}\nA-1,{MORNING},{big},1\n")
    [event] = events(records)
    assert (event.readings, event.metadata) == ({"n": float(big - 1)}, {"serial": str(big)})
    assert refusals(records) == [
        Refusal(3, f"'n' '{big}' is an integer that a double can't hold exactly", code=Reason.INEXACT_INTEGER)
    ]


def test_a_header_that_is_no_name_refuses_the_file() -> None:
    """One line names the column and the way out, instead of a refusal of each record; an empty column is no problem."""
    assert len(events(read(f"sensor_id,event_time,n,Temp (C)\na,{MORNING},1,\n"))) == 1
    with pytest.raises(UnreadableFile, match=r"column 'Temp \(C\)' can't be the name .* tidetable mapping draft"):
        list(read(f"sensor_id,event_time,n,Temp (C)\na,{MORNING},1,2\n"))


STARS = '[readings]\n"*" = "*"\n[metadata]\n"*" = "*"\n'


def test_numbers_are_readings_and_text_is_metadata(tmp_path: Path) -> None:
    """A column is what its first cells are; the sensor stays text; a missing cell is no value; a wrong one refuses."""
    text = (
        "id;at;temp;site;note\n"
        f"007;{MORNING};-1,5;12;x\n"
        f"007;{MORNING};NA;roof;\n"
        f"007;{MORNING};-;roof;-999\n"
        f"007;{MORNING};1.234;roof;1\n" + f"007;{MORNING};2;roof;y\n" * 1000 + f"007;{MORNING};bad;roof;y\n"
    )
    mapping = SIMPLE + 'decimal = ","\nthousands = "."\nnull = "-"\ncsv = { delimiter = ";" }\n' + STARS
    found = read_file(tmp_path, "a.csv", text.encode(), MappedType("m.toml", mapping))
    first, nothing, nor_there, second, *_, last = found
    assert plainly([first, second]) == [
        ("007", MORNING_US, {"temp": -1.5}, {"site": "12", "note": "x"}),
        ("007", MORNING_US, {"temp": 1234.0}, {"site": "roof", "note": "1"}),
    ]
    assert all("no readings" in each.reason for each in (nothing, nor_there))
    assert isinstance(last, Refusal)
    assert "'temp' 'bad' is not a finite number" in last.reason


def test_names_are_rewritten_or_the_header_is_refused(tmp_path: Path) -> None:
    """A header that is no name is rewritten if the mapping says so; if not, the message says how."""
    text = f"id,at,Temp (C)\na,{MORNING},1\n".encode()
    with pytest.raises(UnreadableFile, match=r"column 'Temp \(C\)' can't be the name .*rewrite_names = true"):
        read_file(tmp_path, "a.csv", text, MappedType("m.toml", SIMPLE + STARS))
    (event,) = plainly(
        read_file(tmp_path, "a.csv", text, MappedType("m.toml", SIMPLE + "rewrite_names = true\n" + STARS))
    )
    assert event[2] == {"Temp__C_-6d5a87": 1.0}
    excluded = STARS.replace('= "*"', '= { path = "*", except = "Temp*" }')
    (refused,) = read_file(tmp_path, "a.csv", text, MappedType("m.toml", SIMPLE + excluded))
    assert "no readings" in refused.reason
