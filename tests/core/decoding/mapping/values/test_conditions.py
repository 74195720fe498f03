"""Conditions, and fields of a kind that the mapping can't use."""

import json
import math

import pytest

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.message import Message
from tests.core.decoding.mapping.values.heads import HEAD, KINDS, NOW, T


@pytest.mark.parametrize(
    ("value", "condition", "holds"),
    [
        (1.0, "is = 1", True), (True, "is = 1", False), (True, "is = true", True), ("1", "is = 1", False),
        (None, 'is = "a"', False), (None, "set = false", True), ([], "set = true", True), ([1], 'is = "[1]"', False),
        ({}, "is_not = 1", True), ([1], 'glob = "*"', False), ("Abc", 'glob = "a*"', False),
        ("abc", 'glob = ["x", "?b?"]', True), (12.0, 'glob = "1?"', True), (True, 'glob = "t*"', True),
        (None, 'glob = "*"', False),
    ],
)  # fmt: skip
def test_conditions(mapped, value, condition, holds):
    """A condition holds for these values of JSON, and skips or keeps the message. The page's table has the others."""
    text = HEAD + f'skip_if = {{ path = "v", {condition} }}\n[readings]\n'
    payload = json.dumps({"s": "s", "v": value})
    assert mapped(text, payload, **NOW).skipped == holds
    assert mapped(text.replace("skip_if", "skip_unless"), payload, **NOW).skipped == (not holds)


@pytest.mark.parametrize(
    ("field", "value", "condition", "holds"),
    [
        ("status", 2, 'is = "STOPPED"', True), ("status", 2, "is = 2", True),
        ("status", 1, 'is_not = ["STOPPED", 0]', True),
        ("status", 2, 'glob = "STOP*"', True), ("status", 9, 'glob = "9"', True), ("flag", True, "is = true", True),
        ("flag", None, "is = false", True), ("raw", b"\xab", 'is = "ab"', True),
        ("at", {"seconds": T}, 'is = "2026-02-17T10:30:00Z"', True), ("took", {"seconds": 2}, 'is = "2"', True),
        ("took", {"seconds": 2}, 'is_not = "2"', False),
        ("i32", 5, "is = [4, 5]", True), ("i32", 5, 'glob = "5"', True),
        ("wrapped", {"value": 1}, "is = 1", True), ("position", {}, "set = true", True),
        ("position", None, "set = true", False),
        ("many", [1], "set = true", True), ("one_text", "x", 'is = "x"', True), ("maybe_text", "", 'is = ""', True),
    ],
)  # fmt: skip
def test_conditions_on_fields(mapped, field, value, condition, holds):
    """A condition holds for these values of fields."""
    text = KINDS + f'skip_if = {{ path = "{field}", {condition} }}\n[readings]\n'
    assert mapped(text, {} if value is None else {field: value}, **NOW).skipped == holds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('skip_if = { path = "status", is = "STOPED" }', "is never 'STOPED'; it has STATUS_UNSPECIFIED"),
        ('skip_if = { path = "text", is = 1 }', "compare it with text"),
        ('skip_if = { path = "i32", is = "1" }', "compare it with a number"),
        ('skip_if = { path = "flag", is = 1 }', "compare it with true or false"),
        ('skip_if = { path = "position", is = 1 }', "set = true or set = false"),
        ('event_id = "position"', "a text is made of a single value"),
        ('event_id = "{raw:x}"', "format x is for integers, not for bytes"),
        ('event_id = "{text:hex}"', "format hex is for bytes, not for string"),
        ('event_id = "{i32:upper}"', "format upper is for string"),
        ('event_id = { name_of = "i32" }', "name_of is for an enum or a oneof"),
        ('event_id = "@a.b"', "attribute a has no part 'b'"),
        ('time = "time"', "needs a unit"),
        ('time = "flag"', "a time is a Timestamp, a number or text, not bool"),
        ('time = "position"', "a time is a Timestamp"),
        ("[readings]\nx = 'raw'", "a reading is a number, not bytes"),
        ("[readings]\nx = { path = 'f64', signed = 16 }", "it is for integers, not for double"),
    ],
)
def test_values_of_a_kind_that_is_not_wanted(mapper, text, problem):
    """A field of another kind than the mapping needs is an error of the mapping."""
    readings = "" if "[readings]" in text else "[readings]\n"
    text, readings = (text, readings) if readings else ("", text)
    head = KINDS.replace('time = "$publish_time"\n', "") if text.startswith("time") else KINDS
    with pytest.raises(MappingError) as error:
        mapper(f"{text}\n{head}{readings}")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ('path = "i32", is = nan', "i32: it is int32, which is never nan"),
        ('path = "i32", is = [1, 1.5]', "never 1.5"),
        ('path = "i32", is = 2147483648', "never 2147483648"),
        ('path = "u32", is_not = -1', "never -1"),
        ('path = "status", is = 1.5', "never 1.5"),
        ('path = "text", is = ""', "never ''; empty text counts as not set, so test it with set = false"),
        ('path = "raw", is = "AB"', "never 'AB'"),
        ('path = "status", glob = "STOPED*"', "never fits 'STOPED*'"),
        ('path = "flag", glob = "yes"', "never fits 'yes'"),
        ('path = "i32", glob = "a*"', "never fits 'a*'"),
        ('path = "i32", set = false', "i32: it is int32 without presence, which is always set"),
    ],
)
def test_a_condition_that_never_holds_is_an_error(mapper, condition, problem):
    """Whatever the message contains."""
    for text in (
        f"skip_if = {{ {condition} }}\n{KINDS}readings = {{}}",
        f"{KINDS}readings = {{ r = {{ path = 'f64', when = {{ {condition} }} }} }}",
    ):
        with pytest.raises(MappingError) as error:
            mapper(text)
        assert problem in str(error.value)


def test_a_condition_on_a_oneof_has_to_hold_for_one_member(mapped):
    """A number of one of two types may be NaN only in one of them."""
    text = 'message = "telemetry.NumberPoint"\nsensor = { constant = "s" }\ntime = "$publish_time"\n' + (
        'skip_if = { path = "value", is = nan }\nreadings = { r = { path = "value", null = inf } }'
    )
    assert not mapped(text, {"as_double": math.nan}, **NOW).events
    assert mapped(text, {"as_int": 1}, **NOW).events[0].readings == {"r": 1}
    assert mapped(text, {"as_double": math.inf}, **NOW).events[0].readings == {}


def test_a_condition_that_never_holds_in_an_older_revision(mapper):
    """It is no error there: the field may have had no presence."""
    text = KINDS + "readings = { r = { path = 'i32', when = { path = 'i32', set = false } } }"
    with pytest.raises(MappingError):
        mapper(text)
    older = mapper(text, strict=False)
    message = older.message_class(i32=5)
    (made,) = older.map(Message(b"", {}, **NOW), message).events
    assert made.readings == {}
