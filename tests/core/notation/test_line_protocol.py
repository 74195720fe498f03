r"""Line protocol, against a writer by the table of escapes in InfluxDB's specification, and its examples."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.line_protocol import parse_line, parse_lines, point_text

SPECIAL = st.text(st.sampled_from("a, =\\\"'#é"), min_size=1, max_size=6)
# By the specification, names and tags can't end with a backslash. One before a special character would be an escape.
NAMES = SPECIAL.filter(lambda text: "\\" not in text) | st.sampled_from(["a\\b", "\\a", "a\\\\b"])
FIELDS = (
    st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | SPECIAL
    | st.just("")
)


def escaped(text, special):
    return "".join(f"\\{character}" if character in special else character for character in text)


def field(data, value):
    """Returns a value as one of the ways to write it."""
    match value:
        case bool():
            return data.draw(
                st.sampled_from(["t", "T", "true", "True", "TRUE"] if value else ["f", "F", "false", "False", "FALSE"])
            )
        case int():
            return f"{value}{'u' if value >= 1 << 63 or (value >= 0 and data.draw(st.booleans())) else 'i'}"
        case float():
            return data.draw(st.sampled_from([repr(value), f"{value:.17e}", f"{value:.17E}"]))
    return f'"{escaped(value, chr(34) + chr(92))}"'


@given(
    NAMES.filter(lambda name: not name.startswith("#")),
    st.dictionaries(NAMES, NAMES, max_size=3),
    st.dictionaries(NAMES, FIELDS, min_size=1, max_size=3),
    st.none() | st.integers(-(1 << 62), 1 << 62),
    st.data(),
)
def test_what_a_writer_writes(measurement, tags, fields, at, data):
    """A point has its names, texts, numbers and time, and their kinds."""
    line = escaped(measurement, ", ")
    line += "".join(f",{escaped(key, ', =')}={escaped(value, ', =')}" for key, value in tags.items())
    line += " " + ",".join(f"{escaped(key, ', =')}={field(data, value)}" for key, value in fields.items())
    line += "" if at is None else f" {at}"
    expected = {"measurement": measurement, "tags": tags, "fields": fields} | ({} if at is None else {"time": at})
    found = parse_line(line)
    assert repr(found) == repr(expected)
    assert repr(parse_line(point_text(expected))) == repr(expected)
    before, after = data.draw(
        st.sampled_from([("", "\n"), ("\ufeff", ""), ("# a\n\n  # b\n", "\r\n\0"), (" ", "  \n")])
    )
    text = before + line + after
    assert repr(list(parse_lines(text.encode()))) == repr([expected])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # InfluxDB's own examples.
        (r'my\ Measurement fieldKey="string value"', ("my Measurement", {}, {"fieldKey": "string value"})),
        (r'm fieldKey="\"string\" within a string"', ("m", {}, {"fieldKey": '"string" within a string'})),
        (r"m,tag\ Key1=tag\ Value1 f=100", ("m", {"tag Key1": "tag Value1"}, {"f": 100.0})),
        (r"airSensor,sensor_id=TLM\=0201 temp=70.0", ("airSensor", {"sensor_id": "TLM=0201"}, {"temp": 70.0})),
        (r'm desc="\\\\==My data\\==\\"', ("m", {}, {"desc": r"\\==My data\==" + "\\"})),
        ('m f="\\"', None),  # one backslash before the quote that ends the text
        ("joe'sm,pat'sTag=tag1 f=-1.234456e+78", ("joe'sm", {"pat'sTag": "tag1"}, {"f": -1.234456e78})),
        # Beyond the specification: what failing sensors print.
        ("m a=-inf,b=2", ("m", {}, {"a": float("-inf"), "b": 2.0})),
    ],
)
def test_examples(line, expected):
    """Escapes have the meaning that the specification gives them."""
    if expected is None:
        with pytest.raises(ValueError, match="is not a field"):
            parse_line(line)
        return
    measurement, tags, fields = expected
    assert parse_line(line) == {"measurement": measurement, "tags": tags, "fields": fields}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (",a=1 f=1", "it begins with no measurement"),
        ("m", "at character 2, '' is not a tag"),
        ("m,a f=1", "at character 2, ',a f=1' is not a tag"),
        ("m,a=,b=1 f=1", "is not a tag"),
        ("m,a=1,a=2 f=1", "'a' appears twice"),
        ("m f=1,f=2", "'f' appears twice"),
        ("m f", "is not a field"),
        ('m f="x', "is not a field"),
        ("m f=1, g=2", "is not a field"),
        ("m f=yes", "the field 'f' is 'yes', neither a number nor a boolean nor text in quotes"),
        ("m f=1_000", "the field 'f' is '1_000'"),
        ("m f=1.5i", "the field 'f' is '1.5i'"),
        ("m f=-1u", "the field 'f' is '-1u'"),
        ("m f=9223372036854775808i", "the field 'f' is"),
        ("m f=1 2026-02-17", "is not a time, which is an integer"),
        ("m f=1 2 3", "is not a time"),
    ],
)
def test_lines_that_are_no_points(line, problem):
    """Their problem has the number of the line, and the other lines are points."""
    first, wrong, last = parse_lines(f"a f=1\n{line}\na f=2".encode())
    assert (first["fields"], last["fields"]) == ({"f": 1.0}, {"f": 2.0})
    assert str(wrong).startswith("line 2: ")
    assert problem in str(wrong)


@pytest.mark.parametrize("part", ["\\", ",", "a", "a=", '"', 'a b="\n', "\\ ", ",a=b", " ", "a b=1,", "\n", "9", "\\,"])
def test_hostile_lines_take_linear_time(part):
    """A million characters take a few seconds at most, whatever they are."""
    began = time.monotonic()
    for text in (part * (1_000_000 // len(part)), "m f=" + part * (1_000_000 // len(part))):
        for _ in parse_lines(text.encode()):
            pass
    assert time.monotonic() - began < 20
