import contextlib
import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.statistics.sketch import MOST_VALUES, RELATIVE_ERROR, Sketch

doubles = st.floats(allow_nan=False, allow_infinity=False)
values = st.lists(doubles | st.integers(-9999, 9999).map(lambda n: n / 100), max_size=60)
LEAST, LARGEST = math.ulp(0.0), sys.float_info.max

GOLDEN = bytes.fromhex("0107a5ec0402059e0207f1b3020203f0b302051203e99702")


def stands_for(value):
    """Returns what a sketch answers for the value."""
    return Sketch.of([value]).quantile(0)


def is_close(found, exact):
    """Whether the sketch's answer is within its error. Subnormal doubles are compared without rounding."""
    return abs(found - exact) * 100 <= abs(exact)


def first_values(octave):
    """Returns the first value of each bucket from this power of two to the next."""
    found, low, end = [], octave, 2 * octave
    while low < end:
        found.append(low)
        within, beyond = low, end
        while (middle := within + (beyond - within) / 2) not in (within, beyond):
            within, beyond = (middle, beyond) if stands_for(middle) == stands_for(low) else (within, middle)
        low = beyond
    return found


@pytest.mark.slow
def test_error_at_every_bound():
    """In each octave of the normal doubles, each bucket's first and last value are at most 1 % off."""
    assert RELATIVE_ERROR == 0.01
    firsts = first_values(1.0)
    assert len(firsts) == 35
    ends = [*firsts, *(math.nextafter(first, 0) * (2 if first == 1 else 1) for first in firsts)]
    worst = 0.0
    for exponent in range(-1022, 1024):
        for end in ends:
            value = math.ldexp(end, exponent)
            found = stands_for(value)
            assert is_close(found, value), value.hex()
            worst = max(worst, abs(found - value) / value)
    assert 0.0098 < worst <= 0.01  # wider buckets wouldn't do, narrower ones would be more


def test_error_of_subnormals():
    """The bound holds down to the least double, though subnormal ones are far apart."""
    for multiple in range(1, 20_000):
        value = multiple * LEAST
        assert is_close(stands_for(value), value)
        assert stands_for(value) == value or multiple > 50
    for first in first_values(2.0**-1023):
        for shift in range(50):
            scaled = math.ldexp(first, -shift)
            for value in (math.nextafter(scaled, 0), scaled, math.nextafter(scaled, 1)):
                assert is_close(stands_for(value), value), value.hex()


@given(doubles)
def test_error_of_any_double(value):
    """A bucket stands for each of its values within the promised error, with its sign."""
    assert is_close(stands_for(value), value)
    assert stands_for(-value) == -stands_for(value)


@given(doubles, doubles)
def test_buckets_grow_with_the_values(one, other):
    """A greater value is in the same bucket or in a greater one."""
    low, high = sorted([one, other])
    assert stands_for(low) <= stands_for(high)


def test_ends_of_the_range():
    """Zeros, the smallest and the largest doubles have buckets."""
    assert [stands_for(value) for value in (0.0, -0.0, LEAST, -LEAST)] == [0.0, 0.0, LEAST, -LEAST]
    assert math.copysign(1, stands_for(-0.0)) == 1
    assert is_close(stands_for(LARGEST), LARGEST)
    assert is_close(stands_for(-LARGEST), -LARGEST)


@given(values.filter(bool), st.floats(0, 1))
def test_quantiles_of_any_values(some, q):
    """A quantile is within the promised error of the exact one."""
    exact = sorted(some)[math.floor(q * (len(some) - 1))]
    assert is_close(Sketch.of(some).quantile(q), exact)


@given(values, st.randoms(), st.integers(1, 6))
def test_order_and_merging(some, shuffled, parts):
    """Any order, and any split into parts that are merged in any order, gives the same bytes."""
    whole = Sketch.of(some)
    mixed = list(some)
    shuffled.shuffle(mixed)
    sketches = [Sketch.of(mixed[part::parts]) for part in range(parts)]
    merged = Sketch()
    for sketch in sketches:
        merged.merge(Sketch.from_bytes(sketch.to_bytes()))
    assert merged == whole
    assert merged.to_bytes() == whole.to_bytes()
    assert merged.count == len(some)


