"""Readings and texts of values, values that count as not set, and conditions."""

import json
import math
import struct
from datetime import UTC, datetime

import pytest

from pipeline.core.decoding.mapping.compiling.mapper import Content
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.invalid_readings import LeftOut
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason

T = 1_771_324_200  # 2026-02-17T10:30:00Z
T_US = T * 1_000_000
HEAD = 'message = "json"\nsensor = "s"\ntime = "$publish_time"\n'
KINDS = 'message = "fleet.Kinds"\nsensor = { constant = "s" }\ntime = "$publish_time"\n'
NOW = {"publish_time": datetime.fromtimestamp(T, UTC)}
BIG = (1 << 53) + 1
FLOAT = struct.unpack("f", struct.pack("f", 21.3))[0]


def refused(call, *args):
    """Returns the reason for which a call refuses its message."""
    with pytest.raises(BadData) as error:
        call(*args)
    return error.value.reason


@pytest.fixture
def reading(mapped):
    """What a source makes of a JSON value; None if it is not set."""

    def of(value, source='"v"', options=""):
        text = options + HEAD + f"[readings]\nr = {source}\n"
        return mapped(text, json.dumps({"s": "s", "v": value}), **NOW).events[0].readings.get("r")

    return of


@pytest.fixture
def kind(mapped):
    """What a source makes of a field of ``fleet.Kinds``, as a reading or as metadata."""

    def of(field, value, source=None, table="readings"):
        text = KINDS + f"[readings]\n[{table}.r]\n{source or f'path = {field!r}'}\n"
        made = mapped(text, {field: value} if value is not None else {}, **NOW).events[0]
        return getattr(made, table).get("r")

    return of


@pytest.mark.parametrize(
    ("value", "number"),
    [(2**53, 2**53), ("21.5", 21.5), (" 7 ", 7), ("+.5e1", 5), ("-0.0", -0.0)],
)
def test_numbers_of_json(reading, value, number):
    """Numbers in text are readings, with the sign of a zero. Random JSON shows the others."""
    assert (reading(value), math.copysign(1, reading(value))) == (number, math.copysign(1, number))


@pytest.mark.parametrize(
    "value", ["", "x", "1_0", "٣", "0x10", "nan", "Infinity", "1,5", "1 000", [], {}, [1], "1" * 500]
)
def test_what_is_no_number_is_refused_or_left_out(reading, value):
    """What is no number is refused, or left out if the mapping says so: then another source may stand for it."""
    assert refused(reading, value) is Reason.NOT_A_NUMBER
    for left_out in (
        reading(value, '{ path = "v", invalid = "drop reading" }'),
        reading(value, '"v"', 'invalid = "drop reading"\n'),
    ):
        assert isinstance(left_out, LeftOut)
        assert left_out.problem.reason is Reason.NOT_A_NUMBER
    assert reading(value, '{ invalid = "drop reading", first = ["v", { path = "s", values = { s = 7 } }] }') == 7


STATES = '{ path = "v", values = { ON = 1, OFF = 0, "half open" = 0.5, true = 7, 3 = 4 } }'


@pytest.mark.parametrize(
    ("value", "number"),
    [("ON", 1), ("OFF", 0), ("half open", 0.5), ("true", 7), (True, 7), (False, 0), ("2.5", 2.5), ("3", 4), (3, 3)],
)
def test_states(reading, value, number):
    """Texts and booleans have the numbers that a table gives them; others are read as without it."""
    assert reading(value, STATES) == number


def test_a_state_that_the_table_lacks(reading):
    """A text that is no number either is refused by name, or left out."""
    assert refused(reading, "on", STATES) is Reason.NOT_A_NUMBER
    assert math.isnan(reading("on", STATES.replace("}", '}, invalid = "drop reading"', 1)))


def test_states_of_protobuf(kind):
    """Values of an enum are looked up by name; one without a number in the table is refused, or left out."""
    states = "path = 'status'\nvalues = { INCOMING = 5, STOPPED = 0 }"
    assert [kind("status", status, states) for status in (1, 2)] == [5, 0]
    assert kind("text", "half", "path = 'text'\nvalues = { half = 0.5 }") == 0.5
    assert kind("flag", True, "path = 'flag'\nvalues = { true = 0, false = 1 }") == 0
    for status in (0, 77):
        assert refused(kind, "status", status, states) is Reason.NOT_A_NUMBER
        assert math.isnan(kind("status", status, f'{states}\ninvalid = "drop reading"'))


