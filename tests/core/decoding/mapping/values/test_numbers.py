"""Numbers of readings."""

import json
import math
import struct

import pytest

from pipeline.core.events.reasons import Reason
from tests.core.decoding.mapping.values.heads import HEAD, KINDS, NOW, refused

BIG = (1 << 53) + 1
FLOAT = struct.unpack("f", struct.pack("f", 21.3))[0]


@pytest.mark.parametrize(
    ("value", "number"),
    [(1.5, 1.5), (True, 1), (False, 0), (0, 0), (-0.0, 0), (2**53, 2**53), ("21.5", 21.5), (" 7 ", 7), ("+.5e1", 5)],
)
def test_numbers_of_json(reading, value, number):
    """Numbers, booleans and numbers in text are readings."""
    assert reading(value) == number


@pytest.mark.parametrize(
    "value", ["", "x", "1_0", "٣", "0x10", "nan", "Infinity", "1,5", "1 000", [], {}, [1], "1" * 500]
)
def test_what_is_no_number_is_refused_or_null(reading, value):
    """What is no number is refused, or left out if the mapping says so."""
    assert refused(reading, value) is Reason.NOT_A_NUMBER
    assert reading(value, '{ path = "v", invalid = "null" }') is None
    assert reading(value, '"v"', 'invalid = "null"\n') is None


def test_integers_in_text_are_exact_or_refused(reading):
    """An integer in text that no double can hold is refused, also where invalid values are left out."""
    assert refused(reading, str((1 << 53) + 1)) is Reason.INEXACT_INTEGER
    assert refused(reading, str((1 << 53) + 1), '{ path = "v", invalid = "null" }') is Reason.INEXACT_INTEGER
    assert reading(str(1 << 60)) == 1 << 60


@pytest.mark.parametrize(
    ("options", "text", "number"),
    [
        ('decimal = ","\n', "21,5", 21.5),
        ('decimal = ","\n', "-3", -3),
        ('decimal = ","\n', "21.5", None),
        ('decimal = ","\n', "1,2,3", None),
        ('decimal = ","\nthousands = "."\n', "1.234.567,5", 1_234_567.5),
        ('decimal = ","\nthousands = "."\n', "1.5", None),
        ('decimal = ","\nthousands = "."\n', "1.2345", None),
        ('thousands = ","\n', "1,234", 1234),
        ('thousands = ","\n', "1,5", None),
        ('thousands = ","\n', "12345", 12345),
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
        ("3", "scale = 0.1", 0.3),
        (True, "scale = 10", 10),
        (212, "scale = 1, offset = -32", 180),
        (300, "offset = -273.15", 26.85),
        ((1 << 60) + 1000, "scale = 0.001", 1152921504606847.976),
        (1e308, "scale = 1e308", math.inf),
        (65535, "signed = 16", -1),
        (32767, "signed = 16", 32767),
        (0xFFFFFFFF, "signed = 16", -1),  # extended to the field's bits
        (0xFFFF_FFFF_FFFF_FFFE, "signed = 64", -2),
        (65436, "signed = 16, scale = 0.1", -10),
        ("65535", "signed = 16", -1),
        (65535.0, "signed = 16", -1),
        (1.5, "signed = 16", 1.5),
        (-1, "signed = 16", -1),
    ],
)
def test_scale_offset_and_twos_complement(reading, value, table, number):
    """A raw number is signed, scaled and shifted, in this order."""
    assert reading(value, f'{{ path = "v", {table} }}') == number


def test_a_number_of_more_bits_is_not_cut(reading):
    """A number with more bits than declared is refused."""
    assert refused(reading, 0x12345, '{ path = "v", signed = 16 }') is Reason.NOT_A_NUMBER


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
    assert reading(value, '{ path = "v", scale = 1 }', 'inexact_integers = "round"\n') == float(BIG)


def test_digits_of_a_scaled_integer_become_metadata(mapped):
    """A scaled integer that no double can hold is kept with all its digits."""
    mapping = f'inexact_integers = "metadata"\n{HEAD}[readings]\nr = {{ path = "v", scale = 10 }}\n'
    assert mapped(mapping, json.dumps({"s": "s", "v": BIG}), **NOW).events[0].metadata == {"r": f"{BIG}0"}


def test_an_integer_beyond_a_double_is_infinite_when_scaled(reading):
    """And no exception that nothing catches."""
    assert reading(int("9" * 390), '{ path = "v", scale = 0.5 }') == math.inf


def test_a_zero_in_text_keeps_its_sign(reading):
    """Minus zero in text is minus zero."""
    assert math.copysign(1, reading("-0.0")) == -1


def test_floats_of_32_bits_are_exact_or_as_short_as_they_can_be(mapped):
    """21.3 is not a float; the one next to it is 21.299999237060547."""
    mapping = KINDS + '[readings]\nr = "f32"\nscaled = { path = "f32", scale = 10 }\n[metadata]\nm = "f32"\n'
    exact = mapped(mapping, {"f32": 21.3}, **NOW).events[0]
    short = mapped("shortest_floats = true\n" + mapping, {"f32": 21.3}, **NOW).events[0]
    assert (exact.readings["r"], exact.metadata) == (FLOAT, {"m": "21.3"})
    assert (short.readings, short.metadata) == ({"r": 21.3, "scaled": 213}, {"m": "21.3"})


@pytest.mark.parametrize(
    ("value", "suffix", "number"),
    [("0.056576s", "s", 0.056576), (" 21.5 °C ", "°C", 21.5), ("48", "%", 48), (48, "%", 48), ("1e3ms", "ms", 1000)],
)
def test_a_number_with_a_unit(reading, value, suffix, number):
    """The suffix may be absent."""
    assert reading(value, f'{{ path = "v", suffix = "{suffix}" }}') == number


def test_another_unit(reading):
    """It is not a number."""
    assert refused(reading, "21.5 °F", '{ path = "v", suffix = "°C" }') is Reason.NOT_A_NUMBER
