"""Values that count as not set."""

import json

import pytest

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.reasons import Reason
from tests.core.decoding.mapping.values.heads import HEAD, KINDS, NOW, refused


@pytest.mark.parametrize(
    ("value", "null", "number"),
    [
        (-999, "-999", None),
        (-999.0, "-999", None),
        ("-", '["-", ""]', None),
        ("-999", "-999", None),
        (" -999.0", "-999", None),
        ("9007199254740993", "9007199254740993", None),
        ("-998", "-999", -998),
        (True, "1", 1),
        (False, "0", 0),
        (1, "-999", 1),
        ([], "[0]", "refused"),
    ],
)
def test_values_that_count_as_not_set(reading, value, null, number):
    """Values that the mapping lists as null are left out."""
    if number == "refused":
        assert refused(reading, value, f'{{ path = "v", null = {null} }}') is Reason.NOT_A_NUMBER
    else:
        assert reading(value, f'{{ path = "v", null = {null} }}') == number


def test_a_null_value_of_a_float_is_the_float_next_to_it(kind, mapped):
    """Null values and conditions are compared in the precision of the field."""
    assert kind("f32", -99.9, 'path = "f32"\nnull = -99.9') is None
    assert kind("f64", -99.9, 'path = "f64"\nnull = -99.9') is None
    assert kind("f32", 1e30, 'path = "f32"\nnull = 1e300') == pytest.approx(1e30)
    text = KINDS + 'skip_if = { path = "f32", is = 0.1 }\n[readings]\n'
    assert mapped(text, {"f32": 0.1}, **NOW).skipped == 1


def test_null_values_of_parts_of_a_text(mapped):
    """A text is left out if one of its values counts as null."""
    mapping = f'null = "-"\n{HEAD}[readings]\n[metadata]\nm = ["{{v}}/{{w:upper}}", "{{v}}"]\n'
    made = [mapped(mapping, json.dumps({"s": "s", "v": "a", "w": w}), **NOW).events[0] for w in ("b", "-")]
    assert [event.metadata for event in made] == [{"m": "a/B"}, {"m": "a"}]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("field", ["f64", "f32", "wrapped", "object"])
def test_numbers_that_are_not_finite_can_be_left_out(kind, mapped, field, number):
    """Metric by metric: null and conditions know them, also as the text that JSON and files have for them."""
    path, value = (f"{field}.x", {"x": float(number)}) if field == "object" else (field, float(number))
    value = {"value": value} if field == "wrapped" else value
    assert kind(field, value, f"path = '{path}'\nnull = {number}") is None
    assert kind(field, value, f"path = '{path}'\nnull = -999") is not None
    text = KINDS + f"readings = {{ i = {{ path = 'i32', when = {{ path = '{path}', is = {number} }} }} }}"
    assert mapped(text, {field: value}, **NOW).events[0].readings == {"i": 0}
    other = {"value": 1} if field == "wrapped" else {"x": 1} if field == "object" else 1
    assert mapped(text, {field: other}, **NOW).events[0].readings == {}


@pytest.mark.parametrize(
    ("number", "texts"), [("nan", ["NaN", "nan"]), ("inf", ["Infinity", "+Inf"]), ("-inf", ["-Infinity", "-Inf"])]
)
def test_numbers_that_are_not_finite_as_text(reading, mapped, number, texts):
    """JSON has no others; a star leaves texts out in any case."""
    for text in texts:
        assert reading(text, f'{{ path = "v", null = {number} }}') is None
        mapping = HEAD + f'skip_if = {{ path = "v", is = {number} }}\nreadings = {{ r = "w" }}'
        assert not mapped(mapping, json.dumps({"s": "s", "v": text, "w": 1}), **NOW).events
        assert mapped(mapping, json.dumps({"s": "s", "v": 1, "w": 1}), **NOW).events


@pytest.mark.parametrize(
    ("table", "source", "problem"),
    [
        ("readings", '{ path = "i32", null = nan }', "readings.r.null: i32: it is int32, which is never nan"),
        ("readings", '{ path = "f64", null = "n/a" }', "never 'n/a'"),
        ("readings", '{ path = "flag", null = 0 }', "never 0"),
        ("metadata", '{ path = "status", null = "NONE" }', "never 'NONE'"),
        ("metadata", '{ path = "raw", null = "00" }', "never '00'"),
    ],
)
def test_a_null_that_no_value_is(mapper, table, source, problem):
    """A value's own null is checked; that of all values need not fit each."""
    with pytest.raises(MappingError) as error:
        mapper(f"{KINDS}readings.i = 'i32'\n{table}.r = {source}")
    assert problem in str(error.value)
    mapper(f"null = [nan, 'n/a']\n{KINDS}[readings]\ni = 'i32'")


def test_an_enum_has_null_values_by_name(kind):
    """As a condition names them."""
    assert kind("status", 2, "path = 'status'\nnull = 'STOPPED'") is None
    assert kind("status", 2, "path = 'status'\nnull = 'STOPPED'", table="metadata") is None
    assert kind("status", 1, "path = 'status'\nnull = 'STOPPED'") == 1