def test_a_star_takes_states(mapped):
    """A star takes the texts of its table, and names of enums, beside numbers; it leaves other texts to metadata."""
    text = KINDS + '[readings]\n"*" = { path = "*", values = { on = 1, STOPPED = 2 }, valid = [0, 9] }\n'
    payload = {"text": "on", "maybe_text": "off", "one_text": "7", "status": 2, "i32": 10, "f64": 3.0, "statuses": [1]}
    readings = mapped(text, payload, **NOW).events[0].readings
    assert {metric: value for metric, value in readings.items() if value} == {
        "text": 1,
        "status": 2,
        "f64": 3,
        "i32": pytest.approx(math.nan, nan_ok=True),
    }


@pytest.mark.parametrize(
    ("value", "left_out"), [(0, False), (60, False), (-0.5, True), (60.1, True), ("61", True), ("x", None)]
)
def test_a_range(reading, value, left_out):
    """A reading outside its range is left out, for which the next source stands; scaling comes first."""
    source = '{ path = "v", valid = [0, 60] }'
    if left_out is None:
        assert refused(reading, value, source) is Reason.NOT_A_NUMBER
        return
    assert math.isnan(reading(value, source)) is left_out
    assert (reading(value, f'[{source}, {{ path = "s", values = {{ s = -1 }} }}]') == -1) is left_out
    assert math.isnan(reading(value, '{ path = "v", scale = 10, valid = [0, 600] }')) is left_out


def test_a_required_reading_is_not_left_out(reading):
    """An event without a required reading is refused for what is wrong with it."""
    assert refused(reading, 61, '{ path = "v", valid = [0, 60], required = true }') is Reason.OUT_OF_RANGE
    assert refused(reading, "x", '{ path = "v", invalid = "drop reading", required = true }') is Reason.NOT_A_NUMBER


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("path = 'i32'\nvalues = { on = 1 }", "readings.r.values: it is for texts, booleans and enums, not for int32"),
        ("path = 'flag'\nvalues = { on = 1 }", "readings.r.values: 'on' is none of true, false"),
        (
            "path = 'status'\nvalues = { ON = 1 }",
            "readings.r.values: 'ON' is none of STATUS_UNSPECIFIED, INCOMING, STOPPED",
        ),
        ("path = 'text'\nvalues = { on = '1' }", "readings.r.values.on: it is not a number, like ON = 1"),
        ("path = 'text'\nvalues = {}", "readings.r.values: it is empty; it takes texts and their numbers, like "),
        ("path = 'i32'\nvalid = [1]", "readings.r.valid: it takes the least and the greatest valid number, like "),
        ("path = 'i32'\ninvalid = 'null'", 'readings.r.invalid: it takes "drop reading" or "refuse event", not '),
    ],
)
def test_wrong_states_and_ranges(kind, source, problem):
    """A table that its field can't have, or a range that is none, is one line that says what to write."""
    with pytest.raises(MappingError) as error:
        kind("i32", 1, source)
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    ("options", "text", "number"),
    [
        ('decimal = ","\n', "21,5", 21.5),
        ('decimal = ","\n', "21.5", None),
        ('decimal = ","\n', "1,2,3", None),
        ('decimal = ","\nthousands = "."\n', "1.234.567,5", 1_234_567.5),
        ('decimal = ","\nthousands = "."\n', "1.5", None),
        ('decimal = ","\nthousands = "."\n', "1.2345", None),
        ('thousands = ","\n', "1,234", 1234),
        ('thousands = ","\n', "0,250", None),
        ('thousands = "\'"\n', "-1'234.5", -1234.5),
        ('thousands = " "\n', "1 234", 1234),
    ],
)
def test_how_text_writes_numbers(reading, options, text, number):
    """The mapping says which mark separates decimals and which one groups digits."""
    if number is None:
        assert refused(reading, text, '"v"', options) is Reason.NOT_A_NUMBER
    else:
        assert reading(text, '"v"', options) == number