def test_a_merge_leaves_the_other_alone():
    """A merge changes only the sketch that takes the other, even if both are one."""
    one, other = Sketch.of([1.0]), Sketch.of([1.0, 2.0])
    one.merge(other)
    one.merge(one)
    assert (one.count, other) == (6, Sketch.of([2.0, 1.0]))


@given(values, st.data())
def test_damaged_bytes(some, data):
    """Damage is refused with ValueError. What is read nonetheless is the only form of another sketch."""
    damaged = bytearray(Sketch.of(some).to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for candidate in (bytes(damaged), data.draw(st.binary(max_size=40)), b"\x01" + data.draw(st.binary(max_size=40))):
        with contextlib.suppress(ValueError):
            assert Sketch.from_bytes(candidate).to_bytes() == candidate


@given(values, st.binary(min_size=1, max_size=4))
def test_cut_off_and_trailing_bytes(some, more):
    """Bytes that end early or go on after the end are refused."""
    data = Sketch.of(some).to_bytes()
    with pytest.raises(ValueError, match="after its end"):
        Sketch.from_bytes(data + more)
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"cut off|another release"):
            Sketch.from_bytes(data[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "another release"),
        ("0200", "another release"),
        ("018000", "shortest form"),
        ("01ffffffffffffffffffff7f", "too large"),
        ("01010000", "can't be"),  # a count of nothing
        ("0101000300", "can't be"),  # buckets are left out before the first
        ("0101e6970902", "can't be"),  # beyond the last bucket
        ("0102e497090202", "can't be"),
        ("0101e5970902", "can't be"),
        (b"\x01\x01\x00" + b"\x82" + b"\x80" * 6 + b"\x20", "counts more than"),
    ],
)
def test_bytes_that_are_no_sketch(data, message):
    """Bytes that no sketch writes are refused."""
    with pytest.raises(ValueError, match=message):
        Sketch.from_bytes(bytes.fromhex(data) if isinstance(data, str) else data)


def test_ends_of_the_format():
    """The last buckets and the largest count are read."""
    for value in (LARGEST, -LARGEST):
        assert Sketch.from_bytes(Sketch.of([value]).to_bytes()) == Sketch.of([value])
    most = Sketch.from_bytes(b"\x01\x01\x00" + b"\x80" * 7 + b"\x20")
    assert most.count == MOST_VALUES == 1 << 53
    assert most.quantile(1) == 0


def test_golden_bytes():
    """Tables keep these bytes: they stay readable, and are written so on every machine."""
    sketch = Sketch.of([-300, -1, -1, 0, 0, 0, LEAST, 1, 1.5, 1.5, LARGEST])
    assert sketch.to_bytes() == GOLDEN
    assert Sketch.from_bytes(GOLDEN) == sketch
    assert Sketch().to_bytes() == b"\x01\x00"


def test_size_of_an_hour():
    """An hour of a sensor's values takes some dozens of bytes."""
    day = random.Random(17)
    temperatures = [round(21 + math.sin(n / 600) + day.gauss(0, 0.3), 2) for n in range(3600)]
    powers = [round(abs(day.gauss(2000, 600)), 2) for n in range(3600)]
    assert len(Sketch.of(temperatures).to_bytes()) < 30
    assert len(Sketch.of(powers).to_bytes()) < 300


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite(value):
    """NaN and infinity have no place among the quantiles."""
    with pytest.raises(ValueError, match="has no place among the quantiles"):
        Sketch.of([1.0, value])


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_no_such_quantile(q):
    """A quantile beyond 0 and 1 is refused."""
    with pytest.raises(ValueError, match="from 0 to 1"):
        Sketch.of([1.0]).quantile(q)


def test_no_values():
    """A sketch without values is empty and has no quantile."""
    assert Sketch.of([]) == Sketch()
    with pytest.raises(ValueError, match="without values"):
        Sketch().quantile(0.5)
