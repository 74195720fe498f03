import pytest

from pipeline.core.rows.rollup_rows import parse_rollup_key, rollup_key
from pipeline.core.schema.rollup import Rollup, decoded_values, encoded_value
from pipeline.core.windows import HOURLY


@pytest.mark.parametrize(
    ("values", "encoded"),
    [
        (["north"], "north"),
        (["Halle 7/Süd#1", "a~b._-"], "Halle%207%2FS%C3%BCd%231/a~b._-"),
        ([""], ""),
        (["n" * 200], "n" * 200),
        (["n" * 201], "n" * 180 + "+291c4194382c6bd5"),
        (["n" * 202], "n" * 180 + "+5b074d71f7a16acc"),
    ],
)
def test_encoded_value(values, encoded):
    """A group's value has no character with a meaning in row keys, and at most 200 bytes."""
    assert encoded_value(values) == encoded
    assert decoded_values(encoded) == ([f"{values[0][:180]}…"] if "+" in encoded else values)
    key = rollup_key(HOURLY, "site", encoded, 0)
    assert parse_rollup_key(HOURLY, key) == ("site", encoded, 0)


def test_the_group_of_a_sensor():
    """A sensor without one of the fields is in no group; all sensors are in the one of a roll-up by nothing."""
    assert Rollup("model", ("site", "model")).value_of({"model": "m/1", "site": "north", "floor": "2"}) == "north/m%2F1"
    assert Rollup("model", ("site", "model")).value_of({"site": "north"}) is None
    assert Rollup("fleet").value_of({}) == "all"


def test_a_value_that_was_shortened():
    """What is left of it can be read: no half of a character, and as many fields as there are."""
    assert decoded_values(encoded_value(["é" * 50, "m1"])) == ["é" * 30 + "…"]
    assert decoded_values(encoded_value(["n", "é" * 50])) == ["n", "é" * 29 + "…"]