@pytest.mark.parametrize(
    ("value", "table", "number"),
    [
        (2150, "scale = 0.01", 21.5),
        (3, "scale = 0.1", 0.3),  # in binary, 3 · 0.1 is 0.30000000000000004
        (212, "scale = 1, offset = -32", 180),
        (300, "offset = -273.15", 26.85),
        ((1 << 60) + 1000, "scale = 0.001", 1152921504606847.976),
        (int("9" * 390), "scale = 0.5", math.inf),
        (65535, "signed = 16", -1),
        (0xFFFFFFFF, "signed = 16", -1),  # extended to the field's bits
        (0xFFFF_FFFF_FFFF_FFFE, "signed = 64", -2),
        (65436, "signed = 16, scale = 0.1", -10),
        ("65535", "signed = 16", -1),
        (65535.0, "signed = 16", -1),
        (-1, "signed = 16", -1),
    ],
)
def test_scale_offset_and_twos_complement(reading, value, table, number):
    """A raw number is signed, scaled and shifted, in this order."""
    assert reading(value, f'{{ path = "v", {table} }}') == number


def test_not_finite_numbers_are_left_to_the_rules_of_events(kind):
    """NaN and infinity become readings, which validation refuses."""
    assert math.isnan(kind("f64", math.nan, 'path = "f64"\nscale = 2\noffset = 1'))
    assert kind("f64", math.inf) == math.inf


def test_a_field_of_64_bits_is_exact_or_refused(kind):
    """An integer of 64 bits is exact, refused, or scaled with all its digits."""
    assert refused(kind, "u64", (1 << 64) - 1) is Reason.INEXACT_INTEGER
    assert kind("u64", (1 << 64) - 1, 'path = "u64"\nscale = 1e-3') == 18446744073709551.615


@pytest.mark.parametrize("value", [BIG, str(BIG), f"{BIG}.00"])
def test_a_scaled_integer_that_becomes_none_a_double_holds_is_refused(reading, value):
    """Scaling comes first, of integers in quotes too; what is still an integer then is not rounded."""
    assert reading(value, '{ path = "v", scale = 0.001 }') == BIG / 1000
    for source in ('{ path = "v", scale = 1 }', '{ path = "v", offset = -2e20 }', '"v"'):
        assert refused(reading, value, source) is Reason.INEXACT_INTEGER
    assert refused(reading, value, '{ path = "v", invalid = "drop reading" }') is Reason.INEXACT_INTEGER
    assert reading(value, '{ path = "v", scale = 1 }', 'inexact_integers = "round"\n') == float(BIG)


def test_digits_of_a_scaled_integer_become_metadata(mapped):
    """A scaled integer that no double can hold is kept with all its digits."""
    mapping = f'inexact_integers = "metadata"\n{HEAD}[readings]\nr = {{ path = "v", scale = 10 }}\n'
    assert mapped(mapping, json.dumps({"s": "s", "v": BIG}), **NOW).events[0].metadata == {"r": f"{BIG}0"}


def test_another_problem_of_a_star_is_refused_where_digits_are_kept(mapped):
    """Only integers that a double can't hold become metadata."""
    mapping = f'inexact_integers = "metadata"\n{HEAD}readings."*" = {{ path = "o.*", signed = 8 }}\n'
    with pytest.raises(BadData, match="300', which is no number of 8 bits"):
        mapped(mapping, '{"s": "s", "o": {"v": 300}}', **NOW)


def test_floats_of_32_bits_are_exact_or_as_short_as_they_can_be(mapped):
    """21.3 is not a float; the one next to it is 21.299999237060547."""
    mapping = KINDS + '[readings]\nr = "f32"\nscaled = { path = "f32", scale = 10 }\n[metadata]\nm = "f32"\n'
    exact = mapped(mapping, {"f32": 21.3}, **NOW).events[0]
    short = mapped("shortest_floats = true\n" + mapping, {"f32": 21.3}, **NOW).events[0]
    assert (exact.readings["r"], exact.metadata) == (FLOAT, {"m": "21.3"})
    assert (short.readings, short.metadata) == ({"r": 21.3, "scaled": 213}, {"m": "21.3"})


