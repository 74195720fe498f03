"""Texts of metadata and ids, and the formats of placeholders."""

import json

import pytest

from pipeline.core.events.reasons import BadData
from tests.core.decoding.mapping.values.heads import HEAD, NOW, T

BIG = (1 << 53) + 1


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("f64", 21.5, "21.5"), ("f64", 3, "3"), ("i32", -3, "-3"), ("flag", True, "true"), ("status", 2, "STOPPED"),
        ("status", 7, "7"), ("status", None, "STATUS_UNSPECIFIED"), ("text", "x", "x"), ("text", None, None),
        ("raw", b"\x01\xff", "01ff"), ("raw", None, None), ("at", {"seconds": T}, "2026-02-17T10:30:00Z"),
        ("took", {"seconds": 1, "nanos": 1}, "1.000000001"), ("wrapped_text", {"value": ""}, ""),
        ("maybe_text", "", ""), ("maybe_text", None, None),
    ],
)  # fmt: skip
def test_texts_of_fields(kind, field, value, text):
    """Each kind of field has a text for metadata."""
    assert kind(field, value, table="metadata") == text


@pytest.mark.parametrize("at", [{"seconds": 1 << 60}, {"seconds": -(1 << 60)}, {"seconds": 1, "nanos": -1}])
def test_the_text_of_a_timestamp_that_no_calendar_has_is_refused(kind, at):
    """A timestamp before year 1 or after 9999 has no text."""
    with pytest.raises(BadData):
        kind("at", at, table="metadata")


def test_an_object_is_no_text(mapped):
    """An object is refused where a single value is needed."""
    with pytest.raises(BadData, match="an object, not a single value"):
        mapped(HEAD + '[readings]\n[metadata]\nm = "v"\n', '{"s": "s", "v": {}}', **NOW)


@pytest.mark.parametrize(
    ("field", "value", "spec", "text"),
    [
        ("u32", 0xBEEF, "08x", "0000beef"), ("u32", 0xBEEF, "X", "BEEF"), ("i32", 5, "b", "101"), ("i32", 8, "o", "10"),
        ("i32", 5, "3d", "  5"), ("f64", 21.456, ".2f", "21.46"),
        ("i32", 2, ".1f", "2.0"), ("raw", b"\xab", "hex", "ab"),
        ("raw", b"\xab", "upper", "AB"), ("text", "aB", "lower", "ab"), ("status", 1, "lower", "incoming"),
        ("status", 1, "d", "1"),
    ],
)  # fmt: skip
def test_formats(kind, field, value, spec, text):
    """A placeholder's format writes numbers and texts of fields."""
    assert kind(field, value, f'path = "<{{{field}:{spec}}}>"', table="metadata") == f"<{text}>"


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [(10, "x", "a"), (10.0, "x", "a"), (1.5, ".1f", "1.5"), ("aB", "upper", "AB"), (1.5, "x", None), ("1", "d", "1"),
     (True, "d", None), ([], "upper", None), (10**350, ".2f", f"{10**350}.00")],
)  # fmt: skip
def test_formats_of_json(mapped, value, spec, text):
    """A placeholder's format writes numbers and texts of JSON, or refuses what it does not fit."""
    mapping = HEAD + f'[readings]\n[metadata]\nm = "{{v:{spec}}}"\n'
    payload = json.dumps({"s": "s", "v": value})
    if text is None:
        with pytest.raises(BadData):
            mapped(mapping, payload, **NOW)
    else:
        assert mapped(mapping, payload, **NOW).events[0].metadata == {"m": text}


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [(BIG, ".0f", str(BIG)), ("48879", "08x", "0000beef"), ("1.255", ".2f", "1.26"), (" 7 ", "d", "7"),
     ("7.5", "d", None), ("1e999999", ".0f", None), ("x", "d", None)],
)  # fmt: skip
def test_formats_of_long_numbers_and_of_numbers_in_text(mapped, value, spec, text):
    """Formats write numbers of any length, also those in text."""
    test_formats_of_json(mapped, value, spec, text)


def test_a_text_with_a_path_that_is_not_set_is_not_set(mapped):
    """A text is left out if one of its values is, and the next source is tried."""
    mapping = HEAD + '[readings]\n[metadata]\nm = ["{v}-{w}", "{v}"]\n'
    assert mapped(mapping, '{"s": "s", "v": 1}', **NOW).events[0].metadata == {"m": "1"}


def test_an_id_of_any_text(mapped, kind):
    """Each character that an id can't have becomes an underscore."""
    text = HEAD.replace('sensor = "s"', 'sensor = "plant/{s:id}"') + "[readings]\n"
    assert mapped(text, json.dumps({"s": "Room 1#é~"}), **NOW).events[0].sensor_id == "plant/Room_1__~"
    assert kind("i32", 5, 'path = "{i32:id}"', table="metadata") == "5"
