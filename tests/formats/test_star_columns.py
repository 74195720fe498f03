"""Stars of a mapping take the columns of a CSV: those with numbers as readings, the others as metadata."""

from pathlib import Path

import pytest

from pipeline.core.decoding.message_types import MappedType
from pipeline.formats.lines import Refusal, UnreadableFile
from tests.formats.reading import MORNING, MORNING_US, SIMPLE, plainly, read

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
    found = read(tmp_path, "a.csv", text.encode(), MappedType("m.toml", mapping))
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
        read(tmp_path, "a.csv", text, MappedType("m.toml", SIMPLE + STARS))
    (event,) = plainly(read(tmp_path, "a.csv", text, MappedType("m.toml", SIMPLE + "rewrite_names = true\n" + STARS)))
    assert event[2] == {"Temp__C_": 1.0}
    excluded = STARS.replace('= "*"', '= { path = "*", except = "Temp*" }')
    (refused,) = read(tmp_path, "a.csv", text, MappedType("m.toml", SIMPLE + excluded))
    assert "no readings" in refused.reason