@pytest.mark.parametrize(
    ("value", "suffix", "number"),
    [
        ("0.056576s", "s", 0.056576), (" 21.5 °C ", "°C", 21.5), ("48", "%", 48), (48, "%", 48), ("1e3ms", "ms", 1000),
        ("21.5 °F", "°C", None),
    ],
)  # fmt: skip
def test_a_number_with_a_unit(reading, value, suffix, number):
    """The suffix may be absent; another one is not a number."""
    source = f'{{ path = "v", suffix = "{suffix}" }}'
    if number is None:
        assert refused(reading, value, source) is Reason.NOT_A_NUMBER
    else:
        assert reading(value, source) == number


@pytest.mark.parametrize(
    ("value", "null", "number"),
    [
        (-999, "-999", None),
        ("-", '["-", ""]', None),
        ("-999", "-999", None),
        (" -999.0", "-999", None),
        ("9007199254740993", "9007199254740993", None),
        (True, "1", 1),
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


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("status", None, "STATUS_UNSPECIFIED"), ("at", {"seconds": T}, "2026-02-17T10:30:00Z"),
        ("took", {"seconds": 1, "nanos": 1}, "1.000000001"), ("wrapped_text", {"value": ""}, ""),
    ],
)  # fmt: skip
def test_texts_of_fields(kind, field, value, text):
    """Enums, times and durations have a text for metadata. Random types show the others."""
    assert kind(field, value, table="metadata") == text


@pytest.mark.parametrize("at", [{"seconds": 1 << 60}, {"seconds": -(1 << 60)}, {"seconds": 1, "nanos": -1}])
def test_the_text_of_a_timestamp_that_no_calendar_has_is_refused(kind, at):
    """A timestamp before year 1 or after 9999 has no text."""
    with pytest.raises(BadData):
        kind("at", at, table="metadata")


def test_formats_of_fields(kind):
    """A placeholder's format writes numbers, enums and bytes: as in the pages, with a width, or of another kind."""
    for field, value, spec, text in (
        ("i32", 5, "3d", "  5"), ("i32", 2, ".1f", "2.0"), ("raw", b"\xab", "upper", "AB"),
        ("status", 1, "lower", "incoming"), ("status", 1, "d", "1"),
    ):  # fmt: skip
        assert kind(field, value, f'path = "<{{{field}:{spec}}}>"', table="metadata") == f"<{text}>"


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [(10, "x", "a"), (10.0, "x", "a"), (1.5, ".1f", "1.5"), ("aB", "upper", "AB"), (1.5, "x", None), ("1", "d", "1"),
     (True, "d", None), ([], "upper", None), (10**350, ".2f", f"{10**350}.00"), (BIG, ".0f", str(BIG)),
     ("48879", "08x", "0000beef"), ("1.255", ".2f", "1.26"), (" 7 ", "d", "7"), ("7.5", "d", None),
     ("1e999999", ".0f", None), ("x", "d", None)],
)  # fmt: skip
def test_formats_of_json(mapped, value, spec, text):
    """A placeholder's format writes numbers of any length, also those in text, and texts of JSON, or refuses them."""
    mapping = HEAD + f'[readings]\n[metadata]\nm = "{{v:{spec}}}"\n'
    payload = json.dumps({"s": "s", "v": value})
    if text is None:
        with pytest.raises(BadData):
            mapped(mapping, payload, **NOW)
    else:
        assert mapped(mapping, payload, **NOW).events[0].metadata == {"m": text}


def test_an_id_of_any_text(mapped, kind):
    """Each character that an id can't have is percent-encoded, so different texts stay different ids."""
    text = HEAD.replace('sensor = "s"', 'sensor = "plant/{s:id}"') + "[readings]\n"
    assert mapped(text, json.dumps({"s": "Room 1#é~%"}), **NOW).events[0].sensor_id == "plant/Room%201%23%C3%A9~%25"
    assert kind("i32", 5, 'path = "{i32:id}"', table="metadata") == "5"


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
    (made,) = older.map(Message(b"", {}, **NOW), Content([message], 0), LATEST_US).events
    assert made.readings == {}
