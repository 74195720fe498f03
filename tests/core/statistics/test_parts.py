"""Courses of readings: how they merge, what they tell, and their bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.statistics.parts import (
    HELD,
    RISES,
    SLOPED,
    At,
    Course,
    course_of,
    held_mean,
    increase,
    joined,
    rate,
    sloped_mean,
)

GREATEST = 1.7976931348623157e308
VALUES = st.floats(-GREATEST, GREATEST)
SERIES = st.lists(st.tuples(st.integers(1, 10**6), VALUES), min_size=1, max_size=12, unique_by=lambda each: each[0])


@given(SERIES, st.randoms(use_true_random=False), st.sampled_from([RISES, HELD, SLOPED]))
def test_courses_of_parts_make_that_of_all(series, chance, method):
    """Courses of parts, merged in any order, are the course of all readings."""
    whole = course_of(method, *zip(*series, strict=True))
    ordered, parts = sorted(series), []
    while ordered:
        size = chance.randint(1, len(ordered))
        parts.append(course_of(method, *zip(*ordered[:size], strict=True)))
        ordered = ordered[size:]
    while len(parts) > 1:
        at = chance.randrange(len(parts) - 1)
        pair = parts[at : at + 2]
        chance.shuffle(pair)
        parts[at : at + 2] = [joined(method, *pair)]
    (found,) = parts
    assert found._replace(amount=0) == whole._replace(amount=0)
    least = max(abs(value) for _, value in series) * 1e-9
    assert found.amount == pytest.approx(whole.amount, rel=1e-9, abs=least)
    assert Course.from_bytes(found.to_bytes()) == found


@example([(2, 5e-324)], 5e-324, True)
@example([(2, 5e-324), (4, 5e-324)], 0.0, False)
@given(SERIES, VALUES, st.booleans())
def test_means_lie_between_the_values(series, before, carried):
    """A mean over time lies between the smallest and the greatest value, to the last digit."""
    values = [value for _, value in series] + [before] * carried
    for method, mean in ((HELD, held_mean), (SLOPED, sloped_mean)):
        course = course_of(method, *zip(*series, strict=True)).carried(At(0, before) if carried else None)
        assert min(values) <= mean(course, 1, 10**6 + 1) <= max(values)


def test_courses_whose_readings_alternate_have_no_sum():
    """Such as that of a row whose raw rows are gone, and that of a reading between those that it counts."""
    one, other = course_of(RISES, (1, 5), (1.0, 2.0)), course_of(RISES, (3,), (7.0,))
    assert joined(RISES, one, other) is joined(RISES, other, one) is None
    assert joined(RISES, one, course_of(RISES, (5,), (7.0,))) is None


def test_a_counter_that_resets():
    """After a reset a counter has risen by what it shows."""
    course = course_of(RISES, (10, 20, 30, 40), (5.0, 8.0, 2.0, 2.5))
    assert increase(course) == 3 + 2 + 0.5
    assert increase(course.carried(At(5, 4.0))) == 1 + 5.5
    assert increase(course.carried(At(5, 9.0))) == 5 + 5.5
    assert rate(course.carried(At(5, 4.0)), 8, 108) == 6.5 / 100 * 1e6
    assert rate(course, 8, 108) == 5.5 / 98 * 1e6
    assert increase(course_of(RISES, (1, 2), (5.0, -3.0))) == 0  # a counter does not fall below zero
    assert increase(course_of(RISES, (1, 2, 3), (-GREATEST, GREATEST, 1.0))) == float("inf")


def test_how_long_a_door_was_open():
    """The held mean of a state is the share of time in it."""
    hours = 3600 * 10**6
    course = course_of(HELD, (8 * hours, 18 * hours), (1.0, 0.0))
    assert held_mean(course.carried(At(-5 * hours, 0.0)), 0, 24 * hours) == pytest.approx(10 / 24)
    assert held_mean(course, 0, 24 * hours) == pytest.approx(10 / 16)  # nobody knows how it was before


def test_the_later_reading_before_counts():
    """Of several readings before the window the latest is carried in."""
    course = course_of(RISES, (10,), (5.0,)).carried(At(5, 4.0))
    assert course.carried(At(3, 1.0)).before == course.carried(None).before == At(5, 4.0)
    assert course.carried(At(7, 1.0)).before == At(7, 1.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + course_of(RISES, (1,), (1.0,)).to_bytes()[1:],
        course_of(RISES, (1,), (1.0,)).to_bytes()[:-1],
        course_of(RISES, (1,), (float("inf"),)).to_bytes(),
        Course(At(1, 1.0), At(1, 1.0), float("nan")).to_bytes(),
        Course(At(2, 1.0), At(1, 1.0), 0.0).to_bytes(),
        Course(At(2, 1.0), At(3, 1.0), 0.0, At(2, 1.0)).to_bytes(),
    ],
)
def test_other_bytes_are_refused(data):
    """Bytes that are no course are refused."""
    with pytest.raises(ValueError, match="course"):
        Course.from_bytes(data)


def test_bytes_stay_the_same():
    """A course's bytes stay as they are, so that jobs can be updated."""
    course = course_of(RISES, (1_000_000, 2_000_000), (1.5, 4.0)).carried(At(999_999, 1.0))
    golden = "0140420f0000000000000000000000f83f80841e000000000000000000000010400000000000000440"
    assert course.to_bytes().hex() == golden + "3f420f0000000000000000000000f03f"
